//! Completions in the form of libibverbs.

use std::ffi::{c_int, c_uint};

use gdr_nic::{Completion, Qpn, WcOpcode, WcStatus};
use gdr_verbs_sys::{ibv_cq, ibv_wc, ibv_wc_flags, ibv_wc_opcode, ibv_wc_status};

use crate::completion_queue::QUEUES;
use crate::device::Device;
use crate::ret::number;

pub(crate) fn status_of(completion: &Completion) -> ibv_wc_status {
    match completion.status {
        WcStatus::Success => ibv_wc_status::IBV_WC_SUCCESS,
        WcStatus::LocalLength => ibv_wc_status::IBV_WC_LOC_LEN_ERR,
        WcStatus::LocalProtection => ibv_wc_status::IBV_WC_LOC_PROT_ERR,
        WcStatus::WrFlushed => ibv_wc_status::IBV_WC_WR_FLUSH_ERR,
        WcStatus::BadResponse => ibv_wc_status::IBV_WC_BAD_RESP_ERR,
        WcStatus::RemoteInvalidRequest => ibv_wc_status::IBV_WC_REM_INV_REQ_ERR,
        WcStatus::RemoteAccess => ibv_wc_status::IBV_WC_REM_ACCESS_ERR,
        WcStatus::RemoteOperation => ibv_wc_status::IBV_WC_REM_OP_ERR,
        WcStatus::RetryExceeded => ibv_wc_status::IBV_WC_RETRY_EXC_ERR,
        WcStatus::RnrRetryExceeded => ibv_wc_status::IBV_WC_RNR_RETRY_EXC_ERR,
        WcStatus::WindowBind => ibv_wc_status::IBV_WC_MW_BIND_ERR,
        _ => ibv_wc_status::IBV_WC_LOC_QP_OP_ERR,
    }
}

pub(crate) fn opcode_of(completion: &Completion) -> ibv_wc_opcode {
    match completion.opcode {
        WcOpcode::Send => ibv_wc_opcode::IBV_WC_SEND,
        WcOpcode::Write => ibv_wc_opcode::IBV_WC_RDMA_WRITE,
        WcOpcode::Read => ibv_wc_opcode::IBV_WC_RDMA_READ,
        WcOpcode::FetchAdd => ibv_wc_opcode::IBV_WC_FETCH_ADD,
        WcOpcode::CompareSwap => ibv_wc_opcode::IBV_WC_COMP_SWAP,
        WcOpcode::AtomicWrite => ibv_wc_opcode::IBV_WC_ATOMIC_WRITE,
        WcOpcode::Flush => ibv_wc_opcode::IBV_WC_FLUSH,
        WcOpcode::BindWindow => ibv_wc_opcode::IBV_WC_BIND_MW,
        WcOpcode::Invalidate => ibv_wc_opcode::IBV_WC_LOCAL_INV,
        WcOpcode::Recv => ibv_wc_opcode::IBV_WC_RECV,
        WcOpcode::RecvWriteImmediate => ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM,
    }
}

pub(crate) fn flags_of(completion: &Completion) -> c_uint {
    let mut flags = ibv_wc_flags::NONE;
    if completion.immediate.is_some() {
        flags |= ibv_wc_flags::IBV_WC_WITH_IMM;
    }
    if completion.invalidated.is_some() {
        flags |= ibv_wc_flags::IBV_WC_WITH_INV;
    }
    // Set the flag for connections too, like rxe and mlx5, although only datagrams have the header in their
    // memory.
    if completion.has_network_header {
        flags |= ibv_wc_flags::IBV_WC_GRH;
    }
    if completion.ip_checksum_ok {
        flags |= ibv_wc_flags::IBV_WC_IP_CSUM_OK;
    }
    flags.0
}

/// The immediate in network byte order, or the key that was invalidated; 0 if there is neither.
pub(crate) fn immediate_of(completion: &Completion) -> u32 {
    match (completion.immediate, completion.invalidated) {
        (Some(value), _) => value.0.to_be(),
        (None, Some(key)) => key.0,
        (None, None) => 0,
    }
}

/// The number of the queue pair that sent a datagram.
pub(crate) fn source_of(completion: &Completion) -> u32 {
    completion.source_qpn.map_or(0, Qpn::get)
}

/// The network header of a datagram in the bits of the service level, which RoCE does not have: what
/// NVIDIA's cards write there, and UCX reads. Bit 3 is RoCE version 2.
const OVER_IPV6: u8 = 0b1001;
const OVER_IPV4: u8 = 0b1010;

/// The service level, in which received datagrams have the kind of their network header.
pub(crate) fn service_level_of(completion: &Completion, device: &Device) -> u8 {
    match completion.source_qpn {
        None => 0,
        // A device has one address, and its peers have addresses of the same version.
        Some(_) if device.gid().to_ipv4_mapped().is_some() => OVER_IPV4,
        Some(_) => OVER_IPV6,
    }
}

fn plain(completion: &Completion, device: &Device) -> ibv_wc {
    let mut wc = ibv_wc {
        wr_id: completion.id.0,
        status: status_of(completion),
        opcode: opcode_of(completion),
        byte_len: completion.byte_len,
        qp_num: completion.qpn.get(),
        src_qp: source_of(completion),
        wc_flags: flags_of(completion),
        sl: service_level_of(completion, device),
        ..Default::default()
    };
    wc.__bindgen_anon_1.imm_data = immediate_of(completion);
    wc
}

/// # Safety
/// `wc` has room for `room` completions.
pub(crate) unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, room: c_int, wc: *mut ibv_wc) -> c_int {
    number(|| {
        let queue = QUEUES.lend(cq)?;
        let most = usize::try_from(room).unwrap_or(0);
        let mut next = wc;
        let count = queue.nic().poll(most, &mut |completion| {
            // SAFETY: at most `room` completions are passed, and there is room for them.
            unsafe {
                next.write(plain(&completion, queue.device()));
                next = next.add(1);
            }
        })?;
        Ok(count as c_int)
    })
}
