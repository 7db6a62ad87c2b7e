//! Trace file of this process.

use std::collections::BTreeMap;
use std::ffi::{CStr, OsString};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::process;
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use gdr_process::{PerProcess, create_new};
use gdr_trace::layout::{self, Table, error, flag, header, nic, queue_pair, region};
use gdr_trace::{MemoryKind, Operation};
use rustix::fs::FallocateFlags;
use rustix::mm::{MapFlags, ProtFlags};

use crate::receive_kinds::Received;

/// Names the folder for the files.
const FOLDER: &str = "GDR_TRACE_FOLDER";

/// File of a process. It stays mapped until the process ends.
pub(crate) struct Recorder {
    /// [`layout::FILE_LEN`] bytes.
    base: *mut u8,
    pid: u32,
    /// A forked child that counts for its parent's objects has its own rows.
    rows: PerProcess<Mutex<Rows>>,
}

/// Rows that stand for several objects.
#[derive(Default)]
struct Rows {
    nics: BTreeMap<Vec<u8>, u32>,
    regions: BTreeMap<Registration, u32>,
    errors: BTreeMap<(u32, u32), u32>,
}

/// The properties that tell rows of regions apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Registration {
    /// The row of the NIC.
    pub(crate) nic: u32,
    pub(crate) memory: MemoryKind,
    /// The GPU's ordinal.
    pub(crate) gpu: Option<u32>,
    /// Error of a refused registration, or 0.
    pub(crate) errno: i32,
}

// SAFETY: all threads share the mapping, and use it only through atomic accesses.
unsafe impl Send for Recorder {}
// SAFETY: as above.
unsafe impl Sync for Recorder {}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the file of this process, which is created at the first call; `None` if nothing is traced.
pub(crate) fn current() -> Option<&'static Recorder> {
    // A forked child has its own file.
    static CURRENT: PerProcess<OnceLock<Option<&'static Recorder>>> = PerProcess::new();
    *CURRENT.get().get_or_init(|| {
        let folder = gdr_process::variable(FOLDER).filter(|folder| !folder.is_empty())?;
        let pid = process::id();
        let made = Recorder::create(Path::new(&folder), pid);
        made.inspect_err(|error| {
            // The process may have closed standard error; the program continues regardless.
            let _ = writeln!(
                io::stderr(),
                "gdr trace: no file can be made in {}: {error}; process {pid} is not traced",
                folder.display()
            );
        })
        .ok()
    })
}

impl Recorder {
    /// Makes a file for this process in a folder.
    fn create(folder: &Path, pid: u32) -> io::Result<&'static Self> {
        let file = new_file(folder, pid)?;
        // Allocate all blocks now: on a full disk, a store to a page without a block would kill the process.
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, layout::FILE_LEN as u64)?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: at an address chosen by the kernel, a mapping replaces nothing.
        let base = unsafe {
            rustix::mm::mmap(
                ptr::null_mut(),
                layout::FILE_LEN,
                protection,
                MapFlags::SHARED,
                &file,
                0,
            )
        }?;
        let recorder = Self {
            base: base.cast(),
            pid,
            rows: PerProcess::new(),
        };
        recorder.begin();
        Ok(Box::leak(Box::new(recorder)))
    }

    /// Writes the header, and its magic number at last.
    fn begin(&self) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.map_or(0, |now| now.as_nanos() as u64);
        self.word(header::VERSION)
            .store(layout::VERSION, Ordering::Relaxed);
        self.word(header::PID).store(self.pid, Ordering::Relaxed);
        self.number(header::STARTED).store(now, Ordering::Relaxed);
        let program = fs::read("/proc/self/cmdline").unwrap_or_default();
        self.text(header::PROGRAM, header::END, &program);
        self.number(0)
            .store(u64::from_le_bytes(layout::MAGIC), Ordering::Release);
    }

    fn word(&self, at: usize) -> &AtomicU32 {
        assert!(at.is_multiple_of(4) && at + 4 <= layout::FILE_LEN);
        // SAFETY: within the mapping, which stays and is aligned; every access is atomic.
        unsafe { AtomicU32::from_ptr(self.base.add(at).cast()) }
    }

    fn number(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(8) && at + 8 <= layout::FILE_LEN);
        // SAFETY: as for `word`.
        unsafe { AtomicU64::from_ptr(self.base.add(at).cast()) }
    }

    /// Writes bytes and zeros after them, cut to their room.
    fn text(&self, from: usize, to: usize, bytes: &[u8]) {
        let mut rest = bytes.iter();
        for at in (from..to).step_by(8) {
            let mut word = [0; 8];
            for (byte, place) in rest.by_ref().take(8).zip(&mut word) {
                *place = *byte;
            }
            self.number(at)
                .store(u64::from_le_bytes(word), Ordering::Relaxed);
        }
    }

    /// Adds a row to a table; returns its number, or 0 if the table is full.
    fn add_row(&self, table: Table, fill: impl FnOnce(usize)) -> u32 {
        let used = self.word(header::USED + 4 * table.number);
        let row = used.fetch_add(1, Ordering::Relaxed) + 1;
        if row as usize >= table.rows {
            used.fetch_sub(1, Ordering::Relaxed);
            self.set_flags(flag::TABLE_FULL);
            return 0;
        }
        let start = table.offset + table.row * row as usize;
        fill(start);
        self.word(start).store(layout::READY, Ordering::Release);
        row
    }

    pub(crate) fn set_flags(&self, flags: u64) {
        self.number(header::FLAGS)
            .fetch_or(flags, Ordering::Relaxed);
    }

    /// Returns the row of a NIC, and counts that it was opened once more.
    pub(crate) fn open_nic(&self, name: &CStr) -> u32 {
        let mut rows = lock(self.rows.get_fast());
        let known = rows.nics.get(name.to_bytes()).copied();
        let row = known.unwrap_or_else(|| {
            let row = self.add_row(layout::NICS, |start| {
                self.text(
                    start + nic::NAME,
                    start + nic::NAME_END - 1,
                    name.to_bytes(),
                );
            });
            rows.nics.insert(name.to_bytes().to_vec(), row);
            row
        });
        let start = layout::NICS.offset + layout::NICS.row * row as usize;
        self.number(start + nic::OPENED)
            .fetch_add(1, Ordering::Relaxed);
        row
    }

    /// Counts a registration; returns its row.
    pub(crate) fn add_region(&self, registration: Registration, bytes: u64) -> u32 {
        let mut rows = lock(self.rows.get_fast());
        let known = rows.regions.get(&registration).copied();
        let row = known.unwrap_or_else(|| {
            let Registration {
                nic,
                memory,
                gpu,
                errno,
            } = registration;
            let row = self.add_row(layout::REGIONS, |start| {
                let fields = [
                    (region::NIC, nic),
                    (region::KIND, memory.number() as u32),
                    (region::GPU, gpu.unwrap_or(layout::NO_GPU)),
                    (region::ERRNO, errno.cast_unsigned()),
                ];
                for (at, value) in fields {
                    self.word(start + at).store(value, Ordering::Relaxed);
                }
            });
            rows.regions.insert(registration, row);
            row
        });
        let start = layout::REGIONS.offset + layout::REGIONS.row * row as usize;
        let add = |at: usize, more: u64| self.number(start + at).fetch_add(more, Ordering::Relaxed);
        add(region::COUNT, 1);
        add(region::BYTES, bytes);
        if registration.errno == 0 {
            add(region::LIVE, 1);
        }
        row
    }

    /// Counts the end of a region's registration.
    pub(crate) fn remove_region(&self, row: u32) {
        let start = layout::REGIONS.offset + layout::REGIONS.row * row as usize;
        self.number(start + region::LIVE)
            .fetch_sub(1, Ordering::Relaxed);
    }

    /// Adds the row of a new queue pair.
    pub(crate) fn add_queue_pair(&self, nic: u32, qpn: u32, kind: u32) -> u32 {
        self.add_row(layout::QUEUE_PAIRS, |start| {
            let fields = [
                (queue_pair::NIC, nic),
                (queue_pair::QPN, qpn),
                (queue_pair::TYPE, kind),
            ];
            for (at, value) in fields {
                self.word(start + at).store(value, Ordering::Relaxed);
            }
        })
    }

    fn pair_row(row: u32) -> usize {
        layout::QUEUE_PAIRS.offset + layout::QUEUE_PAIRS.row * row as usize
    }

    /// Counts operations of a queue pair.
    #[inline]
    pub(crate) fn add_traffic(&self, row: u32, cell: usize, operations: u64, bytes: u64) {
        let at = Self::pair_row(row) + queue_pair::CELLS + 16 * cell;
        self.number(at).fetch_add(operations, Ordering::Relaxed);
        self.number(at + 8).fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts a receive of a queue pair.
    pub(crate) fn add_receive(&self, received: Received, memory: MemoryKind) {
        let cell = layout::cell(Operation::Receive, memory);
        self.add_traffic(received.row, cell, 1, received.bytes.into());
    }

    /// Counts requests that a post refused.
    pub(crate) fn add_refused(&self, row: u32, requests: u64) {
        self.number(Self::pair_row(row) + queue_pair::REFUSED)
            .fetch_add(requests, Ordering::Relaxed);
    }

    /// Counts a completion with an error.
    pub(crate) fn add_error(&self, pair: u32, status: u32) {
        let mut rows = lock(self.rows.get_fast());
        let known = rows.errors.get(&(pair, status)).copied();
        let row = known.unwrap_or_else(|| {
            let row = self.add_row(layout::ERRORS, |start| {
                self.word(start + error::QUEUE_PAIR)
                    .store(pair, Ordering::Relaxed);
                self.word(start + error::STATUS)
                    .store(status, Ordering::Relaxed);
            });
            rows.errors.insert((pair, status), row);
            row
        });
        let start = layout::ERRORS.offset + layout::ERRORS.row * row as usize;
        self.number(start + error::COUNT)
            .fetch_add(1, Ordering::Relaxed);
    }
}

/// Creates a file with a unique name: a process may trace again after `exec`.
fn new_file(folder: &Path, pid: u32) -> io::Result<File> {
    for number in 0..=u32::from(u16::MAX) {
        let name = OsString::from(format!("{pid}-{number}.trace"));
        match create_new(&folder.join(name), 0o600) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            other => return other,
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

#[cfg(test)]
mod tests {
    use gdr_trace::ProcessTrace;
    use gdr_verbs_sys::Errno;

    use super::*;

    fn read(folder: &Path) -> Vec<ProcessTrace> {
        let files = fs::read_dir(folder).unwrap();
        files
            .map(|file| ProcessTrace::parse(&fs::read(file.unwrap().path()).unwrap()).unwrap())
            .collect()
    }

    #[test]
    fn what_is_counted_is_in_the_file_while_the_process_runs() {
        let folder = tempfile::tempdir().unwrap();
        let recorder = Recorder::create(folder.path(), 5).unwrap();
        let nic = recorder.open_nic(c"mlx5_0");
        assert_eq!(recorder.open_nic(c"mlx5_0"), nic);
        let mut registration = Registration {
            nic,
            memory: MemoryKind::GpuByAddress,
            gpu: Some(1),
            errno: 0,
        };
        let row = recorder.add_region(registration, 4096);
        recorder.add_region(registration, 4096);
        recorder.remove_region(row);
        registration.errno = Errno::EFAULT.0;
        recorder.add_region(registration, 1);
        let pair = recorder.add_queue_pair(nic, 17, 2);
        let cell = layout::cell(Operation::Read, MemoryKind::Host);
        recorder.add_traffic(pair, cell, 2, 300);
        recorder.add_refused(pair, 4);
        recorder.add_error(pair, 12);
        recorder.add_error(pair, 12);
        let [trace] = &read(folder.path())[..] else {
            panic!("one file");
        };
        assert_eq!((trace.pid, trace.nics[0].opened), (5, 2));
        assert!(!trace.program.is_empty());
        let regions: Vec<_> = trace
            .regions
            .iter()
            .map(|it| (it.errno, it.count, it.live))
            .collect();
        assert_eq!(regions, [(None, 2, 1), (Some(14), 1, 0)]);
        assert_eq!(trace.regions[0].gpu, Some(1));
        let pair = &trace.queue_pairs[0];
        assert_eq!(
            (pair.qpn, pair.bytes(), pair.refused_requests),
            (Some(17), 300, 4)
        );
        assert_eq!((trace.errors[0].status, trace.errors[0].count), (12, 2));
    }

    #[test]
    fn what_has_no_row_is_counted_together() {
        let folder = tempfile::tempdir().unwrap();
        let recorder = Recorder::create(folder.path(), 6).unwrap();
        let rows =
            (0..layout::QUEUE_PAIRS.rows as u32 + 10).map(|n| recorder.add_queue_pair(1, n, 2));
        let last = rows.last().unwrap();
        assert_eq!(last, 0);
        let received = Received {
            row: last,
            bytes: 8,
        };
        recorder.add_receive(received, MemoryKind::Host);
        // Another file of the same process, as after exec.
        Recorder::create(folder.path(), 6).unwrap();
        let traces = read(folder.path());
        assert_eq!(traces.len(), 2);
        let trace = traces.iter().find(|it| it.is_table_full).unwrap();
        assert_eq!(trace.queue_pairs.len(), layout::QUEUE_PAIRS.rows);
        let other = trace
            .queue_pairs
            .iter()
            .find(|it| it.qpn.is_none())
            .unwrap();
        assert_eq!(other.bytes(), 8);
    }
}
