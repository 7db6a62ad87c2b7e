//! mmap of the dma-buf that CUDA exports for a range.
//!
//! CUDA exports whole host pages. A pin covers the host pages that its range touches, as one
//! descriptor, and is mapped from that descriptor's start on: where in its first page a range
//! begins makes no difference. The export keeps the memory allocated, and so does a mapping of
//! it (the kernel's mapping holds the file), whichever goes first.

mod exporter;
#[cfg(test)]
mod tests;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use gdr_cuda::{Cuda, CudaVersion, DeviceInfo, DevicePtr, Ordinal};

use self::exporter::{Exporter, Link};
use super::{Backend, Pin, PinRequest, only};
use crate::choice::BackendKind;
use crate::context::Attributes;
use crate::cpu::Caching;
use crate::error::{Error, Result};
use crate::pinned::Route;
use crate::window::{Stretch, Window, host_page};

/// The first CUDA whose driver maps the dma-bufs of discrete GPUs (610.43.02; GDRCopy 2.6 README,
/// "DMA-BUF mmap backend").
const FIRST: CudaVersion = CudaVersion {
    major: 13,
    minor: 3,
};

/// The kernel's `ENOTSUPP`, which libc does not name: what drivers before [`FIRST`] answer.
const ENOTSUPP: i32 = 524;

/// CUDA, able to export dma-bufs that can be mapped.
#[derive(Debug)]
pub(crate) struct DmaBufBackend {
    exporter: Box<dyn Exporter>,
    /// Asked for at the first pin: opening must not initialize CUDA.
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
                "GPU {} ({}) exports none (CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED is 0: the open \
                 kernel modules and Linux 5.12 or later are needed)",
                gpu.ordinal, gpu.name
            );
            return Err(Error::DmaBufMmap {
                reason,
                source: None,
            });
        }
        // The pages that the range touches. Small allocations share theirs with neighbours of the
        // same process; whole pages of an allocation of at least one page stay inside it.
        let va = request.ptr.align_down(host_page());
        let end = (request.ptr.get() + request.len).next_multiple_of(host_page());
        let len = end - va.get();
        let link = if request.forces_pcie() {
            Link::Pcie
        } else {
            Link::Default
        };
        let fd = self.exporter.export(info.device, va, len, link)?;
        Ok(Box::new(DmaBufPin { fd, va, len }))
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

    fn map(&self, len: u64, caching: Option<Caching>) -> Result<Window> {
        // What the driver makes on PCIe. On a coherent link it is cached; nothing tells which it
        // was, and treating a cached mapping as a write-combined one costs fences only.
        let caching = only(BackendKind::DmaBuf, Caching::WriteCombined, caching)?;
        Window::map(
            &[Stretch {
                fd: self.fd.as_fd(),
                offset: 0,
                len,
            }],
            caching,
        )
        .map_err(refused)
    }
}

/// What a refused mmap means.
fn refused(error: Error) -> Error {
    match error {
        Error::Os { source, .. } if says_unsupported(&source) => Error::DmaBufMmap {
            reason: format!("the NVIDIA driver refused the mmap ({source})"),
            source: Some(source),
        },
        other => other,
    }
}

/// What drivers answer that have no mmap for this dma-buf: the first from NVIDIA's own, `ENODEV`
/// and `EINVAL` from the kernel's dma-buf code for an exporter without one (dma-buf.c).
fn says_unsupported(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(ENOTSUPP | libc::EOPNOTSUPP | libc::EINVAL | libc::ENODEV)
    )
}
