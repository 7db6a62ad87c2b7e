//! Resizable BARs, which determine how much of a GPU's memory peers can access.

use super::capability::ExtendedId;
use super::config::ConfigSpace;
use crate::source::Datum;

/// The smallest size that a resizable BAR can have, in bytes.
const UNIT: u64 = 1 << 20;

/// A resizable BAR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResizableBar {
    /// The number of the BAR, 0 to 5.
    pub bar: u8,
    /// Its current size, in bytes.
    pub size: u64,
    /// The supported sizes: bit n for 2^n MiB.
    pub sizes: u64,
}

impl ResizableBar {
    /// Returns the largest supported size, in bytes.
    pub fn largest(&self) -> Option<u64> {
        let exponent = self.sizes.checked_ilog2()?;
        UNIT.checked_shl(exponent).filter(|size| *size >= UNIT)
    }
}

impl ConfigSpace {
    /// Returns the resizable BARs. The control register of the first entry contains the number of entries (PCI Express
    /// Base Specification 6.0, 7.8.6).
    pub fn resizable_bars(&self) -> Datum<Vec<ResizableBar>> {
        let at = self.find_extended(ExtendedId::RESIZABLE_BAR)?;
        let count = (self.word(at.plus(8))? >> 5 & 0x7).min(6) as u16;
        let bar = |n: u16| {
            let capable = self.word(at.plus(4 + 8 * n))?;
            let control = self.word(at.plus(8 + 8 * n))?;
            Ok(ResizableBar {
                bar: (control & 0x7) as u8,
                size: UNIT.checked_shl(control >> 8 & 0x3f).unwrap_or(0),
                // Bits 31:4 of the capability, then bits 31:16 of the control.
                sizes: u64::from(capable >> 4) | u64::from(control >> 16) << 28,
            })
        };
        (0..count).map(bar).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pci::Unread;

    #[test]
    fn size_and_largest_size_of_a_resizable_bar_are_read() {
        let mut bytes = vec![0; 4096];
        bytes[0x06] = 0x10;
        bytes[0x34] = 0x40;
        bytes[0x40] = 0x10;
        let mut put = |at: usize, value: u32| {
            bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        };
        put(0x100, 0x0001_0015);
        // 64 MiB to 64 GiB; one entry, BAR 1, now 256 MiB.
        put(0x104, 0x07ff << 10);
        put(0x108, 8 << 8 | 1 << 5 | 1);
        let config = ConfigSpace::new(bytes, Unread::NotCollected).unwrap();
        let bars = config.resizable_bars().unwrap();
        assert_eq!(bars.len(), 1);
        assert_eq!((bars[0].bar, bars[0].size), (1, 256 << 20));
        assert_eq!(bars[0].largest(), Some(64 << 30));
    }
}
