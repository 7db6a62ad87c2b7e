//! The GPU under test, and the context that maps its memory.

use std::fmt;
use std::sync::Arc;

use gdr_copy::{Context, MapOptions, Mapping, Pinned};
use gdr_cuda::{CuResult, DeviceBuffer, DevicePtr, DriverKind, Gpu, MemoryKind};

use crate::error::{Error, Result};

type PinHook = dyn Fn(&Context, DevicePtr, u64) -> gdr_copy::Result<Pinned> + Send + Sync;

/// A GPU and the context that maps its memory. Every check and measurement runs on one.
///
/// Clones refer to the same target.
#[derive(Clone)]
pub struct BenchTarget {
    gpu: Gpu,
    context: std::result::Result<Arc<Context>, Arc<str>>,
    pin: Option<Arc<PinHook>>,
}

impl BenchTarget {
    /// Runs on `gpu` through `context`.
    pub fn new(gpu: Gpu, context: Arc<Context>) -> Self {
        Self {
            gpu,
            context: Ok(context),
            pin: None,
        }
    }

    /// Creates a target on `gpu` where no backend maps GPU memory, for the reason in `error`. Operations that need a
    /// mapping fail with [`Error::NoMappings`].
    pub fn without_mappings(gpu: Gpu, error: &gdr_copy::Error) -> Self {
        Self {
            gpu,
            context: Err(error.to_string().into()),
            pin: None,
        }
    }

    /// Replaces [`Context::pin`] by `pin`, so that tests can prove that a backend which maps the wrong memory is
    /// caught. Not part of the public interface.
    #[doc(hidden)]
    pub fn with_pin(
        mut self,
        pin: impl Fn(&Context, DevicePtr, u64) -> gdr_copy::Result<Pinned> + Send + Sync + 'static,
    ) -> Self {
        self.pin = Some(Arc::new(pin));
        self
    }

    /// Returns a target with the same context on another GPU.
    pub fn on(&self, gpu: Gpu) -> Self {
        Self {
            gpu,
            ..self.clone()
        }
    }

    /// Returns the GPU.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Returns the context.
    ///
    /// # Errors
    /// [`Error::NoMappings`].
    pub fn context(&self) -> Result<&Context> {
        match &self.context {
            Ok(context) => Ok(context),
            Err(reason) => Err(Error::NoMappings(reason.to_string())),
        }
    }

    /// Returns whether the GPU is simulated.
    pub fn simulated(&self) -> bool {
        self.gpu.driver().kind() == DriverKind::Simulated
    }

    /// Allocates GPU memory. The error says so if too little is free.
    pub(crate) fn allocate(&self, kind: MemoryKind, bytes: u64) -> Result<Arc<DeviceBuffer>> {
        match self.gpu.allocate(kind, bytes) {
            Ok(buffer) => Ok(Arc::new(buffer)),
            Err(source) if source.cu_result() == Some(CuResult::OUT_OF_MEMORY) => {
                Err(Error::GpuMemory { bytes, source })
            }
            Err(source) => Err(source.into()),
        }
    }

    /// Pins `len` bytes at `ptr`.
    ///
    /// # Errors
    /// Same as [`Context::pin`]; [`Error::NoMappings`].
    pub fn pin(&self, ptr: DevicePtr, len: u64) -> Result<Pinned> {
        let context = self.context()?;
        Ok(match &self.pin {
            Some(pin) => pin(context, ptr, len)?,
            None => context.pin(ptr, len)?,
        })
    }

    /// Pins and maps the whole of `buffer`.
    ///
    /// # Errors
    /// Same as [`BenchTarget::pin`] and [`Pinned::map`].
    pub fn map(&self, buffer: &DeviceBuffer) -> Result<Mapping> {
        self.map_with(buffer, MapOptions::default())
    }

    /// Like [`BenchTarget::map`], with options.
    ///
    /// # Errors
    /// Same as [`BenchTarget::map`].
    pub fn map_with(&self, buffer: &DeviceBuffer, options: MapOptions) -> Result<Mapping> {
        Ok(self.pin(buffer.ptr(), buffer.len())?.map_with(options)?)
    }
}

impl fmt::Debug for BenchTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BenchTarget")
            .field("gpu", self.gpu.info())
            .field("backend", &self.context.as_ref().map(|it| it.backend()))
            .finish_non_exhaustive()
    }
}
