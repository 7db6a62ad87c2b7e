//! Whether a registration of GPU memory carries bytes: a checked transfer through it.
//!
//! Registering can succeed where transfers then fail, or succeed and move nothing (a PCI path that
//! does not carry them, a kernel without peer-to-peer support).

use std::time::Duration;

use gdr_cuda::DeviceBuffer;
use gdr_roce::{Access, AckTimeout, RetryCount, WcStatus, WrId};

use super::error::VerbsError;
use crate::buffer::Buffer;
use crate::completion::CompletionQueue;
use crate::deadline::Deadline;
use crate::error::{Error, Result};
use crate::queue_pair::{ConnectionOptions, QueuePair, QueuePairOptions};
use crate::region::{MemoryRegion, ProtectionDomain};
use crate::request::SendRequest;

/// Bytes that are moved: one cache line.
const LINE: u64 = 64;

/// How long a transfer may take. It is a microsecond's work.
const LIMIT: Duration = Duration::from_secs(10);

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
    let link = match Link::new(domain, region.len().min(LINE)) {
        Ok(link) => link,
        Err(error) => return impossible(error),
    };
    let mut before = vec![0; link.len as usize];
    gpu.read(offset, &mut before)?;
    let other: Vec<u8> = before.iter().map(|byte| !byte).collect();

    // Out of GPU memory, over bytes that are all different.
    link.host.buffer().copy_in(0, &other)?;
    let out = SendRequest::write(WrId(1), link.host.remote().at(0));
    if let Some(why) = link.transfer(out.segment(region.segment(0, link.len)?))? {
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
    let moved = link.transfer(into.segment(link.host.segment(0, link.len)?));
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

/// A device that is connected to itself.
struct Link {
    near: QueuePair,
    /// Answers as long as it is there.
    _far: QueuePair,
    queue: CompletionQueue,
    host: MemoryRegion,
    len: u64,
}

impl Link {
    fn new(domain: &ProtectionDomain, len: u64) -> Result<Self> {
        let device = domain.device();
        let queue = device.completion_queue(8);
        let make = || domain.queue_pair(&QueuePairOptions::new(&queue));
        let (near, far) = (make()?, make()?);
        let options = ConnectionOptions {
            timeout: AckTimeout::new(14),
            retry_count: RetryCount::new(7),
            max_rd_atomic: 1,
            max_dest_rd_atomic: 1,
            ..ConnectionOptions::new(device.path_mtu(device.address().ip())?)
        };
        near.connect(&far.endpoint(), &options)?;
        far.connect(&near.endpoint(), &options)?;
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let host = domain.register(&Buffer::host(LINE as usize)?, access)?;
        Ok(Self {
            near,
            _far: far,
            queue,
            host,
            len,
        })
    }

    /// Why the transfer failed, if it did.
    fn transfer(&self, request: SendRequest) -> Result<Option<String>> {
        match self.near.post_send(request) {
            Ok(()) => {}
            Err(error @ Error::Verbs(VerbsError::DeviceGone { .. })) => return Err(error),
            Err(error) => return Ok(Some(format!("is refused: {error}"))),
        }
        match self.queue.wait(Deadline::after(LIMIT)) {
            Ok(completion) if completion.status == WcStatus::Success => Ok(None),
            Ok(completion) => Ok(Some(format!("fails: {}", completion.status))),
            Err(Error::Deadline { .. }) => Ok(Some("does not end".to_owned())),
            Err(error) => Err(error),
        }
    }
}
