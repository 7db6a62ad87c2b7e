//! What the engines of this process have moved, as files: the environment variable
//! `GDR_VERBS_COUNTERS`.

use std::io::Write;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use gdr_nic::PayloadBytes;
use gdr_nic::{self as nic, WeakDevice};
use gdr_process::{PerProcess, WholeFile, process_name};

use crate::device::lock;
use crate::device_use;

/// Names the folder of the files. Each is called `PROCESS-DEVICE.counters`, as [`process_name`] calls the process.
const FOLDER: &str = "GDR_VERBS_COUNTERS";
/// How long the end of a process may take for it. A thread that calls `exit` while it uses an engine
/// never leaves that.
const LIMIT: Duration = Duration::from_secs(1);

/// The engines whose counters are written when the process ends. A forked child has none of its parent's.
static WATCHED: PerProcess<Mutex<Watched>> = PerProcess::new();

#[derive(Default)]
struct Watched {
    /// Whether the process has asked the C library to be called at its end.
    is_registered: bool,
    engines: Vec<(String, WeakDevice)>,
}

/// Has the counters of an engine written when the process ends, if the user asks for them: NCCL, for
/// one, closes no device.
pub(crate) fn watch(device: &str, engine: &nic::Device) {
    if folder().is_none() && !device_use::is_asked_for() {
        return;
    }
    let mut watched = lock(WATCHED.get());
    if !watched.is_registered {
        // SAFETY: a function of this library, which is never unloaded: it has threads.
        if unsafe { libc::atexit(write_all) } != 0 {
            tracing::error!("the counters of devices that stay open will not be written");
        }
        watched.is_registered = true;
    }
    watched
        .engines
        .retain(|(_, engine)| engine.upgrade().is_some());
    watched
        .engines
        .push((device.to_owned(), engine.downgrade()));
}

/// Writes the counters of the engines that are open.
extern "C" fn write_all() {
    let (done, ended) = channel();
    let writer = thread::Builder::new().spawn(move || {
        for (device, engine) in &lock(WATCHED.get()).engines {
            if let Some(engine) = engine.upgrade() {
                write(device, &engine);
            }
        }
        let _gone = done.send(());
    });
    let written = writer.is_ok() && ended.recv_timeout(LIMIT).is_ok();
    if !written {
        tracing::error!("the counters of devices that are open were not written");
    }
}

fn folder() -> Option<PathBuf> {
    let folder = gdr_process::variable(FOLDER).filter(|folder| !folder.is_empty());
    folder.map(PathBuf::from)
}

/// Writes the bytes that an engine has moved since it was opened, if the user asks for that.
pub(crate) fn write(device: &str, engine: &nic::Device) {
    device_use::moved(engine);
    let Some(folder) = folder() else {
        return;
    };
    let file = format!("{}-{device}.counters", process_name());
    let path = folder.join(file);
    let written = WholeFile::private(&path).and_then(|mut file| {
        file.write_all(text(&engine.counters().payload).as_bytes())?;
        file.finish()
    });
    if let Err(error) = written {
        tracing::error!(%error, path = %path.display(), "the counters cannot be written");
    }
}

/// A line with its name for each counter.
fn text(payload: &PayloadBytes) -> String {
    [
        ("send", payload.send),
        ("write", payload.write),
        ("read", payload.read),
        ("atomic", payload.atomic),
        ("receive", payload.receive),
        ("untaken", payload.untaken),
    ]
    .map(|(name, bytes)| format!("{name} {bytes}\n"))
    .concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_has_a_line() {
        let mut payload = PayloadBytes::default();
        (payload.send, payload.write, payload.read) = (1, 2, 3);
        (payload.atomic, payload.receive, payload.untaken) = (8, 5, 4);
        assert_eq!(
            text(&payload),
            "send 1\nwrite 2\nread 3\natomic 8\nreceive 5\nuntaken 4\n"
        );
    }
}
