//! Loading libibverbs, and the devices that it shows.

use std::env;
use std::ffi::{CString, OsStr, OsString, c_int, c_void};
use std::mem;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::slice;
use std::sync::{Mutex, OnceLock};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use crate::bindings::ibv_device;
use crate::error::{LoadError, NoDevice};
use crate::mlx5::Mlx5;
use crate::table::Table;

/// The library's name, of which every release of rdma-core keeps the interface.
pub(crate) const LIBRARY: &str = "libibverbs.so.1";

/// The variable of the environment that names another file.
const OVERRIDE: &str = "GDR_LIBIBVERBS";

/// A loaded libibverbs.
///
/// It is never unloaded: it starts providers (libraries of its own), and contexts hold pointers
/// into them.
#[derive(Debug)]
pub struct Verbs {
    table: Table,
    library: PathBuf,
    mlx5: OnceLock<Option<Mlx5>>,
}

impl Verbs {
    /// The library, once it shows at least one device.
    ///
    /// It is loaded once and then given again; the devices are listed each time, for they come
    /// and go.
    ///
    /// # Errors
    ///
    /// [`LoadError::Library`] and [`LoadError::Symbol`] as [`Verbs::library`];
    /// [`LoadError::NoDevice`] where the list is empty or the kernel has no user-space verbs.
    pub fn load() -> Result<&'static Self, LoadError> {
        let verbs = Self::library()?;
        if verbs.devices()?.is_empty() {
            return Err(LoadError::NoDevice(NoDevice::Empty));
        }
        Ok(verbs)
    }

    /// The library, whether or not there is a device: `libibverbs.so.1`, or the file that the
    /// environment's `GDR_LIBIBVERBS` names. A failure is not remembered.
    ///
    /// # Errors
    ///
    /// [`LoadError::Library`] where there is no such library, [`LoadError::Symbol`] where it is
    /// not libibverbs.
    pub fn library() -> Result<&'static Self, LoadError> {
        static LOADED: Mutex<Option<&'static Verbs>> = Mutex::new(None);
        let mut loaded = LOADED.lock().unwrap_or_else(|error| error.into_inner());
        if let Some(verbs) = *loaded {
            return Ok(verbs);
        }
        let file = env::var_os(OVERRIDE)
            .filter(|file| !file.is_empty())
            .unwrap_or_else(|| OsString::from(LIBRARY));
        // SAFETY: libibverbs is made to be opened at run time; who sets the override answers for
        // that library.
        let verbs = unsafe { Self::open(&file) }?;
        Ok(loaded.insert(verbs))
    }

    /// Loads libibverbs from this file, or by this name from the loader's path. Each call makes
    /// another table, which stays for the life of the process.
    ///
    /// # Errors
    ///
    /// As [`Verbs::library`].
    ///
    /// # Safety
    ///
    /// The file, if it is a library at all, is libibverbs or acts as it does: its initializers
    /// run, and functions with libibverbs' names have libibverbs' types and meaning.
    pub unsafe fn open(file: impl AsRef<OsStr>) -> Result<&'static Self, LoadError> {
        let file = file.as_ref();
        // SAFETY: the caller answers for what the library does when it is loaded.
        let library = unsafe { Library::open(Some(file), RTLD_NOW | RTLD_LOCAL) };
        let library = library.map_err(|error| LoadError::Library {
            library: file.into(),
            reason: reason(&error),
        })?;
        // SAFETY: these are the addresses in the library, which the caller answers for and which
        // is never unloaded (below).
        let table = unsafe { Table::fill(|name| find(&library, name)) };
        // Even what turned out not to be libibverbs stays: it may have started threads.
        mem::forget(library);
        let table = table.map_err(|symbol| LoadError::Symbol {
            library: file.into(),
            symbol,
        })?;
        Ok(Box::leak(Box::new(Self {
            table,
            library: file.into(),
            mlx5: OnceLock::new(),
        })))
    }

    /// The file that was asked for.
    pub fn file(&self) -> &Path {
        &self.library
    }

    /// The devices that are there now.
    ///
    /// # Errors
    ///
    /// [`LoadError::NoDevice`] where the kernel has no user-space verbs or the list cannot be
    /// made. An empty list is none.
    pub fn devices(&self) -> Result<Devices<'_>, LoadError> {
        let mut count: c_int = 0;
        // SAFETY: a place for the number; the list is freed once, by its owner.
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

    pub(crate) fn table(&self) -> &Table {
        &self.table
    }

    #[cfg(test)]
    pub(crate) fn of(table: Table) -> Self {
        Self {
            table,
            library: PathBuf::from("a table made by hand"),
            mlx5: OnceLock::new(),
        }
    }
}

/// The default version of the function: libibverbs also keeps the versions of 2005, under the same
/// names, which `dlsym` passes over.
fn find(library: &Library, name: &str) -> Option<NonNull<c_void>> {
    let name = CString::new(name).ok()?;
    // SAFETY: the symbol is only taken as an address here.
    let symbol = unsafe { library.get::<*mut c_void>(name.as_c_str()) }.ok()?;
    NonNull::new(symbol.as_raw_ptr())
}

/// The loader's own words (`dlerror`), which libloading keeps as the source of its error.
fn reason(error: &libloading::Error) -> String {
    match std::error::Error::source(error) {
        Some(source) => source.to_string(),
        None => error.to_string(),
    }
}

/// The devices that were there when they were listed, which are freed with this unless opened.
#[derive(Debug)]
pub struct Devices<'a> {
    verbs: &'a Verbs,
    list: NonNull<*mut ibv_device>,
    count: usize,
}

impl Devices<'_> {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Each of them, for [`Verbs::ibv_open_device`] and what else takes one; gone with this list.
    pub fn as_slice(&self) -> &[*mut ibv_device] {
        // SAFETY: the library gave this many pointers, and they stay until the list is freed.
        unsafe { slice::from_raw_parts(self.list.as_ptr(), self.count) }
    }
}

impl Drop for Devices<'_> {
    fn drop(&mut self) {
        // SAFETY: the list is the library's and is freed here only; who keeps a device's pointer
        // beyond it answers for that.
        unsafe { self.verbs.ibv_free_device_list(self.list.as_ptr()) };
    }
}
