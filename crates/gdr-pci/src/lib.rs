//! PCI addresses.
//!
//! [`Bdf`] is the address of a PCI function as Linux, lspci and the CUDA driver write it. It is shared by crates that
//! know GPUs and crates that know a node's topology, and depends on neither. It reads neither configuration space nor
//! sysfs.
//!
//! ```
//! use gdr_pci::Bdf;
//!
//! # fn main() -> Result<(), gdr_pci::ParseBdfError> {
//! let gpu: Bdf = "0000:3b:00.0".parse()?;
//! assert_eq!(gpu, "3B:00.0".parse()?);
//! assert_eq!((gpu.bus, gpu.to_string().as_str()), (0x3b, "0000:3b:00.0"));
//! # Ok(())
//! # }
//! ```

use std::fmt;
use std::str::FromStr;

/// A PCI address: domain, bus, device and function.
///
/// The domain is 32 bits wide, because Linux numbers the domains of VMD and of some virtual machines above 0xffff.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Bdf {
    /// PCI domain (segment).
    pub domain: u32,
    /// Bus number.
    pub bus: u8,
    /// Device ("slot") number, 0 to 31.
    pub device: u8,
    /// Function number, 0 to 7.
    pub function: u8,
}

/// The text is not a PCI address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a PCI address: expected domain:bus:device.function, such as 0000:3b:00.0")]
pub struct ParseBdfError(String);

impl fmt::Display for Bdf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:04x}:{:02x}:{:02x}.{:x}",
            self.domain, self.bus, self.device, self.function
        )
    }
}

impl FromStr for Bdf {
    type Err = ParseBdfError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse(text.trim()).ok_or_else(|| ParseBdfError(text.to_owned()))
    }
}

fn parse(text: &str) -> Option<Bdf> {
    let (domain, rest) = match text.matches(':').count() {
        1 => ("0", text),
        2 => text.split_once(':')?,
        _ => return None,
    };
    let (bus, slot) = rest.split_once(':')?;
    let (device, function) = slot.split_once('.')?;
    let hex = |digits: &str, most: usize| {
        let plain = !digits.is_empty()
            && digits.len() <= most
            && digits.bytes().all(|b| b.is_ascii_hexdigit());
        plain
            .then(|| u32::from_str_radix(digits, 16).ok())
            .flatten()
    };
    let (device, function) = (hex(device, 2)?, hex(function, 1)?);
    if device > 31 || function > 7 {
        return None;
    }
    Some(Bdf {
        domain: hex(domain, 8)?,
        bus: u8::try_from(hex(bus, 2)?).ok()?,
        device: u8::try_from(device).ok()?,
        function: u8::try_from(function).ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_short_and_absent_domains_are_parsed() {
        let long: Bdf = "00000000:3B:00.0".parse().unwrap();
        assert_eq!(long, "0000:3b:00.0".parse().unwrap());
        assert_eq!(long, "3b:00.0".parse().unwrap());
        assert_eq!(long.to_string(), "0000:3b:00.0");
    }

    #[test]
    fn a_wide_domain_survives_the_round_trip() {
        let wide: Bdf = "10001:02:1f.7".parse().unwrap();
        assert_eq!(wide.domain, 0x10001);
        assert_eq!(wide.to_string().parse::<Bdf>().unwrap(), wide);
    }

    #[test]
    fn text_that_is_not_an_address_is_an_error_that_quotes_it() {
        for bad in [
            "",
            "3b",
            "3b:00",
            "0:3b:20.0",
            "3b:00.8",
            "x:3b:00.0",
            "+1:3b:00.0",
            "::.",
        ] {
            let error = bad.parse::<Bdf>().unwrap_err();
            assert!(error.to_string().contains(&format!("`{bad}`")), "{error}");
        }
    }
}

// Compiles and runs the README's example as a doctest.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
