//! Memory at the end of each path, and the connection to it.

use std::sync::Arc;

use gdr_cuda::DeviceBuffer;
use gdr_rdma::{
    Access, Buffer, Device, MemoryRegion, Mtu, ProtectionDomain, Provider, RemoteMemory,
    SendRequest, WrId,
};

use super::super::connection::Connection;
use super::super::device_memory::DeviceMemory;
use super::super::registration;
use super::super::settings::TransferPreference;
use super::super::staging::StagingBuffer;
use super::report::{Operation, PathKind};
use super::settings::SweepSettings;
use crate::bench_target::BenchTarget;
use crate::error::Result;
use crate::report::Subject;

/// The memory at the end of a path, accessed without RDMA.
pub(super) enum PathMemory {
    Host(Buffer),
    Gpu(Arc<DeviceBuffer>),
}

impl PathMemory {
    pub(super) fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        match self {
            Self::Host(buffer) => Ok(buffer.write_at(offset, bytes)?),
            Self::Gpu(buffer) => Ok(buffer.write(offset, bytes)?),
        }
    }

    pub(super) fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        match self {
            Self::Host(buffer) => Ok(buffer.read_at(offset, bytes)?),
            Self::Gpu(buffer) => Ok(buffer.read(offset, bytes)?),
        }
    }
}

/// A path into memory.
pub(super) struct MemoryPath {
    pub(super) kind: PathKind,
    remote: RemoteMemory,
    pub(super) memory: PathMemory,
    /// Host memory that stands in for GPU memory, if the device cannot access the latter.
    pub(super) stage: Option<StagingBuffer>,
    _region: MemoryRegion,
}

impl MemoryPath {
    fn new(
        kind: PathKind,
        region: MemoryRegion,
        memory: PathMemory,
        stage: Option<StagingBuffer>,
    ) -> Self {
        Self {
            kind,
            remote: region.remote(),
            memory,
            stage,
            _region: region,
        }
    }

    pub(super) fn post(
        &self,
        here: &Connection,
        operation: Operation,
        source: &MemoryRegion,
        sink: &MemoryRegion,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        let (id, remote) = (WrId(offset), self.remote.at(offset));
        let request = match operation {
            Operation::Write => {
                SendRequest::write(id, remote).segment(source.segment(offset, len)?)
            }
            Operation::Read => SendRequest::read(id, remote).segment(sink.segment(offset, len)?),
        };
        Ok(here.pair().post_send(request)?)
    }
}

/// All paths, and what the report says about them.
pub(super) struct MemoryPaths {
    /// A single connection for all paths: two queue pairs may run on two threads, and would differ by where those run.
    pub(super) here: Connection,
    // Fields drop in order: the connections before the regions and the memory.
    _there: Connection,
    pub(super) paths: Vec<MemoryPath>,
    pub(super) subject: Subject,
    pub(super) direct_missing: Option<String>,
    pub(super) long_reads_from: Option<u64>,
}

/// Builds the paths that the settings request.
pub(super) fn build(
    target: &BenchTarget,
    here: &ProtectionDomain,
    to: &Device,
    mtu: Mtu,
    settings: &SweepSettings,
) -> Result<MemoryPaths> {
    let len = settings.largest;
    let there = to.protection_domain();
    let buffer = target.allocate(settings.destination.memory, len)?;
    let limit = settings.limit(len);
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    let (near, far) = (Connection::new(here)?, Connection::new(&there)?);
    near.connect(&far.pair().endpoint(), mtu, limit)?;
    far.connect(&near.pair().endpoint(), mtu, limit)?;
    let host = Buffer::host(len as usize)?;
    let region = there.register(&host, access)?;
    let host = MemoryPath::new(PathKind::Host, region, PathMemory::Host(host), None);
    let memory = || PathMemory::Gpu(Arc::clone(&buffer));
    let mut paths = MemoryPaths {
        here: near,
        _there: far,
        paths: vec![host],
        subject: Subject::new(target, None),
        direct_missing: None,
        long_reads_from: None,
    };
    let wanted = settings.destination.transfer;
    let staged = if to.provider() == Provider::Verbs {
        let register = |wanted| DeviceMemory::new(&there, &buffer, 0, len, access, wanted);
        let mut made = register(wanted)?;
        if made.stage.is_some() {
            let staged = (made.region.clone(), made.stage.take());
            paths.direct_missing = Some(made.missing());
            Some(staged)
        } else {
            let direct = MemoryPath::new(PathKind::Direct, made.region, memory(), None);
            paths.paths.push(direct);
            match wanted {
                TransferPreference::Direct => None,
                _ => {
                    let made = register(TransferPreference::Staged)?;
                    Some((made.region, made.stage))
                }
            }
        }
    } else {
        let direct = registration::map_or_stage(target, &buffer, wanted)?;
        paths.subject = direct.subject;
        match direct.mapping {
            Some(mapping) => {
                let local = registration::direct(mapping, &buffer)?;
                paths.long_reads_from = local.long_reads_from();
                let region = there.register(&local, access)?;
                let direct = MemoryPath::new(PathKind::Direct, region, memory(), None);
                paths.paths.push(direct);
            }
            None => paths.direct_missing = Some(direct.why),
        }
        match wanted {
            TransferPreference::Direct => None,
            _ => {
                let local = Buffer::staged(Arc::clone(&buffer))?;
                Some((there.register(&local, access)?, None))
            }
        }
    };
    if let Some((region, stage)) = staged {
        let staged = MemoryPath::new(PathKind::Staged, region, memory(), stage);
        paths.paths.push(staged);
    }
    Ok(paths)
}
