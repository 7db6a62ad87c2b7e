//! Registered memory into which memory of another process is copied.

use std::sync::Arc;

use gdr_cuda::{GuardedCopy, HostBuffer, ImportedMemory, Stream};

use crate::buffer::read_source::{ReadSource, SourceId};

/// Registered memory into which memory of another process is copied.
#[derive(Clone, Debug)]
pub(in crate::buffer) enum IncomingTarget {
    /// Memory of a GPU.
    Device(Arc<ReadSource>),
    /// Page-locked host memory, kept alive by this value.
    Host(SourceId, Arc<HostBuffer>),
}

impl IncomingTarget {
    pub(super) fn id(&self) -> SourceId {
        match self {
            Self::Device(source) => source.id(),
            Self::Host(id, _) => *id,
        }
    }

    /// Returns whether the memory was freed.
    pub(super) fn is_lost(&self) -> bool {
        match self {
            Self::Device(source) => source.is_lost(),
            Self::Host(..) => false,
        }
    }

    /// Like [`ReadSource::look`].
    pub(super) fn look(&self, offset: u64, len: u64) -> bool {
        match self {
            Self::Device(source) => source.look(offset, len as usize),
            Self::Host(..) => true,
        }
    }

    /// Queues a copy to `at`.
    pub(super) fn queue_copy(
        &self,
        stream: &Stream,
        memory: &Arc<ImportedMemory>,
        from: u64,
        at: u64,
        len: u64,
        copy: &GuardedCopy,
    ) -> gdr_cuda::Result<()> {
        match self {
            Self::Device(source) => {
                stream.queue_guarded_copy(memory, from, source.buffer(), at, len, copy)
            }
            Self::Host(_, host) => {
                let (at, len) = (at as usize, len as usize);
                stream.queue_guarded_copy_to_host(memory, from, host, at, len, copy)
            }
        }
    }
}
