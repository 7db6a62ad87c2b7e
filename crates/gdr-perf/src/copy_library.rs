//! Copy functions of another library, measured beside gdr's own paths.

#![allow(unsafe_code)]

use std::error::Error as _;
use std::ffi::{CStr, c_int, c_void};
use std::path::{Path, PathBuf};

use gdr_copy::Mapping;
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use crate::error::{Error, Result};
use crate::mapped_buffer::CopyDirection;

/// `int copy(void *to, const void *from, size_t bytes)`; returns 0 once the bytes are copied.
type CopyFunction = unsafe extern "C" fn(*mut c_void, *const c_void, usize) -> c_int;

/// A library with the C functions `copy_to_mapping` and `copy_from_mapping`.
#[derive(Debug)]
pub struct CopyLibrary {
    file: PathBuf,
    to_mapping: CopyFunction,
    from_mapping: CopyFunction,
    /// The library that contains the functions; `None` for a test's functions.
    _loaded: Option<Library>,
}

impl CopyLibrary {
    /// Loads a library. Its functions run in this process, with its privileges.
    ///
    /// # Errors
    /// [`Error::CopyLibrary`].
    pub fn load(file: &Path) -> Result<Self> {
        let error = |error: libloading::Error| {
            // Keep the loader's message as the source.
            let source = error.source().map(ToString::to_string);
            let why = source.unwrap_or_else(|| error.to_string());
            let file = file.to_owned();
            match why.strip_prefix(&format!("{}: ", file.display())) {
                Some(why) => Error::CopyLibrary {
                    why: why.to_owned(),
                    file,
                },
                None => Error::CopyLibrary { why, file },
            }
        };
        // SAFETY: the user who names the library guarantees that its initializers are sound.
        let library = unsafe { Library::open(Some(file), RTLD_NOW | RTLD_LOCAL) }.map_err(error)?;
        let function = |name: &CStr| {
            // SAFETY: the documentation states the required type, and the user guarantees it.
            let found = unsafe { library.get::<CopyFunction>(name) };
            found.map(|symbol| *symbol).map_err(error)
        };
        Ok(Self {
            file: file.to_owned(),
            to_mapping: function(c"copy_to_mapping")?,
            from_mapping: function(c"copy_from_mapping")?,
            _loaded: Some(library),
        })
    }

    /// Returns the file.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Copies between a mapping at `offset` and host memory.
    ///
    /// # Errors
    /// [`Error::CopyLibrary`] if the function reports a failure.
    ///
    /// # Safety
    /// The mapping has `len` bytes at `offset`. For `len` bytes, `host` is readable for a copy to the GPU and writable
    /// for a copy from it.
    pub(crate) unsafe fn copy(
        &self,
        direction: CopyDirection,
        mapping: &Mapping,
        offset: u64,
        host: *mut u8,
        len: usize,
    ) -> Result<()> {
        let mapped = mapping.as_ptr().wrapping_add(offset as usize);
        // SAFETY: the caller guarantees both ranges; the user guarantees the functions.
        let status = unsafe {
            match direction {
                CopyDirection::ToGpu => (self.to_mapping)(mapped.cast(), host.cast(), len),
                CopyDirection::FromGpu => (self.from_mapping)(host.cast(), mapped.cast(), len),
            }
        };
        match status {
            0 => Ok(()),
            status => Err(Error::CopyLibrary {
                file: self.file.clone(),
                why: format!("a copy of {len} bytes {direction} returned {status}"),
            }),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    unsafe extern "C" fn copies(to: *mut c_void, from: *const c_void, len: usize) -> c_int {
        // SAFETY: callers of a `CopyFunction` pass two disjoint ranges of `len` bytes.
        unsafe { to.copy_from_nonoverlapping(from, len) };
        0
    }

    unsafe extern "C" fn does_nothing(_: *mut c_void, _: *const c_void, _: usize) -> c_int {
        0
    }

    unsafe extern "C" fn refuses(_: *mut c_void, _: *const c_void, _: usize) -> c_int {
        22
    }

    fn of(to_mapping: CopyFunction, from_mapping: CopyFunction) -> CopyLibrary {
        CopyLibrary {
            file: "copies.so".into(),
            to_mapping,
            from_mapping,
            _loaded: None,
        }
    }

    /// Returns a library whose functions copy.
    pub(crate) fn right() -> CopyLibrary {
        of(copies, copies)
    }

    /// Returns a library that does not copy from the GPU, but reports success.
    pub(crate) fn wrong() -> CopyLibrary {
        of(copies, does_nothing)
    }

    /// Returns a library that refuses to copy.
    pub(crate) fn refusing() -> CopyLibrary {
        of(refuses, refuses)
    }

    #[test]
    fn a_file_that_is_missing_or_lacks_the_functions_is_named() {
        let cases = [
            ("/nowhere/copies.so", "No such file"),
            ("libc.so.6", "symbol"),
        ];
        for (file, why) in cases {
            let error = CopyLibrary::load(Path::new(file)).unwrap_err().to_string();
            assert!(error.contains(file) && error.contains(why), "{error}");
        }
    }
}
