//! The GPU and the context that a run is about.

use std::fmt;
use std::sync::Arc;

use gdr_copy::{Context, MapOptions, Mapping, Pinned};
use gdr_cuda::{DeviceBuffer, DevicePtr, DriverKind, Gpu};

type PinHook = dyn Fn(&Context, DevicePtr, u64) -> gdr_copy::Result<Pinned> + Send + Sync;

/// One GPU and one context: what every check and measurement runs on. Clones are the same site.
#[derive(Clone)]
pub struct Site {
    gpu: Gpu,
    context: Arc<Context>,
    pin: Option<Arc<PinHook>>,
}

impl Site {
    /// Runs on `gpu` through `context`.
    pub fn new(gpu: Gpu, context: Arc<Context>) -> Self {
        Self {
            gpu,
            context,
            pin: None,
        }
    }

    /// Pins by `pin` instead of [`Context::pin`]: how tests show that a backend which maps the
    /// wrong memory is caught.
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
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Whether no hardware is involved.
    pub fn simulated(&self) -> bool {
        self.gpu.driver().kind() == DriverKind::Simulated
    }

    /// Pins `len` bytes at `ptr`.
    ///
    /// # Errors
    /// As [`Context::pin`].
    pub fn pin(&self, ptr: DevicePtr, len: u64) -> gdr_copy::Result<Pinned> {
        match &self.pin {
            Some(pin) => pin(&self.context, ptr, len),
            None => self.context.pin(ptr, len),
        }
    }

    /// Pins and maps the whole of `buffer`.
    ///
    /// # Errors
    /// As [`Context::pin`] and [`Pinned::map`].
    pub fn map(&self, buffer: &DeviceBuffer) -> gdr_copy::Result<Mapping> {
        self.map_with(buffer, MapOptions::default())
    }

    /// As [`Site::map`], with choices.
    ///
    /// # Errors
    /// As [`Site::map`].
    pub fn map_with(
        &self,
        buffer: &DeviceBuffer,
        options: MapOptions,
    ) -> gdr_copy::Result<Mapping> {
        self.pin(buffer.ptr(), buffer.len())?.map_with(options)
    }
}

impl fmt::Debug for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Site")
            .field("gpu", self.gpu.info())
            .field("backend", &self.context.backend())
            .finish_non_exhaustive()
    }
}
