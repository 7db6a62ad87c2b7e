//! GPU memory behind a device of the kernel: registered with it, or staged through host memory
//! that is.

use std::sync::Arc;

use gdr_cuda::DeviceBuffer;
use gdr_rdma::{Access, Buffer, MemoryRegion, ProtectionDomain, VerbsError};

use super::compare::{CHUNK, pieces};
use super::report::Reached;
use super::settings::Reach;
use crate::error::{Error, Result};

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
                        why: match region.doubt() {
                            None => format!(
                                "registered by {}, proved by a checked transfer",
                                region.route()
                            ),
                            Some(why) => {
                                format!("registered by {}, not proved: {why}", region.route())
                            }
                        },
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
        let len = usize::try_from(size)
            .map_err(|_| Error::Settings("too large for this process; give less".into()))?;
        let region = domain.register(&Buffer::host(len)?, access)?;
        Ok(Self {
            stage: Some(Stage {
                host: region.buffer().clone(),
                offset,
                size,
            }),
            region,
            reached: Reached::Staged,
            why: match wanted {
                Reach::Staged => "asked for".to_owned(),
                _ => "the device refuses GPU memory".to_owned(),
            },
            refusals,
        })
    }
}

/// Host memory that a device reaches in the place of GPU memory. The device moves bytes here
/// alone; between here and the GPU they are copied when it has ended.
pub(super) struct Stage {
    host: Buffer,
    offset: u64,
    size: u64,
}

impl Stage {
    /// Copies what has arrived to the GPU.
    pub(super) fn copy_in(&self, gpu: &DeviceBuffer, chunk: &mut [u8]) -> Result<()> {
        for (offset, len) in pieces(self.size, CHUNK as u64) {
            let chunk = &mut chunk[..len as usize];
            self.host.copy_out(offset, chunk)?;
            gpu.write(self.offset + offset, chunk)?;
        }
        Ok(())
    }

    /// Copies what the GPU has to where the device reads it.
    pub(super) fn copy_out(&self, gpu: &DeviceBuffer, chunk: &mut [u8]) -> Result<()> {
        for (offset, len) in pieces(self.size, CHUNK as u64) {
            let chunk = &mut chunk[..len as usize];
            gpu.read(self.offset + offset, chunk)?;
            self.host.copy_in(offset, chunk)?;
        }
        Ok(())
    }
}
