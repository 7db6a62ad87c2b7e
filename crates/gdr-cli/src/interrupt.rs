//! Ctrl-C and SIGTERM: the process reports the signal at once and ends soon.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::Value;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::{flag, low_level};

use crate::exit::Exit;
use crate::progress::{last_words, print_to_stderr};

/// How long work in progress may continue after the first signal before that is reported.
const GRACE: Duration = Duration::from_millis(200);

/// Effect of the first signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FirstSignal {
    /// The first signal sets the flag; the second ends the process.
    RequestsStop,
    /// The first signal ends the process.
    Terminates,
}

/// Returns a flag that a signal sets. A signal that ends the process uses the status of an undecided result.
pub(crate) fn flag(first: FirstSignal) -> Result<Arc<AtomicBool>> {
    match first {
        FirstSignal::Terminates => watched(Duration::ZERO, || {
            last_words("stopped by a signal");
            end();
        }),
        FirstSignal::RequestsStop => watched(GRACE, || {
            print_to_stderr("stopping after what is running; another Ctrl-C ends it at once");
        }),
    }
}

/// Returns a flag that a signal sets. `late` is called if the process has not ended soon after.
pub(crate) fn flag_or(late: impl FnOnce() + Send + 'static) -> Result<Arc<AtomicBool>> {
    watched(GRACE, late)
}

/// Ends the process with the status of an undecided result, whatever its threads are doing.
pub(crate) fn end() {
    low_level::exit(status());
}

fn status() -> i32 {
    i32::from(Exit::Undecided.code())
}

fn watched(grace: Duration, late: impl FnOnce() + Send + 'static) -> Result<Arc<AtomicBool>> {
    const CONTEXT: &str = "signals cannot be handled";
    let stop = Arc::new(AtomicBool::new(false));
    let (mut signaled, writer) = UnixStream::pair().context(CONTEXT)?;
    for signal in [SIGINT, SIGTERM] {
        // Register in this order, so that the shutdown handler sees the flag of the previous signal.
        flag::register_conditional_shutdown(signal, status(), Arc::clone(&stop))
            .and_then(|_| flag::register(signal, Arc::clone(&stop)))
            .and_then(|_| low_level::pipe::register(signal, writer.try_clone()?))
            .context(CONTEXT)?;
    }
    // One that came meanwhile.
    if stop.load(Ordering::Relaxed) {
        (&writer).write_all(&[0]).context(CONTEXT)?;
    }
    let watch = move || {
        if signaled.read(&mut [0]).is_ok_and(|bytes| bytes > 0) {
            thread::sleep(grace);
            late();
        }
    };
    thread::Builder::new()
        .name("signals".to_owned())
        .spawn(watch)
        .context(CONTEXT)?;
    Ok(stop)
}

/// A measurement was stopped by a signal.
#[derive(Clone, Debug, thiserror::Error)]
#[error("stopped by a signal: {done} of {total} measurements were made")]
pub(crate) struct Interrupted {
    pub(crate) done: usize,
    pub(crate) total: usize,
    /// Measurements made before the signal.
    pub(crate) measured: Vec<Value>,
}
