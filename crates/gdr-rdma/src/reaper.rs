//! Thread that frees GPU memory whose last owner must not wait.
//!
//! The driver's calls to free it (`cuMemFree`, `cuMemFreeHost`) may wait for every kernel of the context.

use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};
use std::thread::Builder;

use gdr_process::block_signals;

/// A value to drop.
type Garbage = Box<dyn Send>;

/// Channel to the thread; `None` if it could not be started.
static REAPER: OnceLock<Option<Sender<Garbage>>> = OnceLock::new();

/// Drops `last` on the reaper's thread, or here if that thread could not be started.
pub(crate) fn drop_later(last: impl Send + 'static) {
    if let Some(reaper) = REAPER.get_or_init(start) {
        // The thread ends only with the process, so it receives this.
        drop(reaper.send(Box::new(last)));
    }
}

fn start() -> Option<Sender<Garbage>> {
    let (reaper, garbage) = channel::<Garbage>();
    let thread = Builder::new().name("gdr-rdma-reaper".to_owned());
    let started = thread.spawn(move || {
        block_signals();
        garbage.into_iter().for_each(drop);
    });
    match started {
        Ok(_) => Some(reaper),
        Err(error) => {
            tracing::warn!(%error, "there is no thread to free GPU memory; it is freed where requests complete");
            None
        }
    }
}
