//! NVIDIA's GDRCopy kernel module, through its device node.
//!
//! The module pins whole GPU pages of 64 KiB and maps a pin only when its address is a multiple
//! of that, so ranges are widened before they are pinned: any address and length will do here.
//! Each pin has a handle of the module's, owned by one [`Held`] and given back exactly once,
//! after the mapping is gone.

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
use crate::choice::BackendKind;
use crate::context::Attributes;
use crate::cpu::Caching;
use crate::error::{Error, Result};
use crate::fork::Origin;
use crate::pinned::Route;
use crate::window::{Stretch, Window};

/// The module, open and of a version that this library speaks.
#[derive(Debug)]
pub(crate) struct GdrdrvBackend {
    module: Arc<Module>,
    attributes: Attributes,
}

impl GdrdrvBackend {
    pub(crate) fn open() -> Result<Self> {
        Self::over(Box::new(DeviceNode::open()?))
    }

    /// Over `device`, once it and this library have agreed on a version.
    fn over(device: Box<dyn Device>) -> Result<Self> {
        let module = Module::greet(device)?;
        // Modules without attributes (before 2.5) register a free callback with every pin.
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

    fn hold(&self, request: &PinRequest) -> Result<GdrdrvPin> {
        let forced = request.forces_pcie();
        // Never tried in vain: a module that cannot takes an error path there which releases a
        // lock that it does not hold (GDRCopy 2.6, gdrdrv.c:849).
        if forced && !self.attributes.force_pcie {
            return Err(Error::ForcePcie {
                backend: BackendKind::Gdrdrv,
                reason: "that takes module 2.5 or later in its persistent mode, built for NVIDIA \
                         driver 570 or later",
            });
        }
        let (va, len) = request.pages();
        let flags = if forced { abi::FORCE_PCIE } else { 0 };
        let handle = self.module.pin(va, len, flags).map_err(|error| match error {
            Error::Module { source, .. } if forced && is(&source, libc::EINVAL) => {
                Error::ForcePcie {
                    backend: BackendKind::Gdrdrv,
                    reason: "the NVIDIA driver does not do so for this range: it takes driver 570 \
                             or later, a coherent platform, and GPU memory that can be pinned",
                }
            }
            other => other,
        })?;
        let held = Held {
            module: self.module.clone(),
            handle,
            origin: Origin::current(),
        };
        Ok(GdrdrvPin {
            held: Arc::new(held),
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
        Ok(Box::new(self.hold(request)?))
    }

    fn attributes(&self) -> Attributes {
        self.attributes
    }
}

/// A pinned range of the module's; unpinned on drop.
#[derive(Debug)]
struct Held {
    module: Arc<Module>,
    handle: Handle,
    origin: Origin,
}

impl Drop for Held {
    fn drop(&mut self) {
        // The module serves the process that opened it, so a child's pins are the parent's.
        if self.origin.is_current()
            && let Err(error) = self.module.unpin(self.handle)
        {
            tracing::error!("a pinned range leaked: {error}");
        }
    }
}

#[derive(Debug)]
struct GdrdrvPin {
    held: Arc<Held>,
    va: DevicePtr,
    len: u64,
    forced: bool,
    /// The kind of mapping that the module was last told to make of this range.
    requested: AtomicU32,
}

impl GdrdrvPin {
    /// Tells the module which kind of mapping to make. Where it has no choice it makes its own,
    /// which [`GdrdrvPin::map`] finds out afterwards.
    fn request(&self, caching: Option<Caching>) -> Result<()> {
        let Held { module, handle, .. } = &*self.held;
        let mut wanted = MappingType::from(caching);
        if wanted == MappingType::CACHED && self.forced {
            // Nothing on PCIe is cached; the module does not look and stops the kernel
            // (GDRCopy 2.6, BUG_ON in gdrdrv_mmap).
            wanted = MappingType::NONE;
        }
        if self.requested.load(Ordering::Acquire) == wanted.0 {
            return Ok(());
        }
        if module.request_mapping(*handle, wanted)? {
            self.requested.store(wanted.0, Ordering::Release);
        }
        Ok(())
    }

    /// What a refused mmap means.
    fn refused(&self, error: Error) -> Error {
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
        self.held.module.freed(self.held.handle)
    }

    fn map(&self, len: u64, caching: Option<Caching>) -> Result<Window> {
        let Held { module, handle, .. } = &*self.held;
        self.request(caching)?;
        let offset = handle.file_offset().ok_or_else(|| Error::Module {
            call: "mmap",
            source: io::Error::from_raw_os_error(libc::EOVERFLOW),
            remedy: "this context has used up its address range: open a new one",
        })?;
        let stretch = Stretch {
            fd: module.file(),
            offset,
            len,
        };
        // Write-combined until the module has said what it is.
        let window = Window::map(&[stretch], Caching::WriteCombined)
            .map_err(|error| self.refused(error))?
            .holding(self.held.clone());

        let info = module.info(*handle)?;
        if info.va != self.va || info.len != self.len {
            return Err(answer("another range than the one that was pinned"));
        }
        let Some(offered) = info.mapping.caching() else {
            // Freed between the two calls, or a kind of mapping that came after this library.
            return Err(if self.invalidated()? {
                Error::Invalidated
            } else {
                answer("a kind of mapping that this library does not know")
            });
        };
        match caching {
            Some(wanted) if wanted != offered => Err(Error::Caching {
                wanted,
                offered,
                backend: BackendKind::Gdrdrv,
            }),
            _ => Ok(window.with_caching(offered)),
        }
    }
}

fn is(error: &io::Error, errno: i32) -> bool {
    error.raw_os_error() == Some(errno)
}

/// The module answered something that makes no sense.
fn answer(what: &'static str) -> Error {
    Error::Module {
        call: "GDRDRV_IOC_GET_INFO",
        source: io::Error::new(io::ErrorKind::InvalidData, format!("it reports {what}")),
        remedy: "load a gdrdrv module that matches NVIDIA's release, or use another backend \
                 (GDR_BACKEND=rm)",
    }
}
