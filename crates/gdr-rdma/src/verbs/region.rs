//! Memory registered with a device of the kernel.

use std::fmt;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use gdr_cuda::{DeviceBuffer, MemoryKind};
use gdr_roce::Access;
use gdr_verbs_sys::{ibv_access_flags, ibv_mr};

use super::context::lock_limit;
use super::domain::Domain;
use super::error::{VerbsError, dma_buf_refusal, peer_memory_refusal};
use crate::buffer::{Buffer, BufferKind};

/// How a device reaches registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Registration {
    /// The engine of this process copies.
    Engine,
    /// The device itself, in pages of the process that are pinned.
    HostPages,
    /// The device itself, in pages of the process that are brought in when it touches them.
    OnDemand,
    /// The device itself, in GPU memory, by a dma-buf.
    DmaBuf,
    /// The device itself, in GPU memory, by a peer-memory module (nvidia_peermem).
    PeerMemory,
}

impl fmt::Display for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Engine => "by this process",
            Self::HostPages => "pinned host pages",
            Self::OnDemand => "host pages on demand",
            Self::DmaBuf => "dma-buf",
            Self::PeerMemory => "peer-memory module",
        })
    }
}

/// A registration with the kernel. The memory, and the descriptor of a dma-buf, outlive it.
#[derive(Debug)]
pub(crate) struct Region {
    domain: Arc<Domain>,
    region: NonNull<ibv_mr>,
    route: Registration,
    refusals: Vec<String>,
    /// Open as long as the registration: some drivers attach again after an invalidation.
    _dma_buf: Option<OwnedFd>,
    lkey: u32,
    rkey: u32,
}

// SAFETY: as for `Context`.
unsafe impl Send for Region {}
// SAFETY: as for `Context`.
unsafe impl Sync for Region {}

/// The ways to GPU memory that are not to be tried any more, up to the last one, and why.
#[derive(Debug, Default)]
pub(crate) struct Refused {
    last: Option<Registration>,
    refusals: Vec<String>,
}

impl Refused {
    /// Adds the way of `region`, which nobody uses: why.
    pub(crate) fn add(&mut self, region: &Region, why: &str) {
        let route = region.route();
        self.refusals = region.refusals.clone();
        self.refusals.push(format!("{route}: {why}"));
        self.last = Some(route);
    }
}

impl Region {
    /// Registers part of a buffer, on none of the ways that are `refused`. The caller keeps the
    /// buffer alive as long as this.
    pub(crate) fn new(
        domain: &Arc<Domain>,
        buffer: &Buffer,
        offset: u64,
        len: u64,
        access: Access,
        refused: &Refused,
    ) -> Result<Self, VerbsError> {
        match (buffer.kind(), buffer.device_memory()) {
            (BufferKind::Host, _) => Self::host(domain, buffer, offset, len, access),
            (_, Some((gpu, skip))) => Self::gpu(domain, gpu, skip + offset, len, access, refused),
            (_, None) => Err(VerbsError::GpuRegistration(vec![
                "only its mapping is known; make the buffer with Buffer::direct_with_copies or \
                 Buffer::staged, which know the allocation"
                    .to_owned(),
            ])),
        }
    }

    fn host(
        domain: &Arc<Domain>,
        buffer: &Buffer,
        offset: u64,
        len: u64,
        access: Access,
    ) -> Result<Self, VerbsError> {
        let on_demand = domain.context().on_demand;
        let paging = if on_demand {
            ibv_access_flags::IBV_ACCESS_ON_DEMAND.0
        } else {
            0
        };
        let address = buffer.address() + offset;
        let registered = Self::by_address(domain, address, len, access, paging)?;
        let region = registered.map_err(|source| match domain.context().failed(source) {
            gone @ VerbsError::DeviceGone { .. } => gone,
            _ => VerbsError::Registration {
                len,
                limit: lock_limit(),
                source,
            },
        })?;
        Ok(Self::made(
            domain,
            region,
            if on_demand {
                Registration::OnDemand
            } else {
                Registration::HostPages
            },
            Vec::new(),
            None,
        ))
    }

    /// By an address of the process, or one of CUDA that a peer-memory module claims.
    fn by_address(
        domain: &Arc<Domain>,
        address: u64,
        len: u64,
        access: Access,
        more: u32,
    ) -> Result<Result<NonNull<ibv_mr>, gdr_verbs_sys::VerbError>, VerbsError> {
        let context = domain.context();
        let start = ptr::with_exposed_provenance_mut(address as usize);
        let flags = ibv_access_flags(flags(access, context.relaxed_ordering).0 | more);
        let pd = domain.raw()?;
        // SAFETY: the domain is alive; the caller keeps the memory as long as the registration.
        Ok(unsafe { context.verbs().reg_mr(pd, start, len as usize, flags) })
    }

    /// GPU memory: by dma-buf, else by a peer-memory module; every refusal is kept.
    fn gpu(
        domain: &Arc<Domain>,
        gpu: &Arc<DeviceBuffer>,
        offset: u64,
        len: u64,
        access: Access,
        refused: &Refused,
    ) -> Result<Self, VerbsError> {
        if gpu.kind() == MemoryKind::Managed {
            return Err(VerbsError::ManagedMemory);
        }
        if let Err(error) = gpu.synchronize_copies() {
            // VMM and pool memory have no such attribute on some drivers; a program that copies
            // there waits for its copies before it lets the device at them, as it has to anyway.
            tracing::debug!(%error, "CUDA does not synchronize copies of this memory");
        }
        let mut refusals = refused.refusals.clone();
        if refused.last == Some(Registration::PeerMemory) {
            return Err(VerbsError::GpuRegistration(refusals));
        }
        if refused.last.is_none() {
            match Self::by_dma_buf(domain, gpu, offset, len, access)? {
                Ok((region, fd)) => {
                    let route = Registration::DmaBuf;
                    return Ok(Self::made(domain, region, route, refusals, Some(fd)));
                }
                Err(refusal) => refusals.push(format!("dma-buf: {refusal}")),
            }
        }
        let address = gpu.ptr().get() + offset;
        match Self::by_address(domain, address, len, access, 0)? {
            Ok(region) => {
                let route = Registration::PeerMemory;
                Ok(Self::made(domain, region, route, refusals, None))
            }
            Err(error) => {
                refusals.push(format!(
                    "peer memory: {error}: {}",
                    peer_memory_refusal(error.errno())
                ));
                match domain.context().failed(error) {
                    gone @ VerbsError::DeviceGone { .. } => Err(gone),
                    _ => Err(VerbsError::GpuRegistration(refusals)),
                }
            }
        }
    }

    fn by_dma_buf(
        domain: &Arc<Domain>,
        gpu: &Arc<DeviceBuffer>,
        offset: u64,
        len: u64,
        access: Access,
    ) -> Result<Result<(NonNull<ibv_mr>, OwnedFd), String>, VerbsError> {
        let export = match gpu.dma_buf(offset, len) {
            Ok(export) => export,
            Err(error) => return Ok(Err(error.to_string())),
        };
        let context = domain.context();
        let flags = flags(access, context.relaxed_ordering).0 as i32;
        let iova = gpu.ptr().get() + offset;
        let fd = export.fd.as_fd().as_raw_fd();
        let pd = domain.raw()?;
        // SAFETY: the domain is alive; the descriptor, and by it the memory, is kept as long as the
        // registration.
        let registered = unsafe {
            context
                .verbs()
                .ibv_reg_dmabuf_mr(pd, export.offset, len as usize, iova, fd, flags)
        };
        Ok(match registered {
            Ok(region) => Ok((region, export.fd)),
            Err(error) => Err(format!("{error}: {}", dma_buf_refusal(error.errno()))),
        })
    }

    fn made(
        domain: &Arc<Domain>,
        region: NonNull<ibv_mr>,
        route: Registration,
        refusals: Vec<String>,
        dma_buf: Option<OwnedFd>,
    ) -> Self {
        // SAFETY: it was just made, and nobody changes it.
        let (lkey, rkey) = unsafe { (region.as_ref().lkey, region.as_ref().rkey) };
        Self {
            domain: Arc::clone(domain),
            region,
            route,
            refusals,
            _dma_buf: dma_buf,
            lkey,
            rkey,
        }
    }

    pub(crate) fn lkey(&self) -> u32 {
        self.lkey
    }

    pub(crate) fn rkey(&self) -> u32 {
        self.rkey
    }

    pub(crate) fn route(&self) -> Registration {
        self.route
    }

    pub(crate) fn refusals(&self) -> &[String] {
        &self.refusals
    }

    pub(crate) fn is_of(&self, domain: &Arc<Domain>) -> bool {
        Arc::ptr_eq(&self.domain, domain)
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let verbs = self.domain.context().verbs();
        // SAFETY: it is alive, and no request that names it is under way: requests hold it.
        if let Err(error) = unsafe { verbs.ibv_dereg_mr(self.region.as_ptr()) } {
            tracing::warn!(%error, "a memory region is not given back");
        }
    }
}

/// What a peer may do, as verbs say it.
pub(super) fn flags(access: Access, relaxed_ordering: bool) -> ibv_access_flags {
    let mut flags = 0;
    for (bit, flag) in [
        (
            Access::LOCAL_WRITE,
            ibv_access_flags::IBV_ACCESS_LOCAL_WRITE,
        ),
        (
            Access::REMOTE_WRITE,
            ibv_access_flags::IBV_ACCESS_REMOTE_WRITE,
        ),
        (
            Access::REMOTE_READ,
            ibv_access_flags::IBV_ACCESS_REMOTE_READ,
        ),
        (
            Access::REMOTE_ATOMIC,
            ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC,
        ),
    ] {
        if access.contains(bit) {
            flags |= flag.0;
        }
    }
    if relaxed_ordering {
        flags |= ibv_access_flags::IBV_ACCESS_RELAXED_ORDERING.0;
    }
    ibv_access_flags(flags)
}
