//! Versions of an object's content, and of its owner.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The number of a publication of an object. The first is 1; later ones are greater, even after the
/// object's size has changed. Epochs of different objects or owners are unrelated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct Epoch(u64);

/// A number that no epoch has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} is not an epoch: epochs range from 1 to {greatest}", greatest = Epoch::GREATEST.0)]
pub struct InvalidEpoch(u64);

impl Epoch {
    /// The first epoch.
    pub const FIRST: Self = Self(1);
    /// The last epoch, which is reached after nine years at a rate of one per microsecond.
    pub const GREATEST: Self = Self((1 << 48) - 1);

    /// Returns the epoch with this number; `None` for 0 and above [`Epoch::GREATEST`].
    pub const fn new(number: u64) -> Option<Self> {
        match number {
            0 => None,
            number if number > Self::GREATEST.0 => None,
            number => Some(Self(number)),
        }
    }

    /// Returns its number.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Returns the epoch after this one; `None` after [`Epoch::GREATEST`].
    pub const fn next(self) -> Option<Self> {
        Self::new(self.0 + 1)
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl TryFrom<u64> for Epoch {
    type Error = InvalidEpoch;

    fn try_from(number: u64) -> Result<Self, InvalidEpoch> {
        Self::new(number).ok_or(InvalidEpoch(number))
    }
}

impl From<Epoch> for u64 {
    fn from(epoch: Epoch) -> Self {
        epoch.0
    }
}

/// Identifies one run of an owner: a random number that each [`ObjectServer`](crate::ObjectServer) chooses when it
/// starts. Objects that were opened in one run are not valid in the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Generation(pub(crate) u64);

impl Generation {
    /// Draws a random generation.
    pub(crate) fn random() -> Result<Self, getrandom::Error> {
        getrandom::u64().map(|number| Self(number | 1))
    }

    /// Returns its number, which is not 0.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epochs_begin_at_one_and_end_at_48_bits() {
        assert_eq!(Epoch::new(0), None);
        assert_eq!(Epoch::new(1), Some(Epoch::FIRST));
        assert_eq!(Epoch::GREATEST.get(), 281_474_976_710_655);
        assert_eq!(Epoch::GREATEST.next(), None);
        assert_eq!(Epoch::FIRST.next().map(Epoch::get), Some(2));
        assert!(serde_json::from_str::<Epoch>("0").is_err());
    }

    #[test]
    fn two_owners_differ() {
        assert_ne!(Generation::random().unwrap(), Generation::random().unwrap());
    }
}
