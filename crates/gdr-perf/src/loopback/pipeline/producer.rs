//! The end that offers frames in host memory. Its CPU takes no part in a transfer.

use std::time::Duration;

use gdr_rdma::{Access, Buffer, Device, Endpoint, MemoryRegion, Mtu, RemoteMemory};

use super::super::compare::{CHUNK, fill, pieces};
use super::super::connection::Connection;
use crate::error::{Result, SettingsError};

/// Frames of a pattern in host memory, registered for READs.
pub(super) struct Producer {
    // Fields drop in order: the connection goes before the region.
    connection: Connection,
    region: MemoryRegion,
}

impl Producer {
    /// Fills `bytes` of host memory with the pattern of `seed`.
    pub(super) fn new(device: &Device, bytes: u64, seed: u32) -> Result<Self> {
        let len = usize::try_from(bytes).map_err(|_| SettingsError::TooLarge { bytes })?;
        let domain = device.protection_domain();
        let buffer = Buffer::host(len)?;
        let mut chunk = vec![0; CHUNK];
        for (offset, len) in pieces(bytes, CHUNK as u64) {
            let chunk = &mut chunk[..len as usize];
            fill(chunk, seed, offset / 4);
            buffer.write_at(offset, chunk)?;
        }
        Ok(Self {
            connection: Connection::new(&domain)?,
            region: domain.register(&buffer, Access::REMOTE_READ)?,
        })
    }

    pub(super) fn endpoint(&self) -> Endpoint {
        self.connection.pair().endpoint()
    }

    pub(super) fn remote(&self) -> RemoteMemory {
        self.region.remote()
    }

    pub(super) fn connect(&self, peer: &Endpoint, mtu: Mtu, give_up_after: Duration) -> Result<()> {
        self.connection.connect(peer, mtu, give_up_after)
    }
}
