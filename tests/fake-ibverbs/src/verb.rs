//! Verbs: what is recorded about each, and the C forms of their results. Panics do not unwind into C.

use std::ffi::c_int;
use std::fmt::Display;
use std::panic::{self, AssertUnwindSafe};
use std::ptr::{self, NonNull};

use gdr_verbs_sys::{VerbError, Verbs};

use crate::nic::nic;
use crate::state::{DeviceId, Kind, LibraryState, lock_state};

/// An `errno`.
pub(crate) type Errno = c_int;

/// The result of a verb.
pub(crate) type Outcome<T> = Result<T, Errno>;

pub(crate) fn errno_of(error: VerbError) -> Errno {
    error.errno().0
}

pub(crate) fn set_errno(errno: Errno) {
    // SAFETY: the C library returns the address of the errno of this thread.
    unsafe { *libc::__errno_location() = errno };
}

fn run<T>(verb: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
    panic::catch_unwind(AssertUnwindSafe(verb)).unwrap_or_else(|_| {
        let what = "the fake itself panicked; its message is on standard error";
        lock_state().violations.push(what.to_owned());
        Err(libc::EIO)
    })
}

/// Returns the result of a verb of the NIC that returned 0 or an `errno`.
pub(crate) fn outcome_of(answer: c_int) -> Outcome<()> {
    match answer {
        0 => Ok(()),
        errno => Err(errno),
    }
}

/// Runs a verb that returns 0 or an `errno`.
pub(crate) fn status(verb: impl FnOnce() -> Outcome<()>) -> c_int {
    run(verb).err().unwrap_or(0)
}

/// Runs a verb that returns 0, or -1 with `errno` set.
pub(crate) fn minus_one(verb: impl FnOnce() -> Outcome<()>) -> c_int {
    run(verb).map_err(set_errno).map_or(-1, |()| 0)
}

/// Runs a verb that returns a number, or a negative `errno`.
pub(crate) fn number(verb: impl FnOnce() -> Outcome<c_int>) -> c_int {
    run(verb).unwrap_or_else(|errno| -errno)
}

/// Runs a verb that returns a pointer, or null with `errno` set.
pub(crate) fn pointer<T>(verb: impl FnOnce() -> Outcome<*mut T>) -> *mut T {
    run(verb).map_err(set_errno).unwrap_or(ptr::null_mut())
}

/// Runs a verb that cannot fail.
pub(crate) fn plain<T>(otherwise: T, verb: impl FnOnce(&mut LibraryState) -> T) -> T {
    run(|| Ok(verb(&mut lock_state()))).unwrap_or(otherwise)
}

/// Runs a verb on an object with the state locked, and records it. It fails on a failed device.
pub(crate) fn on<H, T>(
    (kind, handle): (Kind, *mut H),
    verb: &str,
    detail: impl Display,
    run: impl FnOnce(&mut LibraryState, DeviceId) -> Outcome<T>,
) -> Outcome<T> {
    let mut library = lock_state();
    let call = library.calls.len();
    let id = library.object(verb, kind, handle.addr())?.device;
    let outcome = library
        .begin(verb, id, detail)
        .and_then(|()| run(&mut library, id));
    if let Err(errno) = outcome
        && let Some(call) = library.calls.get_mut(call)
    {
        call.errno = errno;
    }
    outcome
}

/// Makes an object of the NIC from another one.
pub(crate) fn make<H, T>(
    of: (Kind, *mut H),
    (verb, kind): (&str, Kind),
    detail: impl Display,
    make: impl FnOnce(&'static Verbs) -> Result<NonNull<T>, VerbError>,
) -> *mut T {
    let parent = of.1.addr();
    pointer(|| {
        on(of, verb, detail, |library, _| {
            let made = make(nic()).map_err(errno_of)?;
            library.add_object(kind, made.as_ptr(), parent);
            Ok(made.as_ptr())
        })
    })
}

/// Ends a NIC object. The state is not locked meanwhile, because the NIC may wait for the acknowledgement of events.
pub(crate) fn end<T>(
    kind: Kind,
    verb: &str,
    handle: *mut T,
    detail: impl Display,
    end: impl FnOnce(&'static Verbs) -> Result<(), VerbError>,
) -> Outcome<()> {
    let address = handle.addr();
    let object = {
        let mut library = lock_state();
        let object = library.object(verb, kind, address)?;
        library.note(verb, object.device, detail)?;
        library.objects.remove(&address);
        object
    };
    end(nic()).map_err(|error| {
        lock_state().objects.insert(address, object);
        errno_of(error)
    })
}

/// Defines a verb that ends a NIC object; the NIC refuses to end one in use.
macro_rules! ends {
    ($verb:ident($kind:ident, $object:ty)) => {
        #[unsafe(no_mangle)]
        extern "C" fn $verb(handle: *mut $object) -> c_int {
            // SAFETY: the program ends it once.
            let end_of_nic = |nic: &Verbs| unsafe { nic.$verb(handle) };
            status(|| end(Kind::$kind, stringify!($verb), handle, "", end_of_nic))
        }
    };
}
pub(crate) use ends;

/// Defines a verb that the NIC answers.
macro_rules! forwards {
    ($verb:ident($($argument:ident: $of_type:ty),*)) => {
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $verb($($argument: $of_type),*) -> c_int {
            // SAFETY: the contract of this function.
            status(|| unsafe { nic().$verb($($argument),*) }.map_err(errno_of))
        }
    };
}
pub(crate) use forwards;
