//! Whether a registration of GPU memory carries bytes: a checked transfer through it.
//!
//! Registering can succeed where transfers then fail, or succeed and move nothing (a PCI path that
//! does not carry them, a kernel without peer-to-peer support).

use gdr_cuda::DeviceBuffer;
use gdr_roce::{Access, WrId};

use super::error::VerbsError;
use super::flush::FlushPolicy;
use super::own_link::{LINE, OwnLink};
use crate::error::{Error, Result};
use crate::region::{MemoryRegion, ProtectionDomain};
use crate::request::SendRequest;

/// What a transfer showed.
pub(crate) enum Proof {
    /// The bytes were right.
    Holds,
    /// They were not, or did not come: why.
    Refuted(String),
    /// No transfer could be made for other reasons than the memory: why.
    Impossible(String),
}

/// Moves the first line of `region`, which is GPU memory at `offset` of `gpu`, by the device: out of
/// it, and where the peer may write, into it. The line is as before when this returns.
///
/// # Errors
/// [`VerbsError::DeviceGone`]; the GPU's, where it does not copy.
pub(crate) fn prove(
    domain: &ProtectionDomain,
    region: &MemoryRegion,
    gpu: &DeviceBuffer,
    offset: u64,
) -> Result<Proof> {
    let link = match OwnLink::new(domain) {
        Ok(link) => link,
        Err(error) => return impossible(error),
    };
    let len = region.len().min(LINE);
    let mut before = vec![0; len as usize];
    gpu.read(offset, &mut before)?;
    let other: Vec<u8> = before.iter().map(|byte| !byte).collect();

    // Out of GPU memory, over bytes that are all different.
    link.host.buffer().copy_in(0, &other)?;
    let out = || -> Result<SendRequest> {
        let request = SendRequest::write(WrId(1), link.host.remote().at(0));
        Ok(request.segment(region.segment(0, len)?))
    };
    if let Some(why) = link.transfer(out()?)? {
        return Ok(Proof::Refuted(format!(
            "it was registered, and a transfer from it {why}"
        )));
    }
    let mut seen = vec![0; before.len()];
    link.host.buffer().copy_out(0, &mut seen)?;
    if seen != before {
        return Ok(Proof::Refuted(lost("from")));
    }
    if !region.access().contains(Access::REMOTE_WRITE) {
        return Ok(Proof::Holds);
    }

    // Into it.
    link.host.buffer().copy_in(0, &other)?;
    let into = SendRequest::write(WrId(2), region.remote().at(0));
    let mut moved = link.transfer(into.segment(link.host.segment(0, len)?));
    if let Ok(None) = moved {
        // The look below is work of the GPU, as that of a program would be.
        match FlushPolicy::of(gpu.gpu().info()).0 {
            FlushPolicy::Ordered => {}
            FlushPolicy::Driver if gpu.flush_remote_writes().is_ok() => {}
            _ => moved = link.transfer(out()?),
        }
    }
    // However it ended, the line is put back; a write that is still under way must not land on it
    // afterwards, and none does once the queue pairs are gone.
    drop(link);
    let read = gpu.read(offset, &mut seen);
    gpu.write(offset, &before)?;
    read?;
    Ok(match moved? {
        Some(why) => Proof::Refuted(format!("it was registered, and a transfer into it {why}")),
        None if seen != other => Proof::Refuted(lost("into")),
        None => Proof::Holds,
    })
}

fn lost(direction: &str) -> String {
    format!(
        "it was registered, and a transfer {direction} it ended well without moving the bytes: \
         the PCI path between GPU and NIC loses them (`gdr doctor` looks at ACS and the IOMMU)"
    )
}

/// A failure that is not the memory's; that the device failed is one for the caller.
fn impossible(error: Error) -> Result<Proof> {
    match error {
        Error::Verbs(VerbsError::DeviceGone { .. }) => Err(error),
        other => {
            tracing::debug!(error = %other, "a registration cannot be proved");
            Ok(Proof::Impossible(other.to_string()))
        }
    }
}
