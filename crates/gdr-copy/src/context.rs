//! Contexts: the choice of a backend, and the way in.

use std::sync::Arc;

use gdr_cuda::{Cuda, DevicePtr, Ordinal, SimDriver};

use crate::backend::{Backend, PinRequest};
use crate::backend::{dmabuf, gdrdrv, rm, sim::SimBackend};
use crate::choice::{BackendKind, Choice, Rejected};
use crate::error::{Error, Result};
use crate::fork::Origin;
use crate::pinned::{Bar1, PinOptions, Pinned, RouteReport};

/// Version of a kernel module, e.g. 2.5.
pub type ModuleVersion = (u16, u16);

/// What a backend offers, in GDRCopy's terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// Mappings outlive `cudaFree`.
    pub persistent: bool,
    /// [`crate::Bus::Pcie`] can be asked for (it may still fail on this platform).
    pub force_pcie: bool,
    /// Mappings are mmaps of a dma-buf.
    pub dma_buf_mmap: bool,
    /// Version of the `gdrdrv` module, where that is the backend.
    pub module: Option<ModuleVersion>,
}

/// How to open a [`Context`].
#[derive(Clone, Debug, Default)]
pub struct ContextBuilder {
    backend: Option<BackendKind>,
    cuda: Option<Arc<Cuda>>,
    simulated: Option<Arc<SimDriver>>,
}

impl ContextBuilder {
    /// Uses this backend or none.
    pub fn backend(mut self, backend: BackendKind) -> Self {
        self.backend = Some(backend);
        self
    }

    /// Takes the backend from `GDR_BACKEND`, where that is set and not empty.
    ///
    /// # Errors
    /// [`Error::BackendName`].
    pub fn backend_from_env(mut self) -> Result<Self> {
        if let Some(name) = std::env::var_os("GDR_BACKEND").filter(|name| !name.is_empty()) {
            self.backend = Some(name.to_string_lossy().parse()?);
        }
        Ok(self)
    }

    /// Uses a CUDA driver that is loaded already.
    pub fn cuda(mut self, cuda: Arc<Cuda>) -> Self {
        self.cuda = Some(cuda);
        self
    }

    /// Allows the `sim` backend, over this simulated GPU. Without it nothing is ever simulated.
    pub fn simulated(mut self, driver: Arc<SimDriver>) -> Self {
        self.simulated = Some(driver);
        self
    }

    /// Opens the context. CUDA need not be initialized yet, and is not by this.
    ///
    /// # Errors
    /// [`Error::NoBackend`] or [`Error::BackendUnavailable`], with every reason.
    pub fn open(self) -> Result<Context> {
        let origin = Origin::current();
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
                    Choice {
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

    fn first_that_works(&self) -> Result<(Arc<dyn Backend>, Choice)> {
        let mut tried = Vec::new();
        for kind in BackendKind::ORDER {
            match self.try_backend(kind) {
                Ok(backend) => {
                    let choice = Choice {
                        backend: kind,
                        reason: backend.reason(),
                        rejected: tried,
                    };
                    return Ok((backend, choice));
                }
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

/// A backend, ready to pin. Pins and mappings outlive it.
#[derive(Debug)]
pub struct Context {
    backend: Arc<dyn Backend>,
    choice: Choice,
    origin: Origin,
}

impl Context {
    /// Opens a context on the best backend of this machine, or on the one that `GDR_BACKEND`
    /// names. Never simulates.
    ///
    /// # Errors
    /// As [`ContextBuilder::open`].
    pub fn open() -> Result<Self> {
        Self::builder().backend_from_env()?.open()
    }

    /// A context with choices.
    pub fn builder() -> ContextBuilder {
        ContextBuilder::default()
    }

    /// The backend in use.
    pub fn backend(&self) -> BackendKind {
        self.choice.backend
    }

    /// The backend in use, why, and what was passed over.
    pub fn choice(&self) -> &Choice {
        &self.choice
    }

    /// What the backend offers.
    pub fn attributes(&self) -> Attributes {
        self.backend.attributes()
    }

    /// The process that opened this context.
    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// Takes hold of `len` bytes of GPU memory at `ptr`: any pointer into any allocation that has
    /// a lasting place on a GPU, of any alignment.
    ///
    /// # Errors
    /// Many, each with its remedy; nothing stays held then.
    pub fn pin(&self, ptr: DevicePtr, len: u64) -> Result<Pinned> {
        self.pin_with(ptr, len, PinOptions::default())
    }

    /// As [`Context::pin`], with choices.
    ///
    /// # Errors
    /// As [`Context::pin`].
    pub fn pin_with(&self, ptr: DevicePtr, len: u64, options: PinOptions) -> Result<Pinned> {
        self.origin.check()?;
        Pinned::new(self.backend.clone(), self.origin, ptr, len, options)
    }

    /// Every route of this backend to `len` bytes at `ptr`, with the reason where it is closed:
    /// for reports. Nothing stays held.
    ///
    /// # Errors
    /// Where the range itself cannot be pinned by any route (freed, managed, too long).
    pub fn routes(&self, ptr: DevicePtr, len: u64) -> Result<Vec<RouteReport>> {
        self.origin.check()?;
        self.backend
            .routes(&PinRequest::new(ptr, len, PinOptions::default())?)
    }

    /// How full the PCIe window of a GPU is, where the backend can tell (`rm` can).
    ///
    /// # Errors
    /// Where the GPU is unknown or cannot be opened.
    pub fn bar1(&self, device: Ordinal) -> Result<Option<Bar1>> {
        self.origin.check()?;
        self.backend.bar1(device)
    }
}
