//! libibverbs, loaded at run time.
//!
//! [`Verbs`] is the library: [`Verbs::load`] opens `libibverbs.so.1` when it is asked to, and
//! says apart what may be missing: the library, a function of it, or a device ([`LoadError`]).
//! Nothing of rdma-core is needed to build this crate or to start a program that uses it: the
//! declarations were made from the header of rdma-core 65.0 (`cargo xtask bindings`) and are kept
//! here.
//!
//! This is no safe interface. It gives libibverbs' functions as methods of [`Verbs`] and the
//! inline verbs of its header as functions, all by their names in C, all `unsafe`, each with its
//! contract. What it adds is that nothing is called that is not there: a function that the library
//! or the device's provider lacks is a [`VerbError`], as is any failure, with the verb's name and
//! its `errno`.
//!
//! Enumerations of C are structures around a number here, with its names as constants: values
//! from newer kernels are data.
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
//!     // SAFETY: the list is there, and with it the device.
//!     let context = unsafe { verbs.ibv_open_device(device) }?.as_ptr();
//!     // SAFETY: the context is open.
//!     let port = unsafe { verbs.query_port(context, 1) }?;
//!     println!("{}", port.state);
//!     // SAFETY: nothing was made from the context, and it is not used again.
//!     unsafe { verbs.ibv_close_device(context) }?;
//! }
//! # Ok(())
//! # }
//! ```

mod answer;
#[allow(missing_docs, non_camel_case_types, non_snake_case, clippy::all)]
mod bindings;
mod create;
mod errno;
mod error;
mod extended_cq;
mod extended_qp;
mod extension;
#[cfg(test)]
mod fixture;
#[allow(non_camel_case_types)]
mod foreign;
#[allow(missing_docs, unreachable_pub, dead_code)]
mod functions;
mod library;
mod memory;
mod mlx5;
mod post;
mod query;
mod table;
mod values;

pub use bindings::*;
pub use create::{ibv_cq_ex_to_cq, ibv_create_cq_ex};
pub use errno::Errno;
pub use error::{LoadError, NoDevice, VerbError};
pub use extended_cq::{
    Polled, ibv_end_poll, ibv_next_poll, ibv_start_poll, ibv_wc_read_byte_len,
    ibv_wc_read_completion_ts, ibv_wc_read_completion_wallclock_ns, ibv_wc_read_dlid_path_bits,
    ibv_wc_read_imm_data, ibv_wc_read_opcode, ibv_wc_read_qp_num, ibv_wc_read_sl, ibv_wc_read_slid,
    ibv_wc_read_src_qp, ibv_wc_read_vendor_err, ibv_wc_read_wc_flags,
};
pub use extended_qp::{
    ibv_wr_abort, ibv_wr_atomic_cmp_swp, ibv_wr_atomic_fetch_add, ibv_wr_complete,
    ibv_wr_rdma_read, ibv_wr_rdma_write, ibv_wr_rdma_write_imm, ibv_wr_send, ibv_wr_send_imm,
    ibv_wr_send_inv, ibv_wr_set_inline_data, ibv_wr_set_inline_data_list, ibv_wr_set_sge,
    ibv_wr_set_sge_list, ibv_wr_start,
};
pub use foreign::*;
pub use library::{Devices, Verbs};
pub use memory::ibv_advise_mr;
pub use post::{Notify, PostError, ibv_poll_cq, ibv_post_recv, ibv_post_send, ibv_req_notify_cq};
pub use query::ibv_query_rt_values_ex;
pub use table::OptionalVerb;
pub use values::{IBV_LINK_LAYER_ETHERNET, IBV_LINK_LAYER_INFINIBAND, IBV_LINK_LAYER_UNSPECIFIED};
