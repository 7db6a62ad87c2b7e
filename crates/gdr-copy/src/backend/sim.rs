//! The simulated GPU: mmap of the allocation's memfd.
//!
//! Mappings are reported as write-combined, as a real GPU's are on x86, so the same copy routines run; the memory
//! itself is ordinary.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use gdr_cuda::{DevicePtr, Driver, SimDriver};

use super::{Backend, Pin, PinRequest, only, range};
use crate::backend_kind::BackendKind;
use crate::bar_mapping::{BarMapping, FdRange};
use crate::cpu::Caching;
use crate::error::{Error, Result};
use crate::report::Attributes;
use crate::report::Route;

#[derive(Debug)]
pub(crate) struct SimBackend {
    driver: Arc<SimDriver>,
}

impl SimBackend {
    pub(crate) fn new(driver: Arc<SimDriver>) -> Self {
        Self { driver }
    }
}

impl Backend for SimBackend {
    fn kind(&self) -> BackendKind {
        BackendKind::Sim
    }

    fn reason(&self) -> String {
        "no real GPU is used: everything is simulated".to_owned()
    }

    fn pin(&self, request: &PinRequest) -> Result<Box<dyn Pin>> {
        if request.forces_pcie() {
            return Err(Error::ForcePcie {
                backend: BackendKind::Sim,
                reason: "the simulated GPU has no PCIe path to choose",
            });
        }
        range::locate(&|ptr| self.driver.pointer_info(ptr), request)?;
        let share = self.driver.share(request.ptr)?;
        let (va, len) = request.pages();
        Ok(Box::new(SimPin {
            fd: share.fd,
            offset: va.get().saturating_sub(share.base.get()),
            va,
            len,
        }))
    }

    fn attributes(&self) -> Attributes {
        Attributes {
            persistent: true,
            force_pcie: false,
            dma_buf_mmap: false,
            module: None,
        }
    }
}

#[derive(Debug)]
struct SimPin {
    fd: OwnedFd,
    offset: u64,
    va: DevicePtr,
    len: u64,
}

impl Pin for SimPin {
    fn va(&self) -> DevicePtr {
        self.va
    }

    fn len(&self) -> u64 {
        self.len
    }

    fn route(&self) -> Route {
        Route::Simulated
    }

    fn map(&self, len: u64, caching: Option<Caching>) -> Result<BarMapping> {
        let caching = only(BackendKind::Sim, Caching::WriteCombined, caching)?;
        BarMapping::map(
            &[FdRange {
                fd: self.fd.as_fd(),
                offset: self.offset,
                len,
            }],
            caching,
        )
    }
}
