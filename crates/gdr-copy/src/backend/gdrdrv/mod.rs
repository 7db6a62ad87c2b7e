//! NVIDIA's GDRCopy kernel module, through its device node.
//!
//! The module pins whole GPU pages of 64 KiB and maps a pin only if its address is a multiple of that size, so ranges
//! are widened before they are pinned: any address and any length can be pinned. Each pin has a handle of the module,
//! which one [`OwnedHandle`] owns and unpins exactly once, after the munmap.

mod abi;
mod device;
#[cfg(test)]
mod fake;
mod module;
#[cfg(test)]
mod tests;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use gdr_cuda::DevicePtr;

use self::abi::MappingType;
use self::device::{Device, DeviceNode};
use self::module::{Handle, Module};
use super::{Backend, Pin, PinRequest};
use crate::backend_kind::BackendKind;
use crate::bar_mapping::{BarMapping, FdRange};
use crate::cpu::Caching;
use crate::error::{Error, Result};
use crate::report::Attributes;
use crate::report::Route;
use gdr_process::ProcessId;

/// The open module, of a supported version.
#[derive(Debug)]
pub(crate) struct GdrdrvBackend {
    module: Arc<Module>,
    attributes: Attributes,
}

impl GdrdrvBackend {
    pub(crate) fn open() -> Result<Self> {
        Self::over(Box::new(DeviceNode::open()?))
    }

    /// Opens the module at `device` and checks that its version is supported.
    fn over(device: Box<dyn Device>) -> Result<Self> {
        let module = Module::open(device)?;
        // Modules without attributes (before 2.5) are not persistent.
        let is_set = |attribute| -> Result<bool> {
            Ok(module.attribute(attribute)?.is_some_and(|value| value != 0))
        };
        let attributes = Attributes {
            persistent: is_set(abi::PERSISTENT)?,
            force_pcie: is_set(abi::SUPPORTS_FORCE_PCIE)?,
            dma_buf_mmap: false,
            module: Some(module.version()),
        };
        Ok(Self {
            module: Arc::new(module),
            attributes,
        })
    }

    fn pin_pages(&self, request: &PinRequest) -> Result<GdrdrvPin> {
        let forced = request.forces_pcie();
        // Not tried if it cannot succeed: the module's error path releases a lock that it does not hold (GDRCopy 2.6,
        // gdrdrv.c:849).
        if forced && !self.attributes.force_pcie {
            return Err(Error::ForcePcie {
                backend: BackendKind::Gdrdrv,
                reason: "it requires module 2.5 or later in its persistent mode, built for NVIDIA \
                         driver 570 or later",
            });
        }
        let (va, len) = request.pages();
        let flags = if forced { abi::FORCE_PCIE } else { 0 };
        let raw = self
            .module
            .pin(va, len, flags)
            .map_err(|error| match error {
                Error::Module { source, .. } if forced && is(&source, libc::EINVAL) => {
                    Error::ForcePcie {
                        backend: BackendKind::Gdrdrv,
                        reason: "the NVIDIA driver does not support it for this range: it requires \
                             driver 570 or later, a coherent platform, and GPU memory that can be \
                             pinned",
                    }
                }
                other => other,
            })?;
        let handle = OwnedHandle {
            module: self.module.clone(),
            raw,
            origin: ProcessId::current(),
        };
        Ok(GdrdrvPin {
            handle: Arc::new(handle),
            va,
            len,
            forced,
            requested: AtomicU32::new(MappingType::NONE.0),
        })
    }
}

impl Backend for GdrdrvBackend {
    fn kind(&self) -> BackendKind {
        BackendKind::Gdrdrv
    }

    fn reason(&self) -> String {
        let (major, minor) = self.module.version();
        format!("the gdrdrv module ({major}.{minor}) is loaded")
    }

    fn pin(&self, request: &PinRequest) -> Result<Box<dyn Pin>> {
        Ok(Box::new(self.pin_pages(request)?))
    }

    fn attributes(&self) -> Attributes {
        self.attributes
    }
}

/// The handle of a pinned range, which is unpinned on drop.
#[derive(Debug)]
struct OwnedHandle {
    module: Arc<Module>,
    raw: Handle,
    origin: ProcessId,
}

impl Drop for OwnedHandle {
    fn drop(&mut self) {
        // The pins belong to the process that opened the module; a child must not release them.
        if self.origin.is_current()
            && let Err(error) = self.module.unpin(self.raw)
        {
            tracing::error!("a pinned range was not released: {error}");
        }
    }
}

#[derive(Debug)]
struct GdrdrvPin {
    handle: Arc<OwnedHandle>,
    va: DevicePtr,
    len: u64,
    forced: bool,
    /// The kind of mapping that was last requested for this range.
    requested: AtomicU32,
}

impl GdrdrvPin {
    /// Requests a kind of mapping. A module that offers no choice chooses itself; [`GdrdrvPin::map`] queries the kind
    /// after the mmap.
    fn request(&self, caching: Option<Caching>) -> Result<()> {
        let OwnedHandle { module, raw, .. } = &*self.handle;
        let mut wanted = MappingType::from(caching);
        if wanted == MappingType::CACHED && self.forced {
            // A mapping over PCIe cannot be cached. The module does not check that and crashes the Linux kernel
            // (GDRCopy 2.6, BUG_ON in gdrdrv_mmap).
            wanted = MappingType::NONE;
        }
        if self.requested.load(Ordering::Acquire) == wanted.0 {
            return Ok(());
        }
        if module.request_mapping(*raw, wanted)? {
            self.requested.store(wanted.0, Ordering::Release);
        }
        Ok(())
    }

    /// Explains a failed mmap.
    fn explain(&self, error: Error) -> Error {
        let Error::Os { source, .. } = error else {
            return error;
        };
        if is(&source, libc::EINVAL) && self.invalidated().unwrap_or(false) {
            return Error::Invalidated;
        }
        Error::Module {
            call: "mmap",
            remedy: module::remedy(&source),
            source,
        }
    }
}

impl Pin for GdrdrvPin {
    fn va(&self) -> DevicePtr {
        self.va
    }

    fn len(&self) -> u64 {
        self.len
    }

    fn route(&self) -> Route {
        Route::Module
    }

    fn invalidated(&self) -> Result<bool> {
        self.handle.module.freed(self.handle.raw)
    }

    fn map(&self, len: u64, caching: Option<Caching>) -> Result<BarMapping> {
        let OwnedHandle { module, raw, .. } = &*self.handle;
        self.request(caching)?;
        let offset = raw.file_offset().ok_or_else(|| Error::Module {
            call: "mmap",
            source: io::Error::from_raw_os_error(libc::EOVERFLOW),
            remedy: "this context has used up its address range: open a new one",
        })?;
        let range = FdRange {
            fd: module.file(),
            offset,
            len,
        };
        // Write-combined until the module has reported the kind.
        let mapping = BarMapping::map(&[range], Caching::WriteCombined)
            .map_err(|error| self.explain(error))?
            // The module must not unpin a range that is still mapped.
            .keeping(self.handle.clone());

        // The module knows the kind of the mapping only after the mmap.
        let info = module.info(*raw)?;
        // A mapping of other memory must not reach the caller.
        if info.va != self.va || info.len != self.len {
            return Err(unexpected("another range than the one that was pinned"));
        }
        let Some(offered) = info.mapping.caching() else {
            // Freed between the two calls, or a kind of mapping that is newer than this library.
            return Err(if self.invalidated()? {
                Error::Invalidated
            } else {
                unexpected("a kind of mapping that this library does not know")
            });
        };
        match caching {
            Some(wanted) if wanted != offered => Err(Error::Caching {
                wanted,
                offered,
                backend: BackendKind::Gdrdrv,
            }),
            _ => Ok(mapping.with_caching(offered)),
        }
    }
}

fn is(error: &io::Error, errno: i32) -> bool {
    error.raw_os_error() == Some(errno)
}

/// Returns the error for a module whose report contradicts the request.
fn unexpected(what: &'static str) -> Error {
    Error::Module {
        call: "GDRDRV_IOC_GET_INFO",
        source: io::Error::new(io::ErrorKind::InvalidData, format!("it reports {what}")),
        remedy: "load a gdrdrv module that matches NVIDIA's release, or use another backend \
                 (GDR_BACKEND=rm)",
    }
}
