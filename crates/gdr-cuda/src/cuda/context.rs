//! CUDA contexts: the primary contexts, and making a context current for a call.

use std::collections::HashMap;
use std::marker::PhantomData;
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::api::{Api, CUdevice, Opaque};
use super::{Cuda, check, layout};
use crate::device::Ordinal;
use crate::driver::RawStream;
use crate::error::{CuResult, Error, Result};

/// The primary contexts that this library has retained.
///
/// A forked child inherits the map but not the contexts: in the child, the driver returns `CUDA_ERROR_NOT_INITIALIZED`,
/// and handles of the parent are not used.
#[derive(Debug)]
pub(super) struct PrimaryContexts {
    retained: Mutex<Retained>,
}

#[derive(Debug)]
struct Retained {
    process: u32,
    by_device: HashMap<CUdevice, Context>,
}

/// A `CUcontext`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Context(pub(super) Opaque);

// SAFETY: a context is a handle; the driver lets any thread make it current.
unsafe impl Send for Context {}

impl PrimaryContexts {
    pub(super) fn new() -> Self {
        let retained = Retained {
            process: std::process::id(),
            by_device: HashMap::new(),
        };
        Self {
            retained: Mutex::new(retained),
        }
    }

    /// Returns the primary context of `device`, which is retained at its first use and then kept.
    fn get(&self, api: &Api, device: CUdevice) -> Result<Context> {
        let mut retained = self.lock();
        if let Some(context) = retained.by_device.get(&device) {
            return Ok(*context);
        }
        let mut context = ptr::null_mut();
        // SAFETY: a place for the result and a device from `cuDeviceGet`.
        let status = unsafe { (api.primary_ctx_retain)(&mut context, device) };
        check("cuDevicePrimaryCtxRetain", status)?;
        retained.by_device.insert(device, Context(context));
        Ok(Context(context))
    }

    /// Returns whether this library has retained the primary context of `device`.
    fn has(&self, device: CUdevice) -> bool {
        self.lock().by_device.contains_key(&device)
    }

    /// Releases the contexts. At the exit of the process, the driver may already be deinitialized.
    pub(super) fn release(&self, api: &Api) {
        for (device, _) in self.lock().by_device.drain() {
            // SAFETY: this library retained the primary context of `device` once.
            let status = unsafe { (api.primary_ctx_release)(device) };
            if status != CuResult::SUCCESS.0 && status != CuResult::DEINITIALIZED.0 {
                tracing::debug!(device, error = %CuResult(status), "releasing a context failed");
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Retained> {
        let mut retained = self.retained.lock().unwrap_or_else(PoisonError::into_inner);
        let process = std::process::id();
        if retained.process != process {
            *retained = Retained {
                process,
                by_device: HashMap::new(),
            };
        }
        retained
    }
}

/// A context that is current on this thread until the guard is dropped.
#[must_use]
pub(super) struct CurrentContext<'a> {
    api: &'a Api,
    /// Not `Send`, because the current context is per thread.
    _thread: PhantomData<*mut ()>,
}

impl<'a> CurrentContext<'a> {
    pub(super) fn push(api: &'a Api, context: Context) -> Result<Self> {
        // SAFETY: an existing context: the driver returned it, or this library has retained it.
        check("cuCtxPushCurrent", unsafe {
            (api.ctx_push_current)(context.0)
        })?;
        Ok(Self {
            api,
            _thread: PhantomData,
        })
    }
}

impl Drop for CurrentContext<'_> {
    fn drop(&mut self) {
        let mut popped = ptr::null_mut();
        // SAFETY: undoes the push of this guard; guards nest as their scopes do.
        let status = unsafe { (self.api.ctx_pop_current)(&mut popped) };
        if status != CuResult::SUCCESS.0 {
            tracing::debug!(error = %CuResult(status), "restoring the current context failed");
        }
    }
}

/// Permits calls by this thread that would otherwise invalidate a stream capture elsewhere in the process, until it is
/// dropped ([`Cuda::relax_stream_capture`]).
#[must_use = "the capture mode is restored when this is dropped"]
#[derive(Debug)]
pub struct CaptureGuard<'a> {
    api: &'a Api,
    /// The mode to restore, or `None` if it was not changed.
    before: Option<u32>,
    /// Not `Send`, because the mode is per thread.
    _thread: PhantomData<*mut ()>,
}

impl Drop for CaptureGuard<'_> {
    fn drop(&mut self) {
        if let Some(mut mode) = self.before {
            // SAFETY: the mode that the driver returned on this thread.
            let status = unsafe { (self.api.thread_exchange_stream_capture_mode)(&mut mode) };
            if status != CuResult::SUCCESS.0 {
                tracing::debug!(error = %CuResult(status), "restoring the capture mode failed");
            }
        }
    }
}

impl Cuda {
    /// Lets allocations and copies by this thread neither fail because of a stream capture of another thread nor
    /// invalidate it (`cuThreadExchangeStreamCaptureMode`, relaxed), as long as the guard exists. If the driver
    /// refuses, for example before it is initialized, this has no effect.
    pub fn relax_stream_capture(&self) -> CaptureGuard<'_> {
        let mut mode = layout::CAPTURE_MODE_RELAXED;
        // SAFETY: a valid mode, which the driver replaces by the previous one.
        let status = unsafe { (self.api.thread_exchange_stream_capture_mode)(&mut mode) };
        let before = (status == CuResult::SUCCESS.0).then_some(mode);
        CaptureGuard {
            api: &self.api,
            before,
            _thread: PhantomData,
        }
    }

    /// Makes the primary context of `device` current for a scope.
    pub(super) fn enter(&self, device: Ordinal) -> Result<CurrentContext<'_>> {
        let device = self.device(device)?;
        CurrentContext::push(&self.api, self.contexts.get(&self.api, device)?)
    }

    /// Makes the primary context of a stream's device current for a scope, if it was not destroyed: `cudaDeviceReset`
    /// destroys it for the whole process, and the driver crashes on a handle of the destroyed one. A reset between this
    /// check and the call is not detected.
    pub(super) fn enter_of(&self, stream: RawStream) -> Result<CurrentContext<'_>> {
        let device = self.device(stream.device)?;
        let (mut flags, mut is_active) = (0, 0);
        // SAFETY: a device from `cuDeviceGet`, and places for the results.
        let status =
            unsafe { (self.api.primary_ctx_get_state)(device, &mut flags, &mut is_active) };
        check("cuDevicePrimaryCtxGetState", status)?;
        if is_active == 0 && self.contexts.has(device) {
            let destroyed = CuResult::CONTEXT_IS_DESTROYED.0;
            check("cuDevicePrimaryCtxGetState", destroyed)?;
        }
        self.enter(stream.device)
    }

    /// Makes a context of `device` current for a scope: the thread's current one if it belongs to this device,
    /// otherwise the primary one. This is for memory, which is accessible from every context of the device: an
    /// application with its own context does not get a second one, which would take hundreds of megabytes of GPU
    /// memory.
    pub(super) fn enter_any(&self, device: Ordinal) -> Result<CurrentContext<'_>> {
        let number = self.device(device)?;
        match self.current_of(number) {
            Some(context) => CurrentContext::push(&self.api, context),
            None => self.enter(device),
        }
    }

    /// Returns the thread's current context, if it belongs to `device`.
    fn current_of(&self, device: CUdevice) -> Option<Context> {
        let (mut context, mut current) = (ptr::null_mut(), 0);
        // SAFETY: a place for the result.
        let status = unsafe { (self.api.ctx_get_current)(&mut context) };
        if status != CuResult::SUCCESS.0 || context.is_null() {
            return None;
        }
        // SAFETY: a place for the result; a context is current.
        let status = unsafe { (self.api.ctx_get_device)(&mut current) };
        (status == CuResult::SUCCESS.0 && current == device).then_some(Context(context))
    }

    /// Returns the driver's handle of a device.
    pub(super) fn device(&self, ordinal: Ordinal) -> Result<CUdevice> {
        let missing = |count| Error::NoSuchDevice { ordinal, count };
        let number = i32::try_from(ordinal.0).map_err(|_| missing(0))?;
        let mut device = 0;
        // SAFETY: a place for the result.
        let status = unsafe { (self.api.device_get)(&mut device, number) };
        if status == CuResult::INVALID_DEVICE.0 {
            return Err(missing(self.device_count()?));
        }
        check("cuDeviceGet", status)?;
        Ok(device)
    }
}
