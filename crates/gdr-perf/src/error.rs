//! Why a measurement could not be taken.

use std::time::Duration;

/// This crate's results.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a measurement could not be taken.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The GPU driver refused.
    #[error(transparent)]
    Gpu(#[from] gdr_cuda::Error),
    /// The memory could not be pinned, mapped or copied.
    #[error(transparent)]
    Copy(#[from] gdr_copy::Error),
    /// No backend maps GPU memory here.
    #[error("{0}; staged transfers do without")]
    NoMappings(String),
    /// An RDMA device refused, or its peer.
    #[error(transparent)]
    Rdma(#[from] gdr_rdma::Error),
    /// The program at the other end of a run in two processes.
    #[error("the peer {0}")]
    Peer(String),
    /// A request of a measurement failed.
    #[error("{what} {why}; {remedy}")]
    Transfer {
        /// Which.
        what: String,
        /// How it ended.
        why: String,
        /// What to do.
        remedy: String,
    },
    /// The settings contradict each other.
    #[error("{0}")]
    Settings(String),
    /// The bytes that came back are not those that were sent.
    #[error(
        "{what}: byte {offset} is {found:#04x} instead of {expected:#04x}; the figures of this run \
         are void, run `gdr sanity`"
    )]
    WrongData {
        /// What was compared.
        what: String,
        /// The first byte that differs.
        offset: u64,
        /// What it should have been.
        expected: u8,
        /// What it was.
        found: u8,
    },
    /// The kernel did not answer.
    #[error("the kernel did not answer round {round} of {rounds} within {limit:?}; it was stopped")]
    NoAnswer {
        /// The round, from 1.
        round: u32,
        /// Rounds in all.
        rounds: u32,
        /// How long was waited.
        limit: Duration,
    },
    /// The kernel saw a flag before the data that were written ahead of it.
    #[error(
        "{mismatches} payload words were not the round's own when the flag had been seen; data \
         and flag are out of order on this machine"
    )]
    OutOfOrder {
        /// Words that were stale or wrong, over all rounds.
        mismatches: u64,
    },
    /// The observer asked to stop.
    #[error("stopped")]
    Stopped,
}

/// The first byte in which `found` differs from `expected`, as an error about `what`.
pub(crate) fn compare(what: &str, expected: &[u8], found: &[u8]) -> Result<()> {
    if expected == found {
        return Ok(());
    }
    let differs = expected
        .iter()
        .zip(found)
        .enumerate()
        .find(|(_, (a, b))| a != b);
    Err(match differs {
        Some((offset, (&expected, &found))) => Error::WrongData {
            what: what.to_owned(),
            offset: offset as u64,
            expected,
            found,
        },
        None => Error::Settings(format!(
            "{what}: {} bytes were compared with {}",
            expected.len(),
            found.len()
        )),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_wrong_byte_is_named() {
        compare("equal", b"abc", b"abc").unwrap();
        let error = compare("the copy", b"abcd", b"abxd")
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with("the copy: byte 2 is 0x78 instead of 0x63"),
            "{error}"
        );
        compare("lengths", b"ab", b"abc").unwrap_err();
    }
}
