//! Completion queues and their completions.

use std::collections::VecDeque;
use std::ffi::c_uint;

use gdr_verbs_sys::{__be32, ibv_cq_ex, ibv_wc, ibv_wc_flags, ibv_wc_opcode, ibv_wc_status};

use super::device::DeviceId;
use crate::c_abi::Handle;

/// A completion.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) wr_id: u64,
    pub(crate) status: ibv_wc_status,
    pub(crate) opcode: ibv_wc_opcode,
    pub(crate) vendor_err: u32,
    pub(crate) byte_len: u32,
    pub(crate) immediate: Option<__be32>,
    pub(crate) pair: u32,
    pub(crate) solicited: bool,
    /// The last request that this completion frees in the send queue; `None` for receives.
    pub(crate) frees: Option<u64>,
}

impl Entry {
    pub(crate) fn flags(&self) -> c_uint {
        let mut flags = ibv_wc_flags::NONE;
        if self.immediate.is_some() {
            flags |= ibv_wc_flags::IBV_WC_WITH_IMM;
        }
        // As over RoCE, for receives.
        if self.frees.is_none() && self.status == ibv_wc_status::IBV_WC_SUCCESS {
            flags |= ibv_wc_flags::IBV_WC_GRH;
        }
        flags.0
    }

    pub(crate) fn plain(&self) -> ibv_wc {
        let mut wc = ibv_wc {
            wr_id: self.wr_id,
            status: self.status,
            opcode: self.opcode,
            vendor_err: self.vendor_err,
            byte_len: self.byte_len,
            qp_num: self.pair,
            wc_flags: self.flags(),
            ..Default::default()
        };
        wc.__bindgen_anon_1.imm_data = self.immediate.unwrap_or(0);
        wc
    }
}

/// Which completions generate an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Armed {
    No,
    Any,
    Solicited,
}

pub(crate) struct Queue {
    pub(crate) device: DeviceId,
    pub(crate) context: usize,
    pub(crate) object: Handle<ibv_cq_ex>,
    pub(crate) extended: bool,
    pub(crate) capacity: usize,
    pub(crate) entries: VecDeque<Entry>,
    pub(crate) channel: Option<usize>,
    pub(crate) armed: Armed,
    pub(crate) lost: bool,
    pub(crate) polling: bool,
    /// The completion that the functions of an extended queue read.
    pub(crate) current: Option<Entry>,
}
