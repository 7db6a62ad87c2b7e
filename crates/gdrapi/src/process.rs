//! State of the library, one per process.
//!
//! A forked child inherits a copy of the parent's memory but cannot use it: mappings are not inherited, the driver
//! binds its objects to the parent, and a lock may be held by a thread that does not exist in the child. Therefore the
//! state records its process. (Copies do not check that, because a child has no table of mappings.) A child never
//! accesses the parent's state; its first `gdr_open` creates a new one at other addresses, so no handle of the parent
//! is valid in the child.

use std::os::fd::OwnedFd;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gdr_copy::{BackendKind, Context, ProcessId};
use gdr_cuda::{Cuda, Driver};
use rustix::event::EventfdFlags;

use crate::abi::gdr_t;
use crate::errno::{Failure, NO_LIBRARY};
use crate::handle::HandleSpace;
use crate::mapping_table::MappingTable;
use crate::pin::PinnedBuffer;
use crate::registry::{Library, Registry, Removed};
use crate::simulated::Simulation;
use crate::stack::Depth;
use crate::tls::RECORDS;

/// The state of one process.
#[derive(Debug)]
pub(crate) struct Process {
    origin: ProcessId,
    mappings: MappingTable,
    registry: Mutex<Registry>,
    simulation: Mutex<Option<Simulation>>,
}

/// Null until the first `gdr_open`. Never freed.
static PROCESS: AtomicPtr<Process> = AtomicPtr::new(ptr::null_mut());

impl Process {
    /// Returns the state, which may belong to a parent.
    #[inline(always)]
    pub(crate) fn any() -> Option<&'static Self> {
        // SAFETY: null, or from `Box::into_raw` and never freed; published complete by a
        // compare-exchange that releases.
        unsafe { PROCESS.load(Ordering::Acquire).as_ref() }
    }

    /// Returns the state of this process; an error before its first `gdr_open`.
    pub(crate) fn current() -> Result<&'static Self, Failure> {
        Self::any()
            .filter(|process| process.origin.is_current())
            .ok_or(NO_LIBRARY)
    }

    /// Returns the state of this process, and creates it if it does not exist.
    fn current_or_new() -> Result<&'static Self, Failure> {
        let found = PROCESS.load(Ordering::Acquire);
        if let Ok(process) = Self::current() {
            return Ok(process);
        }
        // The parent's state stays unchanged.
        Self::new()?.publish(found)
    }

    /// Makes this the state of the process, if the state is still `found`. If threads race here, all but one
    /// release the state that they have created.
    fn publish(self, found: *mut Self) -> Result<&'static Self, Failure> {
        let made = Box::into_raw(Box::new(self));
        match PROCESS.compare_exchange(found, made, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: just created, and never freed from here on.
            Ok(_) => Ok(unsafe { &*made }),
            Err(_) => {
                // SAFETY: from `Box::into_raw` above, and no other thread has seen it.
                let unused = *unsafe { Box::from_raw(made) };
                unused.mappings.release();
                let registry = unused.registry.into_inner();
                registry.unwrap_or_else(PoisonError::into_inner).release();
                Self::current()
            }
        }
    }

    fn new() -> Result<Self, Failure> {
        if !RECORDS.register() {
            tracing::info!("membarrier is not available: every copy runs a fence");
        }
        let space =
            HandleSpace::reserve().map_err(|e| Failure::os("reserving address space", e))?;
        let mappings =
            MappingTable::new().map_err(|e| Failure::os("mmap of the table of mappings", e))?;
        Ok(Self {
            origin: ProcessId::current(),
            mappings,
            registry: Mutex::new(Registry::new(space)),
            simulation: Mutex::new(None),
        })
    }

    pub(crate) fn mappings(&self) -> &MappingTable {
        &self.mappings
    }

    /// Locks the registry. Held for look-ups only, never while memory is pinned or mapped, or while a thread waits.
    fn registry(&self) -> MutexGuard<'_, Registry> {
        // No operation of the registry panics before it is complete.
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `gdr_open`.
    pub(crate) fn open() -> Result<gdr_t, Failure> {
        let process = Self::current_or_new()?;
        let mut builder = Context::builder().backend_from_env()?;
        if asked_for("GDR_BACKEND").is_none()
            && asked_for("GDRCOPY_USE_DMABUF_MMAP").as_deref() == Some("1")
        {
            builder = builder.backend(BackendKind::DmaBuf);
        }
        if asked_for("GDR_BACKEND").and_then(|name| name.parse().ok()) == Some(BackendKind::Sim) {
            builder = builder.simulated(process.simulated_driver()?);
        }
        let context = builder.open()?;
        process.mappings.activate();
        Ok(process.registry().open(context, placeholder_fd()?))
    }

    /// Returns the driver of the GPU whose memory this backend maps.
    pub(crate) fn driver(&self, backend: BackendKind) -> Option<Arc<dyn Driver>> {
        if backend == BackendKind::Sim {
            return Some(self.simulated_driver().ok()?);
        }
        let cuda = Cuda::of_process().ok().flatten()?;
        Some(Arc::clone(cuda) as Arc<dyn Driver>)
    }

    fn simulated_driver(&self) -> Result<Arc<gdr_cuda::SimDriver>, Failure> {
        let mut simulation = self
            .simulation
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(simulation) = &*simulation {
            return Ok(simulation.driver());
        }
        Ok(simulation.insert(Simulation::start()?).driver())
    }

    /// `gdr_close`.
    pub(crate) fn close(&self, g: gdr_t, here: Depth) -> Result<(), Failure> {
        let removed = self.registry().close(g)?;
        self.release(removed, here);
        Ok(())
    }

    pub(crate) fn library(&self, g: gdr_t) -> Result<Library, Failure> {
        self.registry().library(g)
    }

    pub(crate) fn buffer(&self, g: gdr_t, handle: u64) -> Result<Arc<PinnedBuffer>, Failure> {
        self.registry().buffer(g, handle)
    }

    /// Creates a handle for memory that was pinned through `library`. If the library has been closed in the
    /// meantime, the memory is unpinned.
    pub(crate) fn add(
        &self,
        g: gdr_t,
        library: &Library,
        pinned: gdr_copy::Pinned,
    ) -> Result<u64, Failure> {
        self.registry().add(g, library.id, |handle, slot| {
            PinnedBuffer::new(handle, slot, pinned)
        })
    }

    /// `gdr_unpin_buffer`.
    pub(crate) fn unpin(&self, g: gdr_t, handle: u64, here: Depth) -> Result<(), Failure> {
        let removed = self.registry().remove(g, handle)?;
        self.release(removed, here);
        Ok(())
    }

    fn release(&self, removed: Removed, here: Depth) {
        for (_, buffer) in &removed.buffers {
            buffer.release(&self.mappings, here);
        }
        self.registry()
            .recycle(removed.buffers.into_iter().map(|(slot, _)| slot));
    }
}

/// Returns the value of an environment variable that is set and not empty.
fn asked_for(name: &str) -> Option<String> {
    Some(gdr_process::variable(name)?.to_string_lossy().into_owned())
        .filter(|value| !value.is_empty())
}

/// Creates the descriptor in the first field of a `gdr_t`, which is valid but gives access to nothing.
fn placeholder_fd() -> Result<OwnedFd, Failure> {
    rustix::event::eventfd(0, EventfdFlags::CLOEXEC).map_err(|e| Failure::os("eventfd", e))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the size of this process's address space in bytes.
    fn address_space() -> u64 {
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        let pages: u64 = statm.split(' ').next().unwrap().parse().unwrap();
        pages * rustix::param::page_size() as u64
    }

    #[test]
    fn the_loser_of_a_race_for_the_first_open_releases_its_address_space() {
        let winner = Process::current_or_new().unwrap();
        let before = address_space();
        let lost = 20;
        for _ in 0..lost {
            // Like a thread that found no state.
            let found = Process::new().unwrap().publish(ptr::null_mut()).unwrap();
            assert!(ptr::eq(found, winner));
        }
        // Each reserves 4 GiB, unless a limit forbids that. Other tests run at the same time, and two of them once
        // reserve as much.
        let grown = address_space().saturating_sub(before);
        assert!(grown < lost / 2 * (4 << 30), "{grown} bytes");
    }
}
