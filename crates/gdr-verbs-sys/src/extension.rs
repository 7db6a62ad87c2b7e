//! The functions that a provider keeps in front of its context.
//!
//! A context from `ibv_open_device` is the last field of a `verbs_context`, whose other fields
//! grow towards lower addresses: a field is there when the size that stands right before the
//! context reaches so far. Nothing here makes a reference to, or computes an address in, more of
//! that structure than is there.

use std::mem::offset_of;

use crate::bindings::{ibv_context, verbs_context};

/// The value of `ibv_context.abi_compat` (`__VERBS_ABI_IS_EXTENDED`) that says that the context is
/// part of a `verbs_context`; it was a pointer to something else before rdma-core.
const EXTENDED: usize = usize::MAX;

/// The provider's function of this name, when it has one.
macro_rules! provided {
    ($context:expr, $field:ident) => {
        $crate::extension::function(
            $context,
            std::mem::offset_of!($crate::bindings::verbs_context, $field),
            |context| context.$field,
        )
    };
}
pub(crate) use provided;

/// Reads the function that stands `offset` bytes into the `verbs_context`. `_field` only gives its
/// type: see [`provided`].
///
/// # Safety
///
/// `context` is open; a pointer to the field of `verbs_context` at `offset` has the type `F`.
#[inline]
pub(crate) unsafe fn function<F: Copy>(
    context: *mut ibv_context,
    offset: usize,
    _field: fn(&verbs_context) -> Option<F>,
) -> Option<F> {
    const END: usize = offset_of!(verbs_context, context);
    const SIZE_BEFORE: usize = END - offset_of!(verbs_context, sz);
    // SAFETY: the context is open.
    let marker = unsafe { (&raw const (*context).abi_compat).read() };
    if marker.addr() != EXTENDED {
        return None;
    }
    // SAFETY: the marker says that a verbs_context is around the context, and its size is the
    // field before it in every release.
    let size = unsafe { context.byte_sub(SIZE_BEFORE).cast::<usize>().read() };
    if size < size_of::<verbs_context>() - offset {
        return None;
    }
    // SAFETY: the structure is large enough to have the field, which is nullable and of the type
    // `F`, as the caller answers for.
    unsafe { context.byte_sub(END - offset).cast::<Option<F>>().read() }
}

#[cfg(test)]
mod tests {
    use std::ptr;

    use super::*;
    use crate::bindings::{ibv_port_attr, ibv_values_ex};
    use crate::fixture::Provider;

    unsafe extern "C" fn query_port(
        _: *mut ibv_context,
        _: u8,
        _: *mut ibv_port_attr,
        _: usize,
    ) -> i32 {
        0
    }

    unsafe extern "C" fn query_rt_values(_: *mut ibv_context, _: *mut ibv_values_ex) -> i32 {
        0
    }

    fn fill(context: &mut verbs_context) {
        context.query_port = Some(query_port);
        context.query_rt_values = Some(query_rt_values);
    }

    /// Whether the provider's `query_port` and `query_rt_values` are there.
    fn found(provider: &Provider) -> (bool, bool) {
        // SAFETY: the context is there, and each field's type is its own.
        unsafe {
            (
                provided!(provider.context(), query_port).is_some(),
                provided!(provider.context(), query_rt_values).is_some(),
            )
        }
    }

    #[test]
    fn a_function_that_is_set_is_found_and_one_that_is_null_is_not() {
        assert_eq!(found(&Provider::new(fill)), (true, true));
        assert_eq!(found(&Provider::new(|_| {})), (false, false));
    }

    #[test]
    fn a_field_beyond_the_size_is_not_there() {
        let reaching = size_of::<verbs_context>() - offset_of!(verbs_context, query_port);
        let with_size = |size| {
            Provider::new(|context| {
                fill(context);
                context.sz = size;
            })
        };
        assert_eq!(found(&with_size(reaching)), (true, true));
        assert_eq!(found(&with_size(reaching - 1)), (false, true));
        assert_eq!(found(&with_size(0)), (false, false));
    }

    #[test]
    fn a_context_from_before_the_extension_has_none() {
        // SAFETY: as in the fixture: all of it may be zero.
        let mut context: ibv_context = unsafe { std::mem::zeroed() };
        // There is nothing in front of this one: reading there would be out of bounds.
        // SAFETY: the context is there, and the field's type is its own.
        let query_port = unsafe { provided!(ptr::from_mut(&mut context), query_port) };
        assert!(query_port.is_none());
    }
}
