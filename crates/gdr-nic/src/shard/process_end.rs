//! Sends delayed acknowledgements when the process ends by `exit`.
//!
//! A network card would have sent them already, and a peer whose last message was received must not take the end of the
//! receiver for a loss. A killed process sends nothing any more, neither here nor from its engines' threads. Peers
//! retransmit what it received in the last millisecond without success.

use std::sync::{Arc, Mutex, Once, Weak};
use std::time::Duration;

use gdr_copy::PerProcess;
use gdr_process::lock::{lock, try_lock};
use gdr_udp::Deadline;

use crate::shard::shared_engine::SharedEngine;

/// How long the end of a process waits for all engines together: far longer than a poll takes on a busy machine.
const LIMIT: Duration = Duration::from_millis(500);

/// The engines of this process.
static ENGINES: PerProcess<Mutex<Vec<Weak<SharedEngine>>>> = PerProcess::new();

/// Makes an engine send its delayed acknowledgements when the process ends.
pub(crate) fn watch(engine: &Arc<SharedEngine>) {
    static ASKED: Once = Once::new();
    ASKED.call_once(|| {
        // SAFETY: a function of this library, which is never unloaded: it has threads. After a failure (no
        // memory) the engines' own threads send within a millisecond, or the peer repeats its message.
        unsafe { libc::atexit(send_all) };
    });
    let mut engines = lock(ENGINES.get());
    engines.retain(|engine| engine.strong_count() > 0);
    engines.push(Arc::downgrade(engine));
}

/// Sends the delayed acknowledgements of this process's engines.
///
/// A thread that has just completed a receive may still be about to acknowledge it, so this waits for the engine's
/// lock: once `exit` returns, that thread is gone. The wait is bounded, because the thread that calls `exit` may hold
/// the lock itself, in a signal handler.
extern "C" fn send_all() {
    let Some(engines) = try_lock(ENGINES.get()) else {
        return;
    };
    let deadline = Deadline::after(LIMIT);
    for engine in engines.iter().filter_map(Weak::upgrade) {
        engine.acknowledge_by(deadline);
    }
}
