//! Queries of devices and ports.

use std::mem::MaybeUninit;
use std::ptr;
use std::slice;

use crate::bindings::*;
use crate::errno::Errno;
use crate::error::VerbError;
use crate::library::Verbs;
use crate::provider_ops::provider_op;
use crate::ret::status;

impl Verbs {
    /// Returns the attributes of the port (`ibv_query_port` in C). Providers without the new form leave the fields
    /// after `flags` at 0: `port_cap_flags2` and `active_speed_ex`.
    ///
    /// # Errors
    ///
    /// `EINVAL` for a port that the device does not have. The first port is 1.
    ///
    /// # Safety
    ///
    /// `context` is open, by this library.
    pub unsafe fn query_port(
        &self,
        context: *mut ibv_context,
        port: u8,
    ) -> Result<ibv_port_attr, VerbError> {
        let mut attr = ibv_port_attr::default();
        // SAFETY: the context is open; the macro takes the type from the field.
        match unsafe { provider_op!(context, query_port) } {
            Some(query_port) => {
                // SAFETY: the provider writes at most as many bytes as the size argument.
                let ret = unsafe { query_port(context, port, &mut attr, size_of_val(&attr)) };
                status("ibv_query_port", ret)?;
            }
            None => {
                let attr = ptr::from_mut(&mut attr).cast();
                // SAFETY: the structure begins with the fields of the original one.
                unsafe { self.ibv_query_port(context, port, attr) }?;
            }
        }
        Ok(attr)
    }

    /// Returns the limits and capabilities of the device. Providers without the new form set `orig_attr` only and leave
    /// the rest at 0, which then means "unknown".
    ///
    /// # Errors
    ///
    /// The device's errors.
    ///
    /// # Safety
    ///
    /// `context` is open, by this library.
    pub unsafe fn ibv_query_device_ex(
        &self,
        context: *mut ibv_context,
    ) -> Result<ibv_device_attr_ex, VerbError> {
        let verb = "ibv_query_device_ex";
        let mut attr = ibv_device_attr_ex::default();
        // SAFETY: the context is open; the macro takes the type from the field.
        if let Some(query_device_ex) = unsafe { provider_op!(context, query_device_ex) } {
            // SAFETY: the input may be null; the provider writes at most as many bytes as the size
            // argument.
            let ret =
                unsafe { query_device_ex(context, ptr::null(), &mut attr, size_of_val(&attr)) };
            match status(verb, ret) {
                Ok(()) => return Ok(attr),
                Err(error) if !matches!(error.errno(), Errno::EOPNOTSUPP | Errno::ENOSYS) => {
                    return Err(error);
                }
                Err(_) => attr = ibv_device_attr_ex::default(),
            }
        }
        // SAFETY: the context is open and the attributes are writable.
        unsafe { self.ibv_query_device(context, &mut attr.orig_attr) }?;
        Ok(attr)
    }

    /// Returns one entry of the GID table of a port, with its type and network interface (`ibv_query_gid_ex` in C).
    ///
    /// # Errors
    ///
    /// [`VerbError::NotInLibrary`] before rdma-core 32; `ENODATA` for an empty entry; `EINVAL` for an
    /// invalid index or port.
    ///
    /// # Safety
    ///
    /// `context` is open, by this library.
    pub unsafe fn query_gid(
        &self,
        context: *mut ibv_context,
        port: u32,
        index: u32,
    ) -> Result<ibv_gid_entry, VerbError> {
        let mut entry = ibv_gid_entry::default();
        let size = size_of_val(&entry);
        // SAFETY: the library writes at most as many bytes as the size argument.
        unsafe { self._ibv_query_gid_ex(context, port, index, &mut entry, 0, size) }?;
        Ok(entry)
    }

    /// Returns the used entries of the GID tables of all ports (`ibv_query_gid_table` in C). They are written to the
    /// start of `entries`.
    ///
    /// # Errors
    ///
    /// [`VerbError::NotInLibrary`] before rdma-core 32; `EINVAL` if `entries` is too short.
    ///
    /// # Safety
    ///
    /// `context` is open, by this library.
    pub unsafe fn query_gid_table<'a>(
        &self,
        context: *mut ibv_context,
        entries: &'a mut [MaybeUninit<ibv_gid_entry>],
    ) -> Result<&'a mut [ibv_gid_entry], VerbError> {
        // The kernel writes whole entries. With zeros, a library that does not is harmless too.
        entries.fill(MaybeUninit::zeroed());
        let (first, room) = (entries.as_mut_ptr().cast::<ibv_gid_entry>(), entries.len());
        let size = size_of::<ibv_gid_entry>();
        // SAFETY: `entries` has room for this many entries of this size.
        let count = unsafe { self._ibv_query_gid_table(context, first, room, 0, size) }?;
        // SAFETY: all entries are initialized above, any bytes are a valid GID entry, and the borrow
        // is `entries`'s.
        Ok(unsafe { slice::from_raw_parts_mut(first, count.min(room)) })
    }
}

/// Reads the clock of the device, in ticks (`device_attr_ex.hca_core_clock` per millisecond), to
/// `raw_clock`.
///
/// # Errors
///
/// [`VerbError::NotInProvider`] if the provider cannot read a clock.
///
/// # Safety
///
/// `context` is open.
pub unsafe fn ibv_query_rt_values_ex(
    context: *mut ibv_context,
    values: &mut ibv_values_ex,
) -> Result<(), VerbError> {
    let verb = "ibv_query_rt_values_ex";
    // SAFETY: the context is open; the macro takes the type from the field.
    let query = unsafe { provider_op!(context, query_rt_values) };
    let query = query.ok_or(VerbError::NotInProvider { verb })?;
    // SAFETY: the values are readable and writable, and their mask selects the fields.
    status(verb, unsafe { query(context, values) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{Provider, library};
    use crate::opaque::_compat_ibv_port_attr;

    unsafe extern "C" fn new_port(
        _: *mut ibv_context,
        port: u8,
        attr: *mut ibv_port_attr,
        size: usize,
    ) -> i32 {
        assert_eq!(size, size_of::<ibv_port_attr>());
        if port != 1 {
            return libc::EINVAL;
        }
        // SAFETY: the caller passes a writable pointer.
        unsafe { (*attr).active_speed_ex = 512 };
        0
    }

    unsafe extern "C" fn old_port(
        _: *mut ibv_context,
        _: u8,
        attr: *mut _compat_ibv_port_attr,
    ) -> i32 {
        // SAFETY: the caller passes a writable pointer; `state` is the first field in both forms.
        unsafe {
            attr.cast::<ibv_port_state>()
                .write(ibv_port_state::IBV_PORT_ACTIVE)
        };
        0
    }

    unsafe extern "C" fn plain_device(_: *mut ibv_context, attr: *mut ibv_device_attr) -> i32 {
        // SAFETY: the caller passes a writable pointer.
        unsafe { (*attr).max_qp = 7 };
        0
    }

    unsafe extern "C" fn full_device(
        _: *mut ibv_context,
        input: *const ibv_query_device_ex_input,
        attr: *mut ibv_device_attr_ex,
        _: usize,
    ) -> i32 {
        assert!(input.is_null());
        // SAFETY: the caller passes a writable pointer.
        unsafe { (*attr).hca_core_clock = 1_000_000 };
        0
    }

    unsafe extern "C" fn refusing_device<const ERRNO: i32>(
        _: *mut ibv_context,
        _: *const ibv_query_device_ex_input,
        attr: *mut ibv_device_attr_ex,
        _: usize,
    ) -> i32 {
        // SAFETY: the caller passes a writable pointer.
        unsafe { (*attr).hca_core_clock = 1 };
        ERRNO
    }

    unsafe extern "C" fn two_gids(
        _: *mut ibv_context,
        entries: *mut ibv_gid_entry,
        room: usize,
        _: u32,
        size: usize,
    ) -> isize {
        assert_eq!(size, size_of::<ibv_gid_entry>());
        if room < 2 {
            return -(libc::EINVAL as isize);
        }
        // SAFETY: the caller passes room for this many entries.
        unsafe { (*entries.add(1)).gid_index = 3 };
        2
    }

    fn verbs() -> Verbs {
        let functions = [
            ("ibv_query_port", old_port as *const ()),
            ("ibv_query_device", plain_device as *const ()),
            ("_ibv_query_gid_table", two_gids as *const ()),
        ];
        // SAFETY: each has the type of the function that it replaces.
        unsafe { library(&functions, &["_ibv_query_gid_ex"]) }.unwrap()
    }

    fn device(provider: &Provider) -> Result<ibv_device_attr_ex, VerbError> {
        // SAFETY: the context is valid.
        unsafe { verbs().ibv_query_device_ex(provider.context()) }
    }

    #[test]
    fn a_port_is_queried_in_the_new_form_if_the_provider_has_it() {
        let provider = Provider::new(|context| context.query_port = Some(new_port));
        // SAFETY: the context is valid.
        let port = unsafe { verbs().query_port(provider.context(), 1) }.unwrap();
        assert_eq!(port.active_speed_ex, 512);
        // SAFETY: the context is valid.
        let error = unsafe { verbs().query_port(provider.context(), 9) }.unwrap_err();
        assert_eq!(error.to_string(), "ibv_query_port fails: EINVAL (22)");
    }

    #[test]
    fn a_port_in_the_old_form_has_zeros_in_the_newer_fields() {
        let provider = Provider::new(|_| {});
        // SAFETY: the context is valid.
        let port = unsafe { verbs().query_port(provider.context(), 1) }.unwrap();
        assert_eq!(port.state, ibv_port_state::IBV_PORT_ACTIVE);
        assert_eq!((port.port_cap_flags2, port.active_speed_ex), (0, 0));
    }

    #[test]
    fn a_device_is_queried_in_the_new_form_if_the_provider_has_it() {
        let provider = Provider::new(|context| context.query_device_ex = Some(full_device));
        assert_eq!(device(&provider).unwrap().hca_core_clock, 1_000_000);
    }

    #[test]
    fn a_device_without_the_new_form_is_queried_in_the_old_one() {
        let lacking = Provider::new(|_| {});
        let refusing = Provider::new(|context| {
            context.query_device_ex = Some(refusing_device::<{ libc::EOPNOTSUPP }>);
        });
        for provider in [lacking, refusing] {
            let attr = device(&provider).unwrap();
            assert_eq!((attr.orig_attr.max_qp, attr.hca_core_clock), (7, 0));
        }
    }

    #[test]
    fn a_device_that_fails_is_not_queried_again() {
        let provider = Provider::new(|context| {
            context.query_device_ex = Some(refusing_device::<{ libc::EIO }>);
        });
        assert_eq!(
            device(&provider).err().map(|error| error.errno()),
            Some(Errno::EIO)
        );
    }

    #[test]
    fn the_gid_table_has_as_many_entries_as_the_library_wrote() {
        let provider = Provider::new(|_| {});
        let (verbs, context) = (verbs(), provider.context());
        let mut entries = [MaybeUninit::uninit(); 4];
        // SAFETY: the context is valid.
        let table = unsafe { verbs.query_gid_table(context, &mut entries) }.unwrap();
        assert_eq!((table.len(), table[1].gid_index), (2, 3));
        // SAFETY: the context is valid.
        let error = unsafe { verbs.query_gid_table(context, &mut entries[..1]) }.err();
        assert_eq!(error.map(|error| error.errno()), Some(Errno::EINVAL));
    }

    #[test]
    fn an_error_names_the_missing_function() {
        let provider = Provider::new(|_| {});
        // SAFETY: the context is valid.
        let error = unsafe { verbs().query_gid(provider.context(), 1, 0) }.err();
        let verb = "_ibv_query_gid_ex";
        assert_eq!(error, Some(VerbError::NotInLibrary { verb }));

        let mut values = ibv_values_ex::default();
        // SAFETY: the context is valid.
        let error = unsafe { ibv_query_rt_values_ex(provider.context(), &mut values) };
        let verb = "ibv_query_rt_values_ex";
        assert_eq!(error, Err(VerbError::NotInProvider { verb }));
    }
}
