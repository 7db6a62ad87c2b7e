//! Reading the driver's names of a range off CUDA's own dma-buf export.
//!
//! `cuMemGetHandleForAddressRange` makes libcuda issue `NV_ESC_EXPORT_TO_DMABUF_FD` with the RM
//! client, objects, offsets and sizes of exactly the range that was asked for: for every kind of
//! memory that has a lasting place on a GPU. libcuda calls `ioctl` through its global offset
//! table; for the length of one export that entry leads through [`hook`], which passes every
//! call on unchanged and, on the thread that asked, notes what the export says.

mod export;
mod got;

use std::cell::Cell;
use std::ffi::{c_int, c_ulong, c_void};
use std::sync::{Mutex, OnceLock};

use super::source::Source;
use crate::fork::PerProcess;
pub(super) use export::Export;
use got::Slots;

/// One export at a time: the entries are patched and restored under this lock.
static PATCH: PerProcess<Mutex<()>> = PerProcess::new();

thread_local! {
    /// Where the calling thread wants its exports noted; null elsewhere.
    static NOTES: Cell<*mut Export> = const { Cell::new(std::ptr::null_mut()) };
}

/// Stands in for libc's `ioctl`. Variadic there; on x86-64 and aarch64 Linux a variadic call
/// passes these three arguments as a plain one does.
unsafe extern "C" fn hook(fd: c_int, request: c_ulong, arg: *mut c_void) -> c_int {
    // SAFETY: the call libcuda made, with its own arguments.
    let answer = unsafe { libc::ioctl(fd, request, arg) };
    let notes = NOTES.get();
    if answer == 0 && !notes.is_null() {
        // SAFETY: `export_of` on this very thread set the pointer to a local of its own and
        // clears it before that goes; nobody else reads this thread-local. `arg` is what the
        // kernel just accepted for `request`. Nothing here touches errno.
        unsafe { (*notes).note(request, arg) };
    }
    answer
}

/// Ends noting, also when `call` unwinds.
struct NotesGuard;

impl Drop for NotesGuard {
    fn drop(&mut self) {
        NOTES.set(std::ptr::null_mut());
    }
}

/// Runs `call`, which exports one range, and returns what the exports on this thread said.
///
/// `inside` is any address within the library whose calls are to be watched.
pub(super) fn export_of<T, E: std::fmt::Display>(
    inside: *const c_void,
    call: impl FnOnce() -> Result<T, E>,
) -> Result<(T, Vec<Source>), String> {
    if cfg!(not(any(target_arch = "x86_64", target_arch = "aarch64"))) {
        return Err("watching the driver library is not implemented for this CPU".to_owned());
    }
    // The driver library stays loaded for good, so its entries stay where they are.
    static SLOTS: OnceLock<Slots> = OnceLock::new();
    // A panic under the lock leaves the table restored (by `Slots`), so the lock stays usable.
    let _one_at_a_time = PATCH
        .get()
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    let slots = match SLOTS.get() {
        Some(slots) => slots,
        None => {
            let found = Slots::find(inside, c"ioctl")?;
            SLOTS.get_or_init(|| found)
        }
    };
    let mut export = Export::default();
    let made = {
        let patched = slots.redirect(hook as *const c_void)?;
        let noting = NotesGuard;
        NOTES.set(&mut export);
        let made = call();
        drop(noting);
        drop(patched);
        made
    };
    let made = made.map_err(|error| error.to_string())?;
    Ok((made, export.sources()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_without_the_call_is_told_apart() {
        // This test program's own table: whether it calls `ioctl` or not, the code below does
        // not, so nothing is noted and that is an error, not an empty answer.
        let inside = a_library_without_the_call_is_told_apart as *const c_void;
        let error = export_of(inside, || Ok::<_, String>(())).unwrap_err();
        assert!(
            error.contains("ioctl") || error.contains("export"),
            "{error}"
        );
    }
}
