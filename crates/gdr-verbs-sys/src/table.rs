//! The table of libibverbs' functions, and how it is filled.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::mem;
use std::ptr::NonNull;

use crate::answer::{c_type, read_answer, rust_type};
use crate::bindings::*;
use crate::error::VerbError;
use crate::foreign::_compat_ibv_port_attr;
use crate::functions;
use crate::library::Verbs;

/// Declares [`Table`] and a method of [`Verbs`] for each function: first those that every release
/// of rdma-core has, then those that only newer ones have. How each answers stands after its arrow,
/// in the words of [`c_type`].
macro_rules! functions {
    (
        required { $(
            $(#[$doc:meta])*
            $vis:vis $name:ident($($arg:ident: $type:ty),*) -> ($($answer:tt)+);
        )* }
        optional { $(
            $(#[$odoc:meta])*
            $variant:ident: $ovis:vis $oname:ident($($oarg:ident: $otype:ty),*) -> ($($oanswer:tt)+);
        )* }
    ) => {
        /// Functions of libibverbs. They stay valid for the life of the process.
        #[derive(Debug)]
        pub(crate) struct Table {
            $($name: unsafe extern "C" fn($($type),*) -> c_type!($($answer)+),)*
            $($oname: Option<unsafe extern "C" fn($($otype),*) -> c_type!($($oanswer)+)>,)*
        }

        // Each type is the one that the header declares, or this does not compile.
        $(const _: unsafe extern "C" fn($($type),*) -> c_type!($($answer)+) = functions::$name;)*
        $(const _: unsafe extern "C" fn($($otype),*) -> c_type!($($oanswer)+) =
            functions::$oname;)*

        impl Table {
            /// The table, by what `find` says is the address of each function; else the name of
            /// the first required function that it does not find.
            ///
            /// # Safety
            ///
            /// Each address must be that of the function of libibverbs with this name, or of one
            /// with its type and meaning, for the life of the process.
            pub(crate) unsafe fn fill(
                find: impl Fn(&str) -> Option<NonNull<c_void>>,
            ) -> Result<Self, &'static str> {
                Ok(Self {
                    $($name: {
                        let address = find(stringify!($name)).ok_or(stringify!($name))?;
                        // SAFETY: the address is that of this function, as the caller answers
                        // for; the type is the header's, as checked above.
                        unsafe {
                            mem::transmute::<
                                *mut c_void,
                                unsafe extern "C" fn($($type),*) -> c_type!($($answer)+),
                            >(address.as_ptr())
                        }
                    },)*
                    $($oname: find(stringify!($oname)).map(|address| {
                        // SAFETY: as for the required functions.
                        unsafe {
                            mem::transmute::<
                                *mut c_void,
                                unsafe extern "C" fn($($otype),*) -> c_type!($($oanswer)+),
                            >(address.as_ptr())
                        }
                    }),)*
                })
            }
        }

        /// Functions that not every libibverbs in use has.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum OptionalVerb {
            $(
                #[doc = concat!("`", stringify!($oname), "`.")]
                $variant,
            )*
        }

        impl OptionalVerb {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// The function's name in C.
            pub const fn symbol(self) -> &'static str {
                match self {
                    $(Self::$variant => stringify!($oname),)*
                }
            }
        }

        /// libibverbs' own functions, each by its name in C. The inline verbs are functions of
        /// this crate, save those that fall back to one of these.
        impl Verbs {
            /// Whether the loaded libibverbs has this function. Whether a device has it too only
            /// the call tells.
            pub fn has(&self, verb: OptionalVerb) -> bool {
                match verb {
                    $(OptionalVerb::$variant => self.table().$oname.is_some(),)*
                }
            }

            $(
                $(#[$doc])*
                #[inline]
                $vis unsafe fn $name(&self $(, $arg: $type)*) -> rust_type!($($answer)+) {
                    // SAFETY: the address and the type are the library's; the rest is this
                    // function's contract.
                    let answer = unsafe { (self.table().$name)($($arg),*) };
                    read_answer!($($answer)+, stringify!($name), answer)
                }
            )*
            $(
                $(#[$odoc])*
                #[inline]
                $ovis unsafe fn $oname(
                    &self
                    $(, $oarg: $otype)*
                ) -> rust_type!(optional $($oanswer)+) {
                    let verb = stringify!($oname);
                    let function = self.table().$oname.ok_or(VerbError::NotInLibrary { verb })?;
                    // SAFETY: as for the required functions.
                    let answer = unsafe { function($($oarg),*) };
                    read_answer!(optional $($oanswer)+, verb, answer)
                }
            )*
        }
    };
}

functions! {
    required {
        /// Lists the devices, ending with null; their number goes to `count`. Prefer
        /// [`Verbs::devices`].
        ///
        /// # Safety
        ///
        /// `count` is writable or null. The list is freed once, with
        /// [`Verbs::ibv_free_device_list`].
        pub ibv_get_device_list(count: *mut c_int) -> (pointer *mut ibv_device);

        /// Frees the list. Devices that were not opened are gone with it.
        ///
        /// # Safety
        ///
        /// `list` is from [`Verbs::ibv_get_device_list`] and was not freed; no device of it that
        /// is not open is used again.
        pub ibv_free_device_list(list: *mut *mut ibv_device) -> (plain ());

        /// The device's name in the kernel, such as `mlx5_0`.
        ///
        /// # Safety
        ///
        /// `device` is of a list that was not freed, or is open. The text is the device's own.
        pub ibv_get_device_name(device: *mut ibv_device) -> (plain *const c_char);

        /// The device's node GUID, in network byte order; 0 when it cannot be read.
        ///
        /// # Safety
        ///
        /// `device` is of a list that was not freed, or is open.
        pub ibv_get_device_guid(device: *mut ibv_device) -> (plain __be64);

        /// Opens the device: everything else is made from the context.
        ///
        /// # Safety
        ///
        /// `device` is of a list that was not freed. The context is closed once, with
        /// [`Verbs::ibv_close_device`].
        pub ibv_open_device(device: *mut ibv_device) -> (pointer ibv_context);

        /// Closes the context and its two file descriptors.
        ///
        /// # Safety
        ///
        /// `context` is open, all that was made from it was destroyed, and no other thread is
        /// inside a verb with it.
        pub ibv_close_device(context: *mut ibv_context) -> (status);

        /// Takes one asynchronous event. **Waits without end** unless `context.async_fd` was made
        /// non-blocking; then `EAGAIN` says that there is none.
        ///
        /// # Safety
        ///
        /// `context` is open and `event` writable. Each event is acknowledged once.
        pub ibv_get_async_event(context: *mut ibv_context, event: *mut ibv_async_event)
            -> (status);

        /// Acknowledges an event: destroying the object that it names waits for this.
        ///
        /// # Safety
        ///
        /// `event` is as [`Verbs::ibv_get_async_event`] gave it, and was not acknowledged.
        pub ibv_ack_async_event(event: *mut ibv_async_event) -> (plain ());

        /// The device's limits. [`Verbs::ibv_query_device_ex`] gives these and more.
        ///
        /// # Safety
        ///
        /// `context` is open and `attr` writable.
        pub ibv_query_device(context: *mut ibv_context, attr: *mut ibv_device_attr) -> (status);

        /// The form from before ports had more attributes than `flags`: see
        /// [`Verbs::query_port`].
        pub(crate) ibv_query_port(
            context: *mut ibv_context,
            port: u8,
            attr: *mut _compat_ibv_port_attr
        ) -> (status);

        /// One entry of the port's GID table, without its type.
        ///
        /// # Safety
        ///
        /// `context` is open and `gid` writable.
        pub ibv_query_gid(context: *mut ibv_context, port: u8, index: c_int, gid: *mut ibv_gid)
            -> (status);

        /// One entry of the port's P_Key table, in network byte order.
        ///
        /// # Safety
        ///
        /// `context` is open and `pkey` writable.
        pub ibv_query_pkey(context: *mut ibv_context, port: u8, index: c_int, pkey: *mut __be16)
            -> (status);

        /// Makes a protection domain.
        ///
        /// # Safety
        ///
        /// `context` is open, and stays so as long as the domain.
        pub ibv_alloc_pd(context: *mut ibv_context) -> (pointer ibv_pd);

        /// Frees a protection domain; `EBUSY` while something was made from it.
        ///
        /// # Safety
        ///
        /// `pd` is alive, and is not used again when this succeeds.
        pub ibv_dealloc_pd(pd: *mut ibv_pd) -> (status);

        /// Registers memory, without optional access flags: see [`Verbs::reg_mr`].
        pub(crate) ibv_reg_mr(pd: *mut ibv_pd, address: *mut c_void, length: usize, access: c_int)
            -> (pointer ibv_mr);

        /// Ends a registration, of whatever kind.
        ///
        /// # Safety
        ///
        /// `mr` is alive, no posted request uses it, and it is not used again when this succeeds.
        pub ibv_dereg_mr(mr: *mut ibv_mr) -> (status);

        /// Makes a channel of completion events.
        ///
        /// # Safety
        ///
        /// `context` is open, and stays so as long as the channel.
        pub ibv_create_comp_channel(context: *mut ibv_context) -> (pointer ibv_comp_channel);

        /// Destroys a channel; `EBUSY` while a completion queue uses it.
        ///
        /// # Safety
        ///
        /// `channel` is alive, and is not used again when this succeeds.
        pub ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> (status);

        /// Makes a completion queue of at least `cqe` entries.
        ///
        /// # Safety
        ///
        /// `context` is open; `channel` is of it or null. Both outlive the queue.
        pub ibv_create_cq(
            context: *mut ibv_context,
            cqe: c_int,
            cq_context: *mut c_void,
            channel: *mut ibv_comp_channel,
            comp_vector: c_int
        ) -> (pointer ibv_cq);

        /// Changes how many entries the queue has at least; `cq.cqe` says how many it became.
        ///
        /// # Safety
        ///
        /// `cq` is alive.
        pub ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> (status);

        /// Destroys a completion queue; **waits** until its events are acknowledged; `EBUSY` while
        /// a queue pair uses it.
        ///
        /// # Safety
        ///
        /// `cq` is alive, and is not used again when this succeeds.
        pub ibv_destroy_cq(cq: *mut ibv_cq) -> (status);

        /// Takes one completion event. **Waits without end** unless `channel.fd` was made
        /// non-blocking; then `EAGAIN` says that there is none.
        ///
        /// # Safety
        ///
        /// `channel` is alive; `cq` and `cq_context` are writable. Each event is acknowledged
        /// once, with [`Verbs::ibv_ack_cq_events`].
        pub ibv_get_cq_event(
            channel: *mut ibv_comp_channel,
            cq: *mut *mut ibv_cq,
            cq_context: *mut *mut c_void
        ) -> (status);

        /// Acknowledges completion events. It takes a lock: better many at a time.
        ///
        /// # Safety
        ///
        /// `cq` is alive, and has at least `events` events that were taken and not acknowledged.
        pub ibv_ack_cq_events(cq: *mut ibv_cq, events: c_uint) -> (plain ());

        /// Makes a queue pair, in the state RESET; what it can do is written back to `attr.cap`.
        ///
        /// # Safety
        ///
        /// `pd` is alive and `attr` readable and writable; the queues that `attr` names are of the
        /// same context and outlive the queue pair.
        pub ibv_create_qp(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> (pointer ibv_qp);

        /// Changes the attributes that `mask` ([`ibv_qp_attr_mask`]) names.
        ///
        /// # Safety
        ///
        /// `qp` is alive and `attr` readable.
        pub ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> (status);

        /// Reads attributes; providers may give more than `mask` ([`ibv_qp_attr_mask`]) names.
        ///
        /// # Safety
        ///
        /// `qp` is alive; `attr` and `init_attr` are writable.
        pub ibv_query_qp(
            qp: *mut ibv_qp,
            attr: *mut ibv_qp_attr,
            mask: c_int,
            init_attr: *mut ibv_qp_init_attr
        ) -> (status);

        /// Destroys a queue pair; **waits** until its events are acknowledged. Completions of it
        /// that were not polled are gone.
        ///
        /// # Safety
        ///
        /// `qp` is alive, and is not used again when this succeeds.
        pub ibv_destroy_qp(qp: *mut ibv_qp) -> (status);

        /// Keeps registered memory from being copied on write by a later `fork`.
        ///
        /// # Safety
        ///
        /// Nothing was registered before, on any thread.
        pub ibv_fork_init() -> (status);
    }
    optional {
        /// The device's index in the kernel; -1 when the kernel does not say. Since rdma-core 30.
        ///
        /// # Safety
        ///
        /// `device` is of a list that was not freed, or is open.
        GetDeviceIndex: pub ibv_get_device_index(device: *mut ibv_device) -> (plain c_int);

        /// The port's effective speed, in units of 100 Mbit/s.
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

        /// Registers memory that peers address from `iova` on; takes optional access flags, which
        /// kernels that do not know them ignore. Since rdma-core 28.
        ///
        /// # Safety
        ///
        /// `pd` is alive. The memory stays mapped until the registration ends, and whoever gets
        /// the key may write it if `access` ([`ibv_access_flags`]) says so.
        RegMrIova2: pub ibv_reg_mr_iova2(
            pd: *mut ibv_pd,
            address: *mut c_void,
            length: usize,
            iova: u64,
            access: c_uint
        ) -> (pointer ibv_mr);

        /// Registers `length` bytes of a dma-buf from `offset` on, which peers address from `iova`
        /// on; `iova` and `offset` have the same place within a page. The descriptor may be closed
        /// afterwards. With descriptor -1, `EBADF` says that kernel and driver can do this,
        /// `EOPNOTSUPP` or `EPROTONOSUPPORT` that they cannot. Since rdma-core 34.
        ///
        /// # Safety
        ///
        /// `pd` is alive. The memory behind the descriptor may be read and written by whoever gets
        /// the key, as `access` ([`ibv_access_flags`]) says.
        RegDmabufMr: pub ibv_reg_dmabuf_mr(
            pd: *mut ibv_pd,
            offset: u64,
            length: usize,
            iova: u64,
            fd: c_int,
            access: c_int
        ) -> (pointer ibv_mr);

        /// Registers memory of any kind, by attributes.
        ///
        /// # Safety
        ///
        /// As for [`Verbs::ibv_reg_mr_iova2`] or [`Verbs::ibv_reg_dmabuf_mr`], whichever `attr`
        /// describes; `attr` is readable.
        RegMrEx: pub ibv_reg_mr_ex(pd: *mut ibv_pd, attr: *mut ibv_mr_init_attr)
            -> (pointer ibv_mr);

        /// The queue pair as one whose requests are built by functions; fails when it was not made
        /// with `send_ops_flags`. Since rdma-core 24.
        ///
        /// # Safety
        ///
        /// `qp` is alive. Both pointers are to one object.
        QpToQpEx: pub ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> (pointer ibv_qp_ex);

        /// Whether this operation's data reaches memory in order: 0 or 1, or with
        /// [`ibv_query_qp_data_in_order_flags`] `RETURN_CAPS` a set of
        /// [`ibv_query_qp_data_in_order_caps`]. Since rdma-core 36.
        ///
        /// # Safety
        ///
        /// `qp` is alive.
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
    fn a_required_function_that_is_missing_is_named() {
        // SAFETY: no function is given.
        let error = unsafe { library(&[], &["ibv_modify_qp"]) }.err();
        assert_eq!(error, Some("ibv_modify_qp"));
    }

    #[test]
    fn an_optional_function_that_is_missing_is_known_to_be() {
        for &verb in OptionalVerb::ALL {
            // SAFETY: no function is given.
            let verbs = unsafe { library(&[], &[verb.symbol()]) }.unwrap();
            for &other in OptionalVerb::ALL {
                assert_eq!(verbs.has(other), other != verb, "{}", other.symbol());
            }
        }
    }
}
