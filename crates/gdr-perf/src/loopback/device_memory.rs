//! GPU memory for a kernel device: either registered with the device, or staged through registered host memory.

use std::sync::Arc;

use gdr_cuda::DeviceBuffer;
use gdr_rdma::{Access, Buffer, MemoryRegion, ProtectionDomain, VerbsError};

use super::settings::TransferPreference;
use super::staging::StagingBuffer;
use crate::error::Result;
use crate::memory_facts::TransferMode;

/// A range of GPU memory that a kernel device can transfer into.
pub(super) struct DeviceMemory {
    /// Registration of the GPU memory, or of the host memory that stands in for it.
    pub(super) region: MemoryRegion,
    pub(super) reached: TransferMode,
    pub(super) why: String,
    /// Methods that were rejected, with a sentence for each.
    pub(super) refusals: Vec<String>,
    /// Host memory that stands in for GPU memory.
    pub(super) stage: Option<StagingBuffer>,
}

impl DeviceMemory {
    /// Returns why the memory is staged, if it is.
    pub(super) fn missing(self) -> String {
        match &self.refusals[..] {
            [] => self.why,
            refusals => refusals.join("; "),
        }
    }

    /// Registers `size` bytes of `buffer` from `offset` on: the GPU memory itself if `wanted` and the device permit
    /// that.
    pub(super) fn new(
        domain: &ProtectionDomain,
        buffer: &Arc<DeviceBuffer>,
        offset: u64,
        size: u64,
        access: Access,
        wanted: TransferPreference,
    ) -> Result<Self> {
        let mut refusals = Vec::new();
        if wanted != TransferPreference::Staged {
            let memory = Buffer::staged(Arc::clone(buffer))?;
            match domain.register_range(&memory, offset, size, access) {
                Ok(region) => {
                    return Ok(Self {
                        why: why(&region),
                        refusals: region.rejected_methods().to_vec(),
                        region,
                        reached: TransferMode::Device,
                        stage: None,
                    });
                }
                Err(gdr_rdma::Error::Verbs(VerbsError::GpuRegistration(all)))
                    if wanted == TransferPreference::Auto =>
                {
                    refusals = all;
                }
                Err(error) => return Err(error.into()),
            }
        }
        let stage = StagingBuffer::new(buffer, offset, size)?;
        Ok(Self {
            region: domain.register(&stage.buffer()?, access)?,
            stage: Some(stage),
            reached: TransferMode::Staged,
            why: match wanted {
                TransferPreference::Staged => "requested".to_owned(),
                _ => "the device cannot register GPU memory".to_owned(),
            },
            refusals,
        })
    }
}

/// Returns the registration method, whether a transfer verified it, and how bytes become visible after a completion.
fn why(region: &MemoryRegion) -> String {
    let mut why = format!("registered by {}, ", region.route());
    match region.unverified_reason() {
        None => why += "verified by a transfer",
        Some(reason) => why += &format!("not verified: {reason}"),
    }
    if let Some((policy, reason)) = region.flush_policy() {
        why += &format!("; {policy}: {reason}");
    }
    why
}
