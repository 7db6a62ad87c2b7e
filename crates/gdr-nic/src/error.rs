//! Errors.

use std::fmt;
use std::io;

use gdr_roce::{PostError, StateError};

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// What failed, why, and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages explain the fields")]
pub enum Error {
    /// The buffer or region is empty.
    #[error("an empty buffer cannot be registered; it needs at least one byte")]
    EmptyBuffer,
    /// The range exceeds its buffer or region.
    #[error("{wanted} bytes at offset {offset} exceed the length of {len} bytes; nothing was done")]
    OutOfRange {
        /// The first byte of the range.
        offset: u64,
        /// The length of the range.
        wanted: u64,
        /// The length of the buffer or region.
        len: u64,
    },
    /// The address of the word is not a multiple of its size.
    #[error("offset {offset} is not a multiple of {alignment}; align the word")]
    Misaligned { offset: u64, alignment: u64 },
    /// The mapping and the allocation are not the same memory.
    #[error(
        "the mapping covers GPU memory at {mapped:#x}, which is not entirely in the allocation at \
         {allocated:#x}; map that allocation"
    )]
    MappedElsewhere {
        /// The GPU address at which the mapping begins.
        mapped: u64,
        /// The GPU address at which the allocation begins.
        allocated: u64,
    },
    /// Memory of [`Buffer::on_demand`](crate::Buffer::on_demand) is not mapped.
    #[error("no memory is mapped at {address:#x}, or not with the required access; map it first")]
    NotMapped { address: u64 },
    /// The objects in one call belong to different devices or protection domains.
    #[error("{0}")]
    Foreign(Foreign),
    /// There were more completions than the completion queue can hold, and some are lost.
    #[error(
        "the completion queue overflowed its {capacity} entries, and completions are lost; poll more \
         often, or create it with room for all requests of its queue pairs"
    )]
    CompletionQueueOverrun { capacity: usize },
    /// A request was not posted.
    #[error(transparent)]
    Post(#[from] PostError),
    /// A queue pair did not change its state.
    #[error(transparent)]
    State(#[from] StateError),
    /// The environment variable for the number of shards has an invalid value.
    #[error("{variable} is `{value}`: set it to a number from 1 to {most}, or unset it")]
    ShardCount {
        variable: &'static str,
        value: String,
        most: usize,
    },
    /// The environment variable for the wires has an invalid value.
    #[error("{variable} is `{value}`; set it to `udp` or `all`, or unset it")]
    WireName {
        variable: &'static str,
        value: String,
    },
    /// The scenario of faults cannot be used.
    #[error("{variable} cannot be used: {why}")]
    Chaos { variable: &'static str, why: String },
    /// The device has reached its limit of queue pairs.
    #[error("a device has at most {most} queue pairs; destroy one, or open another device")]
    TooManyQueuePairs { most: usize },
    /// The device has reached its limit of multicast groups.
    #[error("a device receives from at most {most} multicast groups; detach from one")]
    TooManyGroups { most: usize },
    /// The multicast group has reached its limit of attached queue pairs.
    #[error("at most {most} queue pairs of a device are attached to a multicast group; detach one")]
    TooManyAttached { most: usize },
    /// The queue pair to detach is not attached to the multicast group.
    #[error("the queue pair is not attached to the multicast group; attach it first")]
    NotAttached,
    /// A device, an object created from it, or a buffer was used in a forked child.
    #[error(
        "this process was forked from the one that opened the device or created the buffer, and these \
         stay with the parent; open a device in this process, after the fork"
    )]
    ForkedChild,
    /// The device has failed, because its socket did.
    #[error(
        "the device has failed, and transfers nothing any more: {why}; drop it and open it again"
    )]
    DeviceFailed { why: String },
    /// A socket failed, or an address or port cannot be used.
    #[error(transparent)]
    Socket(#[from] gdr_udp::Error),
    /// Mapping GPU memory failed.
    #[error(transparent)]
    Copy(#[from] gdr_copy::Error),
    /// CUDA failed.
    #[error(transparent)]
    Cuda(#[from] gdr_cuda::Error),
}

impl Error {
    /// Returns the code of this error for programs, such as `empty_buffer`.
    ///
    /// A variant keeps its code even if it is renamed.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Copy(error) => error.code(),
            Self::Cuda(error) => error.code(),
            Self::Socket(error) => error.code(),
            Self::EmptyBuffer => "empty_buffer",
            Self::OutOfRange { .. } => "out_of_range",
            Self::Misaligned { .. } => "misaligned",
            Self::MappedElsewhere { .. } => "mapped_elsewhere",
            Self::NotMapped { .. } => "not_mapped",
            Self::Foreign(_) => "foreign",
            Self::CompletionQueueOverrun { .. } => "completion_queue_overrun",
            Self::Post(_) => "post",
            Self::State(_) => "state",
            Self::ShardCount { .. } => "shard_count",
            Self::WireName { .. } => "wire_name",
            Self::TooManyQueuePairs { .. } => "too_many_queue_pairs",
            Self::TooManyGroups { .. } => "too_many_groups",
            Self::TooManyAttached { .. } => "too_many_attached",
            Self::NotAttached => "not_attached",
            Self::ForkedChild => "forked_child",
            Self::DeviceFailed { .. } => "device_failed",
            Self::Chaos { .. } => "nic",
        }
    }
}

/// An object that does not belong to the device or protection domain that it is used with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Foreign {
    /// A completion queue of another device.
    CompletionQueue,
    /// A shared receive queue of another protection domain.
    SharedReceiveQueue,
    /// A memory region of another protection domain.
    MemoryRegion,
}

impl fmt::Display for Foreign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::CompletionQueue => {
                "a completion queue belongs to another device; use one of the same device"
            }
            Self::SharedReceiveQueue => {
                "a shared receive queue belongs to another protection domain; use one of the same \
                 protection domain"
            }
            Self::MemoryRegion => {
                "a memory region belongs to another protection domain; use one of the same \
                 protection domain"
            }
        })
    }
}

impl Error {
    /// Returns the error of a system call.
    pub fn os(call: &'static str, source: impl Into<io::Error>) -> Self {
        gdr_udp::Error::os(call, source).into()
    }
}
