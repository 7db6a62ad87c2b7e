//! The functions of libibverbs, as pointers to the symbols of the loaded library.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::mem;
use std::ptr::NonNull;

use crate::bindings::*;
use crate::error::VerbError;
use crate::ffi;
use crate::library::Verbs;
use crate::opaque::_compat_ibv_port_attr;
use crate::ret::{c_type, from_ret, rust_type};

/// Declares [`Symbols`] and a method of [`Verbs`] for each function. Every release of rdma-core has the required
/// functions, and newer releases have the optional ones. The return value, after the arrow, is written in the terms of
/// [`c_type`].
macro_rules! functions {
    (
        required { $(
            $(#[$doc:meta])*
            $vis:vis $name:ident($($arg:ident: $type:ty),*) -> ($($ret:tt)+);
        )* }
        optional { $(
            $(#[$odoc:meta])*
            $variant:ident: $ovis:vis $oname:ident($($oarg:ident: $otype:ty),*) -> ($($oret:tt)+);
        )* }
    ) => {
        /// The functions of a loaded libibverbs, which are valid for the life of the process.
        #[derive(Debug)]
        pub(crate) struct Symbols {
            $($name: unsafe extern "C" fn($($type),*) -> c_type!($($ret)+),)*
            $($oname: Option<unsafe extern "C" fn($($otype),*) -> c_type!($($oret)+)>,)*
        }

        // Compiles only if each type is the one that the header declares.
        $(const _: unsafe extern "C" fn($($type),*) -> c_type!($($ret)+) = ffi::$name;)*
        $(const _: unsafe extern "C" fn($($otype),*) -> c_type!($($oret)+) =
            ffi::$oname;)*

        impl Symbols {
            /// Looks up the address of each function with `find`. The error is the name of the
            /// first required function that is not found.
            ///
            /// # Safety
            ///
            /// Each address names the function of libibverbs with this name, or of a function with
            /// its type and meaning, and is valid for the life of the process.
            pub(crate) unsafe fn fill(
                find: impl Fn(&str) -> Option<NonNull<c_void>>,
            ) -> Result<Self, &'static str> {
                Ok(Self {
                    $($name: {
                        let address = find(stringify!($name)).ok_or(stringify!($name))?;
                        // SAFETY: the address names this function by contract, and its type is the
                        // header's, as checked above.
                        unsafe {
                            mem::transmute::<
                                *mut c_void,
                                unsafe extern "C" fn($($type),*) -> c_type!($($ret)+),
                            >(address.as_ptr())
                        }
                    },)*
                    $($oname: find(stringify!($oname)).map(|address| {
                        // SAFETY: as for the required functions.
                        unsafe {
                            mem::transmute::<
                                *mut c_void,
                                unsafe extern "C" fn($($otype),*) -> c_type!($($oret)+),
                            >(address.as_ptr())
                        }
                    }),)*
                })
            }
        }

        /// Functions that older releases of libibverbs lack.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum OptionalVerb {
            $(
                #[doc = concat!("`", stringify!($oname), "`.")]
                $variant,
            )*
        }

        impl OptionalVerb {
            /// All optional functions.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// Returns the name of the function in C.
            pub const fn symbol(self) -> &'static str {
                match self {
                    $(Self::$variant => stringify!($oname),)*
                }
            }
        }

        /// The functions of libibverbs, each with its name in C. The inline verbs are functions of
        /// this crate, except those that fall back to one of these.
        impl Verbs {
            /// Returns whether the loaded libibverbs has this function. The provider of a device
            /// may still not support it.
            pub fn has(&self, verb: OptionalVerb) -> bool {
                match verb {
                    $(OptionalVerb::$variant => self.symbols().$oname.is_some(),)*
                }
            }

            $(
                $(#[$doc])*
                #[inline]
                $vis unsafe fn $name(&self $(, $arg: $type)*) -> rust_type!($($ret)+) {
                    // SAFETY: address and type come from the library; the rest is the contract of
                    // this method.
                    let ret = unsafe { (self.symbols().$name)($($arg),*) };
                    from_ret!($($ret)+, stringify!($name), ret)
                }
            )*
            $(
                $(#[$odoc])*
                #[inline]
                $ovis unsafe fn $oname(
                    &self
                    $(, $oarg: $otype)*
                ) -> rust_type!(optional $($oret)+) {
                    let verb = stringify!($oname);
                    let function = self.symbols().$oname.ok_or(VerbError::NotInLibrary { verb })?;
                    // SAFETY: as for the required functions.
                    let ret = unsafe { function($($oarg),*) };
                    from_ret!(optional $($oret)+, verb, ret)
                }
            )*
        }
    };
}

functions! {
    required {
        /// Returns a null-terminated list of the devices, and stores their number in `count`. Prefer
        /// [`Verbs::devices`].
        ///
        /// # Safety
        ///
        /// `count` is writable or null. The list is freed once, with
        /// [`Verbs::ibv_free_device_list`].
        pub ibv_get_device_list(count: *mut c_int) -> (pointer *mut ibv_device);

        /// Frees the list, and with it the devices that are not open.
        ///
        /// # Safety
        ///
        /// `list` is from [`Verbs::ibv_get_device_list`] and was not freed; no device of it that
        /// is not open is used again.
        pub ibv_free_device_list(list: *mut *mut ibv_device) -> (plain ());

        /// The kernel name of the device, such as `mlx5_0`.
        ///
        /// # Safety
        ///
        /// `device` is in a list that was not freed, or is open. The text lives as long.
        pub ibv_get_device_name(device: *mut ibv_device) -> (plain *const c_char);

        /// The node GUID of the device in network byte order, or 0 if it cannot be read.
        ///
        /// # Safety
        ///
        /// `device` is in a list that was not freed, or is open.
        pub ibv_get_device_guid(device: *mut ibv_device) -> (plain __be64);

        /// Opens the device. All other objects are created from the context.
        ///
        /// # Safety
        ///
        /// `device` is in a list that was not freed. The context is closed once, with
        /// [`Verbs::ibv_close_device`].
        pub ibv_open_device(device: *mut ibv_device) -> (pointer ibv_context);

        /// Closes the context and its two file descriptors.
        ///
        /// # Safety
        ///
        /// `context` is open, all objects of it are destroyed, and no other thread is in a call
        /// with it.
        pub ibv_close_device(context: *mut ibv_context) -> (status);

        /// Returns one asynchronous event. **Blocks without a limit** unless `context.async_fd` is
        /// non-blocking; then it fails with `EAGAIN` if there is no event.
        ///
        /// # Safety
        ///
        /// `context` is open and `event` writable. Each event is acknowledged once.
        pub ibv_get_async_event(context: *mut ibv_context, event: *mut ibv_async_event)
            -> (status);

        /// Acknowledges an event. The destruction of its object waits for this.
        ///
        /// # Safety
        ///
        /// `event` is from [`Verbs::ibv_get_async_event`], and was not acknowledged.
        pub ibv_ack_async_event(event: *mut ibv_async_event) -> (plain ());

        /// The limits of the device. [`Verbs::ibv_query_device_ex`] returns these and more.
        ///
        /// # Safety
        ///
        /// `context` is open and `attr` writable.
        pub ibv_query_device(context: *mut ibv_context, attr: *mut ibv_device_attr) -> (status);

        /// The original form, without the attributes after `flags`: see [`Verbs::query_port`].
        pub(crate) ibv_query_port(
            context: *mut ibv_context,
            port: u8,
            attr: *mut _compat_ibv_port_attr
        ) -> (status);

        /// One entry of the GID table of the port, without its type.
        ///
        /// # Safety
        ///
        /// `context` is open and `gid` writable.
        pub ibv_query_gid(context: *mut ibv_context, port: u8, index: c_int, gid: *mut ibv_gid)
            -> (status);

        /// One entry of the P_Key table of the port, in network byte order.
        ///
        /// # Safety
        ///
        /// `context` is open and `pkey` writable.
        pub ibv_query_pkey(context: *mut ibv_context, port: u8, index: c_int, pkey: *mut __be16)
            -> (status);

        /// Creates a protection domain.
        ///
        /// # Safety
        ///
        /// `context` is open and outlives the domain.
        pub ibv_alloc_pd(context: *mut ibv_context) -> (pointer ibv_pd);

        /// Frees a protection domain. Fails with `EBUSY` while objects of it exist.
        ///
        /// # Safety
        ///
        /// `pd` is valid, and is not used again if this succeeds.
        pub ibv_dealloc_pd(pd: *mut ibv_pd) -> (status);

        /// Registers memory, without optional access flags: see [`Verbs::reg_mr`].
        pub(crate) ibv_reg_mr(pd: *mut ibv_pd, address: *mut c_void, length: usize, access: c_int)
            -> (pointer ibv_mr);

        /// Deregisters a memory region of any kind.
        ///
        /// # Safety
        ///
        /// `mr` is valid, no posted request uses it, and it is not used again if this succeeds.
        pub ibv_dereg_mr(mr: *mut ibv_mr) -> (status);

        /// Creates a channel for completion events.
        ///
        /// # Safety
        ///
        /// `context` is open and outlives the channel.
        pub ibv_create_comp_channel(context: *mut ibv_context) -> (pointer ibv_comp_channel);

        /// Destroys a channel. Fails with `EBUSY` while a completion queue uses it.
        ///
        /// # Safety
        ///
        /// `channel` is valid, and is not used again if this succeeds.
        pub ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> (status);

        /// Creates a completion queue with at least `cqe` entries.
        ///
        /// # Safety
        ///
        /// `context` is open; `channel` belongs to this context or is null. Both outlive the queue.
        pub ibv_create_cq(
            context: *mut ibv_context,
            cqe: c_int,
            cq_context: *mut c_void,
            channel: *mut ibv_comp_channel,
            comp_vector: c_int
        ) -> (pointer ibv_cq);

        /// Resizes the queue to at least `cqe` entries. `cq.cqe` is the new number.
        ///
        /// # Safety
        ///
        /// `cq` is valid.
        pub ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> (status);

        /// Destroys a completion queue. **Blocks** until its events are acknowledged. Fails with
        /// `EBUSY` while a queue pair uses it.
        ///
        /// # Safety
        ///
        /// `cq` is valid, and is not used again if this succeeds.
        pub ibv_destroy_cq(cq: *mut ibv_cq) -> (status);

        /// Returns one completion event. **Blocks without a limit** unless `channel.fd` is
        /// non-blocking; then it fails with `EAGAIN` if there is no event.
        ///
        /// # Safety
        ///
        /// `channel` is valid; `cq` and `cq_context` are writable. Each event is acknowledged
        /// once, with [`Verbs::ibv_ack_cq_events`].
        pub ibv_get_cq_event(
            channel: *mut ibv_comp_channel,
            cq: *mut *mut ibv_cq,
            cq_context: *mut *mut c_void
        ) -> (status);

        /// Acknowledges completion events. It takes a lock, so many events per call are faster.
        ///
        /// # Safety
        ///
        /// `cq` is valid, and has at least `events` events that were returned and not acknowledged.
        pub ibv_ack_cq_events(cq: *mut ibv_cq, events: c_uint) -> (plain ());

        /// Creates a queue pair in RESET, and stores its sizes in `attr.cap`.
        ///
        /// # Safety
        ///
        /// `pd` is valid and `attr` readable and writable; the queues in `attr` belong to the same context
        /// and outlive the queue pair.
        pub ibv_create_qp(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> (pointer ibv_qp);

        /// Modifies the attributes in `mask` ([`ibv_qp_attr_mask`]).
        ///
        /// # Safety
        ///
        /// `qp` is valid and `attr` readable.
        pub ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> (status);

        /// Queries attributes. Providers may return more than those in `mask`
        /// ([`ibv_qp_attr_mask`]).
        ///
        /// # Safety
        ///
        /// `qp` is valid; `attr` and `init_attr` are writable.
        pub ibv_query_qp(
            qp: *mut ibv_qp,
            attr: *mut ibv_qp_attr,
            mask: c_int,
            init_attr: *mut ibv_qp_init_attr
        ) -> (status);

        /// Destroys a queue pair. **Blocks** until its events are acknowledged. Its completions that
        /// were not polled are discarded.
        ///
        /// # Safety
        ///
        /// `qp` is valid, and is not used again if this succeeds.
        pub ibv_destroy_qp(qp: *mut ibv_qp) -> (status);

        /// Protects registered memory from copy-on-write after a later `fork`. Fails with `EINVAL`
        /// after the first registration. [`Verbs::open`] calls it if it is needed.
        ///
        /// # Safety
        ///
        /// No other thread is in libibverbs during the call.
        pub ibv_fork_init() -> (status);
    }
    optional {
        /// Whether registered memory is protected from a later `fork`, by the library or by the
        /// kernel (`IBV_FORK_UNNEEDED`). Since rdma-core 35.
        ///
        /// # Safety
        ///
        /// The call has no requirements.
        IsForkInitialized: pub ibv_is_fork_initialized() -> (plain ibv_fork_status);

        /// The kernel index of the device, or -1 if it is unknown. Since rdma-core 30.
        ///
        /// # Safety
        ///
        /// `device` is in a list that was not freed, or is open.
        GetDeviceIndex: pub ibv_get_device_index(device: *mut ibv_device) -> (plain c_int);

        /// The effective speed of the port in units of 100 Mbit/s.
        ///
        /// # Safety
        ///
        /// `context` is open and `speed` writable.
        QueryPortSpeed: pub ibv_query_port_speed(
            context: *mut ibv_context,
            port: u32,
            speed: *mut u64
        ) -> (status);

        /// See [`Verbs::query_gid`].
        QueryGidEx: pub(crate) _ibv_query_gid_ex(
            context: *mut ibv_context,
            port: u32,
            index: u32,
            entry: *mut ibv_gid_entry,
            flags: u32,
            entry_size: usize
        ) -> (status);

        /// See [`Verbs::query_gid_table`].
        QueryGidTable: pub(crate) _ibv_query_gid_table(
            context: *mut ibv_context,
            entries: *mut ibv_gid_entry,
            max_entries: usize,
            flags: u32,
            entry_size: usize
        ) -> (count);

        /// Registers memory for access at the addresses from `iova` on. A kernel ignores optional
        /// access flags that it does not know. Since rdma-core 28.
        ///
        /// # Safety
        ///
        /// `pd` is valid. The memory stays mapped until the region is deregistered, and may be
        /// written by any holder of the key if `access` ([`ibv_access_flags`]) permits it.
        RegMrIova2: pub ibv_reg_mr_iova2(
            pd: *mut ibv_pd,
            address: *mut c_void,
            length: usize,
            iova: u64,
            access: c_uint
        ) -> (pointer ibv_mr);

        /// Registers `length` bytes of a dma-buf from `offset` on, for access at the addresses from
        /// `iova` on. `iova` and `offset` must be equal modulo the page size. The descriptor may be
        /// closed afterwards. With descriptor -1 the call fails with `EBADF` if kernel and driver
        /// support dma-buf, else with `EOPNOTSUPP` or `EPROTONOSUPPORT`. Since rdma-core 34.
        ///
        /// # Safety
        ///
        /// `pd` is valid. The memory of the dma-buf may be read and written by any holder of the key
        /// as `access` ([`ibv_access_flags`]) permits.
        RegDmabufMr: pub ibv_reg_dmabuf_mr(
            pd: *mut ibv_pd,
            offset: u64,
            length: usize,
            iova: u64,
            fd: c_int,
            access: c_int
        ) -> (pointer ibv_mr);

        /// Registers memory of any kind, as described by attributes.
        ///
        /// # Safety
        ///
        /// As for [`Verbs::ibv_reg_mr_iova2`] or [`Verbs::ibv_reg_dmabuf_mr`], whichever `attr`
        /// describes; `attr` is readable.
        RegMrEx: pub ibv_reg_mr_ex(pd: *mut ibv_pd, attr: *mut ibv_mr_init_attr)
            -> (pointer ibv_mr);

        /// The extended form of the queue pair. Fails if it was created without `send_ops_flags`.
        /// Since rdma-core 24.
        ///
        /// # Safety
        ///
        /// `qp` is valid. Both pointers refer to the same object.
        QpToQpEx: pub ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> (pointer ibv_qp_ex);

        /// Whether the data of the operation is written to memory in order: 0 or 1, or a set of
        /// [`ibv_query_qp_data_in_order_caps`] with the flag `RETURN_CAPS` of
        /// [`ibv_query_qp_data_in_order_flags`]. Since rdma-core 36.
        ///
        /// # Safety
        ///
        /// `qp` is valid.
        QueryQpDataInOrder: pub ibv_query_qp_data_in_order(
            qp: *mut ibv_qp,
            operation: ibv_wr_opcode,
            flags: u32
        ) -> (plain c_int);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::library;

    #[test]
    fn the_error_names_a_missing_required_function() {
        // SAFETY: the list of functions is empty.
        let error = unsafe { library(&[], &["ibv_modify_qp"]) }.err();
        assert_eq!(error, Some("ibv_modify_qp"));
    }

    #[test]
    fn a_missing_optional_function_is_reported() {
        for &verb in OptionalVerb::ALL {
            // SAFETY: the list of functions is empty.
            let verbs = unsafe { library(&[], &[verb.symbol()]) }.unwrap();
            for &other in OptionalVerb::ALL {
                assert_eq!(verbs.has(other), other != verb, "{}", other.symbol());
            }
        }
    }
}
