//! The end that offers frames, in host or GPU memory. With a kernel device, its CPU takes no part in a transfer.

use std::time::Duration;

use gdr_rdma::{Access, Device, Endpoint, Mtu, RemoteMemory};

use super::super::connection::Connection;
use crate::error::Result;
use crate::memory_facts::MemoryFacts;
use crate::registered_buffer::{RegisteredBuffer, StandIn, TransferMemory};

/// Frames of a pattern, registered for READs.
pub(super) struct Producer {
    // Fields drop in order: the connection before the memory.
    connection: Connection,
    frames: RegisteredBuffer,
    facts: MemoryFacts,
}

impl Producer {
    /// Fills `bytes` of `memory` with the pattern of `seed`.
    pub(super) fn new(
        device: &Device,
        memory: TransferMemory<'_>,
        bytes: u64,
        seed: u32,
    ) -> Result<Self> {
        let domain = device.protection_domain();
        let access = Access::REMOTE_READ;
        let (frames, facts) =
            RegisteredBuffer::new(&domain, memory, bytes, access, StandIn::Refused)?;
        frames.fill(0, bytes, seed)?;
        Ok(Self {
            connection: Connection::new(&domain)?,
            frames,
            facts,
        })
    }

    /// Returns its memory, for the report.
    pub(super) fn facts(&self) -> &MemoryFacts {
        &self.facts
    }

    pub(super) fn endpoint(&self) -> Endpoint {
        self.connection.pair().endpoint()
    }

    pub(super) fn remote(&self) -> RemoteMemory {
        self.frames.remote()
    }

    pub(super) fn connect(&self, peer: &Endpoint, mtu: Mtu, give_up_after: Duration) -> Result<()> {
        self.connection.connect(peer, mtu, give_up_after)
    }
}
