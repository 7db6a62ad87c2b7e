//! Memory registered with a kernel device.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use gdr_cuda::{DeviceBuffer, MemoryKind};
use gdr_roce::{Access, Lkey, Rkey};
use gdr_verbs_sys::{VerbError, ibv_access_flags, ibv_mr};

use super::context::lock_limit;
use super::protection_domain::VerbsDomain;
use crate::error::{VerbsError, dma_buf_hint, peer_memory_hint};
use crate::memory_region::{MemoryRange, Registration, RejectedMethods};
use crate::types::RegistrationMethod;
use gdr_nic::BufferKind;

/// A registration with the kernel. The memory outlives it.
#[derive(Debug)]
struct VerbsRegion {
    domain: Arc<VerbsDomain>,
    region: NonNull<ibv_mr>,
    /// Kept open as long as the registration, because some drivers attach again after an invalidation.
    _dma_buf: Option<OwnedFd>,
}

// SAFETY: as for `Context`.
unsafe impl Send for VerbsRegion {}
// SAFETY: as for `Context`.
unsafe impl Sync for VerbsRegion {}

/// Registers part of a buffer with the first method that the device accepts and that is not rejected. The caller keeps
/// the buffer alive as long as the registration.
pub(super) fn register(
    domain: &Arc<VerbsDomain>,
    range: &MemoryRange,
    rejected: &mut RejectedMethods,
) -> Result<Registration, VerbsError> {
    match (range.buffer.kind(), range.buffer.device_memory()) {
        (BufferKind::Host, _) => register_host(domain, range),
        (_, Some((gpu, start))) => register_gpu(domain, gpu, start + range.offset, range, rejected),
        (_, None) => Err(VerbsError::GpuRegistration(vec![
            "only its mapping is known; make the buffer with Buffer::direct_with_copies or \
             Buffer::staged, which know the allocation"
                .to_owned(),
        ])),
    }
}

fn register_host(
    domain: &Arc<VerbsDomain>,
    range: &MemoryRange,
) -> Result<Registration, VerbsError> {
    let (method, paging) = match domain.context().on_demand {
        true => (
            RegistrationMethod::OnDemand,
            ibv_access_flags::IBV_ACCESS_ON_DEMAND.0,
        ),
        false => (RegistrationMethod::HostPages, 0),
    };
    let registered = register_address(domain, range.address(), range, paging)?;
    let region = registered.map_err(|source| match domain.context().failed(source) {
        gone @ VerbsError::DeviceGone { .. } => gone,
        _ => VerbsError::Registration {
            len: range.len,
            limit: lock_limit(),
            source,
        },
    })?;
    Ok(registration(domain, region, method, None))
}

/// Registers GPU memory by dma-buf, else by a peer-memory module.
fn register_gpu(
    domain: &Arc<VerbsDomain>,
    gpu: &Arc<DeviceBuffer>,
    offset: u64,
    range: &MemoryRange,
    rejected: &mut RejectedMethods,
) -> Result<Registration, VerbsError> {
    if gpu.kind() == MemoryKind::Managed {
        return Err(VerbsError::ManagedMemory);
    }
    if let Err(error) = gpu.synchronize_copies() {
        // On some drivers, VMM and pool memory have no such attribute. The program must then wait for its own copies
        // before it lets the device access the memory, as it must anyway.
        tracing::debug!(%error, "CUDA does not synchronize copies of this memory");
    }
    let refused =
        |rejected: &RejectedMethods| Err(VerbsError::GpuRegistration(rejected.reasons().to_vec()));
    if rejected.contains(RegistrationMethod::PeerMemory) {
        return refused(rejected);
    }
    if !rejected.contains(RegistrationMethod::DmaBuf) {
        let method = RegistrationMethod::DmaBuf;
        match register_dma_buf(domain, gpu, offset, range)? {
            Ok((region, fd)) => return Ok(registration(domain, region, method, Some(fd))),
            Err(why) => rejected.add(method, &why),
        }
    }
    let method = RegistrationMethod::PeerMemory;
    let address = gpu.ptr().get() + offset;
    match register_address(domain, address, range, 0)? {
        Ok(region) => Ok(registration(domain, region, method, None)),
        Err(error) => {
            let why = format!("{error}: {}", peer_memory_hint(error.errno()));
            rejected.add(method, &why);
            match domain.context().failed(error) {
                gone @ VerbsError::DeviceGone { .. } => Err(gone),
                _ => refused(rejected),
            }
        }
    }
}

/// Registers by an address of the process, or by a CUDA address that a peer-memory module claims.
fn register_address(
    domain: &VerbsDomain,
    address: u64,
    range: &MemoryRange,
    more_flags: u32,
) -> Result<Result<NonNull<ibv_mr>, VerbError>, VerbsError> {
    let context = domain.context();
    let start = ptr::with_exposed_provenance_mut(address as usize);
    let flags = access_flags(range.access, context.relaxed_ordering).0 | more_flags;
    let pd = domain.raw()?;
    // SAFETY: the domain is alive, and the caller keeps the memory as long as the registration.
    Ok(unsafe {
        context
            .verbs()
            .reg_mr(pd, start, range.len as usize, ibv_access_flags(flags))
    })
}

fn register_dma_buf(
    domain: &VerbsDomain,
    gpu: &DeviceBuffer,
    offset: u64,
    range: &MemoryRange,
) -> Result<Result<(NonNull<ibv_mr>, OwnedFd), String>, VerbsError> {
    let export = match gpu.dma_buf(offset, range.len) {
        Ok(export) => export,
        Err(error) => return Ok(Err(error.to_string())),
    };
    let context = domain.context();
    let flags = access_flags(range.access, context.relaxed_ordering).0 as i32;
    let iova = gpu.ptr().get() + offset;
    let fd = export.fd.as_fd().as_raw_fd();
    let pd = domain.raw()?;
    // SAFETY: the domain is alive. The descriptor, which keeps the memory alive, is kept as long as the registration.
    let registered = unsafe {
        context
            .verbs()
            .ibv_reg_dmabuf_mr(pd, export.offset, range.len as usize, iova, fd, flags)
    };
    Ok(match registered {
        Ok(region) => Ok((region, export.fd)),
        Err(error) => Err(format!("{error}: {}", dma_buf_hint(error.errno()))),
    })
}

fn registration(
    domain: &Arc<VerbsDomain>,
    region: NonNull<ibv_mr>,
    method: RegistrationMethod,
    dma_buf: Option<OwnedFd>,
) -> Registration {
    // SAFETY: it was just registered, and its keys do not change.
    let (lkey, rkey) = unsafe { (region.as_ref().lkey, region.as_ref().rkey) };
    Registration {
        lkey: Lkey(lkey),
        rkey: Rkey(rkey),
        method,
        _guard: Box::new(VerbsRegion {
            domain: Arc::clone(domain),
            region,
            _dma_buf: dma_buf,
        }),
    }
}

impl Drop for VerbsRegion {
    fn drop(&mut self) {
        if !self.domain.context().may_destroy() {
            return;
        }
        let verbs = self.domain.context().verbs();
        // SAFETY: it is registered, and no outstanding request names it, because requests hold it.
        if let Err(error) = unsafe { verbs.ibv_dereg_mr(self.region.as_ptr()) } {
            tracing::warn!(%error, "a memory region is not deregistered");
        }
    }
}

/// Translates access rights.
pub(super) fn access_flags(access: Access, relaxed_ordering: bool) -> ibv_access_flags {
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
