//! Messages between a link and an owner, over the authenticated connection. Messages are JSON, and messages from a peer
//! are not trusted.

use gdr_rdma::{RemoteMemory, Rkey, Service};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::epoch::{Epoch, Generation};
use crate::error::BusyReason;
use crate::info::{Handle, ObjectInfo};
use crate::mode::Rights;
use crate::name::ObjectName;

/// Name of the service in the greetings of both ends.
pub const SERVICE: Service = Service::new("gdr-objects");
/// The version of everything in this file and of the header's layout.
pub(crate) const VERSION: u16 = 1;

/// Maximum number of objects in an answer to [`Request::List`], so that they fit into a message of 64 KiB.
pub(crate) const PAGE: usize = 24;

/// Identifies an object during one run of its owner, and is never reused for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) struct ObjectId(pub(crate) u64);

/// The protection domain of an object at its owner. Objects that peers may write have a separate one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Domain {
    /// For objects that no peer may write.
    ReadOnly,
    /// For objects that some peer may write.
    Writable,
}

impl Domain {
    pub(crate) const fn index(self) -> usize {
        match self {
            Self::ReadOnly => 0,
            Self::Writable => 1,
        }
    }
}

/// A region of the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Memory {
    addr: u64,
    len: u64,
    rkey: u32,
}

impl From<RemoteMemory> for Memory {
    fn from(memory: RemoteMemory) -> Self {
        Self {
            addr: memory.addr,
            len: memory.len,
            rkey: memory.rkey.0,
        }
    }
}

impl From<Memory> for RemoteMemory {
    fn from(memory: Memory) -> Self {
        Self {
            addr: memory.addr,
            len: memory.len,
            rkey: Rkey(memory.rkey),
        }
    }
}

/// What a link asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) enum Request {
    /// The first message.
    Hello {
        /// The sender's protocol version.
        version: u16,
    },
    /// Lists the objects after `after`, in the order of names.
    List {
        /// The last name of the previous page.
        after: Option<ObjectName>,
    },
    /// Connects a queue pair in a domain. Both sides introduce their queue pairs to each other after the answer.
    Connect {
        /// The domain at the owner.
        domain: Domain,
        /// The code of the largest path MTU of the sender's route.
        mtu: u8,
    },
    /// Adds a second queue pair to the one of [`Request::Connect`], for large transfers.
    Widen {
        /// The domain at the owner.
        domain: Domain,
        /// As in [`Request::Connect`].
        mtu: u8,
    },
    /// Opens an object: where it is, and what it is.
    Open {
        /// Its name.
        name: ObjectName,
    },
    /// Keeps an epoch from being overwritten for a while.
    Lease {
        /// The object.
        object: ObjectId,
        /// The least epoch.
        least: Epoch,
        /// Maximum duration.
        milliseconds: u64,
    },
    /// Ends a lease.
    Release {
        /// The object.
        object: ObjectId,
        /// The epoch.
        epoch: Epoch,
    },
    /// Follows every epoch from now on.
    Follow {
        /// The object.
        object: ObjectId,
    },
    /// The end of that.
    Unfollow {
        /// The object.
        object: ObjectId,
    },
    /// Requests a slot to write to.
    BeginPut {
        /// The object.
        object: ObjectId,
        /// Maximum duration.
        milliseconds: u64,
    },
    /// The slot is written.
    EndPut {
        /// The object.
        object: ObjectId,
        /// The epoch of the slot.
        epoch: Epoch,
        /// The checksum of its bytes; 0 if the object has none.
        checksum: u64,
    },
    /// Gives up the slot without writing it.
    AbandonPut {
        /// The object.
        object: ObjectId,
    },
    /// Whether the owner answers.
    Ping,
}

/// What an owner answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) enum Response {
    /// To [`Request::Hello`].
    Welcome {
        /// The run of the owner.
        generation: Generation,
    },
    /// To [`Request::List`].
    Objects {
        /// The next objects.
        objects: Vec<ObjectInfo>,
        /// Whether there are more.
        more: bool,
    },
    /// To [`Request::Connect`].
    Connecting {
        /// The code of the path MTU that both use.
        mtu: u8,
    },
    /// To [`Request::Open`].
    Opened(Box<Opened>),
    /// To [`Request::Lease`].
    Leased {
        /// The epoch being held.
        epoch: Epoch,
        /// Its slot.
        slot: u16,
    },
    /// To [`Request::Follow`].
    Following {
        /// The newest epoch, which the follower does not get.
        after: Option<Epoch>,
    },
    /// To [`Request::BeginPut`].
    Writable {
        /// The epoch that the slot will have.
        epoch: Epoch,
        /// The slot, accessible until [`Request::EndPut`] or until the time is over.
        memory: Memory,
    },
    /// The answer to requests without a result.
    Done,
    /// The request was not executed.
    Refused(Refused),
}

/// Where an object is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Opened {
    pub(crate) object: ObjectId,
    pub(crate) info: ObjectInfo,
    pub(crate) domain: Domain,
    /// Number of the object's current layout.
    pub(crate) revision: u64,
    pub(crate) header: Memory,
    pub(crate) data: Memory,
    /// Bytes from the start of one slot to the next.
    pub(crate) stride: u64,
    /// Index of this object's cells, in the owner's memory and in the link's.
    pub(crate) cell: u16,
}

/// Why a request was not executed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) enum Refused {
    /// There is no such object for this peer.
    NoSuchObject,
    /// The object was closed.
    Closed,
    /// The peer lacks the rights.
    Denied {
        /// What it may do.
        permitted: Rights,
    },
    /// Another operation is in progress.
    Busy(Obstacle),
    /// A limit of this connection.
    TooMany {
        /// The limit.
        most: u16,
    },
    /// The object's mode does not have this operation.
    WrongMode,
    /// A follower of the ring has not read the oldest epoch.
    RingFull,
    /// The time of a put was over before it ended.
    Late,
    /// The bytes of a put do not match the link's checksum.
    Damaged,
    /// The request is invalid now, or the owner's device failed.
    Failed {
        /// Why.
        why: String,
    },
}

/// A [`BusyReason`] in a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs, reason = "`BusyReason` has the same names")]
pub(crate) enum Obstacle {
    OwnerWrites,
    PeerWrites,
    CopiesQueued,
    Leased,
    Followed,
}

impl From<Obstacle> for BusyReason {
    fn from(obstacle: Obstacle) -> Self {
        match obstacle {
            Obstacle::OwnerWrites => Self::OwnerWrites,
            Obstacle::PeerWrites => Self::PeerWrites,
            Obstacle::CopiesQueued => Self::CopiesQueued,
            Obstacle::Leased => Self::Leased,
            Obstacle::Followed => Self::Followed,
        }
    }
}

/// Writes a message.
pub(crate) fn encode<M: Serialize>(message: &M) -> Result<Vec<u8>, serde_json::Error> {
    serde_json::to_vec(message)
}

/// Reads a message of an untrusted sender, of at most 64 KiB. `serde_json` limits the nesting depth.
pub(crate) fn decode<M: DeserializeOwned>(bytes: &[u8]) -> Result<M, serde_json::Error> {
    serde_json::from_slice(bytes)
}

/// For the fuzz target: parses bytes as every message and handle, and checks that what was parsed is written back
/// identically.
///
/// # Panics
/// If it is not.
pub fn check_untrusted(bytes: &[u8]) {
    fn check<M: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(bytes: &[u8]) {
        if let Ok(message) = decode::<M>(bytes) {
            let written = encode(&message).expect("what was read can be written");
            let again: M = decode(&written).expect("what was written can be read");
            assert_eq!(again, message);
        }
    }
    check::<Request>(bytes);
    check::<Response>(bytes);
    if let Ok(handle) = Handle::from_bytes(bytes) {
        let again = Handle::from_bytes(&handle.to_bytes());
        assert_eq!(again.expect("what was written can be read"), handle);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn messages_are_compact_and_strict() {
        let open = Request::Open {
            name: ObjectName::new("w").unwrap(),
        };
        let bytes = encode(&open).unwrap();
        assert_eq!(bytes, br#"{"open":{"name":"w"}}"#);
        assert_eq!(decode::<Request>(&bytes).unwrap(), open);
        for bad in [
            &br#"{"open":{"name":"w","also":1}}"#[..],
            br#"{"open":{"name":""}}"#,
            br#"{"lease":{"object":1,"least":0,"milliseconds":1}}"#,
            br#"{"open":{"name":"w"}} {}"#,
            br#""destroy""#,
            b"",
        ] {
            assert!(decode::<Request>(bad).is_err());
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_message_or_an_error(bytes in any::<Vec<u8>>()) {
            let _ = decode::<Request>(&bytes);
            let _ = decode::<Response>(&bytes);
        }
    }
}
