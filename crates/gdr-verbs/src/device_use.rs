//! How far this process has come with the devices, as a file for `gdr run --require-rdma`: the environment
//! variable `GDR_VERBS_USE`.
//!
//! The file is written at each step that is new, so that it is there however the process ends; the bytes are
//! added when a device is closed, or the process exits.

use std::fmt::Write as _;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use gdr_nic as nic;
use gdr_process::{Inherited, PerProcess, WholeFile, process_name};

use crate::device::lock;

/// Names the folder of the files. Each is called `PROCESS-COPY.use`, as [`process_name`] calls the process, which
/// may have loaded two files of this library.
const FOLDER: &str = "GDR_VERBS_USE";

/// What a process does with devices, in the order in which it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Step {
    /// Found one of their files in `/sys` or `/dev`.
    Seen,
    /// Called `ibv_get_device_list`.
    Listed,
    /// Opened the character device of one, as libibverbs does for other devices.
    NodeOpened,
    /// Called `ibv_open_device`.
    Opened,
    /// Made a queue pair.
    QueuePair,
    /// Brought a queue pair into a state in which it sends or receives.
    Ready,
}

impl Step {
    const fn name(self) -> &'static str {
        match self {
            Self::Seen => "seen",
            Self::Listed => "listed",
            Self::NodeOpened => "node-opened",
            Self::Opened => "opened",
            Self::QueuePair => "queue-pair",
            Self::Ready => "ready",
        }
    }
}

/// A forked child begins again.
static RECORD: PerProcess<Mutex<Record>> = PerProcess::new();

#[derive(Default)]
struct Record {
    steps: Vec<Step>,
    /// The bytes of the packets of engines, each as it was last counted.
    engines: Vec<(nic::WeakDevice, u64)>,
    /// The counters of engines that are closed.
    closed: u64,
}

fn folder() -> Option<&'static Path> {
    static FOLDER_OF_FILES: Inherited<Option<PathBuf>> = Inherited::new();
    let folder = FOLDER_OF_FILES.get_or_init(|| {
        let folder = gdr_process::variable(FOLDER).filter(|folder| !folder.is_empty());
        folder.map(PathBuf::from)
    });
    folder.as_deref()
}

/// Returns whether someone asks for the file.
pub(crate) fn is_asked_for() -> bool {
    folder().is_some()
}

/// Writes the file if the process has not come to this step before, and someone asks for it.
pub(crate) fn reached(step: Step) {
    let Some(folder) = folder() else {
        return;
    };
    let mut record = lock(RECORD.get());
    if !record.steps.contains(&step) {
        record.steps.push(step);
        record.write(folder);
    }
}

/// Writes the file with the bytes that an engine has moved, if someone asks for it.
pub(crate) fn moved(engine: &nic::Device) {
    let Some(folder) = folder() else {
        return;
    };
    let counters = engine.counters();
    let bytes = counters.bytes_sent + counters.bytes_received;
    let mut record = lock(RECORD.get());
    let mut closed = 0;
    record
        .engines
        .retain(|(other, bytes)| match other.upgrade() {
            // The engine is counted again below.
            Some(open) => !open.is_same(engine),
            None => {
                closed += bytes;
                false
            }
        });
    record.closed += closed;
    record.engines.push((engine.downgrade(), bytes));
    record.write(folder);
}

impl Record {
    fn text(&self) -> String {
        let mut text = String::new();
        for step in &self.steps {
            text += step.name();
            text.push('\n');
        }
        if !self.engines.is_empty() {
            let open: u64 = self.engines.iter().map(|(_, bytes)| bytes).sum();
            let _written = writeln!(text, "bytes {}", open + self.closed);
        }
        text
    }

    fn write(&self, folder: &Path) {
        let copy = (&raw const RECORD).addr();
        let path = folder.join(format!("{}-{copy:x}.use", process_name()));
        let written = WholeFile::private(&path).and_then(|mut file| {
            file.write_all(self.text().as_bytes())?;
            file.finish()
        });
        if let Err(error) = written {
            tracing::error!(%error, path = %path.display(), "what was done with devices cannot be written");
        }
    }
}
