//! Finds the RM objects of a range by reading CUDA's own dma-buf export call.
//!
//! `cuMemGetHandleForAddressRange` makes libcuda issue `NV_ESC_EXPORT_TO_DMABUF_FD` with the RM client, objects,
//! offsets and sizes of exactly the requested range, for every kind of memory that does not migrate. libcuda calls
//! `ioctl` through its global offset table. During one export that entry points to a [`hook`], which passes every call
//! on unchanged to the entry's previous target and, on the calling thread, records the export's arguments. Other
//! libraries hook the same entry (tracers, record and replay): their hooks still see every call, whether they were
//! installed before this one or are installed during an export.

mod error;
mod export;
mod got;

use std::cell::Cell;
use std::ffi::{c_int, c_ulong, c_void};
use std::mem;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, OnceLock};

use self::got::{Detour, Slots, Target};
use super::extents::ObjectRange;
use gdr_process::PerProcess;

pub(super) use self::error::HookError;
pub(super) use self::export::Export;

/// One export at a time: the entries are patched and restored under this lock.
static PATCH: PerProcess<Mutex<()>> = PerProcess::new();

thread_local! {
    /// The recorder of this thread's exports; null while nothing is recorded.
    static RECORDER: Cell<*mut Export> = const { Cell::new(ptr::null_mut()) };
}

/// `ioctl`. Variadic in libc; on x86-64 and aarch64 Linux a variadic call passes these three arguments as a plain one
/// does.
type Ioctl = unsafe extern "C" fn(c_int, c_ulong, *mut c_void) -> c_int;

/// Hooks for `ioctl`, one for each target that was found in an entry. A hook belongs to its target permanently: another
/// library may have saved the hook's address as the entry's target, and may call it at any time later.
static HOOKS: [Ioctl; 8] = [
    hook::<0>, hook::<1>, hook::<2>, hook::<3>, hook::<4>, hook::<5>, hook::<6>, hook::<7>,
];
static TARGETS: [AtomicPtr<c_void>; HOOKS.len()] =
    [const { AtomicPtr::new(ptr::null_mut()) }; HOOKS.len()];

/// Passes a call on to the target of this hook: libc's function, or the hook of another library.
unsafe extern "C" fn hook<const NUMBER: usize>(
    fd: c_int,
    request: c_ulong,
    arg: *mut c_void,
) -> c_int {
    let target = TARGETS[NUMBER].load(Ordering::Acquire);
    // SAFETY: the target is a function of `ioctl`'s type, which `detour` found in an entry for `ioctl` before it
    // returned this hook.
    let target = unsafe { mem::transmute::<*mut c_void, Ioctl>(target) };
    // The target may call another of these hooks, but the call is recorded only once.
    let recorder = RECORDER.replace(ptr::null_mut());
    // SAFETY: passes on libcuda's call with its own arguments.
    let answer = unsafe { target(fd, request, arg) };
    RECORDER.set(recorder);
    if answer == 0 && !recorder.is_null() {
        // SAFETY: `export_of` on this thread set the pointer to a local variable and clears it before the variable goes
        // out of scope; no other code reads this thread-local. The Linux kernel has just accepted `arg` for `request`.
        // Nothing here changes errno.
        unsafe { (*recorder).record(request, arg) };
    }
    answer
}

/// Returns the hook for an entry's current target. The caller holds [`PATCH`].
fn detour(current: Target) -> Result<Detour, HookError> {
    let hooks = HOOKS.iter().zip(&TARGETS);
    // The entry already points to a hook: a restore failed, the process forked during an export, or another library
    // hooked the entry during an export and then restored what it had found.
    for (&hook, target) in hooks.clone() {
        if current.function == hook as *mut c_void {
            let before = target.load(Ordering::Acquire);
            return Ok(Detour {
                hook: current.function,
                before,
            });
        }
    }
    let wanted = match current.unbound {
        // The binding code would overwrite the entry and thereby remove the hook.
        true => bound()?,
        false => current.function,
    };
    for (&hook, target) in hooks {
        let taken = target.load(Ordering::Acquire);
        // No other thread takes the hook in the meantime, because the caller holds the lock.
        if taken.is_null() {
            target.store(wanted, Ordering::Release);
        }
        if taken.is_null() || taken == wanted {
            let (hook, before) = (hook as *mut c_void, current.function);
            return Ok(Detour { hook, before });
        }
    }
    Err(HookError::TooManyHooks)
}

/// Returns the function to which an entry for `ioctl` is bound.
fn bound() -> Result<*mut c_void, HookError> {
    // SAFETY: searches the global scope for a zero-terminated name.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"ioctl".as_ptr()) };
    match found.is_null() {
        true => Err(HookError::NoIoctl),
        false => Ok(found),
    }
}

/// Stops recording on drop, also when the export unwinds.
struct RecorderGuard;

impl Drop for RecorderGuard {
    fn drop(&mut self) {
        RECORDER.set(ptr::null_mut());
    }
}

/// Runs `call`, which exports one range, and returns the objects in the exports of this thread.
///
/// `inside` is any address in the library whose calls are read.
pub(super) fn export_of<T>(
    inside: *const c_void,
    call: impl FnOnce() -> gdr_cuda::Result<T>,
) -> Result<(T, Vec<ObjectRange>), HookError> {
    if cfg!(not(any(target_arch = "x86_64", target_arch = "aarch64"))) {
        return Err(HookError::Unsupported);
    }
    // The driver library is never unloaded, so the addresses of its entries stay valid.
    static SLOTS: OnceLock<Slots> = OnceLock::new();
    // `Slots` restores the table even if a call panics, so the lock stays usable.
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
        let patched = slots.redirect(detour)?;
        let recording = RecorderGuard;
        // For this call only: other exports of the thread are not recorded.
        RECORDER.set(&mut export);
        let made = call();
        drop(recording);
        drop(patched);
        made
    };
    Ok((made?, export.sources()?))
}

#[cfg(test)]
mod tests {
    use std::sync::MutexGuard;
    use std::sync::atomic::AtomicUsize;

    use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect};

    use super::super::abi::EXPORT_TO_DMABUF;
    use super::*;

    /// Serializes the tests that change the entry for `ioctl` of this program's own table.
    static ENTRY: Mutex<()> = Mutex::new(());

    /// A descriptor that is never open; it marks the calls of these tests.
    const MARK: c_int = -77;

    /// The hook of another library: the previous target that it found in the entry, and the calls that it saw.
    struct Other {
        found: AtomicPtr<c_void>,
        calls: AtomicUsize,
    }

    static FIRST: Other = Other::new();
    static SECOND: Other = Other::new();

    impl Other {
        const fn new() -> Self {
            Self {
                found: AtomicPtr::new(ptr::null_mut()),
                calls: AtomicUsize::new(0),
            }
        }

        fn calls(&self) -> usize {
            self.calls.load(Ordering::SeqCst)
        }

        unsafe fn pass_on(&self, fd: c_int, request: c_ulong, arg: *mut c_void) -> c_int {
            if fd == MARK {
                self.calls.fetch_add(1, Ordering::SeqCst);
            }
            // SAFETY: `install` found it in an entry for `ioctl`.
            let found: Ioctl = unsafe { mem::transmute(self.found.load(Ordering::SeqCst)) };
            // SAFETY: passes on the caller's own call.
            unsafe { found(fd, request, arg) }
        }
    }

    /// Stands in for the hook of another library, and for the driver: it accepts marked calls.
    unsafe extern "C" fn first(fd: c_int, request: c_ulong, arg: *mut c_void) -> c_int {
        // SAFETY: passes on the caller's own call.
        let answer = unsafe { FIRST.pass_on(fd, request, arg) };
        if fd == MARK { 0 } else { answer }
    }

    /// Stands in for the hook of another library that is installed later.
    unsafe extern "C" fn second(fd: c_int, request: c_ulong, arg: *mut c_void) -> c_int {
        // SAFETY: passes on the caller's own call.
        unsafe { SECOND.pass_on(fd, request, arg) }
    }

    fn inside() -> *const c_void {
        first as *const c_void
    }

    /// Writes the entry as another library does, and returns its previous target.
    fn install(hook: *mut c_void) -> *mut c_void {
        let target = Cell::new(ptr::null_mut());
        let slots = Slots::find(inside(), c"ioctl").unwrap();
        let redirected = slots.redirect(|now| {
            target.set(now.function);
            Ok(Detour {
                hook,
                before: now.function,
            })
        });
        mem::forget(redirected.unwrap());
        target.get()
    }

    /// Hooks the entry as another library does, and returns the hook.
    fn hook_of(other: &Other, hook: Ioctl) -> *mut c_void {
        let hook = outside(hook);
        let slots = Slots::find(inside(), c"ioctl").unwrap();
        let redirected = slots.redirect(|now| {
            // Before the entry is written, because other threads may call the hook at once.
            other.found.store(now.function, Ordering::SeqCst);
            Ok(Detour {
                hook,
                before: now.function,
            })
        });
        mem::forget(redirected.unwrap());
        hook
    }

    /// Returns a jump to `hook` in code outside every library, because a library's entries are not hooked by that
    /// library.
    fn outside(hook: Ioctl) -> *mut c_void {
        #[cfg(target_arch = "x86_64")]
        let jump: &[u8] = &[0xff, 0x25, 0, 0, 0, 0]; // jmp [rip + 0]
        #[cfg(target_arch = "aarch64")]
        let jump: &[u8] = &[0x50, 0, 0, 0x58, 0, 0x02, 0x1f, 0xd6]; // ldr x16, +8; br x16
        let code = [jump, &(hook as usize).to_ne_bytes()].concat();
        let (page, rw) = (
            rustix::param::page_size(),
            ProtFlags::READ | ProtFlags::WRITE,
        );
        // SAFETY: a new mapping, which nothing else accesses until it is complete and executable.
        unsafe {
            let at = mmap_anonymous(ptr::null_mut(), page, rw, MapFlags::PRIVATE).unwrap();
            code.as_ptr().copy_to_nonoverlapping(at.cast(), code.len());
            mprotect(at, page, MprotectFlags::READ | MprotectFlags::EXEC).unwrap();
            at
        }
    }

    fn current_target() -> *mut c_void {
        let target = Cell::new(ptr::null_mut());
        let slots = Slots::find(inside(), c"ioctl").unwrap();
        let look = slots.redirect(|now| {
            target.set(now.function);
            Err(HookError::NoIoctl)
        });
        assert!(look.is_err());
        target.get()
    }

    /// Makes an export of one object, as libcuda does.
    fn export() -> c_int {
        let mut bytes = export::tests::one_object();
        let request = export::tests::request(EXPORT_TO_DMABUF, bytes.len());
        // SAFETY: the descriptor is not open; `first` accepts the call without reading its argument.
        unsafe { libc::ioctl(MARK, request as _, bytes.as_mut_ptr()) }
    }

    fn export_seen() -> usize {
        let (answer, sources) = export_of(inside(), || Ok(export())).unwrap();
        assert_eq!(answer, 0);
        sources.len()
    }

    fn lock() -> MutexGuard<'static, ()> {
        ENTRY
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    #[test]
    fn hooks_of_other_libraries_see_every_call_whether_installed_before_or_during_an_export() {
        let _entry = lock();
        let libc = current_target();
        let first = hook_of(&FIRST, first);
        assert_eq!((export(), FIRST.calls()), (0, 1));

        // Our hook calls a hook that was installed before, which is restored afterwards.
        assert_eq!((export_seen(), FIRST.calls()), (1, 2));
        assert_eq!(current_target(), first);

        // A hook that is installed during an export stays, and the hooks that it calls still work.
        let later = || {
            let second = hook_of(&SECOND, second);
            export();
            Ok(second)
        };
        let (second, sources) = export_of(inside(), later).unwrap();
        assert_eq!((sources.len(), SECOND.calls(), FIRST.calls()), (1, 1, 3));
        assert_eq!(current_target(), second);
        assert_eq!((export(), SECOND.calls(), FIRST.calls()), (0, 2, 4));

        // Our hook calls the other one and is called by it: the other one sees the call once, and it is recorded once.
        assert_eq!((export_seen(), SECOND.calls(), FIRST.calls()), (1, 3, 5));
        assert_eq!(current_target(), second);

        // The other hook is removed and restores what it found, which is our hook.
        install(SECOND.found.load(Ordering::SeqCst));
        assert_eq!((export(), SECOND.calls(), FIRST.calls()), (0, 3, 6));
        assert_eq!((export_seen(), SECOND.calls(), FIRST.calls()), (1, 3, 7));
        assert_eq!(current_target(), first, "our hook is removed");

        install(libc);
    }

    #[test]
    fn an_entry_that_is_not_bound_leads_to_the_function_that_it_would_be_bound_to() {
        let unbound = Target {
            function: ptr::without_provenance_mut(0x1234),
            unbound: true,
        };
        let detour = detour(unbound).unwrap();
        assert_eq!(detour.before, unbound.function);
        let number = HOOKS
            .iter()
            .position(|&hook| detour.hook == hook as *mut c_void);
        let target = TARGETS[number.unwrap()].load(Ordering::SeqCst);
        assert_eq!(target, bound().unwrap());
    }

    #[test]
    fn an_export_that_makes_no_call_is_an_error() {
        let _entry = lock();
        let error = export_of(inside(), || Ok(())).unwrap_err();
        assert!(
            matches!(error, HookError::NotSeen | HookError::NoEntry(_)),
            "{error}"
        );
    }
}
