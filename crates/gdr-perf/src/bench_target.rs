//! The GPU under test, and the context that maps its memory.

use std::fmt;
use std::sync::Arc;

use gdr_copy::{Context, MapOptions, Mapping, Pinned};
use gdr_cuda::{CuResult, DeviceBuffer, DevicePtr, DriverKind, Gpu, MemoryKind};

use crate::error::{Error, Result};

type PinHook = dyn Fn(&Context, DevicePtr, u64) -> gdr_copy::Result<Pinned> + Send + Sync;

/// One GPU and the context that maps its memory: what every check and measurement runs on.
///
/// A clone is the same target.
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

    /// Runs on `gpu` where no backend maps GPU memory, for the reason in `error`. What needs a
    /// mapping fails with [`Error::NoMappings`].
    pub fn without_mappings(gpu: Gpu, error: &gdr_copy::Error) -> Self {
        Self {
            gpu,
            context: Err(error.to_string().into()),
            pin: None,
        }
    }

    /// Replaces [`Context::pin`] by `pin`. For tests that prove that a backend which maps the
    /// wrong memory is caught; not part of the interface.
    #[doc(hidden)]
    pub fn with_pin(
        mut self,
        pin: impl Fn(&Context, DevicePtr, u64) -> gdr_copy::Result<Pinned> + Send + Sync + 'static,
    ) -> Self {
        self.pin = Some(Arc::new(pin));
        self
    }

    /// The same context on another GPU.
    pub fn on(&self, gpu: Gpu) -> Self {
        Self {
            gpu,
            ..self.clone()
        }
    }

    /// The GPU.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// The context.
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

    /// Allocates GPU memory; where too little is free, the error says so.
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
