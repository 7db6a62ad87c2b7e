//! An object's memory in its owner's process: where it is, and how devices access it.

use std::sync::Arc;

use gdr_copy::Context;
use gdr_cuda::{DeviceBuffer, DriverKind, Gpu, MemoryKind};
use gdr_rdma::{
    Access, Buffer, BufferKind, CopyEngineThreshold, MemoryRegion, ProtectionDomain, Provider,
};

use crate::checksum::Summer;
use crate::epoch::Generation;
use crate::error::{Error, Result};
use crate::header::{Header, Slot};
use crate::info::{AccessPath, Location};
use crate::mode::Mode;

/// The alignment of slots; kernels and copy engines work best on such addresses.
const ALIGNMENT: u64 = 256;

/// Where the owner keeps the bytes of an object.
#[derive(Clone, Debug)]
pub struct Place(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Host,
    Gpu { gpu: Gpu, reach: Reach },
}

/// How a device of the soft provider accesses GPU memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Through a mapping if possible, else through page-locked memory.
    Best,
    /// Through page-locked memory.
    Staged,
}

impl Place {
    /// Places the object in host memory of the owner's process.
    pub const fn host() -> Self {
        Self(Kind::Host)
    }

    /// Places the object in a GPU's memory. A device of the soft provider accesses it through a `gdr-copy`
    /// mapping if possible, else through page-locked memory; a kernel device registers it.
    /// [`ObjectInfo::path`](crate::ObjectInfo::path) shows which method is used, and why.
    pub fn gpu(gpu: &Gpu) -> Self {
        Self(Kind::Gpu {
            gpu: gpu.clone(),
            reach: Reach::Best,
        })
    }

    /// Like [`Place::gpu`], but a device of the soft provider always uses page-locked memory, so that the
    /// two can be compared.
    pub fn gpu_staged(gpu: &Gpu) -> Self {
        Self(Kind::Gpu {
            gpu: gpu.clone(),
            reach: Reach::Staged,
        })
    }

    /// Returns where it is, for peers.
    pub fn location(&self) -> Location {
        match &self.0 {
            Kind::Host => Location::Host,
            Kind::Gpu { gpu, .. } => Location::Gpu {
                ordinal: gpu.info().ordinal.0,
                name: gpu.info().name.clone(),
                simulated: gpu.driver().kind() == DriverKind::Simulated,
            },
        }
    }
}

/// The slots and the header of an object, registered so that peers may READ them. On drop, the
/// registrations end before the memory is freed, so a later READ fails.
#[derive(Debug)]
pub(crate) struct Content {
    pub(crate) header: Header,
    pub(crate) header_region: MemoryRegion,
    pub(crate) data_region: MemoryRegion,
    /// The GPU memory, if the object is in GPU memory.
    pub(crate) device_memory: Option<Arc<DeviceBuffer>>,
    /// Bytes of a publication.
    pub(crate) bytes: u64,
    /// Bytes from the start of one slot to the next.
    pub(crate) stride: u64,
    pub(crate) path: AccessPath,
    /// Sums the slots.
    pub(crate) summer: Summer,
}

impl Content {
    pub(crate) fn new(
        place: &Place,
        domain: &ProtectionDomain,
        mode: Mode,
        bytes: u64,
        generation: Generation,
        revision: u64,
    ) -> Result<Self> {
        let stride = bytes.next_multiple_of(ALIGNMENT);
        let total = stride.checked_mul(u64::from(mode.slots()));
        let total = total
            .filter(|total| usize::try_from(*total).is_ok())
            .ok_or_else(|| Error::Shape {
                shape: vec![bytes],
                why: "all of its slots exceed an address space",
            })?;
        let provider = domain.device().provider();
        let (buffer, why, device_memory) = match &place.0 {
            Kind::Host => {
                let why = "the bytes are in host memory".to_owned();
                (Buffer::host(total as usize)?, why, None)
            }
            Kind::Gpu { gpu, reach } => {
                let memory = Arc::new(gpu.allocate(MemoryKind::Plain, total)?);
                let (buffer, why) = gpu_buffer(&memory, provider, *reach)?;
                (buffer, why, Some(memory))
            }
        };
        let header = Header::new(mode.slots(), generation, revision)?;
        let header_region = domain.register(header.buffer(), Access::REMOTE_READ)?;
        let data_region = domain.register(&buffer, Access::REMOTE_READ)?;
        let path = access_path(provider, &data_region, why);
        Ok(Self {
            header,
            header_region,
            data_region,
            device_memory,
            bytes,
            stride,
            path,
            summer: Summer::default(),
        })
    }

    /// Returns the offset of a slot.
    pub(crate) fn offset(&self, slot: Slot) -> u64 {
        self.stride * u64::from(slot.0)
    }

    /// Returns the memory of all slots.
    pub(crate) fn data(&self) -> &Buffer {
        self.data_region.buffer()
    }
}

/// Makes GPU memory accessible to a device; returns how and why.
pub(crate) fn gpu_buffer(
    memory: &Arc<DeviceBuffer>,
    provider: Provider,
    reach: Reach,
) -> Result<(Buffer, String)> {
    let staged = |why: String| Ok((Buffer::staged(Arc::clone(memory))?, why));
    if provider != Provider::Soft {
        return staged("the device accesses the memory itself".to_owned());
    }
    if reach == Reach::Staged {
        return staged("requested".to_owned());
    }
    let mapping = Context::open_for(memory.gpu())
        .and_then(|context| context.pin_buffer(memory))
        .and_then(|pinned| pinned.map());
    match mapping {
        Ok(mapping) => {
            let threshold = CopyEngineThreshold::Planned;
            let buffer = Buffer::direct_with_copies(mapping, Arc::clone(memory), threshold)?;
            let why = "the GPU memory is mapped into this process".to_owned();
            Ok((buffer, why))
        }
        Err(error) => staged(format!("the GPU memory cannot be mapped: {error}")),
    }
}

fn access_path(provider: Provider, region: &MemoryRegion, why: String) -> AccessPath {
    /// Maximum length of a reason in bytes, so that a page of answers fits into one message.
    const LONGEST: usize = 400;
    let method = match (provider, region.buffer().kind()) {
        (_, BufferKind::Host) => "host",
        (Provider::Soft, BufferKind::Direct) => "direct",
        (Provider::Soft, _) => AccessPath::STAGED,
        (_, _) => match region.route() {
            gdr_rdma::RegistrationMethod::DmaBuf => "dma-buf",
            gdr_rdma::RegistrationMethod::PeerMemory => "peer-memory",
            _ => AccessPath::STAGED,
        },
    };
    let provider = match provider {
        Provider::Soft => "soft",
        _ => "verbs",
    };
    let mut reasons = vec![why];
    reasons.extend(region.rejected_methods().iter().cloned());
    AccessPath {
        provider: provider.to_owned(),
        method: method.to_owned(),
        why: reasons.join("; ").chars().take(LONGEST).collect(),
    }
}
