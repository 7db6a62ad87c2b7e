//! How an object keeps its content, and what peers may do with it.

use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// How many publications of an object exist at a time, and what happens to old ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// A single copy, which the owner changes in place. **A get may return bytes of two publications**, so
    /// use this only for values whose parts are independent. A scalar of 8 bytes is never torn.
    Live,
    /// The newest publication, whole. Publishing never waits for readers.
    Latest,
    /// The last publications, in order.
    Ring {
        /// The number of publications, 2 to 4096.
        slots: u16,
        /// What publishing does if a follower has not yet read the oldest publication.
        when_full: WhenFull,
    },
}

/// What publishing to a ring does if a [`Follower`](crate::Follower) has not read the oldest
/// publication.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WhenFull {
    /// Overwrites it; the follower is given the number that it has missed.
    DropOldest,
    /// Waits for the follower, until the deadline of the call.
    Block,
}

/// The text does not describe a mode.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidMode {
    /// The text is not a mode.
    #[error(
        "{0:?} is not a mode; use live, latest or ring:SLOTS, with 2 to {most} slots",
        most = Mode::MOST_SLOTS
    )]
    Mode(String),
    /// The text is not a [`WhenFull`].
    #[error("{0:?} is not a valid value for when-full; use drop-oldest or block")]
    WhenFull(String),
    /// A [`WhenFull`] was given, but the mode is not a ring.
    #[error("when-full applies only to rings; use the mode ring:SLOTS, or leave when-full out")]
    WhenFullWithoutRing,
}

impl Mode {
    /// The most slots of a ring.
    pub const MOST_SLOTS: u16 = 4096;

    /// Parses `live`, `latest` or `ring:SLOTS` and, for a ring, what happens when it is full: `drop-oldest`
    /// (the default) or `block`.
    ///
    /// # Errors
    /// [`InvalidMode`].
    pub fn parse(mode: &str, when_full: Option<&str>) -> Result<Self, InvalidMode> {
        let full = match when_full {
            None | Some("drop-oldest") => WhenFull::DropOldest,
            Some("block") => WhenFull::Block,
            Some(other) => return Err(InvalidMode::WhenFull(shown(other))),
        };
        let parsed = match mode {
            "latest" => Self::Latest,
            "live" => Self::Live,
            text => {
                let slots = text.strip_prefix("ring:").filter(|it| !it.starts_with('+'));
                let slots = slots.and_then(|slots| slots.parse().ok());
                let slots = slots.filter(|slots| (2..=Self::MOST_SLOTS).contains(slots));
                Self::Ring {
                    slots: slots.ok_or_else(|| InvalidMode::Mode(shown(text)))?,
                    when_full: full,
                }
            }
        };
        match (parsed, when_full) {
            (Self::Ring { .. }, _) | (_, None) => Ok(parsed),
            _ => Err(InvalidMode::WhenFullWithoutRing),
        }
    }

    /// Returns how many copies of the content the object has.
    pub const fn slots(self) -> u16 {
        match self {
            Self::Live => 1,
            // The newest, one that readers hold by a lease, and one to write.
            Self::Latest => 3,
            Self::Ring { slots, .. } => slots,
        }
    }
}

/// As much of a text as an error shows.
fn shown(text: &str) -> String {
    text.chars().take(60).collect()
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Live => f.pad("live"),
            Self::Latest => f.pad("latest"),
            Self::Ring { slots, when_full } => f.pad(&match when_full {
                WhenFull::DropOldest => format!("ring({slots}, drop-oldest)"),
                WhenFull::Block => format!("ring({slots}, block)"),
            }),
        }
    }
}

/// What a peer may do with an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rights {
    /// Nothing: the object is not even listed.
    Nothing,
    /// Get, wait and follow.
    Read,
    /// Get, wait, follow and put.
    ReadWrite,
}

impl fmt::Display for Rights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Nothing => "nothing",
            Self::Read => "read",
            Self::ReadWrite => "read and write",
        })
    }
}

/// The peers, among those that the owner's [`Security`](gdr_rdma::Security) accepts, to which
/// rights are granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Grantee {
    /// Every peer.
    Everyone,
    /// Peers that connect from this address.
    Address(IpAddr),
}

/// Whether each publication carries a checksum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Checksum {
    /// No.
    #[default]
    None,
    /// A 64-bit sum ([`Sum64`](gdr_cuda::Sum64)). The owner computes it from the slot before publishing,
    /// and every get of a whole publication compares it with the sum of the received bytes. For GPU memory
    /// a kernel on that GPU computes the sum, for host memory the CPU does. It detects memory and network
    /// errors, but not forgery. Gets of parts and of live objects are not checked.
    Sum64,
}

impl fmt::Display for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::None => "none",
            Self::Sum64 => "sum64",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_written_as_people_and_messages_write_them() {
        let ring = Mode::Ring {
            slots: 4,
            when_full: WhenFull::DropOldest,
        };
        assert_eq!(ring.to_string(), "ring(4, drop-oldest)");
        assert_eq!(format!("{:>7}", Mode::Live), "   live");
        let json = serde_json::to_string(&ring).unwrap();
        assert_eq!(json, r#"{"ring":{"slots":4,"when_full":"drop-oldest"}}"#);
        assert!(Rights::Nothing < Rights::Read && Rights::Read < Rights::ReadWrite);
    }
    #[test]
    fn modes_are_read_and_what_is_wrong_is_named() {
        let ring = |slots, when_full| Ok(Mode::Ring { slots, when_full });
        let wrong = |text: &str| Err(InvalidMode::Mode(text.to_owned()));
        for (mode, when_full, expected) in [
            ("live", None, Ok(Mode::Live)),
            ("latest", None, Ok(Mode::Latest)),
            ("ring:2", None, ring(2, WhenFull::DropOldest)),
            ("ring:4096", Some("block"), ring(4096, WhenFull::Block)),
            ("ring", None, wrong("ring")),
            ("ring:1", None, wrong("ring:1")),
            ("ring:+2", None, wrong("ring:+2")),
            ("ring:4097", None, wrong("ring:4097")),
            (
                "ring:2",
                Some("wait"),
                Err(InvalidMode::WhenFull("wait".to_owned())),
            ),
            (
                "latest",
                Some("block"),
                Err(InvalidMode::WhenFullWithoutRing),
            ),
        ] {
            assert_eq!(
                Mode::parse(mode, when_full),
                expected,
                "{mode} {when_full:?}"
            );
        }
    }
}
