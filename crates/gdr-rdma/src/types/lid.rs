//! Local identifiers of InfiniBand.

use std::fmt;
use std::num::NonZeroU16;

/// The first multicast LID (InfiniBand specification, 4.1.3).
const MULTICAST: u16 = 0xc000;

/// The address of a port in its InfiniBand subnet, assigned by the subnet manager: 1 to 0xbfff.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lid(NonZeroU16);

impl Lid {
    /// Returns the LID of a number; `None` if it is not the address of a single port.
    pub fn new(number: u16) -> Option<Self> {
        NonZeroU16::new(number)
            .filter(|number| number.get() < MULTICAST)
            .map(Self)
    }

    /// Returns the number.
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
    fn a_unicast_lid_is_between_1_and_0xbfff() {
        assert_eq!(Lid::new(0), None);
        assert_eq!(Lid::new(1).map(Lid::get), Some(1));
        assert_eq!(Lid::new(0xbfff).map(Lid::get), Some(0xbfff));
        assert_eq!(Lid::new(0xc000), None);
    }
}
