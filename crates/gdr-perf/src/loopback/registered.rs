//! GPU memory behind a device of the kernel: registered with it, or staged through host memory
//! that is.

use std::sync::Arc;

use gdr_cuda::DeviceBuffer;
use gdr_rdma::{Access, Buffer, MemoryRegion, ProtectionDomain, VerbsError};

use super::report::Reached;
use super::settings::Reach;
use super::stage::Stage;
use crate::error::Result;

/// Part of GPU memory that a device of the kernel reaches.
pub(super) struct Registered {
    /// What the device knows: GPU memory, or host memory that stands for it.
    pub(super) region: MemoryRegion,
    pub(super) reached: Reached,
    pub(super) why: String,
    /// The ways that were refused, a sentence each.
    pub(super) refusals: Vec<String>,
    /// The host memory that stands for the GPU's, where that is so.
    pub(super) stage: Option<Stage>,
}

impl Registered {
    /// Registers `size` bytes of `buffer` from `offset` on: GPU memory itself where `wanted` and
    /// the device permit it.
    pub(super) fn new(
        domain: &ProtectionDomain,
        buffer: &Arc<DeviceBuffer>,
        offset: u64,
        size: u64,
        access: Access,
        wanted: Reach,
    ) -> Result<Self> {
        let mut refusals = Vec::new();
        if wanted != Reach::Staged {
            let memory = Buffer::staged(Arc::clone(buffer))?;
            match domain.register_range(&memory, offset, size, access) {
                Ok(region) => {
                    return Ok(Self {
                        why: why(&region),
                        refusals: region.refusals().to_vec(),
                        region,
                        reached: Reached::Device,
                        stage: None,
                    });
                }
                Err(gdr_rdma::Error::Verbs(VerbsError::GpuRegistration(all)))
                    if wanted == Reach::Auto =>
                {
                    refusals = all;
                }
                Err(error) => return Err(error.into()),
            }
        }
        let stage = Stage::new(buffer, offset, size)?;
        Ok(Self {
            region: domain.register(&stage.buffer()?, access)?,
            stage: Some(stage),
            reached: Reached::Staged,
            why: match wanted {
                Reach::Staged => "asked for".to_owned(),
                _ => "the device refuses GPU memory".to_owned(),
            },
            refusals,
        })
    }
}

/// How the device reaches GPU memory, whether that is proved, and what makes the bytes of a
/// completion be there.
fn why(region: &MemoryRegion) -> String {
    let mut why = format!("registered by {}, ", region.route());
    match region.doubt() {
        None => why += "proved by a checked transfer",
        Some(doubt) => why += &format!("not proved: {doubt}"),
    }
    if let Some((policy, reason)) = region.flush_policy() {
        why += &format!("; {policy}: {reason}");
    }
    why
}
