//! Copies of the library beside copies of a simulated libibverbs.

use std::env;
use std::ffi::{CStr, CString, c_void};
use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use fake_ibverbs::{DeviceSpec, Fake};
use gdr_verbs_sys::*;
use tempfile::TempDir;

use crate::built::libraries;

/// An address that no other test uses.
pub(crate) const ADDRESS: &str = "127.77.0.2";
pub(crate) const PRELOAD: &str = "libgdr-verbs.so";
pub(crate) const SHADOW: &str = "shadow/libibverbs.so.1";

/// A copy of a library, with its own choice of the installed libibverbs: the loader treats a copy as another library,
/// with its own variables.
pub(crate) struct Copy {
    pub(crate) verbs: &'static Verbs,
    pub(crate) handle: *mut c_void,
    _folder: TempDir,
}

impl Copy {
    /// Loads a library while the environment has these variables.
    pub(crate) fn new(file: &str, variables: &[(&str, &Path)]) -> Self {
        static ENVIRONMENT: Mutex<()> = Mutex::new(());
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("library.so");
        fs::copy(libraries().join(file), &path).unwrap();
        let _changed = ENVIRONMENT.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the threads of this test binary read the environment under the lock only.
        unsafe {
            env::set_var("GDR_NICS", ADDRESS);
            env::remove_var("GDR_LIBIBVERBS");
            env::remove_var("GDR_ONLY_SOFT");
            for (name, value) in variables {
                env::set_var(name, value);
            }
        }
        // SAFETY: the file behaves as libibverbs does.
        let verbs = unsafe { Verbs::open(&path) }.unwrap();
        let name = CString::new(path.as_os_str().as_bytes()).unwrap();
        // SAFETY: the library is already loaded, so no initializer runs.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
        assert!(!handle.is_null());
        // The first call reads the variables.
        drop(verbs.devices());
        Self {
            verbs,
            handle,
            _folder: folder,
        }
    }

    pub(crate) fn open(&self, index: usize) -> *mut ibv_context {
        let devices = self.verbs.devices().unwrap();
        // SAFETY: the list and its devices are alive.
        unsafe { self.verbs.ibv_open_device(devices.as_slice()[index]) }
            .unwrap()
            .as_ptr()
    }

    pub(crate) fn names(&self) -> Vec<String> {
        let devices = self.verbs.devices().unwrap();
        let name = |device: &*mut ibv_device| {
            // SAFETY: the list and its devices are alive, and names are C strings.
            unsafe { CStr::from_ptr(self.verbs.ibv_get_device_name(*device)) }
                .to_str()
                .unwrap()
                .to_owned()
        };
        devices.as_slice().iter().map(name).collect()
    }

    /// Returns a private function of rdma-core.
    pub(crate) fn private(&self, name: &str, version: &str) -> *mut c_void {
        let (name, version) = (CString::new(name).unwrap(), CString::new(version).unwrap());
        // SAFETY: a handle and C strings.
        unsafe { libc::dlvsym(self.handle, name.as_ptr(), version.as_ptr()) }
    }
}

/// Returns a library with one simulated device.
pub(crate) fn fake() -> Fake {
    let fake = Fake::load();
    fake.add(DeviceSpec::roce("mlx5_0", Ipv4Addr::new(192, 168, 1, 1)));
    fake
}
