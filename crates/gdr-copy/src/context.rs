//! Contexts: an open backend.

use std::sync::Arc;

use gdr_cuda::{ConcreteDriver, Cuda, DeviceBuffer, DevicePtr, Gpu, Ordinal, SimDriver};

use crate::backend::{Backend, PinRequest};
use crate::backend::{dmabuf, gdrdrv, rm, sim::SimBackend};
use crate::backend_kind::{BackendChoice, BackendKind, Rejected};
use crate::error::{Error, Result, only_in};
use crate::options::PinOptions;
use crate::pinned::Pinned;
use crate::report::{Attributes, Bar1, RouteReport};
use gdr_process::ProcessId;

/// Options for opening a [`Context`].
#[derive(Clone, Debug, Default)]
pub struct ContextBuilder {
    backend: Option<BackendKind>,
    cuda: Option<Arc<Cuda>>,
    simulated: Option<Arc<SimDriver>>,
}

impl ContextBuilder {
    /// Uses only this backend.
    pub fn backend(mut self, backend: BackendKind) -> Self {
        self.backend = Some(backend);
        self
    }

    /// Takes the backend from `GDR_BACKEND`, if that is set and not empty.
    ///
    /// # Errors
    /// [`Error::BackendName`].
    pub fn backend_from_env(mut self) -> Result<Self> {
        if let Some(name) = gdr_process::variable("GDR_BACKEND").filter(|name| !name.is_empty()) {
            self.backend = Some(name.to_string_lossy().parse()?);
        }
        Ok(self)
    }

    /// Uses a CUDA driver that is already loaded.
    pub fn cuda(mut self, cuda: Arc<Cuda>) -> Self {
        self.cuda = Some(cuda);
        self
    }

    /// Allows the `sim` backend, with this simulated GPU. Without this call nothing is simulated.
    pub fn simulated(mut self, driver: Arc<SimDriver>) -> Self {
        self.simulated = Some(driver);
        self
    }

    /// Uses the driver of `gpu`, which is already loaded, or the `sim` backend if the GPU is simulated.
    ///
    /// # Errors
    /// [`Error::BackendUnavailable`] if the backend chosen so far cannot access this GPU.
    pub fn gpu(self, gpu: &Gpu) -> Result<Self> {
        let unavailable = |backend, reason: &str| Error::BackendUnavailable {
            backend,
            reason: reason.to_owned(),
        };
        match (ConcreteDriver::of(gpu.driver()), self.backend) {
            (ConcreteDriver::Cuda(_), Some(BackendKind::Sim)) => Err(unavailable(
                BackendKind::Sim,
                "the GPU is not simulated: open it by gdr_cuda::open_driver, which simulates where \
                 GDR_BACKEND is sim, or choose another backend",
            )),
            (ConcreteDriver::Cuda(cuda), _) => Ok(self.cuda(cuda)),
            (ConcreteDriver::Simulated(driver), None | Some(BackendKind::Sim)) => {
                Ok(self.simulated(driver).backend(BackendKind::Sim))
            }
            (ConcreteDriver::Simulated(_), Some(other)) => Err(unavailable(
                other,
                "the GPU is simulated, and only sim reaches its memory",
            )),
        }
    }

    /// Opens the context. Does not initialize CUDA.
    ///
    /// # Errors
    /// [`Error::NoBackend`] or [`Error::BackendUnavailable`], with all reasons.
    pub fn open(self) -> Result<Context> {
        // Checked before the backend is opened, because its files belong to this process.
        let origin = ProcessId::current();
        let (backend, choice) = match self.backend {
            Some(kind) => {
                let backend = self
                    .try_backend(kind)
                    .map_err(|e| Error::BackendUnavailable {
                        backend: kind,
                        reason: e.to_string(),
                    })?;
                let reason = format!("it was asked for, and {}", backend.reason());
                (
                    backend,
                    BackendChoice {
                        backend: kind,
                        reason,
                        rejected: Vec::new(),
                    },
                )
            }
            None => self.first_that_works()?,
        };
        tracing::info!("{choice}");
        Ok(Context {
            backend,
            choice,
            origin,
        })
    }

    fn first_that_works(&self) -> Result<(Arc<dyn Backend>, BackendChoice)> {
        let mut tried = Vec::new();
        // In order of preference. Opening a backend shows whether this machine has it.
        for kind in BackendKind::ORDER {
            match self.try_backend(kind) {
                Ok(backend) => {
                    let choice = BackendChoice {
                        backend: kind,
                        reason: backend.reason(),
                        rejected: tried,
                    };
                    return Ok((backend, choice));
                }
                // Kept because they are the error if no backend opens.
                Err(error) => tried.push(Rejected {
                    backend: kind,
                    reason: error.to_string(),
                }),
            }
        }
        Err(Error::NoBackend { tried })
    }

    fn try_backend(&self, kind: BackendKind) -> Result<Arc<dyn Backend>> {
        Ok(match kind {
            BackendKind::Gdrdrv => Arc::new(gdrdrv::GdrdrvBackend::open()?),
            BackendKind::DmaBuf => Arc::new(dmabuf::DmaBufBackend::open(self.load_cuda()?)?),
            BackendKind::Rm => Arc::new(rm::RmBackend::open(self.load_cuda()?)?),
            BackendKind::Sim => Arc::new(SimBackend::new(self.simulated.clone().ok_or(
                Error::BackendUnavailable {
                    backend: BackendKind::Sim,
                    reason: "simulation is used only where it is asked for by name".to_owned(),
                },
            )?)),
        })
    }

    fn load_cuda(&self) -> Result<Arc<Cuda>> {
        match &self.cuda {
            Some(cuda) => Ok(cuda.clone()),
            None => Ok(Cuda::load()?),
        }
    }
}

/// An open backend. Pins and mappings outlive it.
#[derive(Debug)]
pub struct Context {
    backend: Arc<dyn Backend>,
    choice: BackendChoice,
    origin: ProcessId,
}

impl Context {
    /// Opens a context with the best backend on this machine, or the one that `GDR_BACKEND` names. Never simulates.
    ///
    /// # Errors
    /// Same as [`ContextBuilder::open`].
    pub fn open() -> Result<Self> {
        Self::builder().backend_from_env()?.open()
    }

    /// Opens a context for the memory of `gpu`. For a real GPU this works like [`Context::open`], with the driver that
    /// is already loaded; for a simulated GPU it uses the `sim` backend.
    ///
    /// Together with [`gdr_cuda::open_driver`], `GDR_BACKEND` alone decides which kind a program uses:
    ///
    /// ```no_run
    /// use gdr_copy::Context;
    /// use gdr_cuda::{Gpu, MemoryKind, Ordinal, open_driver};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let gpu = Gpu::open(open_driver()?, Ordinal(0))?;
    /// let buffer = gpu.allocate(MemoryKind::Plain, 1 << 20)?;
    ///
    /// let mapping = Context::open_for(&gpu)?.pin(buffer.ptr(), buffer.len())?.map()?;
    /// mapping.write_at(100, b"hello")?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Same as [`ContextBuilder::open`]; [`Error::BackendUnavailable`] if `GDR_BACKEND` names a backend that cannot
    /// access this GPU.
    pub fn open_for(gpu: &Gpu) -> Result<Self> {
        Self::builder().backend_from_env()?.gpu(gpu)?.open()
    }

    /// Returns a builder for a context with options.
    pub fn builder() -> ContextBuilder {
        ContextBuilder::default()
    }

    /// Returns the backend in use.
    pub fn backend(&self) -> BackendKind {
        self.choice.backend
    }

    /// Returns the backend in use, why it was chosen, and why others were not.
    pub fn choice(&self) -> &BackendChoice {
        &self.choice
    }

    /// Returns what the backend supports.
    pub fn attributes(&self) -> Attributes {
        self.backend.attributes()
    }

    /// Returns the process that opened this context.
    pub fn origin(&self) -> ProcessId {
        self.origin
    }

    /// Pins `len` bytes of GPU memory at `ptr`, which may point anywhere into any allocation that does not migrate,
    /// with any alignment.
    ///
    /// The memory stays allocated while it is pinned, even after `cudaFree`. An allocator that reuses memory without
    /// freeing it (like PyTorch's, or a pool) may still give it to another user; [`Context::pin_buffer`] prevents this
    /// by keeping the memory's owner alive.
    ///
    /// # Errors
    /// Any [`Error`], which says what failed and what to do. Nothing stays pinned.
    pub fn pin(&self, ptr: DevicePtr, len: u64) -> Result<Pinned> {
        self.pin_with(ptr, len, PinOptions::new())
    }

    /// Like [`Context::pin`], with options.
    ///
    /// # Errors
    /// Same as [`Context::pin`].
    pub fn pin_with(&self, ptr: DevicePtr, len: u64, options: PinOptions) -> Result<Pinned> {
        // The backend's files belong to the process that opened them.
        only_in(&self.origin)?;
        let request = PinRequest::new(ptr, len, options)?;
        Pinned::new(self.backend.clone(), self.origin, &request, None)
    }

    /// Pins all of `buffer`, and keeps it alive until the pin and its mapping are dropped. Use this to pin memory from
    /// another library ([`DeviceBuffer::from_owner`]), whose owner is then not dropped too early.
    ///
    /// # Errors
    /// Same as [`Context::pin`].
    pub fn pin_buffer(&self, buffer: &Arc<DeviceBuffer>) -> Result<Pinned> {
        self.pin_buffer_with(buffer, PinOptions::new())
    }

    /// Like [`Context::pin_buffer`], with options.
    ///
    /// # Errors
    /// Same as [`Context::pin`].
    pub fn pin_buffer_with(
        &self,
        buffer: &Arc<DeviceBuffer>,
        options: PinOptions,
    ) -> Result<Pinned> {
        only_in(&self.origin)?;
        let request = PinRequest::new(buffer.ptr(), buffer.len(), options)?;
        let (backend, buffer) = (self.backend.clone(), Some(buffer.clone()));
        Pinned::new(backend, self.origin, &request, buffer)
    }

    /// Returns every route of this backend to `len` bytes at `ptr`, with the reason if a route does not work, for use
    /// in reports. Nothing stays pinned.
    ///
    /// # Errors
    /// If the range cannot be pinned by any route (because it is freed, managed or too long).
    pub fn routes(&self, ptr: DevicePtr, len: u64) -> Result<Vec<RouteReport>> {
        only_in(&self.origin)?;
        self.backend
            .routes(&PinRequest::new(ptr, len, PinOptions::new())?)
    }

    /// Returns the size and the free space of a GPU's BAR1, if the backend can read them (`rm` can).
    ///
    /// # Errors
    /// If the GPU is unknown or cannot be opened.
    pub fn bar1(&self, device: Ordinal) -> Result<Option<Bar1>> {
        only_in(&self.origin)?;
        self.backend.bar1(device)
    }
}

#[cfg(test)]
mod tests {
    use gdr_cuda::MemoryKind;
    use snapshot::assert_contains;

    use super::*;

    #[test]
    fn a_context_for_a_simulated_gpu_is_simulated_and_reaches_its_memory() {
        let gpu = Gpu::open(SimDriver::new(1), Ordinal(0)).unwrap();
        let buffer = gpu.allocate(MemoryKind::Plain, 4096).unwrap();
        for builder in [
            Context::builder(),
            Context::builder().backend(BackendKind::Sim),
        ] {
            let context = builder.gpu(&gpu).unwrap().open().unwrap();
            assert_eq!(context.backend(), BackendKind::Sim);
            let mapping = context.pin(buffer.ptr(), 4096).unwrap().map().unwrap();
            mapping.write_at(0, b"hello").unwrap();
            let mut seen = [0; 5];
            buffer.read(0, &mut seen).unwrap();
            assert_eq!(&seen, b"hello");
        }
        for other in [BackendKind::Rm, BackendKind::DmaBuf, BackendKind::Gdrdrv] {
            let refused = Context::builder().backend(other).gpu(&gpu).unwrap_err();
            assert_contains!(refused.to_string(), "only sim reaches", "{refused}");
        }
    }

    #[test]
    fn a_pinned_buffer_is_kept_until_its_pin_and_its_mapping_are_dropped() {
        let driver = SimDriver::new(1);
        let gpu = Gpu::open(driver.clone(), Ordinal(0)).unwrap();
        let memory = Arc::new(gpu.allocate(MemoryKind::Pool, 10_000).unwrap());
        let (ptr, owner) = (memory.ptr(), Arc::downgrade(&memory));
        // SAFETY: `memory` is 10,000 bytes at `ptr`, which nothing else uses.
        let buffer = unsafe { DeviceBuffer::from_owner(&gpu, ptr, 10_000, memory) }.unwrap();
        let buffer = Arc::new(buffer);

        let context = Context::open_for(&gpu).unwrap();
        let pinned = context.pin_buffer(&buffer).unwrap();
        assert!(Arc::ptr_eq(pinned.buffer().unwrap(), &buffer));
        let mapping = pinned.map().unwrap();
        drop(buffer);
        drop(pinned);
        mapping.write_at(9_995, b"hello").unwrap();
        let mut seen = [0; 5];
        owner.upgrade().unwrap().read(9_995, &mut seen).unwrap();
        assert_eq!(&seen, b"hello");
        drop(mapping);
        assert!(owner.upgrade().is_none(), "the owner is dropped");
        assert!(gpu.driver().pointer_info(ptr).is_err());
    }

    #[test]
    fn the_simulation_is_not_used_unless_it_is_asked_for() {
        let refused = Context::builder()
            .backend(BackendKind::Sim)
            .open()
            .unwrap_err();
        assert_contains!(refused.to_string(), "asked for by name", "{refused}");
    }
}
