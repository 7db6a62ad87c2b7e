//! A test's control of the library.

use std::ffi::{OsString, c_void};
use std::fs;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::os::unix;
use std::path::{Path, PathBuf};
use std::slice;
use std::sync::Once;
use std::sync::atomic::{AtomicU8, Ordering};

use gdr_verbs_sys::Verbs;
use libloading::os::unix::Library;
use tempfile::TempDir;

use crate::control::{Control, Fault, Reply, Request};
use crate::nic::FILE;
use crate::report::{Call, Kind, Report};
use crate::spec::DeviceSpec;

const NAME: &str = "libfake_ibverbs.so";

/// Names the address of the NIC's device.
const NICS: &str = "GDR_NICS";

/// Returns an address that no other process has, nor another call of this one.
fn address() -> OsString {
    static NEXT: AtomicU8 = AtomicU8::new(0);
    let n = NEXT.fetch_add(1, Ordering::Relaxed) % 64;
    let [.., high, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, 128 + n, high, low).to_string().into()
}

/// A loaded library, usually a copy with its own state.
///
/// All methods panic on failure, because a test without its set-up has failed.
#[derive(Debug)]
pub struct Fake {
    path: PathBuf,
    library: Library,
    verbs: &'static Verbs,
    _folder: Option<TempDir>,
}

impl Fake {
    /// Returns the path of the built library, for `GDR_LIBIBVERBS` of a program under test.
    pub fn library() -> PathBuf {
        let test = std::env::current_exe().expect("a running program has a path");
        // Cargo builds all crate types of a library before the tests that depend on it, in the same folder.
        let library = test.with_file_name(NAME);
        assert!(library.exists(), "{} was not built", library.display());
        library
    }

    /// Returns the environment of a program under test that has the devices in this file.
    pub fn environment(devices: &Path) -> [(&'static str, OsString); 3] {
        [
            ("GDR_LIBIBVERBS", Self::library().into()),
            ("FAKE_IBVERBS", devices.into()),
            (NICS, address()),
        ]
    }

    /// Returns the built library, which all threads of the process share. This process loads it if `GDR_LIBIBVERBS` is
    /// [`Fake::library`].
    pub fn of_process() -> Self {
        Self::open(Self::library(), None)
    }

    /// Loads a copy of the library without devices.
    pub fn load() -> Self {
        Self::without(&[])
    }

    /// Like [`Fake::load`], without the functions with these names.
    pub fn without(functions: &[&str]) -> Self {
        let folder = Self::folder(functions);
        Self::open(folder.path().join(NAME), Some(folder))
    }

    fn open(path: PathBuf, folder: Option<TempDir>) -> Self {
        static ADDRESS: Once = Once::new();
        if std::env::var_os(NICS).is_none() {
            // SAFETY: the standard library locks the environment, and no library that a test has loaded so far reads it
            // directly.
            ADDRESS.call_once(|| unsafe { std::env::set_var(NICS, address()) });
        }
        // SAFETY: the fake behaves like libibverbs.
        let verbs = unsafe { Verbs::open(&path) }.expect("the fake is loaded");
        // SAFETY: its initializers have already run.
        let library = unsafe { Library::new(&path) }.expect("the fake is loaded");
        Self {
            path,
            library,
            verbs,
            _folder: folder,
        }
    }

    /// Creates a folder with a copy of the library, without the functions with these names. The loader treats a copy as
    /// another library, with its own variables.
    pub fn folder(without: &[&str]) -> TempDir {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut library = fs::read(Self::library()).expect("the fake is readable");
        for name in without {
            rename(&mut library, name);
        }
        fs::write(folder.path().join(NAME), library).expect("the fake is copied");
        // The NIC is the same for all copies.
        let nic = Self::library().with_file_name(FILE);
        unix::fs::symlink(nic, folder.path().join(FILE)).expect("a link in a new folder");
        folder
    }

    /// Returns the path of the library.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the functions of the library.
    pub fn verbs(&self) -> &'static Verbs {
        self.verbs
    }

    /// Adds a device.
    pub fn add(&self, device: DeviceSpec) {
        self.request(&Request::Add(device));
    }

    /// Lets something happen to a device.
    pub fn fault(&self, device: &str, fault: Fault) {
        self.request(&Request::Fault(device.to_owned(), fault));
    }

    /// Declares `size` device addresses from `base` as GPU memory, which a peer-memory module can support.
    /// The descriptor for the memory is duplicated.
    pub fn add_gpu_memory(&self, base: u64, size: u64, fd: BorrowedFd<'_>) {
        let fd = fd.as_raw_fd();
        self.request(&Request::GpuMemory { base, size, fd });
    }

    /// Executes a request.
    fn request(&self, request: &Request) -> Report {
        let request = serde_json::to_vec(request).expect("requests are JSON");
        let mut reply = Vec::<u8>::new();
        // SAFETY: the function has this type in every copy.
        let control = unsafe { self.library.get::<Control>(b"fake_ibverbs_control") };
        let control = control.expect("the fake has a control");
        let user = (&raw mut reply).cast::<c_void>();
        // SAFETY: the request is readable, and `take` accepts the pointer.
        unsafe { control(request.as_ptr(), request.len(), take as Reply, user) };
        serde_json::from_slice(&reply).expect("the library has not panicked")
    }

    /// Returns the report of the library.
    pub fn report(&self) -> Report {
        self.request(&Request::Report)
    }

    /// Returns how many objects of this kind a device has.
    pub fn live(&self, device: &str, kind: Kind) -> usize {
        let live = self.report().live;
        let of = live.iter().filter(|it| it.0 == device && it.1 == kind);
        of.count()
    }

    /// Returns the calls of these verbs, in order.
    pub fn calls(&self, verbs: &[&str]) -> Vec<Call> {
        let mut calls = self.report().calls;
        calls.retain(|call| verbs.contains(&call.verb.as_str()));
        calls
    }

    /// Asserts that the program has not violated the API and that no object is alive.
    pub fn assert_clean(&self) {
        let report = self.report();
        assert_eq!(report.violations, Vec::<String>::new());
        assert!(report.live.is_empty(), "{:?}", report.live);
    }
}

/// Receives the text of the report.
unsafe extern "C" fn take(user: *mut c_void, text: *const u8, len: usize) {
    // SAFETY: the text is readable.
    let text = unsafe { slice::from_raw_parts(text, len) };
    // SAFETY: this is the pointer from `Fake::request`, which waits for this call.
    unsafe { (*user.cast::<Vec<u8>>()).extend_from_slice(text) };
}

/// Renames the symbol to a name of the same length, so that the loader does not find it.
fn rename(library: &mut [u8], name: &str) {
    let wanted = format!("\0{name}\0").into_bytes();
    let windows = library.windows(wanted.len()).enumerate();
    let places: Vec<usize> = windows
        .filter(|it| it.1 == wanted)
        .map(|it| it.0 + 1)
        .collect();
    assert!(!places.is_empty(), "the fake has no {name}");
    places.into_iter().for_each(|at| library[at] = b'X');
}
