//! Loading of libibverbs, and its list of devices.

use std::ffi::{CString, OsStr, OsString, c_int, c_void};
use std::mem;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::slice;
use std::sync::{Mutex, OnceLock};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use crate::bindings::{ibv_device, ibv_fork_status};
use crate::error::{LoadError, NoDevice};
use crate::mlx5::Mlx5;
use crate::symbols::Symbols;

/// The name of the library, whose ABI is the same in every release of rdma-core.
pub(crate) const LIBRARY: &str = "libibverbs.so.1";

/// The environment variable with the path of another library.
const OVERRIDE: &str = "GDR_LIBIBVERBS";

/// A loaded libibverbs.
///
/// It is never unloaded: it loads providers, which are libraries themselves, and contexts have
/// pointers into them.
#[derive(Debug)]
pub struct Verbs {
    symbols: Symbols,
    library: PathBuf,
    mlx5: OnceLock<Option<Mlx5>>,
}

impl Verbs {
    /// Returns the library if it has at least one device.
    ///
    /// The library is loaded once. The devices are listed in every call, because they may change.
    ///
    /// # Errors
    ///
    /// [`LoadError::Library`] and [`LoadError::Symbol`] as [`Verbs::library`];
    /// [`LoadError::NoDevice`] if the list is empty or the kernel has no user-space verbs.
    pub fn load() -> Result<&'static Self, LoadError> {
        let verbs = Self::library()?;
        if verbs.devices()?.is_empty() {
            return Err(LoadError::NoDevice(NoDevice::Empty));
        }
        Ok(verbs)
    }

    /// Returns the library, with or without devices: `libibverbs.so.1`, or the file in the environment
    /// variable `GDR_LIBIBVERBS`. After a failure the next call tries again.
    ///
    /// A process with more privileges than its caller (setuid, setgid, file capabilities;
    /// `AT_SECURE` of `getauxval(3)`) ignores the variable, because the caller must not choose which
    /// code runs with these privileges.
    ///
    /// # Errors
    ///
    /// [`LoadError::Library`] if the library is not found, [`LoadError::Symbol`] if it is not
    /// libibverbs.
    pub fn library() -> Result<&'static Self, LoadError> {
        static LOADED: Mutex<Option<&'static Verbs>> = Mutex::new(None);
        let mut loaded = LOADED.lock().unwrap_or_else(|error| error.into_inner());
        if let Some(verbs) = *loaded {
            return Ok(verbs);
        }
        let named = gdr_process::variable(OVERRIDE).filter(|file| !file.is_empty());
        let file = named.unwrap_or_else(|| OsString::from(LIBRARY));
        // SAFETY: libibverbs can be loaded at run time. The override is honored only if the owner of the environment
        // could run the same code without this process.
        let verbs = unsafe { Self::open(&file) }?;
        Ok(loaded.insert(verbs))
    }

    /// Loads libibverbs from this path, or by this name from the search path of the loader. Each call
    /// allocates another `Verbs`, which lives as long as the process.
    ///
    /// Memory that is registered afterwards is protected from copy-on-write after a `fork`
    /// (`ibv_fork_init`), unless the kernel does so itself (Linux 5.12 and later) or the process has
    /// registered memory before.
    ///
    /// # Errors
    ///
    /// Like [`Verbs::library`].
    ///
    /// # Safety
    ///
    /// If the file is a library, it is libibverbs or behaves like it: its initializers are safe to run, and functions
    /// with libibverbs' names have the same types and meaning as there.
    pub unsafe fn open(file: impl AsRef<OsStr>) -> Result<&'static Self, LoadError> {
        let file = file.as_ref();
        // SAFETY: the library is safe to load by contract.
        let library = unsafe { Library::open(Some(file), RTLD_NOW | RTLD_LOCAL) };
        let library = library.map_err(|error| LoadError::Library {
            library: file.into(),
            reason: reason(&error),
        })?;
        // SAFETY: the addresses belong to the library, which has the right functions by contract
        // and is never unloaded (below).
        let symbols = unsafe { Symbols::fill(|name| find(&library, name)) };
        // Do not unload a library that is not libibverbs either: it may have started threads.
        mem::forget(library);
        let symbols = symbols.map_err(|symbol| LoadError::Symbol {
            library: file.into(),
            symbol,
        })?;
        let verbs: &'static Self = Box::leak(Box::new(Self {
            symbols,
            library: file.into(),
            mlx5: OnceLock::new(),
        }));
        verbs.protect_from_fork();
        Ok(verbs)
    }

    /// Before Linux 5.12 the first write after a fork moves a registered page of the parent, while the
    /// device continues to use the old page.
    fn protect_from_fork(&self) {
        // SAFETY: the call has no requirements.
        let status = unsafe { self.ibv_is_fork_initialized() };
        // An older library lacks this function; it has no protection before ibv_fork_init.
        let status = status.unwrap_or(ibv_fork_status::IBV_FORK_DISABLED);
        if status != ibv_fork_status::IBV_FORK_DISABLED {
            return;
        }
        // SAFETY: the call has no requirements, and only fails if memory is registered already.
        if let Err(error) = unsafe { self.ibv_fork_init() } {
            tracing::debug!(%error, "registered memory is not protected from fork");
        }
    }

    /// Returns the path or name that the library was loaded from.
    pub fn file(&self) -> &Path {
        &self.library
    }

    /// Lists the current devices.
    ///
    /// # Errors
    ///
    /// [`LoadError::NoDevice`] if the kernel has no user-space verbs or the call fails. An empty list
    /// is not an error.
    pub fn devices(&self) -> Result<Devices<'_>, LoadError> {
        let mut count: c_int = 0;
        // SAFETY: the pointer is writable; the list is freed once, by `Devices`.
        match unsafe { self.ibv_get_device_list(&mut count) } {
            Ok(list) => Ok(Devices {
                verbs: self,
                list,
                count: usize::try_from(count).unwrap_or(0),
            }),
            Err(error) => Err(LoadError::NoDevice(NoDevice::from_errno(error.errno()))),
        }
    }

    pub(crate) fn mlx5(&self) -> &OnceLock<Option<Mlx5>> {
        &self.mlx5
    }

    pub(crate) fn symbols(&self) -> &Symbols {
        &self.symbols
    }

    #[cfg(test)]
    pub(crate) fn of(symbols: Symbols) -> Self {
        Self {
            symbols,
            library: PathBuf::from("test"),
            mlx5: OnceLock::new(),
        }
    }
}

/// Returns the default version of a function. libibverbs also has versions of 2005 with the same names, which `dlsym`
/// does not return.
fn find(library: &Library, name: &str) -> Option<NonNull<c_void>> {
    let name = CString::new(name).ok()?;
    // SAFETY: the symbol is only used as an address here.
    let symbol = unsafe { library.get::<*mut c_void>(name.as_c_str()) }.ok()?;
    NonNull::new(symbol.as_raw_ptr())
}

/// Returns the message of the loader (`dlerror`), which libloading stores as the source of its error.
fn reason(error: &libloading::Error) -> String {
    match std::error::Error::source(error) {
        Some(source) => source.to_string(),
        None => error.to_string(),
    }
}

/// A list of devices. Dropping it frees the devices that are not open.
#[derive(Debug)]
pub struct Devices<'a> {
    verbs: &'a Verbs,
    list: NonNull<*mut ibv_device>,
    count: usize,
}

impl Devices<'_> {
    /// Returns the number of devices.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Returns whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the devices, for [`Verbs::ibv_open_device`] and other calls. They are valid as long as the list.
    pub fn as_slice(&self) -> &[*mut ibv_device] {
        // SAFETY: the library returned this many pointers, which are valid until the list is freed.
        unsafe { slice::from_raw_parts(self.list.as_ptr(), self.count) }
    }
}

impl Drop for Devices<'_> {
    fn drop(&mut self) {
        // SAFETY: the list is from the library and is freed only here. By the contracts of the calls
        // that take a device, its pointer is not used afterwards.
        unsafe { self.verbs.ibv_free_device_list(self.list.as_ptr()) };
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::c_int;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::fixture;

    static STATUS: AtomicU32 = AtomicU32::new(0);
    static CALLS: AtomicU32 = AtomicU32::new(0);

    extern "C" fn is_fork_initialized() -> ibv_fork_status {
        ibv_fork_status(STATUS.load(Ordering::Relaxed))
    }

    extern "C" fn fork_init() -> c_int {
        CALLS.fetch_add(1, Ordering::Relaxed);
        // The result after the first registration, which is not an error.
        libc::EINVAL
    }

    #[test]
    fn memory_is_protected_from_fork_unless_it_is_protected_already() {
        let functions: [(&str, *const ()); 2] = [
            ("ibv_is_fork_initialized", is_fork_initialized as *const ()),
            ("ibv_fork_init", fork_init as *const ()),
        ];
        // SAFETY: the functions have the types of the functions that they replace.
        let library = |missing: &[&str]| unsafe { fixture::library(&functions, missing) };
        let verbs = library(&[]).unwrap();
        for (status, calls) in [
            (ibv_fork_status::IBV_FORK_DISABLED, 1),
            (ibv_fork_status::IBV_FORK_ENABLED, 0),
            (ibv_fork_status::IBV_FORK_UNNEEDED, 0),
        ] {
            STATUS.store(status.0, Ordering::Relaxed);
            CALLS.store(0, Ordering::Relaxed);
            verbs.protect_from_fork();
            assert_eq!(CALLS.load(Ordering::Relaxed), calls, "{status}");
        }
        library(&["ibv_is_fork_initialized"])
            .unwrap()
            .protect_from_fork();
        assert_eq!(CALLS.load(Ordering::Relaxed), 1, "an older library");
    }
}
