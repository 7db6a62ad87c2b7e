//! Words that a stream writes and the CPU polls.

use std::hint;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use gdr_cuda::{Gpu, HostBuffer, Ordinal, RawStream};
use pyo3::exceptions::{PyTimeoutError, PyValueError};
use pyo3::prelude::*;

use crate::error::IntoException;
use crate::runtime::Runtime;
use crate::stream::ProgramStream;
use crate::waiting::{self, INTERRUPTIBLE};

/// Bytes of page-locked memory that signals share.
const PAGE: usize = 4096;
/// Each word has its own cache line, so that a write to one does not disturb polling of another.
const LINE: usize = 64;
/// How long a wait polls without a pause.
const POLLING: Duration = Duration::from_millis(2);
/// Pause between polls afterwards.
const PAUSE: Duration = Duration::from_micros(20);
/// Page-locked words of one GPU.
///
/// Never freed, because a stream or a captured graph may write to a word after its signal is gone.
#[derive(Debug)]
pub(crate) struct SignalWords {
    gpu: Gpu,
    unused: Mutex<Vec<Word>>,
}

/// One word.
#[derive(Clone, Debug)]
struct Word {
    page: Arc<HostBuffer>,
    offset: usize,
}

impl SignalWords {
    pub(crate) fn new(gpu: Gpu) -> Self {
        let unused = Mutex::new(Vec::new());
        Self { gpu, unused }
    }

    /// Takes a word that no signal has, with the value 0.
    fn take(&self) -> gdr_cuda::Result<Word> {
        // The list holds only complete words, so it stays valid after a panic.
        let mut unused = self.unused.lock().unwrap_or_else(PoisonError::into_inner);
        if unused.is_empty() {
            let page = Arc::new(self.gpu.allocate_host(PAGE)?);
            let word = |offset| Word {
                page: Arc::clone(&page),
                offset,
            };
            unused.extend((0..PAGE).step_by(LINE).map(word));
        }
        // Not empty, because a page contains words.
        let word = unused.pop().ok_or(gdr_cuda::Error::OutOfRange {
            offset: 0,
            wanted: LINE as u64,
            len: 0,
        })?;
        word.page.store_u32(word.offset, 0)?;
        Ok(word)
    }

    fn give_back(&self, word: Word) {
        let mut unused = self.unused.lock().unwrap_or_else(PoisonError::into_inner);
        unused.push(word);
    }
}

impl Word {
    fn load(&self) -> PyResult<u32> {
        let value = self.page.load_u32(self.offset);
        value.map_err(IntoException::into_exception)
    }

    fn store(&self, value: u32) -> PyResult<()> {
        let stored = self.page.store_u32(self.offset, value);
        stored.map_err(IntoException::into_exception)
    }
}

/// Shows the CPU how far a stream has come, without calling the driver.
///
/// record() queues a write of a number on a stream; wait() polls for it in host memory.
#[pyclass(frozen, module = "gdr")]
#[derive(Debug)]
pub(crate) struct Signal {
    runtime: Arc<Runtime>,
    device: Ordinal,
    word: Word,
    /// The number recorded last.
    recorded: AtomicU32,
}

impl Signal {
    /// Polls until `target` is reached; returns `false` at the deadline.
    fn poll(&self, target: u32, start: Instant, deadline: Instant) -> PyResult<bool> {
        loop {
            if is_reached(self.word.load()?, target) {
                return Ok(true);
            }
            let now = Instant::now();
            if now >= deadline {
                return Ok(false);
            }
            if now < start + POLLING {
                hint::spin_loop();
            } else {
                thread::sleep(PAUSE);
            }
        }
    }
}

/// Returns whether a counter that wraps around has come to `target`.
fn is_reached(value: u32, target: u32) -> bool {
    value.wrapping_sub(target).cast_signed() >= 0
}

#[pymethods]
impl Signal {
    #[new]
    #[pyo3(signature = (device = 0))]
    fn new(py: Python<'_>, device: u32) -> PyResult<Self> {
        py.detach(|| {
            let (runtime, device) = (Runtime::get()?, Ordinal(device));
            let word = runtime.gpu(device)?.signal_words.take();
            let word = word.map_err(IntoException::into_exception)?;
            let recorded = AtomicU32::new(0);
            Ok(Self {
                runtime,
                device,
                word,
                recorded,
            })
        })
    }

    /// Queues a write of `value` on `stream`, after the work queued so far, and returns `value`; by default, one more
    /// than in the last call. A capture into a CUDA graph also records it; in that case, set `value` to 0 before each
    /// replay.
    ///
    /// `stream` is a stream of PyTorch or CuPy, its address, or None for the legacy default stream.
    #[pyo3(signature = (stream = None, /, value = None))]
    fn record(
        &self,
        py: Python<'_>,
        stream: Option<&Bound<'_, PyAny>>,
        value: Option<u32>,
    ) -> PyResult<u32> {
        let stream = RawStream {
            device: self.device,
            handle: ProgramStream::of(stream)?.handle,
        };
        py.detach(|| {
            let next = self.recorded.load(Ordering::Relaxed).wrapping_add(1);
            let value = value.unwrap_or(next);
            let gpu = &self.runtime.gpu(self.device)?.gpu;
            let at = self
                .word
                .page
                .gpu_ptr()
                .checked_add(self.word.offset as u64);
            let at = at.ok_or_else(|| PyValueError::new_err("the signal has no address"))?;
            // SAFETY: the word is in page-locked memory of this driver that is never freed, and the stream belongs to
            // the program.
            let queued = unsafe { gpu.driver().queue_write_u32(stream, at, value) };
            queued.map_err(IntoException::into_exception)?;
            self.recorded.store(value, Ordering::Relaxed);
            Ok(value)
        })
    }

    /// Waits until the signal has reached `value`, by default the value of the last record(). Raises TimeoutError after
    /// `timeout` seconds.
    #[pyo3(signature = (value = None, timeout = 30.0))]
    fn wait(&self, py: Python<'_>, value: Option<u32>, timeout: f64) -> PyResult<()> {
        let limit = waiting::limit(timeout)?;
        let target = value.unwrap_or_else(|| self.recorded.load(Ordering::Relaxed));
        if is_reached(self.word.load()?, target) {
            return Ok(());
        }
        let start = Instant::now();
        let deadline = start.checked_add(limit).ok_or_else(|| {
            PyValueError::new_err(format!(
                "timeout {timeout} is too long: give one of a few days"
            ))
        })?;
        loop {
            let pause = deadline.min(Instant::now() + INTERRUPTIBLE);
            if py.detach(|| self.poll(target, start, pause))? {
                return Ok(());
            }
            py.check_signals()?;
            if Instant::now() >= deadline {
                let value = self.word.load()?;
                return Err(PyTimeoutError::new_err(format!(
                    "the signal has {value} and not {target} after {timeout} s: the stream has not come \
                     so far, or nothing was recorded on it"
                )));
            }
        }
    }

    /// Returns the number that the signal has.
    #[getter]
    fn value(&self) -> PyResult<u32> {
        self.word.load()
    }

    /// Sets the number from the CPU.
    #[setter]
    fn set_value(&self, value: u32) -> PyResult<()> {
        self.word.store(value)
    }

    /// Returns the number of the GPU in this process.
    #[getter]
    fn device(&self) -> u32 {
        self.device.0
    }
}

impl Drop for Signal {
    fn drop(&mut self) {
        // A word that a stream still has to write is not given to another signal.
        let recorded = *self.recorded.get_mut();
        let is_written = self.word.load().is_ok_and(|value| value == recorded);
        if is_written && let Ok(open) = self.runtime.gpu(self.device) {
            open.signal_words.give_back(self.word.clone());
        }
    }
}
