//! Registration of GPU memory with a kernel device.
//!
//! A registration can succeed although transfers through it fail. Therefore each is verified by a transfer from the
//! device to itself, and the next method is tried if that fails. Then the device is given a way to flush its writes to
//! that memory.

mod flush;
mod self_loopback;
mod verify;

use std::sync::Arc;

use gdr_cuda::DeviceBuffer;

use self::flush::{DriverFlush, ReadBack};
use self::verify::{Outcome, verify};
use crate::error::{Error, Result, VerbsError};
use crate::memory_region::{Flush, MemoryRange, MemoryRegion, RejectedMethods};
use crate::protection_domain::ProtectionDomain;
use crate::provider::{GpuDma, RdmaWriteFlush, Verification};
use crate::types::FlushPolicy;

/// Registers GPU memory, which begins at `start` of `memory`.
pub(crate) fn register(
    domain: &ProtectionDomain,
    dma: GpuDma<'_>,
    range: MemoryRange,
    memory: &Arc<DeviceBuffer>,
    start: u64,
) -> Result<MemoryRegion> {
    let region = register_verified(domain, dma.verification, &range, memory, start)?;
    let gpu = memory.gpu().info();
    let (mut policy, mut why) = FlushPolicy::of(gpu);
    if policy == FlushPolicy::Driver
        && let Err(error) = memory.flush_remote_writes()
    {
        (policy, why) = (FlushPolicy::ReadBack, error.to_string());
    }
    let flush: Option<Arc<dyn RdmaWriteFlush>> = match policy {
        FlushPolicy::Ordered => None,
        FlushPolicy::Driver => Some(Arc::new(DriverFlush::new(memory))),
        FlushPolicy::ReadBack => match ReadBack::new(domain, &region) {
            Ok(read_back) => Some(Arc::new(read_back)),
            Err(error) => {
                let mut rejected = region.rejected_methods().to_vec();
                let method = region.route();
                rejected.push(format!(
                    "{method}: {why}, and the device cannot read it back either: {error}"
                ));
                return Err(VerbsError::GpuRegistration(rejected).into());
            }
        },
    };
    let guard = flush.map(|flush| Box::new(dma.flushes.add(gpu.uuid, flush)) as _);
    region.set_flush(Flush {
        policy,
        why,
        _guard: guard,
    });
    Ok(region)
}

/// Registers with the first method that the device accepts and a transfer does not disprove.
fn register_verified(
    domain: &ProtectionDomain,
    verification: Verification,
    range: &MemoryRange,
    memory: &DeviceBuffer,
    start: u64,
) -> Result<MemoryRegion> {
    let mut rejected = RejectedMethods::default();
    loop {
        let registration = domain.ops().clone().register(range, &mut rejected)?;
        let method = registration.method;
        let reasons = rejected.reasons().to_vec();
        let region = MemoryRegion::new(domain.id(), range.clone(), registration, reasons);
        if verification == Verification::Skip {
            return Ok(region);
        }
        match verify(domain, &region, memory, start)? {
            Outcome::Verified => return Ok(region),
            Outcome::Unverifiable(why) => {
                region.set_unverified(why);
                return Ok(region);
            }
            Outcome::Failed(why) => rejected.add(method, &why),
        }
    }
}

/// Returns whether the device has failed, so that no other method is worth trying.
fn is_device_gone(error: &Error) -> bool {
    matches!(error, Error::Verbs(VerbsError::DeviceGone { .. }))
}
