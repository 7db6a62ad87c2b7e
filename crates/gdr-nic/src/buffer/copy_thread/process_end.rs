//! The end of copy threads, also before the process ends by `exit`.
//!
//! What the driver's library destroys at the end of a process, or with a context, is not safe from a thread that
//! calls the driver meanwhile.

use std::sync::{Arc, Mutex, Once, Weak};
use std::thread;
use std::time::{Duration, Instant};

use gdr_copy::PerProcess;
use gdr_process::lock::{lock, try_lock};

use super::link::Link;

/// How long the end of a process waits: more than a copy takes, and no matter to one whose GPU hangs.
const LIMIT: Duration = Duration::from_secs(2);

/// The copy threads of this process.
static LINKS: PerProcess<Mutex<Vec<Weak<Link>>>> = PerProcess::new();

/// Has a copy thread leave the driver before the process ends. The driver was initialized before: functions of
/// `atexit` run in the reverse order.
pub(super) fn watch(link: &Arc<Link>) {
    static ASKED: Once = Once::new();
    ASKED.call_once(|| {
        // SAFETY: a function of this library, which is never unloaded: it has threads. After a failure (no
        // memory) the process ends without waiting.
        unsafe { libc::atexit(leave) };
    });
    let mut links = lock(LINKS.get());
    links.retain(|link| link.strong_count() > 0);
    links.push(Arc::downgrade(link));
}

/// Ends the copy threads. It waits for no lock: a thread that calls `exit` while it holds one never leaves that.
extern "C" fn leave() {
    let Some(links) = try_lock(LINKS.get()) else {
        return;
    };
    let links: Vec<Arc<Link>> = links.iter().filter_map(Weak::upgrade).collect();
    end_all(&links, LIMIT);
}

/// Ends these threads; returns when none has anything of the driver, or after `limit`.
pub(super) fn end_all(links: &[Arc<Link>], limit: Duration) {
    let start = Instant::now();
    let is_there = |link: &&Arc<Link>| !(link.try_end() && link.has_left());
    // Counted, so that all of them are asked at once.
    while links.iter().filter(is_there).count() > 0 && start.elapsed() < limit {
        thread::yield_now();
    }
}
