//! Everything the library knows, once for each process.
//!
//! A forked child inherits a copy of the parent's memory, and nothing in it is of use: mappings
//! are not inherited, the driver ties its objects to the parent, and a lock may be held by a
//! thread that the child does not have. So the state is stamped with its process (copies, which
//! have no time to look at the stamp, find no table of mappings in a child). A child never
//! touches the parent's, and its first `gdr_open` starts with a state of its own, at other
//! addresses: no handle of the parent can be one of the child's.

use std::os::fd::OwnedFd;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gdr_copy::{BackendKind, Context, Origin};
use rustix::event::EventfdFlags;

use crate::abi::gdr_t;
use crate::errno::{Failure, NO_LIBRARY};
use crate::handle::HandleSpace;
use crate::hazard;
use crate::mapped::Mapped;
use crate::pin::PinnedBuffer;
use crate::registry::{Library, Registry, Removed};
use crate::simulated::Simulation;

/// The state of one process.
#[derive(Debug)]
pub(crate) struct Process {
    origin: Origin,
    mapped: Mapped,
    registry: Mutex<Registry>,
    simulation: Mutex<Option<Simulation>>,
}

/// Null until the first `gdr_open`. What it points to is never freed.
static PROCESS: AtomicPtr<Process> = AtomicPtr::new(ptr::null_mut());

impl Process {
    /// The state, also when it is that of a parent. For copies, which check that themselves.
    #[inline(always)]
    pub(crate) fn any() -> Option<&'static Self> {
        // SAFETY: null, or from `Box::into_raw` and never freed; published complete by a
        // compare-exchange that releases.
        unsafe { PROCESS.load(Ordering::Acquire).as_ref() }
    }

    /// The state of this process; none before its first `gdr_open`.
    pub(crate) fn current() -> Result<&'static Self, Failure> {
        Self::any()
            .filter(|process| process.origin.is_current())
            .ok_or(NO_LIBRARY)
    }

    /// The state of this process, made where there is none.
    fn current_or_new() -> Result<&'static Self, Failure> {
        let found = PROCESS.load(Ordering::Acquire);
        if let Ok(process) = Self::current() {
            return Ok(process);
        }
        // Of threads that race here all but one drop what they made. What belonged to a parent
        // stays as it is, untouched.
        let made = Box::into_raw(Box::new(Self::new()?));
        match PROCESS.compare_exchange(found, made, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: just made and never freed from here on.
            Ok(_) => Ok(unsafe { &*made }),
            Err(_) => {
                // SAFETY: from `Box::into_raw` above, and nobody has seen it.
                drop(unsafe { Box::from_raw(made) });
                Self::current()
            }
        }
    }

    fn new() -> Result<Self, Failure> {
        hazard::register();
        let space =
            HandleSpace::reserve().map_err(|e| Failure::os("reserving address space", e))?;
        let mapped = Mapped::new().map_err(|e| Failure::os("mmap of the table of mappings", e))?;
        Ok(Self {
            origin: Origin::current(),
            mapped,
            registry: Mutex::new(Registry::new(space)),
            simulation: Mutex::new(None),
        })
    }

    pub(crate) fn mapped(&self) -> &Mapped {
        &self.mapped
    }

    /// Held for look-ups only, never while something is pinned, mapped or waited for.
    fn registry(&self) -> MutexGuard<'_, Registry> {
        // No operation of the registry panics half-way.
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
        process.mapped.activate();
        Ok(process.registry().open(context, placeholder_fd()?))
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
    pub(crate) fn close(&self, g: gdr_t) -> Result<(), Failure> {
        let removed = self.registry().close(g)?;
        self.release(removed);
        Ok(())
    }

    pub(crate) fn library(&self, g: gdr_t) -> Result<Library, Failure> {
        self.registry().library(g)
    }

    pub(crate) fn buffer(&self, g: gdr_t, handle: u64) -> Result<Arc<PinnedBuffer>, Failure> {
        self.registry().buffer(g, handle)
    }

    /// Gives a handle to what was pinned through `library`. When that was closed meanwhile,
    /// nothing stays pinned.
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
    pub(crate) fn unpin(&self, g: gdr_t, handle: u64) -> Result<(), Failure> {
        let removed = self.registry().remove(g, handle)?;
        self.release(removed);
        Ok(())
    }

    fn release(&self, removed: Removed) {
        for (_, buffer) in &removed.buffers {
            buffer.release(&self.mapped);
        }
        self.registry()
            .recycle(removed.buffers.into_iter().map(|(slot, _)| slot));
    }
}

/// An environment variable that is set and not empty.
fn asked_for(name: &str) -> Option<String> {
    Some(std::env::var_os(name)?.to_string_lossy().into_owned()).filter(|value| !value.is_empty())
}

/// What `gdr_t`'s first field names: a descriptor that callers can pass on, and that gives nobody
/// access to anything.
fn placeholder_fd() -> Result<OwnedFd, Failure> {
    rustix::event::eventfd(0, EventfdFlags::CLOEXEC).map_err(|e| Failure::os("eventfd", e))
}
