//! libibverbs, loaded at run time.
//!
//! [`Verbs`] is the loaded library. [`Verbs::load`] opens `libibverbs.so.1`, and its error distinguishes
//! a missing library, a missing function and a missing device ([`LoadError`]). rdma-core is not needed to
//! build this crate or to start a program that uses it: the crate contains declarations that
//! `cargo xtask bindings` has generated from the header of rdma-core 65.0.
//!
//! The interface is `unsafe`: the functions of libibverbs are methods of [`Verbs`], and the inline verbs
//! in its header are functions. All of them keep their C names, and document their contract. A missing
//! function is never called: if the library or the device's provider lacks it, the result is a
//! [`VerbError`] with the name of the verb and its `errno`, as for any other failure.
//!
//! C enumerations are structures around a number, with the C names as constants, so unknown values from
//! newer kernels are valid.
//!
//! ```no_run
//! use std::mem::MaybeUninit;
//!
//! use gdr_verbs_sys::{OptionalVerb, Verbs, ibv_wc};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let verbs = Verbs::load()?;
//! println!("dma-buf: {}", verbs.has(OptionalVerb::RegDmabufMr));
//! let devices = verbs.devices()?;
//! for &device in devices.as_slice() {
//!     // SAFETY: the list is not freed, so the device is valid.
//!     let context = unsafe { verbs.ibv_open_device(device) }?.as_ptr();
//!     // SAFETY: the context is open.
//!     let port = unsafe { verbs.query_port(context, 1) }?;
//!     println!("{}", port.state);
//!     // SAFETY: no object was created from the context, and it is not used again.
//!     unsafe { verbs.ibv_close_device(context) }?;
//! }
//! # Ok(())
//! # }
//! ```

#![warn(clippy::disallowed_methods)]

#[allow(missing_docs, non_camel_case_types, reason = "the names of the header")]
mod attributes;
#[allow(missing_docs, non_camel_case_types, non_snake_case, clippy::all)]
mod bindings;
mod cq_ex;
mod enums;
mod errno;
mod error;
#[allow(missing_docs, unreachable_pub, dead_code)]
mod ffi;
#[cfg(test)]
mod fixture;
#[allow(missing_docs, non_camel_case_types, reason = "the names of the header")]
mod flow;
mod library;
mod memory;
mod mlx5;
#[allow(non_camel_case_types)]
mod opaque;
mod post;
mod provider_ops;
mod qp_ex;
mod qp_transition;
mod query;
mod ret;
mod symbols;

pub use bindings::*;
pub use cq_ex::{
    Polled, ibv_cq_ex_to_cq, ibv_create_cq_ex, ibv_end_poll, ibv_next_poll, ibv_start_poll,
    ibv_wc_read_byte_len, ibv_wc_read_completion_ts, ibv_wc_read_completion_wallclock_ns,
    ibv_wc_read_dlid_path_bits, ibv_wc_read_imm_data, ibv_wc_read_opcode, ibv_wc_read_qp_num,
    ibv_wc_read_sl, ibv_wc_read_slid, ibv_wc_read_src_qp, ibv_wc_read_vendor_err,
    ibv_wc_read_wc_flags,
};
pub use enums::{IBV_LINK_LAYER_ETHERNET, IBV_LINK_LAYER_INFINIBAND, IBV_LINK_LAYER_UNSPECIFIED};
pub use errno::Errno;
pub use error::{LoadError, NoDevice, VerbError};
pub use flow::{
    ibv_create_flow, ibv_destroy_flow, ibv_flow_attr_type, ibv_flow_eth_filter,
    ibv_flow_ipv4_ext_filter, ibv_flow_ipv4_filter, ibv_flow_ipv6_filter, ibv_flow_spec_eth,
    ibv_flow_spec_ipv4, ibv_flow_spec_ipv4_ext, ibv_flow_spec_ipv6, ibv_flow_spec_tcp_udp,
    ibv_flow_spec_type, ibv_flow_tcp_udp_filter,
};
pub use library::{Devices, Verbs};
pub use memory::ibv_advise_mr;
pub use opaque::*;
pub use post::{Notify, PostError, ibv_poll_cq, ibv_post_recv, ibv_post_send, ibv_req_notify_cq};
pub use provider_ops::provider_op_field;
pub use qp_ex::{
    ibv_wr_abort, ibv_wr_atomic_cmp_swp, ibv_wr_atomic_fetch_add, ibv_wr_complete,
    ibv_wr_rdma_read, ibv_wr_rdma_write, ibv_wr_rdma_write_imm, ibv_wr_send, ibv_wr_send_imm,
    ibv_wr_send_inv, ibv_wr_set_inline_data, ibv_wr_set_inline_data_list, ibv_wr_set_sge,
    ibv_wr_set_sge_list, ibv_wr_start,
};
pub use qp_transition::QpTransition;
pub use query::ibv_query_rt_values_ex;
pub use symbols::OptionalVerb;

// The example of the README is a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
