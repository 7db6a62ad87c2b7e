//! The installed libibverbs, which has the devices that are not this library's own.
//!
//! `GDR_LIBIBVERBS` names it, as for all of gdr. Without the variable it is the libibverbs after this
//! library in the search order of the loader, which the program or another library is linked with.
//! With `GDR_ONLY_SOFT` there is no such library.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::mem;
use std::os::unix::ffi::OsStringExt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use gdr_process::{Inherited, variable};

use crate::errno::Errno;
use crate::ret::set_errno;

/// The path of the installed library.
const PATH: &str = "GDR_LIBIBVERBS";
/// Hides the devices of the installed library.
const ONLY_SOFT: &str = "GDR_ONLY_SOFT";

/// A loaded library, which stays loaded.
#[derive(Clone, Copy)]
struct Library(NonNull<c_void>);

// SAFETY: a handle of dlopen(3), which every thread may use.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

impl Library {
    /// Loads the library at a path. `flags` are added to the usual ones of dlopen(3).
    fn open(path: &CStr, flags: c_int) -> Option<Self> {
        // SAFETY: libibverbs may be loaded at any time; the path is a C string.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | flags) };
        NonNull::new(handle).map(Self)
    }

    /// The address of a function.
    fn symbol(self, name: &CStr) -> Option<NonNull<c_void>> {
        // SAFETY: a handle and a C string.
        let found = NonNull::new(unsafe { libc::dlsym(self.0.as_ptr(), name.as_ptr()) });
        if found.is_none() {
            // The program must not find this error when it asks for its own.
            // SAFETY: it returns a text of this thread, which is not used.
            unsafe { libc::dlerror() };
        }
        found
    }

    /// Not this library itself, which the program may have loaded from two files.
    fn unless_own(self) -> Option<Self> {
        self.symbol(c"gdr_verbs_version").is_none().then_some(self)
    }

    /// The library that `GDR_LIBIBVERBS` names. A program with more rights than its caller ignores
    /// the variable: the caller must not choose which code it runs.
    fn named() -> Option<Self> {
        let path = variable(PATH).filter(|path| !path.is_empty())?;
        let path = CString::new(path.into_vec()).ok()?;
        let library = Self::open(&path, libc::RTLD_LOCAL);
        if library.is_none() {
            // SAFETY: dlopen has just failed in this thread, so there is a C string.
            let reason = unsafe { CStr::from_ptr(libc::dlerror()) };
            eprintln!(
                "gdr: {PATH} cannot be loaded: {}; only gdr's own devices are there",
                reason.to_string_lossy()
            );
        }
        library?.unless_own()
    }

    /// The library after this one in the search order.
    fn next() -> Option<Self> {
        let name = c"ibv_get_device_list";
        // SAFETY: a C string.
        let function = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
        let function = NonNull::new(function)?;
        // SAFETY: a structure of pointers, which may be null.
        let mut info: libc::Dl_info = unsafe { mem::zeroed() };
        // SAFETY: an address and a structure to write.
        if unsafe { libc::dladdr(function.as_ptr(), &mut info) } == 0 || info.dli_fname.is_null() {
            return None;
        }
        // SAFETY: the name of a loaded library.
        let path = unsafe { CStr::from_ptr(info.dli_fname) };
        Self::open(path, libc::RTLD_NOLOAD)?.unless_own()
    }
}

/// The installed library, which is looked for once.
fn library() -> Option<Library> {
    static LIBRARY: Inherited<Option<Library>> = Inherited::new();
    let only_soft = || variable(ONLY_SOFT).is_some_and(|value| !value.is_empty());
    *LIBRARY.get_or_init(|| (!only_soft()).then(|| Library::named().or_else(Library::next))?)
}

/// Whether the program may have objects of the installed library.
static HAS_DEVICES: AtomicBool = AtomicBool::new(false);

/// Returns whether the installed library has returned a device or a context. Before that each
/// handle that this library does not know is an error of the program.
pub(crate) fn has_devices() -> bool {
    HAS_DEVICES.load(Ordering::Acquire)
}

/// From here on unknown handles are passed on to the installed library.
pub(crate) fn found_devices() {
    HAS_DEVICES.store(true, Ordering::Release);
}

/// A function of the installed library.
pub(crate) struct Function {
    /// Ends with a zero.
    name: &'static str,
    /// Not a lock, which a forked child would wait for: threads that look it up at once find the same.
    address: AtomicUsize,
}

/// The function was not looked up yet.
const UNKNOWN: usize = 0;
/// There is no such function.
const ABSENT: usize = 1;

impl Function {
    pub(crate) const fn new(name: &'static str) -> Self {
        Self {
            name,
            address: AtomicUsize::new(UNKNOWN),
        }
    }

    /// Its address; `None` if there is no library, or if this release of it has no such function.
    pub(crate) fn address(&self) -> Option<NonNull<c_void>> {
        let mut address = self.address.load(Ordering::Acquire);
        if address == UNKNOWN {
            address = self.look_up().unwrap_or(ABSENT);
            self.address.store(address, Ordering::Release);
        }
        match address {
            ABSENT => None,
            found => NonNull::new(std::ptr::with_exposed_provenance_mut(found)),
        }
    }

    fn look_up(&self) -> Option<usize> {
        let name = CStr::from_bytes_with_nul(self.name.as_bytes()).ok()?;
        Some(library()?.symbol(name)?.as_ptr().expose_provenance())
    }
}

/// The function at an address, of the type of `_like`.
///
/// # Safety
/// There is a function of this type, and the type is a function pointer.
pub(crate) unsafe fn function<F: Copy>(_like: F, address: NonNull<c_void>) -> F {
    const { assert!(size_of::<F>() == size_of::<NonNull<c_void>>()) };
    // SAFETY: the contract of this function.
    unsafe { mem::transmute_copy(&address) }
}

/// The type that the compiler infers for an argument.
macro_rules! inferred {
    ($argument:ident) => {
        _
    };
}

/// The result of the installed library's function of the name and the type of this one, as an
/// `Option`: `None` without such a function.
macro_rules! call_system {
    ($function:ident($($argument:ident),*)) => {{
        static FUNCTION: $crate::system::Function =
            $crate::system::Function::new(concat!(stringify!($function), "\0"));
        FUNCTION.address().map(|address| {
            // SAFETY: the functions of one name have one type, which libibverbs' header declares,
            // and the arguments come from a caller who keeps its rules.
            unsafe {
                let own = $function as unsafe extern "C" fn($($crate::system::inferred!($argument)),*) -> _;
                $crate::system::function(own, address)($($argument),*)
            }
        })
    }};
}

/// Returns what the installed library's function returns, if it has devices and the object is not
/// one of this library: `forward!(unless is_own(handle), function(arguments))`.
macro_rules! forward {
    (unless $own:expr, $function:ident($($argument:ident),*)) => {
        if $crate::system::has_devices() && !$own {
            if let Some(returned) = $crate::system::call_system!($function($($argument),*)) {
                return returned;
            }
        }
    };
}

/// Like [`forward`], for a function that older releases lack: `refused` is returned without it.
macro_rules! forward_or {
    (unless $own:expr, $function:ident($($argument:ident),*), $refused:expr) => {
        if $crate::system::has_devices() && !$own {
            let returned = $crate::system::call_system!($function($($argument),*));
            return returned.unwrap_or_else(|| $refused);
        }
    };
}

pub(crate) use {call_system, forward, forward_or, inferred};

/// An entry of the table in `private.S`.
#[repr(C)]
struct PrivateFunction {
    name: *const c_char,
    /// What the function jumps to.
    target: *mut *mut c_void,
}

/// Makes the private functions jump to the installed library's. It is the initializer of the
/// library that takes libibverbs' place, and runs before the initializers of the libraries that
/// need it.
///
/// # Safety
/// The table of `private.S` from `entry` to `end`, and its variable.
#[unsafe(no_mangle)]
unsafe extern "C" fn gdr_verbs_fill_table(
    mut entry: *const PrivateFunction,
    end: *const PrivateFunction,
    disassociate: *mut u8,
) {
    let may = variable("RDMAV_ALLOW_DISASSOC_DESTROY").is_some();
    // SAFETY: the contract of this function.
    unsafe { disassociate.write(may.into()) };
    let Some(library) = library() else { return };
    while entry < end {
        // SAFETY: the contract of this function: names are C strings, and no other thread uses the
        // table yet.
        unsafe {
            let PrivateFunction { name, target } = entry.read();
            if let Some(function) = library.symbol(CStr::from_ptr(name)) {
                target.write(function.as_ptr());
            }
            entry = entry.add(1);
        }
    }
}

/// A private function that returns an error number, or nothing.
#[unsafe(no_mangle)]
extern "C" fn gdr_verbs_refuse_status() -> c_int {
    Errno::OPNOTSUPP.get()
}

/// A private function that returns a pointer or a count.
#[unsafe(no_mangle)]
extern "C" fn gdr_verbs_refuse_pointer() -> *mut c_void {
    set_errno(Errno::OPNOTSUPP);
    std::ptr::null_mut()
}

/// A private function that returns -1 with errno set.
#[unsafe(no_mangle)]
extern "C" fn gdr_verbs_refuse_minus_one() -> c_int {
    set_errno(Errno::OPNOTSUPP);
    -1
}
