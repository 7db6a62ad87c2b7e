//! PCI Express links: speed, width and bandwidth.

use std::fmt;
use std::str::FromStr;

/// The signalling rate of a link, in tenths of a gigatransfer per second and lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LinkSpeed(u16);

impl LinkSpeed {
    /// 2.5 GT/s, generation 1.
    pub const GEN1: Self = Self(25);
    /// 5 GT/s, generation 2.
    pub const GEN2: Self = Self(50);
    /// 8 GT/s, generation 3.
    pub const GEN3: Self = Self(80);
    /// 16 GT/s, generation 4.
    pub const GEN4: Self = Self(160);
    /// 32 GT/s, generation 5.
    pub const GEN5: Self = Self(320);
    /// 64 GT/s, generation 6.
    pub const GEN6: Self = Self(640);
    /// 128 GT/s, generation 7.
    pub const GEN7: Self = Self(1280);

    const ALL: [Self; 7] = [
        Self::GEN1,
        Self::GEN2,
        Self::GEN3,
        Self::GEN4,
        Self::GEN5,
        Self::GEN6,
        Self::GEN7,
    ];

    /// Decodes the speed field of link registers: 1 for generation 1, and so on.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code).checked_sub(1)?).copied()
    }

    /// Returns the PCI Express generation that introduced this speed.
    pub fn generation(self) -> u8 {
        Self::ALL.iter().filter(|speed| **speed <= self).count() as u8
    }

    /// Formats the speed like sysfs: `64.0 GT/s PCIe`. NCCL compares this text literally.
    pub fn in_sysfs(self) -> String {
        format!("{}.{} GT/s PCIe", self.0 / 10, self.0 % 10)
    }

    /// Returns the bytes per second of one lane after line coding: 8b/10b up to generation 2, 128b/130b up to
    /// generation 5, flits of 242 data bytes in 256 from generation 6.
    fn lane_bytes(self) -> u64 {
        let bits = u64::from(self.0) * 100_000_000;
        if self <= Self::GEN2 {
            bits / 10
        } else if self <= Self::GEN5 {
            bits * 128 / 130 / 8
        } else {
            bits / 256 * 242 / 8
        }
    }
}

impl fmt::Display for LinkSpeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 % 10 {
            0 => write!(f, "{} GT/s", self.0 / 10),
            tenths => write!(f, "{}.{tenths} GT/s", self.0 / 10),
        }
    }
}

/// The text is not a link speed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a PCI Express link speed: expected one such as `16.0 GT/s PCIe`")]
pub struct ParseLinkSpeedError(String);

impl FromStr for LinkSpeed {
    type Err = ParseLinkSpeedError;

    /// Parses the notations of lspci (`16GT/s`), Linux (`16.0 GT/s PCIe`) and NCCL (`16 GT/s`).
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let known = || {
            let number = text.trim().split("GT/s").next()?.trim();
            let (whole, tenth) = number.split_once('.').unwrap_or((number, "0"));
            if !text.contains("GT/s") || tenth.len() > 1 {
                return None;
            }
            let speed: u16 = whole.parse::<u16>().ok()?.checked_mul(10)?;
            let speed = Self(speed.checked_add(tenth.parse().ok()?)?);
            Self::ALL.contains(&speed).then_some(speed)
        };
        known().ok_or_else(|| ParseLinkSpeedError(text.to_owned()))
    }
}

/// The number of lanes of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LinkWidth(pub u8);

impl fmt::Display for LinkWidth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "x{}", self.0)
    }
}

/// Bytes per second in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Bandwidth(pub u64);

impl fmt::Display for Bandwidth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Tenths of 10^9 bytes, rounded.
        let tenths = self.0.saturating_add(50_000_000) / 100_000_000;
        write!(f, "{}.{} GB/s", tenths / 10, tenths % 10)
    }
}

/// The speed and width of a link, current or highest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Link {
    /// The signalling rate.
    pub speed: LinkSpeed,
    /// The number of lanes.
    pub width: LinkWidth,
}

impl Link {
    /// Returns the bandwidth in one direction after line coding, packet headers included.
    pub fn bandwidth(self) -> Bandwidth {
        Bandwidth(self.speed.lane_bytes() * u64::from(self.width.0))
    }

    /// Returns the link that two ends negotiate: the lower speed and the smaller width.
    #[must_use]
    pub fn meet(self, other: Self) -> Self {
        Self {
            speed: self.speed.min(other.speed),
            width: self.width.min(other.width),
        }
    }

    /// Decodes a register with the speed in bits 3:0 and the width in bits 9:4. Returns `None` for a link that is down
    /// or has an unknown speed.
    pub(crate) fn from_register(register: u16) -> Option<Self> {
        let speed = LinkSpeed::from_code((register & 0xf) as u8)?;
        let width = (register >> 4 & 0x3f) as u8;
        (width != 0).then_some(Self {
            speed,
            width: LinkWidth(width),
        })
    }
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.speed, self.width)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_notation_of_every_tool_is_parsed() {
        for text in ["16GT/s", "16.0 GT/s PCIe", "16 GT/s"] {
            assert_eq!(text.parse(), Ok(LinkSpeed::GEN4), "{text}");
        }
        assert_eq!("2.5GT/s".parse(), Ok(LinkSpeed::GEN1));
        for text in ["", "Unknown", "17 GT/s", "16", "99999999 GT/s", "2.55 GT/s"] {
            assert!(text.parse::<LinkSpeed>().is_err(), "{text}");
        }
    }

    #[test]
    fn bandwidth_excludes_line_coding() {
        let link = |speed, width| {
            Link {
                speed,
                width: LinkWidth(width),
            }
            .bandwidth()
            .to_string()
        };
        assert_eq!(link(LinkSpeed::GEN1, 1), "0.3 GB/s");
        assert_eq!(link(LinkSpeed::GEN3, 16), "15.8 GB/s");
        assert_eq!(link(LinkSpeed::GEN5, 16), "63.0 GB/s");
        assert_eq!(link(LinkSpeed::GEN6, 16), "121.0 GB/s");
    }

    #[test]
    fn registers_hold_a_speed_and_a_width() {
        let link = Link::from_register(0x7105).unwrap();
        assert_eq!(link.to_string(), "32 GT/s x16");
        assert_eq!(link.speed.generation(), 5);
        assert_eq!(Link::from_register(0x0000), None);
        assert_eq!(Link::from_register(0x000f), None);
    }

    #[test]
    fn two_ends_agree_on_the_lesser() {
        let wide = Link {
            speed: LinkSpeed::GEN4,
            width: LinkWidth(16),
        };
        let fast = Link {
            speed: LinkSpeed::GEN5,
            width: LinkWidth(8),
        };
        assert_eq!(wide.meet(fast).to_string(), "16 GT/s x8");
    }
}
