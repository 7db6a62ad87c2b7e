//! Flow steering: structures of `ibv_create_flow(3)`, and its inline functions.
//!
//! The structures are declared here, not generated: a flow is an [`ibv_flow_attr`] followed by specifications of any
//! types, which only their sizes delimit.

use std::ptr::NonNull;

use crate::bindings::{ibv_context, ibv_qp};
use crate::error::VerbError;
use crate::provider_ops::provider_op;
use crate::ret;

macro_rules! constants {
    ($(#[$doc:meta])* $name:ident: $($constant:ident = $value:expr;)*) => {
        $(#[$doc])*
        #[repr(transparent)]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name(pub u32);

        impl $name {
            $(pub const $constant: Self = Self($value);)*
        }
    };
}

constants! {
    /// `enum ibv_flow_attr_type`.
    ibv_flow_attr_type:
        IBV_FLOW_ATTR_NORMAL = 0;
        IBV_FLOW_ATTR_ALL_DEFAULT = 1;
        IBV_FLOW_ATTR_MC_DEFAULT = 2;
        IBV_FLOW_ATTR_SNIFFER = 3;
}

constants! {
    /// `enum ibv_flow_spec_type`.
    ibv_flow_spec_type:
        IBV_FLOW_SPEC_ETH = 0x20;
        IBV_FLOW_SPEC_IPV4 = 0x30;
        IBV_FLOW_SPEC_IPV6 = 0x31;
        IBV_FLOW_SPEC_IPV4_EXT = 0x32;
        IBV_FLOW_SPEC_TCP = 0x40;
        IBV_FLOW_SPEC_UDP = 0x41;
}

/// Declares structures of numbers with their size in C, by gcc on x86-64.
macro_rules! structures {
    ($($name:ident[$size:literal] { $($field:ident: $type:ty,)* })*) => {$(
        #[repr(C)]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name {
            $(pub $field: $type,)*
        }

        const _: () = assert!(size_of::<$name>() == $size);
    )*};
}

structures! {
    ibv_flow_attr[20] {
        comp_mask: u32,
        type_: ibv_flow_attr_type,
        size: u16,
        priority: u16,
        num_of_specs: u8,
        port: u8,
        flags: u32,
    }
    ibv_flow_eth_filter[16] {
        dst_mac: [u8; 6],
        src_mac: [u8; 6],
        ether_type: u16,
        vlan_tag: u16,
    }
    ibv_flow_spec_eth[40] {
        type_: ibv_flow_spec_type,
        size: u16,
        val: ibv_flow_eth_filter,
        mask: ibv_flow_eth_filter,
    }
    ibv_flow_ipv4_filter[8] {
        src_ip: u32,
        dst_ip: u32,
    }
    ibv_flow_spec_ipv4[24] {
        type_: ibv_flow_spec_type,
        size: u16,
        val: ibv_flow_ipv4_filter,
        mask: ibv_flow_ipv4_filter,
    }
    ibv_flow_ipv4_ext_filter[12] {
        src_ip: u32,
        dst_ip: u32,
        proto: u8,
        tos: u8,
        ttl: u8,
        flags: u8,
    }
    ibv_flow_spec_ipv4_ext[32] {
        type_: ibv_flow_spec_type,
        size: u16,
        val: ibv_flow_ipv4_ext_filter,
        mask: ibv_flow_ipv4_ext_filter,
    }
    ibv_flow_ipv6_filter[40] {
        src_ip: [u8; 16],
        dst_ip: [u8; 16],
        flow_label: u32,
        next_hdr: u8,
        traffic_class: u8,
        hop_limit: u8,
    }
    ibv_flow_spec_ipv6[88] {
        type_: ibv_flow_spec_type,
        size: u16,
        val: ibv_flow_ipv6_filter,
        mask: ibv_flow_ipv6_filter,
    }
    ibv_flow_tcp_udp_filter[4] {
        dst_port: u16,
        src_port: u16,
    }
    ibv_flow_spec_tcp_udp[16] {
        type_: ibv_flow_spec_type,
        size: u16,
        val: ibv_flow_tcp_udp_filter,
        mask: ibv_flow_tcp_udp_filter,
    }
}

/// A flow.
#[repr(C)]
#[derive(Debug)]
pub struct ibv_flow {
    pub comp_mask: u32,
    pub context: *mut ibv_context,
    pub handle: u32,
}

/// Steers the frames that match a flow to a queue pair.
///
/// # Errors
///
/// [`VerbError::NotInProvider`]; [`VerbError::Failed`].
///
/// # Safety
///
/// `qp` is valid. `attr` is followed by as many specifications as it says, each with the size it says.
pub unsafe fn ibv_create_flow(
    qp: *mut ibv_qp,
    attr: *mut ibv_flow_attr,
) -> Result<NonNull<ibv_flow>, VerbError> {
    let verb = "ibv_create_flow";
    // SAFETY: the queue pair is valid, and so is its context.
    let function = unsafe { provider_op!((*qp).context, ibv_create_flow) };
    let function = function.ok_or(VerbError::NotInProvider { verb })?;
    // SAFETY: the contract of this function.
    let flow = unsafe { function(qp, attr) };
    ret::pointer(verb, flow)
}

/// Ends a flow.
///
/// # Errors
///
/// Like [`ibv_create_flow`].
///
/// # Safety
///
/// `flow` is valid, and not used again.
pub unsafe fn ibv_destroy_flow(flow: *mut ibv_flow) -> Result<(), VerbError> {
    let verb = "ibv_destroy_flow";
    // SAFETY: the flow is valid, and so is its context.
    let function = unsafe { provider_op!((*flow).context, ibv_destroy_flow) };
    let function = function.ok_or(VerbError::NotInProvider { verb })?;
    // SAFETY: the contract of this function.
    let result = unsafe { function(flow) };
    ret::status(verb, result)
}
