//! Libraries loaded into the process.
//!
//! `dl_iterate_phdr` holds a loader lock that the GNU C library does not reset in a forked child (seen in 2.36). A
//! child forked while any thread of its parent holds the lock waits forever in its next `dlopen`. So threads in this
//! module and `fork` wait for each other.

use std::ffi::{CStr, c_int, c_void};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Threads currently querying the loader.
static ASKING: AtomicU32 = AtomicU32::new(0);
/// Forks about to happen.
static FORKING: AtomicU32 = AtomicU32::new(0);

/// How long a fork and a query wait for each other. A query takes less than a microsecond; it takes longer only if the
/// forking thread holds the lock itself, or interrupted the query.
const LIMIT: Duration = Duration::from_millis(100);

/// Waits until a counter is 0 or the limit has passed.
fn wait_for_none(count: &AtomicU32) {
    let start = Instant::now();
    while count.load(Ordering::SeqCst) != 0 && start.elapsed() < LIMIT {
        thread::yield_now();
    }
}

extern "C" fn before_fork() {
    FORKING.fetch_add(1, Ordering::SeqCst);
    wait_for_none(&ASKING);
}

extern "C" fn after_fork_in_parent() {
    FORKING.fetch_sub(1, Ordering::SeqCst);
}

extern "C" fn after_fork_in_child() {
    FORKING.store(0, Ordering::SeqCst);
    ASKING.store(0, Ordering::SeqCst);
}

/// A scope during which this process does not fork.
struct Question;

impl Question {
    fn begin() -> Self {
        static REGISTERED: AtomicBool = AtomicBool::new(false);
        if !REGISTERED.load(Ordering::Acquire) {
            // SAFETY: the handlers only use atomics and yield. The C library removes the handlers of an unloaded
            // library. Threads that race here register them twice, which only counts a fork twice; after a failure,
            // forks do not wait.
            unsafe {
                libc::pthread_atfork(
                    Some(before_fork),
                    Some(after_fork_in_parent),
                    Some(after_fork_in_child),
                )
            };
            REGISTERED.store(true, Ordering::Release);
        }
        ASKING.fetch_add(1, Ordering::SeqCst);
        if FORKING.load(Ordering::SeqCst) != 0 {
            ASKING.fetch_sub(1, Ordering::SeqCst);
            wait_for_none(&FORKING);
            ASKING.fetch_add(1, Ordering::SeqCst);
        }
        Self
    }
}

impl Drop for Question {
    fn drop(&mut self) {
        ASKING.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Calls `visit` with each loaded object, starting with the program, until it breaks.
///
/// `visit` must not panic, load libraries or fork: the loader's lock is held.
pub fn visit_loaded(visit: &mut dyn FnMut(&libc::dl_phdr_info) -> ControlFlow<()>) {
    type Visit<'a> = &'a mut dyn FnMut(&libc::dl_phdr_info) -> ControlFlow<()>;

    unsafe extern "C" fn call(info: *mut libc::dl_phdr_info, _: usize, data: *mut c_void) -> c_int {
        // SAFETY: the C library passes a valid object, and the `data` that `visit_loaded` gave it, which is its
        // visitor.
        let (info, visit) = unsafe { (&*info, &mut *data.cast::<Visit<'_>>()) };
        c_int::from(visit(info).is_break())
    }

    let _question = Question::begin();
    let mut visit: Visit<'_> = visit;
    // SAFETY: the callback receives `visit`, which outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(call), (&raw mut visit).cast()) };
}

/// A library that may be loaded at any time.
#[derive(Debug)]
pub struct LoadedLibrary {
    /// The beginning of its file name.
    file: &'static str,
    /// The loader's load count when the library was last found absent.
    absent_at: AtomicU64,
}

/// Not a possible load count.
const NEVER: u64 = u64::MAX;

impl LoadedLibrary {
    /// Describes the library whose file name starts with `file`, for example `libcuda.so`.
    pub const fn new(file: &'static str) -> Self {
        Self {
            file,
            absent_at: AtomicU64::new(NEVER),
        }
    }

    /// Returns whether the library is loaded.
    ///
    /// Examines the names of the loaded libraries only if the process has loaded any since the last
    /// call; otherwise this takes well under a microsecond. Does not load, open or allocate
    /// anything.
    pub fn is_loaded(&self) -> bool {
        let (mut loads, mut found) = (NEVER, false);
        visit_loaded(&mut |object| {
            loads = object.dlpi_adds;
            if loads == self.absent_at.load(Ordering::Relaxed) {
                return ControlFlow::Break(());
            }
            found = file_name(object).starts_with(self.file.as_bytes());
            match found {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        });
        if !found {
            self.absent_at.store(loads, Ordering::Relaxed);
        }
        found
    }

    /// Treats the library, which turned out to be useless, as absent until the process loads another one.
    pub fn ignore(&self) {
        visit_loaded(&mut |object| {
            self.absent_at.store(object.dlpi_adds, Ordering::Relaxed);
            ControlFlow::Break(())
        });
    }
}

/// Returns an object's file name without its directory; empty for the program itself.
fn file_name(object: &libc::dl_phdr_info) -> &[u8] {
    if object.dlpi_name.is_null() {
        return &[];
    }
    // SAFETY: `dlpi_name` is the loader's NUL-terminated name of an object that stays loaded during the visit.
    let path = unsafe { CStr::from_ptr(object.dlpi_name) }.to_bytes();
    path.rsplit(|byte| *byte == b'/').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_is_found_by_the_beginning_of_its_file_name() {
        let c = LoadedLibrary::new("libc.so");
        assert!(c.is_loaded() && c.is_loaded());
        let none = LoadedLibrary::new("libgdr-no-such-library.so");
        assert!(!none.is_loaded() && !none.is_loaded());
    }

    #[test]
    fn a_library_that_is_of_no_use_is_absent_until_another_one_is_loaded() {
        let c = LoadedLibrary::new("libc.so");
        c.ignore();
        assert!(!c.is_loaded());
        c.absent_at.fetch_sub(1, Ordering::Relaxed);
        assert!(c.is_loaded());
    }
}
