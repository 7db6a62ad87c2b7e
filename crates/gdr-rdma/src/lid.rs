//! Local identifiers of InfiniBand.

use std::fmt;
use std::num::NonZeroU16;

/// The first one of a multicast group (InfiniBand specification, 4.1.3).
const MULTICAST: u16 = 0xc000;

/// Where a port is in its InfiniBand subnet, as the subnet manager numbered it: 1 to 0xbfff.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lid(NonZeroU16);

impl Lid {
    /// Of a number; `None` where it names no single port.
    pub fn new(number: u16) -> Option<Self> {
        NonZeroU16::new(number)
            .filter(|number| number.get() < MULTICAST)
            .map(Self)
    }

    /// The number.
    pub const fn get(self) -> u16 {
        self.0.get()
    }
}

impl fmt::Display for Lid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_names_one_port() {
        assert_eq!(Lid::new(0), None);
        assert_eq!(Lid::new(1).map(Lid::get), Some(1));
        assert_eq!(Lid::new(0xbfff).map(Lid::get), Some(0xbfff));
        assert_eq!(Lid::new(0xc000), None);
    }
}
