//! A provider and a library made by hand, for the tests of the inline verbs.

use std::ffi::c_void;
use std::mem;
use std::process;
use std::ptr::{self, NonNull};

use crate::bindings::{ibv_context, verbs_context};
use crate::library::Verbs;
use crate::table::Table;

/// A context such as a provider makes, with nothing in it but what a test puts there.
pub(crate) struct Provider {
    context: *mut verbs_context,
}

impl Provider {
    /// A provider with the functions that `fill` sets, as large as the header's.
    pub(crate) fn new(fill: impl FnOnce(&mut verbs_context)) -> Self {
        // SAFETY: numbers, pointers and functions that may be null, and a mutex nobody locks: all
        // of them may be zero.
        let mut context: Box<verbs_context> = Box::new(unsafe { mem::zeroed() });
        context.sz = size_of::<verbs_context>();
        context.context.abi_compat = ptr::without_provenance_mut(usize::MAX);
        fill(&mut context);
        Self {
            context: Box::into_raw(context),
        }
    }

    pub(crate) fn context(&self) -> *mut ibv_context {
        // SAFETY: the context is there as long as this.
        unsafe { &raw mut (*self.context).context }
    }
}

impl Drop for Provider {
    fn drop(&mut self) {
        // SAFETY: it was made from a box, and is given back once.
        drop(unsafe { Box::from_raw(self.context) });
    }
}

/// What no test calls: there is nobody to answer for the arguments' types.
extern "C" fn unexpected() {
    process::abort();
}

/// A library whose functions are those of `functions`; the rest exist and may not be called,
/// except for those in `missing`.
///
/// # Safety
///
/// Each address is of a function with the type of the one that it stands for.
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
    // SAFETY: the caller answers for the functions given; the others end the process before they
    // look at an argument.
    unsafe { Table::fill(find) }.map(Verbs::of)
}
