//! Errors.

use std::fmt;
use std::net::SocketAddr;

use gdr_rdma::WcStatus;

use crate::epoch::Epoch;
use crate::mode::{Mode, Rights};
use crate::name::{InvalidName, ObjectName};
use crate::tensor_index::InvalidTensors;

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What failed, why, and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages explain the fields")]
pub enum Error {
    /// The text is not a valid name.
    #[error(transparent)]
    Name(#[from] InvalidName),
    /// The shape is not valid.
    #[error("an object cannot have the shape {shape:?}: {why}; every dimension must be at least 1")]
    Shape { shape: Vec<u64>, why: &'static str },
    /// The ring has too few or too many slots.
    #[error("a ring cannot have {0} slots; use 2 to {most}", most = Mode::MOST_SLOTS)]
    Slots(u16),
    /// The owner already has an object with this name.
    #[error("the object {0} already exists; close it first, or use another name")]
    NameInUse(ObjectName),
    /// The owner has reached its limit of objects, or the connection its limit of open objects.
    #[error("there are already {most} {what}; close one first")]
    TooMany { what: &'static str, most: usize },
    /// The owner has no object with this name, or none that this peer may know about.
    #[error("the owner at {owner} has no object {name} that this peer may read; check the name")]
    NoSuchObject { name: ObjectName, owner: SocketAddr },
    /// The memory and the object differ in size.
    #[error(
        "{name} has {object} bytes, but the memory has {memory}; pass memory of the object's size"
    )]
    Size {
        name: ObjectName,
        object: u64,
        memory: u64,
    },
    /// A copy on a stream was requested for an object in host memory.
    #[error("{name} is in host memory; publish its bytes, or create it on a GPU")]
    NotOnGpu { name: ObjectName },
    /// The objects in one call belong to different links.
    #[error("{name} was opened over another link; open it over this one")]
    OtherLink { name: ObjectName },
    /// The range lies outside the object or memory.
    #[error("{len} bytes at offset {offset} exceed the size of {size} bytes")]
    OutOfRange { offset: u64, len: u64, size: u64 },
    /// Nothing has been published yet.
    #[error("nothing has been published to {name} yet; wait for the first epoch")]
    Empty { name: ObjectName },
    /// Nothing newer was published before the deadline.
    #[error(
        "nothing newer than {} was published to {name} before the deadline, although its owner is alive",
        Seen(*seen)
    )]
    NothingNewer {
        name: ObjectName,
        seen: Option<Epoch>,
    },
    /// A transfer did not complete before the deadline. As far as this host knows, the owner's process is
    /// alive.
    #[error(
        "the transfer of {name} stalled: {done} of {of} bytes arrived before the deadline; check the \
         network and the load on the owner's host, or allow more time"
    )]
    Stalled {
        name: ObjectName,
        done: u64,
        of: u64,
    },
    /// The owner did not answer a request before the deadline.
    #[error(
        "the owner at {owner} did not answer before the deadline ({what}); check whether its process is \
         running, or allow more time"
    )]
    NoAnswer {
        owner: SocketAddr,
        what: &'static str,
    },
    /// The object or its owner no longer exists.
    #[error("{what} is gone: {why}")]
    Gone { what: String, why: GoneReason },
    /// The owner does not permit the operation.
    #[error("the owner permits this peer only to {permitted} {name}, not to {asked} it")]
    Denied {
        name: ObjectName,
        permitted: Rights,
        asked: Rights,
    },
    /// Another operation is in the way.
    #[error("{what} is busy: {by}")]
    Busy { what: String, by: BusyReason },
    /// A follower of a ring that blocks has not yet read the oldest publication.
    #[error(
        "the ring {name} is full: the follower at {follower} has only read up to {}; find out why it \
         does not continue, or end its process",
        Seen(*read)
    )]
    RingFull {
        name: ObjectName,
        follower: SocketAddr,
        read: Option<Epoch>,
    },
    /// The received bytes do not match the checksum of their epoch.
    #[error(
        "epoch {epoch} of {name} arrived damaged: its checksum is {published:#018x}, but the \
         received bytes have {received:#018x}; get it again, and check the memory of both hosts"
    )]
    Damaged {
        name: ObjectName,
        epoch: Epoch,
        published: u64,
        received: u64,
    },
    /// A tensor does not match the checksum that its owner computed.
    #[error(
        "{tensor} of {name} is damaged in epoch {epoch}: its checksum is {published:#018x}, but the \
         received bytes have {received:#018x}; get it again, and check the memory of both hosts"
    )]
    DamagedTensor {
        name: ObjectName,
        tensor: String,
        epoch: Epoch,
        published: u64,
        received: u64,
    },
    /// The bytes of a put did not arrive intact.
    #[error(
        "what was put to {name} arrived damaged, by its checksum, and was not published; put it again, \
         and check the memory of both hosts"
    )]
    DamagedPut { name: ObjectName },
    /// Objects in this mode do not support the operation.
    #[error("{name} is {mode}, which has no {operation}")]
    WrongMode {
        name: ObjectName,
        mode: Mode,
        operation: &'static str,
    },
    /// The object has reached the last epoch.
    #[error("{name} has reached the last epoch; create it again")]
    NoMoreEpochs { name: ObjectName },
    /// The epoch is not later than the last one.
    #[error("{name} is at epoch {last}, and {epoch} is not later; publish a later epoch")]
    EarlierEpoch {
        name: ObjectName,
        last: Epoch,
        epoch: Epoch,
    },
    /// The bytes are not a handle.
    #[error("these bytes are not an object handle: {0}; use the bytes from `RemoteObject::handle`")]
    Handle(&'static str),
    /// The peer sent something that this version does not know.
    #[error("the peer at {peer} sent {what}; use the same version of gdr on both sides")]
    Protocol { peer: SocketAddr, what: String },
    /// A transfer failed.
    #[error("the transfer of {name} failed: {status}; {}", advice(*status))]
    Transfer { name: ObjectName, status: WcStatus },
    /// A closure that was to write the content failed, and nothing was published.
    #[error("nothing was published: {0}")]
    Writer(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// A call of the operating system failed.
    #[error("{call} failed: {source}")]
    Os {
        call: &'static str,
        source: std::io::Error,
    },
    /// The object's content does not begin with an index of tensors.
    #[error("{name} does not contain tensors: {source}")]
    Tensors {
        name: ObjectName,
        source: InvalidTensors,
    },
    /// RDMA or the connection set-up failed.
    #[error(transparent)]
    Rdma(#[from] gdr_rdma::Error),
    /// Mapping GPU memory failed.
    #[error(transparent)]
    Copy(#[from] gdr_copy::Error),
    /// CUDA failed.
    #[error(transparent)]
    Cuda(#[from] gdr_cuda::Error),
}

impl From<gdr_rdma::NicError> for Error {
    fn from(failed: gdr_rdma::NicError) -> Self {
        Self::Rdma(failed.into())
    }
}

/// Why an object or its owner is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum GoneReason {
    /// The owner closed the object.
    Closed,
    /// This process closed the server of the object.
    ServerClosed,
    /// The owner's process was restarted, and its earlier objects no longer exist.
    Restarted,
    /// The owner closed the connection or its process ended.
    Disconnected,
    /// The owner's host does not answer.
    Unreachable,
    /// This process interrupted the calls of the link ([`Link::interrupt`](crate::Link::interrupt)).
    Interrupted,
}

impl fmt::Display for GoneReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Closed => "its owner closed it; open it again if the owner creates it again",
            Self::ServerClosed => {
                "this process closed its server, so no peer reaches it; create it in another server"
            }
            Self::Restarted => {
                "its owner was started again, and nothing of the former run exists; open it again"
            }
            Self::Disconnected => {
                "its owner's process ended or closed the connection; connect again when it runs"
            }
            Self::Unreachable => {
                "its owner's host does not answer; check the host and the route to it"
            }
            Self::Interrupted => "this process interrupted the call; the next one connects again",
        })
    }
}

/// What prevents an operation at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BusyReason {
    /// The owner is publishing from another thread.
    OwnerWrites,
    /// A peer is putting.
    PeerWrites,
    /// Every free slot waits for a copy on a stream.
    CopiesQueued,
    /// Another thread uses the link.
    LinkInUse,
    /// Readers hold a lease on an older epoch.
    Leased,
    /// The same link already follows the object.
    Followed,
    /// A follower of a ring that blocks has not read the oldest publication.
    FollowersBehind,
    /// The owner reclaimed the slot of a put before the put had completed.
    PutTooSlow,
}

impl fmt::Display for BusyReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OwnerWrites => "its owner is publishing; try again",
            Self::PeerWrites => "a peer is putting to it; try again",
            Self::CopiesQueued => {
                "copies to all of its free slots are queued on streams; wait for a stream first"
            }
            Self::LinkInUse => {
                "another thread uses it beyond this deadline; open a link for each thread"
            }
            Self::Leased => "readers hold an older epoch by a lease; try again",
            Self::FollowersBehind => {
                "a follower has not read its oldest epoch; try again when it has"
            }
            Self::PutTooSlow => "the owner took the slot back before the put ended; put again",
            Self::Followed => "this link follows it already; use that follower, or a second link",
        })
    }
}

/// An epoch that may not exist, in a sentence.
struct Seen(Option<Epoch>);

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(epoch) => write!(f, "epoch {epoch}"),
            None => f.write_str("no epoch"),
        }
    }
}

fn advice(status: WcStatus) -> &'static str {
    match status {
        WcStatus::RetryExceeded => {
            "check whether the owner runs, and whether a firewall drops UDP between the two hosts"
        }
        WcStatus::LocalProtection => "the memory of this side failed or was unmapped",
        WcStatus::RemoteOperation => {
            "the owner's device could not read its memory; see the owner's log and `dmesg` there"
        }
        _ => "connect again; if it stays, report it with the versions of both sides",
    }
}

impl Error {
    /// Returns the code of this error for programs, such as `object_name`.
    ///
    /// A variant keeps its code even if it is renamed.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Rdma(error) => error.code(),
            Self::Copy(error) => error.code(),
            Self::Cuda(error) => error.code(),
            Self::Name { .. } => "object_name",
            Self::Shape { .. } => "object_shape",
            Self::Slots { .. } => "object_slots",
            Self::NameInUse { .. } => "object_name_in_use",
            Self::TooMany { .. } => "object_too_many",
            Self::NoSuchObject { .. } => "no_such_object",
            Self::Size { .. } => "object_size",
            Self::OutOfRange { .. } => "out_of_range",
            Self::Empty { .. } => "object_empty",
            Self::NothingNewer { .. } => "nothing_newer",
            Self::Stalled { .. } => "object_stalled",
            Self::NoAnswer { .. } => "object_no_answer",
            Self::Gone { .. } => "object_gone",
            Self::Denied { .. } => "object_denied",
            Self::Busy { .. } => "object_busy",
            Self::RingFull { .. } => "ring_full",
            Self::Damaged { .. } => "object_damaged",
            Self::DamagedTensor { .. } => "tensor_damaged",
            Self::WrongMode { .. } => "object_mode",
            Self::NoMoreEpochs { .. } => "no_more_epochs",
            Self::EarlierEpoch { .. } => "earlier_epoch",
            Self::Handle { .. } => "object_handle",
            Self::Protocol { .. } => "object_protocol",
            Self::Transfer { .. } => "transfer",
            Self::Writer { .. } => "object_content",
            Self::Tensors { .. } => "object_tensors",
            Self::Os { .. } => "os",
            Self::NotOnGpu { .. } | Self::OtherLink { .. } | Self::DamagedPut { .. } => "object",
        }
    }

    pub(crate) fn gone(what: &ObjectName, why: GoneReason) -> Self {
        let what = format!("the object {what}");
        Self::Gone { what, why }
    }

    pub(crate) fn busy(what: &ObjectName, by: BusyReason) -> Self {
        let what = format!("the object {what}");
        Self::Busy { what, by }
    }
}
