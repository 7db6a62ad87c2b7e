//! Operations of a provider in `verbs_context`.
//!
//! A context from `ibv_open_device` is the last field of a `verbs_context`, which grows towards lower addresses in
//! newer releases. A field exists if it is covered by the size of the structure, which is the field before the context.
//! This module creates no reference or address of a part of the structure that does not exist.

use std::mem::offset_of;

use crate::bindings::{ibv_context, verbs_context};

/// The value `__VERBS_ABI_IS_EXTENDED` of `ibv_context.abi_compat`: the context is part of a
/// `verbs_context`. Before rdma-core the field was a pointer with another meaning.
const EXTENDED: usize = usize::MAX;

/// Reads the provider's operation with this name, if it has one.
macro_rules! provider_op {
    ($context:expr, $field:ident) => {
        $crate::provider_ops::op(
            $context,
            std::mem::offset_of!($crate::bindings::verbs_context, $field),
            |context| context.$field,
        )
    };
}
pub(crate) use provider_op;

/// Reads the function pointer at `offset` in the `verbs_context`. `_field` determines its type; see
/// [`provider_op`].
///
/// # Safety
///
/// Like [`provider_op_field`].
#[inline]
pub(crate) unsafe fn op<F: Copy>(
    context: *mut ibv_context,
    offset: usize,
    field: fn(&verbs_context) -> Option<F>,
) -> Option<F> {
    // SAFETY: the contract of this function.
    let field = unsafe { provider_op_field(context, offset, field) }?;
    // SAFETY: the field exists and is a nullable function pointer.
    unsafe { field.read() }
}

/// Returns the field of the operation at `offset` in the `verbs_context` around a context, unless the library that
/// created the context is too old for it. `_field` determines its type.
///
/// # Safety
///
/// `context` is open; a pointer to the field of `verbs_context` at `offset` has the type `F`.
#[inline]
pub unsafe fn provider_op_field<F: Copy>(
    context: *mut ibv_context,
    offset: usize,
    _field: fn(&verbs_context) -> Option<F>,
) -> Option<*mut Option<F>> {
    const END: usize = offset_of!(verbs_context, context);
    const SIZE_BEFORE: usize = END - offset_of!(verbs_context, sz);
    // SAFETY: the context is open.
    let marker = unsafe { (&raw const (*context).abi_compat).read() };
    if marker.addr() != EXTENDED {
        return None;
    }
    // SAFETY: by the marker the context is part of a verbs_context, and in every release the field
    // before it is the size.
    let size = unsafe { context.byte_sub(SIZE_BEFORE).cast::<usize>().read() };
    if size < size_of::<verbs_context>() - offset {
        return None;
    }
    // SAFETY: by its size the structure has the field, which is a nullable function pointer of type
    // `F` by contract.
    Some(unsafe { context.byte_sub(END - offset) }.cast::<Option<F>>())
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

    /// Returns whether the operations `query_port` and `query_rt_values` are found.
    fn found(provider: &Provider) -> (bool, bool) {
        // SAFETY: the context is valid, and the macro takes the type from the field.
        unsafe {
            (
                provider_op!(provider.context(), query_port).is_some(),
                provider_op!(provider.context(), query_rt_values).is_some(),
            )
        }
    }

    #[test]
    fn an_operation_is_found_unless_it_is_null() {
        assert_eq!(found(&Provider::new(fill)), (true, true));
        assert_eq!(found(&Provider::new(|_| {})), (false, false));
    }

    #[test]
    fn a_field_beyond_the_size_is_not_found() {
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
    fn a_context_without_the_extension_has_no_operations() {
        // SAFETY: all fields may be zero, as in the fixture.
        let mut context: ibv_context = unsafe { std::mem::zeroed() };
        // There is no verbs_context around this one: a read before it would be out of bounds.
        // SAFETY: the context is valid, and the macro takes the type from the field.
        let query_port = unsafe { provider_op!(ptr::from_mut(&mut context), query_port) };
        assert!(query_port.is_none());
    }
}
