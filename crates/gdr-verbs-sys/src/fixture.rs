//! A provider and a library with the functions of a test.

use std::ffi::c_void;
use std::mem;
use std::process;
use std::ptr::{self, NonNull};

use crate::bindings::{ibv_context, verbs_context};
use crate::library::Verbs;
use crate::symbols::Symbols;

/// A context as returned by a provider, with the operations that a test sets.
pub(crate) struct Provider {
    context: *mut verbs_context,
}

impl Provider {
    /// Creates a provider with the operations that `fill` sets, and with the size of the header.
    pub(crate) fn new(fill: impl FnOnce(&mut verbs_context)) -> Self {
        // SAFETY: the fields are numbers, nullable pointers and functions, and a mutex that is not
        // locked, so all of them may be zero.
        let mut context: Box<verbs_context> = Box::new(unsafe { mem::zeroed() });
        context.sz = size_of::<verbs_context>();
        context.context.abi_compat = ptr::without_provenance_mut(usize::MAX);
        fill(&mut context);
        Self {
            context: Box::into_raw(context),
        }
    }

    pub(crate) fn context(&self) -> *mut ibv_context {
        // SAFETY: the context lives as long as `self`.
        unsafe { &raw mut (*self.context).context }
    }
}

impl Drop for Provider {
    fn drop(&mut self) {
        // SAFETY: the pointer is from `Box::into_raw`, and is freed once.
        drop(unsafe { Box::from_raw(self.context) });
    }
}

/// Stands in for functions that a test does not call. It does not know their arguments, so it aborts.
extern "C" fn unexpected() {
    process::abort();
}

/// Creates a library with the given functions. The others abort when they are called; those in `missing` do not exist.
///
/// # Safety
///
/// Each address is of a function with the type of the function that it replaces.
pub(crate) unsafe fn library(
    functions: &[(&str, *const ())],
    missing: &[&str],
) -> Result<Verbs, &'static str> {
    let find = |name: &str| {
        if missing.contains(&name) {
            return None;
        }
        let given = functions.iter().find(|(given, _)| *given == name);
        let address = given.map_or(unexpected as *const (), |(_, address)| *address);
        NonNull::new(address.cast::<c_void>().cast_mut())
    };
    // SAFETY: the given functions have the right types by contract; the others abort without using
    // an argument.
    unsafe { Symbols::fill(find) }.map(Verbs::of)
}
