//! mmap of the dma-buf that CUDA exports for a range.
//!
//! CUDA exports whole host pages. A pin is one dma-buf of the host pages that its range touches, and is mapped from the
//! start of that dma-buf. The export keeps the memory allocated, and so does a mapping of it (which references the
//! file); either may be released first.

mod exporter;
#[cfg(test)]
mod tests;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use gdr_cuda::{Cuda, CudaVersion, DeviceInfo, DevicePtr, Ordinal};

use self::exporter::{Exporter, MappingType};
use super::{Backend, Pin, PinRequest, only};
use crate::backend_kind::BackendKind;
use crate::bar_mapping::{BarMapping, FdRange, host_page};
use crate::cpu::Caching;
use crate::error::{Error, Result};
use crate::report::Attributes;
use crate::report::Route;

/// The first CUDA whose driver maps the dma-bufs of discrete GPUs (610.43.02; GDRCopy 2.6 README, "DMA-BUF mmap
/// backend").
const FIRST: CudaVersion = CudaVersion {
    major: 13,
    minor: 3,
};

/// The kernel's `ENOTSUPP`, which libc does not define: the error of drivers before [`FIRST`].
const ENOTSUPP: i32 = 524;

/// A CUDA driver whose exported dma-bufs can be mapped.
#[derive(Debug)]
pub(crate) struct DmaBufBackend {
    exporter: Box<dyn Exporter>,
    /// Queried at the first pin: opening must not initialize CUDA.
    gpus: OnceLock<Vec<DeviceInfo>>,
}

impl DmaBufBackend {
    pub(crate) fn open(cuda: Arc<Cuda>) -> Result<Self> {
        Self::over(Box::new(cuda))
    }

    fn over(exporter: Box<dyn Exporter>) -> Result<Self> {
        let version = exporter.cuda_version();
        if version < FIRST {
            let reason = format!("the NVIDIA driver offers CUDA {version}");
            return Err(Error::DmaBufMmap {
                reason,
                source: None,
            });
        }
        Ok(Self {
            exporter,
            gpus: OnceLock::new(),
        })
    }

    fn gpu(&self, ordinal: Ordinal) -> Result<&DeviceInfo> {
        let gpus = match self.gpus.get() {
            Some(gpus) => gpus,
            // Queried outside `get_or_init`, whose closure cannot fail.
            None => {
                let gpus = self.exporter.devices()?;
                self.gpus.get_or_init(|| gpus)
            }
        };
        let count = gpus.len() as u32;
        let gpu = gpus.iter().find(|gpu| gpu.ordinal == ordinal);
        Ok(gpu.ok_or(gdr_cuda::Error::NoSuchDevice { ordinal, count })?)
    }
}

impl Backend for DmaBufBackend {
    fn kind(&self) -> BackendKind {
        BackendKind::DmaBuf
    }

    fn reason(&self) -> String {
        format!("CUDA {} maps its dma-bufs", self.exporter.cuda_version())
    }

    fn pin(&self, request: &PinRequest) -> Result<Box<dyn Pin>> {
        let info = self.exporter.locate(request)?;
        let gpu = self.gpu(info.device)?;
        if !gpu.dma_buf {
            let reason = format!(
                "GPU {} ({}) does not export them (CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED is 0: the open \
                 kernel modules and Linux 5.12 or later are required)",
                gpu.ordinal, gpu.name
            );
            return Err(Error::DmaBufMmap {
                reason,
                source: None,
            });
        }
        // The pages that the range touches. Small allocations share pages with other allocations of the same process;
        // whole pages of an allocation of at least one page are inside it.
        let va = request.ptr.align_down(host_page());
        let end = (request.ptr.get() + request.len).next_multiple_of(host_page());
        let len = end - va.get();
        let mapping_type = if request.forces_pcie() {
            MappingType::Pcie
        } else {
            MappingType::Default
        };
        // As GDRCopy 2.6 reports for the same export (gdr_pin_buffer_dmabuf).
        let caching = match mapping_type {
            MappingType::Default if gpu.coherent => Caching::Cached,
            _ => Caching::WriteCombined,
        };
        let fd = self.exporter.export(info.device, va, len, mapping_type)?;
        // If the memory was freed and allocated again between the two calls, the export refers to other memory.
        if self.exporter.locate(request)?.buffer != info.buffer {
            return Err(gdr_cuda::Error::UnknownPointer { ptr: request.ptr }.into());
        }
        Ok(Box::new(DmaBufPin {
            fd,
            va,
            len,
            caching,
        }))
    }

    fn attributes(&self) -> Attributes {
        Attributes {
            persistent: true,
            force_pcie: true,
            dma_buf_mmap: true,
            module: None,
        }
    }
}

#[derive(Debug)]
struct DmaBufPin {
    fd: OwnedFd,
    va: DevicePtr,
    len: u64,
    /// How the driver maps it.
    caching: Caching,
}

impl Pin for DmaBufPin {
    fn va(&self) -> DevicePtr {
        self.va
    }

    fn len(&self) -> u64 {
        self.len
    }

    fn page_size(&self) -> u32 {
        host_page() as u32
    }

    fn route(&self) -> Route {
        Route::DmaBufMmap
    }

    fn map(&self, len: u64, caching: Option<Caching>) -> Result<BarMapping> {
        let caching = only(BackendKind::DmaBuf, self.caching, caching)?;
        BarMapping::map(
            &[FdRange {
                fd: self.fd.as_fd(),
                offset: 0,
                len,
            }],
            caching,
        )
        .map_err(explain)
    }
}

/// Explains a failed mmap.
fn explain(error: Error) -> Error {
    match error {
        Error::Os { source, .. } if says_unsupported(&source) => Error::DmaBufMmap {
            reason: format!("the NVIDIA driver refused the mmap ({source})"),
            source: Some(source),
        },
        other => other,
    }
}

/// Returns whether a driver has no mmap for this dma-buf: NVIDIA's driver fails with `ENOTSUPP` or `EOPNOTSUPP`, the
/// kernel's dma-buf code with `ENODEV` or `EINVAL` for an exporter without mmap (dma-buf.c).
fn says_unsupported(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(ENOTSUPP | libc::EOPNOTSUPP | libc::EINVAL | libc::ENODEV)
    )
}
