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
    /// A buffer or region of no bytes.
    #[error("a buffer of no bytes cannot be registered; give it at least one")]
    EmptyBuffer,
    /// A range that exceeds its buffer or region.
    #[error("{wanted} bytes at offset {offset} exceed the {len} bytes there are; nothing was done")]
    OutOfRange {
        /// The first byte of the range.
        offset: u64,
        /// The length of the range.
        wanted: u64,
        /// The length of the buffer or region.
        len: u64,
    },
    /// A word at an address that is not a multiple of its size.
    #[error("offset {offset} is not a multiple of {alignment}; align the word")]
    Misaligned { offset: u64, alignment: u64 },
    /// A mapping and an allocation that are not the same memory.
    #[error(
        "the mapping shows GPU memory at {mapped:#x}, which is not all in the allocation at \
         {allocated:#x}; map that allocation"
    )]
    MappedElsewhere {
        /// The GPU address at which the mapping begins.
        mapped: u64,
        /// The GPU address at which the allocation begins.
        allocated: u64,
    },
    /// Memory of [`Buffer::on_demand`](crate::Buffer::on_demand) that is not there.
    #[error("nothing is mapped at {address:#x}, or not for this access; map it first")]
    NotMapped { address: u64 },
    /// Objects of two devices or protection domains in one call.
    #[error("{0}")]
    Foreign(Foreign),
    /// More completions than a completion queue holds; those beyond are lost.
    #[error(
        "the completion queue overran its {capacity} entries and completions are lost; poll more \
         often, or make it as large as all requests of its queue pairs"
    )]
    CompletionQueueOverrun { capacity: usize },
    /// A request was not posted.
    #[error(transparent)]
    Post(#[from] PostError),
    /// A queue pair did not change its state.
    #[error(transparent)]
    State(#[from] StateError),
    /// The environment variable with the number of shards has another value.
    #[error("{variable} is `{value}`: give a number from 1 to {most}, or unset it")]
    ShardCount {
        variable: &'static str,
        value: String,
        most: usize,
    },
    /// The environment variable of the wires has none of their names.
    #[error("{variable} is `{value}`; set it to `udp` or `all`, or unset it")]
    WireName {
        variable: &'static str,
        value: String,
    },
    /// The scenario of faults cannot be used.
    #[error("{variable} cannot be used: {why}")]
    Chaos { variable: &'static str, why: String },
    /// A device has as many queue pairs as there are numbers.
    #[error("a device has at most {most} queue pairs; destroy one, or open another device")]
    TooManyQueuePairs { most: usize },
    /// A device receives from as many multicast groups as it can.
    #[error("a device receives from at most {most} multicast groups; detach from one")]
    TooManyGroups { most: usize },
    /// As many queue pairs are attached to a multicast group as can be.
    #[error("at most {most} queue pairs of a device are attached to a multicast group; detach one")]
    TooManyAttached { most: usize },
    /// A queue pair was detached from a multicast group that it is not attached to.
    #[error("the queue pair is not attached to the multicast group; attach it first")]
    NotAttached,
    /// A device, or an object made from it or a buffer, was used in a forked child.
    #[error(
        "this process was forked from the one that opened the device or made the buffer, which \
         stay with the parent; open a device in this process, after the fork"
    )]
    ForkedChild,
    /// A device whose socket failed.
    #[error("the device failed and moves no more bytes: {why}; drop it and open it again")]
    DeviceFailed { why: String },
    /// A socket, an address or a port.
    #[error(transparent)]
    Socket(#[from] gdr_udp::Error),
    /// A mapping of GPU memory failed.
    #[error(transparent)]
    Copy(#[from] gdr_copy::Error),
    /// CUDA failed.
    #[error(transparent)]
    Cuda(#[from] gdr_cuda::Error),
}

impl Error {
    /// Returns the code of this error for programs, such as `empty_buffer`.
    ///
    /// A variant that gets another name keeps its code.
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

/// An object that belongs to another device or protection domain than the one it is used with.
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
    /// The error of a system call.
    pub fn os(call: &'static str, source: impl Into<io::Error>) -> Self {
        gdr_udp::Error::os(call, source).into()
    }
}
