//! Device memory of another process.

use std::os::fd::OwnedFd;

use crate::device_export::DeviceExport;
use crate::driver::RawImport;
use crate::error::{Error, Result};
use crate::gpu::Gpu;
use crate::pointer::DevicePtr;

/// An allocation of another process that this process has opened ([`Gpu::import`]). It is closed when this value is
/// dropped and all queued work that uses it is complete.
#[derive(Debug)]
pub struct ImportedMemory {
    gpu: Gpu,
    raw: RawImport,
    export: DeviceExport,
}

impl ImportedMemory {
    pub(crate) fn open(
        gpu: Gpu,
        export: &DeviceExport,
        descriptor: Option<OwnedFd>,
    ) -> Result<Self> {
        let device = gpu.info().ordinal;
        let raw = gpu.driver().open_export(device, export, descriptor)?;
        let (claimed, found) = (export.len, raw.len);
        let export = *export;
        let imported = Self { gpu, raw, export };
        if claimed == 0 || claimed > found {
            return Err(Error::FalseExport { claimed, found });
        }
        Ok(imported)
    }

    /// Returns the GPU for which the memory was opened.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Returns the export that was opened.
    pub fn export(&self) -> &DeviceExport {
        &self.export
    }

    /// Returns the length of the allocation in bytes.
    #[expect(clippy::len_without_is_empty, reason = "empty exports are not opened")]
    pub fn len(&self) -> u64 {
        self.export.len
    }

    /// Returns the address in this process of `wanted` bytes at `offset`.
    pub(crate) fn at(&self, offset: u64, wanted: u64) -> Result<DevicePtr> {
        let len = self.len();
        let end = offset.checked_add(wanted).filter(|end| *end <= len);
        end.and_then(|_| self.raw.ptr.checked_add(offset))
            .ok_or(Error::OutOfRange {
                offset,
                wanted,
                len,
            })
    }
}

impl Drop for ImportedMemory {
    fn drop(&mut self) {
        // SAFETY: `raw` is from this driver, and this value alone owns it. `Stream` keeps an `Arc` of it until its work
        // is complete.
        if let Err(error) = unsafe { self.gpu.driver().close_export(&self.raw) } {
            tracing::debug!(%error, "closing memory of another process failed");
        }
    }
}
