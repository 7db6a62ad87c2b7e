//! Ctrl-C and SIGTERM.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context as _, Result};
use serde_json::Value;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use crate::exit::Exit;

/// The effect of the first signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FirstSignal {
    /// The first sets the flag; the second ends the process.
    RequestsStop,
    /// The first ends the process.
    Terminates,
}

/// A flag that a signal sets. A signal that ends the process uses the status of an undecided result.
pub(crate) fn flag(first: FirstSignal) -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(first == FirstSignal::Terminates));
    for signal in [SIGINT, SIGTERM] {
        let status = i32::from(Exit::Undecided.code());
        // In this order, so that the shutdown handler sees the flag of the previous signal.
        flag::register_conditional_shutdown(signal, status, Arc::clone(&stop))
            .and_then(|_| flag::register(signal, Arc::clone(&stop)))
            .context("signals cannot be handled")?;
    }
    Ok(stop)
}

/// A measurement was stopped by a signal.
#[derive(Debug, thiserror::Error)]
#[error("stopped by a signal: {done} of {total} measurements were made")]
pub(crate) struct Interrupted {
    pub(crate) done: usize,
    pub(crate) total: usize,
    /// The measurements before the signal.
    pub(crate) measured: Vec<Value>,
}
