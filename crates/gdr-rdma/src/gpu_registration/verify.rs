//! Verification of a registration of GPU memory by a transfer.
//!
//! A registration can succeed although transfers through it fail, or succeed without moving any bytes (a PCI path that
//! drops them, a kernel without peer-to-peer support).

use gdr_cuda::DeviceBuffer;
use gdr_roce::{Access, WrId};

use super::is_device_gone;
use super::self_loopback::{LINE, SelfLoopback};
use crate::error::{LoopbackError, Result};
use crate::memory_region::MemoryRegion;
use crate::protection_domain::ProtectionDomain;
use crate::types::FlushPolicy;
use crate::work_request::SendRequest;

/// The result of a verification.
pub(super) enum Outcome {
    /// The bytes were moved.
    Verified,
    /// The bytes were not moved, for this reason.
    Failed(String),
    /// The transfer was impossible for a reason that has nothing to do with the memory.
    Unverifiable(String),
}

impl Outcome {
    /// Returns the outcome of a transfer that failed.
    fn of(error: LoopbackError, direction: &str) -> Result<Self> {
        match error {
            LoopbackError::Device(error) => Err(*error),
            error => Ok(Self::Failed(format!(
                "the registration succeeded, and a transfer {direction} it {error}"
            ))),
        }
    }
}

/// Has the device move the first cache line of `region`, which is GPU memory at `offset` of `gpu`: out of it and, if
/// the peer may write, into it. The line has its old content when this returns.
///
/// # Errors
/// [`VerbsError::DeviceGone`](crate::VerbsError::DeviceGone); errors of the GPU's copies.
pub(super) fn verify(
    domain: &ProtectionDomain,
    region: &MemoryRegion,
    gpu: &DeviceBuffer,
    offset: u64,
) -> Result<Outcome> {
    let link = match SelfLoopback::new(domain) {
        Ok(link) => link,
        Err(error) if is_device_gone(&error) => return Err(error),
        Err(error) => {
            tracing::debug!(%error, "a registration cannot be verified");
            return Ok(Outcome::Unverifiable(error.to_string()));
        }
    };
    let len = region.len().min(LINE);
    let mut before = vec![0; len as usize];
    gpu.read(offset, &mut before)?;
    let inverted: Vec<u8> = before.iter().map(|byte| !byte).collect();

    // Read GPU memory into bytes that all differ.
    link.host.buffer().write_at(0, &inverted)?;
    let out = || -> Result<SendRequest> {
        let request = SendRequest::write(WrId(1), link.host.remote().at(0));
        Ok(request.segment(region.segment(0, len)?))
    };
    if let Err(error) = link.transfer(out()?) {
        return Outcome::of(error, "from");
    }
    let mut seen = vec![0; before.len()];
    link.host.buffer().read_at(0, &mut seen)?;
    if seen != before {
        return Ok(Outcome::Failed(bytes_lost("from")));
    }
    if !region.access().contains(Access::REMOTE_WRITE) {
        return Ok(Outcome::Verified);
    }

    // Into it.
    link.host.buffer().write_at(0, &inverted)?;
    let into = SendRequest::write(WrId(2), region.remote().at(0));
    let mut moved = link.transfer(into.segment(link.host.segment(0, len)?));
    if moved.is_ok() {
        // The copy below is GPU work, like a program's would be.
        match FlushPolicy::of(gpu.gpu().info()).0 {
            FlushPolicy::Ordered => {}
            FlushPolicy::Driver if gpu.flush_remote_writes().is_ok() => {}
            _ => moved = link.transfer(out()?),
        }
    }
    // Restore the line in any case. A write in progress must not change it afterwards, which is impossible once the
    // queue pairs are destroyed.
    drop(link);
    let read = gpu.read(offset, &mut seen);
    gpu.write(offset, &before)?;
    read?;
    match moved {
        Err(error) => Outcome::of(error, "into"),
        Ok(()) if seen != inverted => Ok(Outcome::Failed(bytes_lost("into"))),
        Ok(()) => Ok(Outcome::Verified),
    }
}

fn bytes_lost(direction: &str) -> String {
    format!(
        "the registration succeeded, and a transfer {direction} it completed without moving the \
         bytes: the PCI path between GPU and NIC drops them (check ACS and the IOMMU)"
    )
}
