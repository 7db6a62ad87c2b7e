//! A test's hand on the library.

use std::ffi::c_void;
use std::fs;
use std::path::{Path, PathBuf};
use std::slice;

use gdr_verbs_sys::Verbs;
use libloading::os::unix::Library;
use tempfile::TempDir;

use crate::control::{Call, Control, Live, Reply, Report, Request};
use crate::spec::DeviceSpec;

const NAME: &str = "libfake_ibverbs.so";

/// A loaded library, usually a copy with a world of its own.
///
/// Everything here panics when it fails: a test that cannot be arranged is a test that failed.
#[derive(Debug)]
pub struct Fake {
    path: PathBuf,
    library: Library,
    verbs: &'static Verbs,
    _folder: Option<TempDir>,
}

impl Fake {
    /// The library as it was built: what a program under test, told so by `GDR_LIBIBVERBS`, loads.
    pub fn library() -> PathBuf {
        let test = std::env::current_exe().expect("a running program has a path");
        // Cargo builds all kinds of a library before the tests that depend on it, next to them.
        let library = test.with_file_name(NAME);
        assert!(library.exists(), "{} was not built", library.display());
        library
    }

    /// The library as it was built, which is one for the whole process: what this process loads
    /// itself when `GDR_LIBIBVERBS` names [`Fake::library`].
    pub fn of_process() -> Self {
        Self::open(Self::library(), None)
    }

    /// A library that shows no device yet.
    pub fn load() -> Self {
        Self::without(&[])
    }

    /// As [`Fake::load`], of a release that has no functions of these names.
    pub fn without(functions: &[&str]) -> Self {
        let folder = Self::folder(functions);
        Self::open(folder.path().join(NAME), Some(folder))
    }

    fn open(path: PathBuf, folder: Option<TempDir>) -> Self {
        // SAFETY: the fake acts as libibverbs does.
        let verbs = unsafe { Verbs::open(&path) }.expect("the fake is loaded");
        // SAFETY: its initializers have run already.
        let library = unsafe { Library::new(&path) }.expect("the fake is loaded");
        Self {
            path,
            library,
            verbs,
            _folder: folder,
        }
    }

    /// A folder with a copy of the library, which has no functions of these names. A copy is
    /// another library to the loader, with other variables.
    pub fn folder(without: &[&str]) -> TempDir {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut library = fs::read(Self::library()).expect("the fake is readable");
        for name in without {
            rename(&mut library, name);
        }
        fs::write(folder.path().join(NAME), library).expect("the fake is copied");
        folder
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its functions.
    pub fn verbs(&self) -> &'static Verbs {
        self.verbs
    }

    /// There is a device more.
    pub fn add(&self, device: DeviceSpec) {
        self.tell(&Request::Add(device));
    }

    /// Does what the request says.
    pub fn tell(&self, request: &Request) -> Report {
        let request = serde_json::to_vec(request).expect("requests are JSON");
        let mut reply = Vec::<u8>::new();
        // SAFETY: the function has this type in every copy.
        let control = unsafe { self.library.get::<Control>(b"fake_ibverbs_control") };
        let control = control.expect("the fake has a control");
        let user = (&raw mut reply).cast::<c_void>();
        // SAFETY: the request is readable, and `take` takes the place that it is given.
        unsafe { control(request.as_ptr(), request.len(), take as Reply, user) };
        let report: Report = serde_json::from_slice(&reply).expect("reports are JSON");
        assert_eq!(report.error, None);
        report
    }

    /// What the library has seen.
    pub fn report(&self) -> Report {
        self.tell(&Request::Report)
    }

    /// What is alive on a device.
    pub fn live(&self, device: &str) -> Live {
        self.report().live.get(device).copied().unwrap_or_default()
    }

    /// The calls of these verbs, in order.
    pub fn calls(&self, verbs: &[&str]) -> Vec<Call> {
        let mut calls = self.report().calls;
        calls.retain(|call| verbs.contains(&call.verb.as_str()));
        calls
    }

    /// Nothing was done that no program may do, and nothing is left over.
    pub fn assert_clean(&self) {
        let report = self.report();
        assert_eq!(report.violations, Vec::<String>::new());
        for (device, live) in report.live {
            assert_eq!(live, Live::NOTHING, "{device}");
        }
    }
}

/// Takes the report's text.
unsafe extern "C" fn take(user: *mut c_void, text: *const u8, len: usize) {
    // SAFETY: the text is there.
    let text = unsafe { slice::from_raw_parts(text, len) };
    // SAFETY: this is the place that `tell` gave, which waits for it.
    unsafe { (*user.cast::<Vec<u8>>()).extend_from_slice(text) };
}

/// Gives the symbol another name of the same length: it is not found by its own any more.
fn rename(library: &mut [u8], name: &str) {
    let wanted = format!("\0{name}\0").into_bytes();
    let mut at = 0;
    let mut found = false;
    while let Some(next) = library[at..]
        .windows(wanted.len())
        .position(|it| it == wanted)
    {
        at += next + 1;
        library[at] = b'X';
        found = true;
    }
    assert!(found, "the fake has no {name}");
}
