//! A backend over a memfd for tests: of any kind, with any caching.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use gdr_cuda::DevicePtr;
use rustix::fs::MemfdFlags;

use super::{Backend, Pin, PinRequest, only};
use crate::backend_kind::BackendKind;
use crate::bar_mapping::{BarMapping, FdRange};
use crate::cpu::Caching;
use crate::error::Result;
use crate::options::PinOptions;
use crate::pinned::Pinned;
use crate::report::Attributes;
use crate::report::Route;
use gdr_process::ProcessId;

/// The device address of its memory.
pub(crate) const BASE: u64 = 0x7f00_0000_0000;

#[derive(Clone, Copy, Debug)]
pub(crate) struct FakeBackend {
    pub(crate) kind: BackendKind,
    pub(crate) caching: Caching,
}

impl FakeBackend {
    /// Pins `len` bytes, `skip` bytes into a page.
    pub(crate) fn pin(self, skip: u64, len: u64) -> Pinned {
        let ptr = DevicePtr::new(BASE + skip);
        let request = PinRequest::new(ptr, len, PinOptions::new()).unwrap();
        Pinned::new(Arc::new(self), ProcessId::current(), &request, None).unwrap()
    }
}

impl Backend for FakeBackend {
    fn kind(&self) -> BackendKind {
        self.kind
    }

    fn reason(&self) -> String {
        "it is a test".to_owned()
    }

    fn pin(&self, request: &PinRequest) -> Result<Box<dyn Pin>> {
        let (va, len) = request.pages();
        let memory = rustix::fs::memfd_create("fake", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&memory, len).unwrap();
        Ok(Box::new(FakePin {
            backend: *self,
            memory,
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
struct FakePin {
    backend: FakeBackend,
    memory: OwnedFd,
    va: DevicePtr,
    len: u64,
}

impl Pin for FakePin {
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
        let range = FdRange {
            fd: self.memory.as_fd(),
            offset: 0,
            len,
        };
        let caching = only(self.backend.kind, self.backend.caching, caching)?;
        BarMapping::map(&[range], caching)
    }
}
