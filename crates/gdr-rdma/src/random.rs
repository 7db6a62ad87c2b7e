//! Numbers that a stranger cannot guess.

use crate::error::{Error, Result};

/// Fills an array from the operating system.
pub(crate) fn bytes<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)
        .map_err(|error| Error::os("getrandom", std::io::Error::other(error)))?;
    Ok(bytes)
}

/// 32 random bits.
pub(crate) fn number() -> Result<u32> {
    bytes().map(u32::from_ne_bytes)
}
