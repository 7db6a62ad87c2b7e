//! How an object keeps its content, and who may do what with it.

use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// How many publications of an object exist at a time, and what happens to old ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// One copy, which the owner changes in place. **A get may return bytes of two publications**:
    /// for values whose parts do not depend on each other. A scalar of 8 bytes is never torn.
    Live,
    /// The newest publication, whole. Publishing never waits for readers.
    Latest,
    /// The last publications, in order.
    Ring {
        /// How many; 2 to 4096.
        slots: u16,
        /// What publishing does if a follower has not yet read the oldest one.
        when_full: WhenFull,
    },
}

/// What publishing to a ring does if a [`Follower`](crate::Follower) has not read the oldest
/// publication.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WhenFull {
    /// It replaces it; the follower gets the number of those it missed.
    DropOldest,
    /// It waits for the follower, until the deadline of the publication.
    Block,
}

impl Mode {
    /// The most slots of a ring.
    pub const MOST_SLOTS: u16 = 4096;

    /// How many copies of the content the object has.
    pub const fn slots(self) -> u16 {
        match self {
            Self::Live => 1,
            // The newest, one that readers hold by a lease, and one to write.
            Self::Latest => 3,
            Self::Ring { slots, .. } => slots,
        }
    }
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
    /// Nothing: the object is not listed for it.
    Nothing,
    /// Get, wait and follow.
    Read,
    /// The same, and put.
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

/// To whom rights are granted, among the peers that the owner's
/// [`Security`](gdr_rdma::Security) accepts.
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
    /// A sum of 64 bits ([`Sum64`](gdr_cuda::Sum64)), which the owner computes from the slot before it
    /// publishes that, and every get of a whole publication from what it received: of GPU memory by a
    /// kernel on that GPU, of host memory by the CPU. It detects errors of memory and network, not
    /// forgery. Gets of parts and of live objects are not checked.
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
}
