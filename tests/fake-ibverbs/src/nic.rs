//! The libibverbs that the fake calls: the software NIC's.

use std::cell::Cell;
use std::ffi::{CStr, OsStr, c_int, c_void};
use std::mem;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::ptr;
use std::sync::OnceLock;

use gdr_verbs_sys::{Verbs, ibv_context, ibv_gid, verbs_context};

use crate::verb::{Outcome, errno_of};

/// File of the library, next to the fake's.
pub(crate) const FILE: &str = "libgdr_verbs.so";

thread_local! {
    /// Whether the NIC is listing its devices. For that, it asks the libibverbs that `GDR_LIBIBVERBS` names, which is
    /// the fake, for further devices.
    static LISTING: Cell<bool> = const { Cell::new(false) };
}

/// Returns whether this thread is in a call in which the NIC asks for devices of other libraries.
pub(crate) fn is_listing() -> bool {
    LISTING.get()
}

/// Returns the functions of the NIC. All copies of the fake in a process share them.
pub(crate) fn nic() -> &'static Verbs {
    static NIC: OnceLock<&'static Verbs> = OnceLock::new();
    NIC.get_or_init(|| {
        let path = own_path().with_file_name(FILE);
        let name = [path.as_os_str().as_bytes(), &[0]].concat();
        // Makes the library prefer its own functions, whatever libibverbs the process has.
        let flags = libc::RTLD_NOW | libc::RTLD_LOCAL | libc::RTLD_DEEPBIND;
        // SAFETY: a C string; the library behaves like libibverbs. It stays loaded.
        unsafe { libc::dlopen(name.as_ptr().cast(), flags) };
        // SAFETY: as above.
        let verbs = unsafe { Verbs::open(&path) };
        verbs.unwrap_or_else(|error| panic!("the software NIC is not built: {error}"))
    })
}

/// Returns the path of this library.
fn own_path() -> &'static Path {
    // SAFETY: the structure consists of pointers, which may be null.
    let mut info: libc::Dl_info = unsafe { mem::zeroed() };
    let own = ptr::from_ref(&FILE).cast::<c_void>();
    // SAFETY: any address may be looked up, and the structure is writable.
    let found: c_int = unsafe { libc::dladdr(own, &mut info) };
    assert!(found != 0 && !info.dli_fname.is_null(), "this is a library");
    // SAFETY: the name belongs to a library that stays loaded.
    let path = unsafe { CStr::from_ptr(info.dli_fname) };
    Path::new(OsStr::from_bytes(path.to_bytes()))
}

/// Opens the device of the NIC.
pub(crate) fn open() -> Outcome<*mut ibv_context> {
    LISTING.set(true);
    let devices = nic().devices();
    LISTING.set(false);
    let devices = devices.map_err(|_| libc::EIO)?;
    let device = devices.as_slice().first().ok_or(libc::ENODEV)?;
    // SAFETY: the list is alive.
    let context = unsafe { nic().ibv_open_device(*device) };
    Ok(context.map_err(errno_of)?.as_ptr())
}

/// Returns the GID of the device of the NIC.
pub(crate) fn gid(context: *mut ibv_context) -> Outcome<ibv_gid> {
    // SAFETY: the context is open.
    let entry = unsafe { nic().query_gid(context, 1, 0) };
    Ok(entry.map_err(errno_of)?.gid)
}

/// Operations that all of the NIC's contexts share.
pub(crate) struct Operations(verbs_context);

// SAFETY: only the functions of the structure are used.
unsafe impl Send for Operations {}
// SAFETY: as above.
unsafe impl Sync for Operations {}

static OPERATIONS: OnceLock<Operations> = OnceLock::new();

/// Stores the operations of a context before they are replaced.
pub(crate) fn keep_operations(context: &verbs_context) {
    // SAFETY: plain data, and the functions belong to a library that stays loaded.
    OPERATIONS.get_or_init(|| Operations(unsafe { ptr::from_ref(context).read() }));
}

/// Returns the operations of the NIC's contexts.
pub(crate) fn operations() -> &'static verbs_context {
    let kept = OPERATIONS.get();
    &kept.expect("a device was opened").0
}
