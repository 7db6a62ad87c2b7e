//! Texts of enumerations, with libibverbs' words.

use std::ffi::{CStr, c_char};

use gdr_verbs_sys::{ibv_event_type, ibv_node_type, ibv_port_state, ibv_wc_status, ibv_wr_opcode};

/// The text at `index`.
fn text(texts: &[&'static CStr], index: u32) -> *const c_char {
    let index = usize::try_from(index).unwrap_or(usize::MAX);
    texts.get(index).copied().unwrap_or(c"unknown").as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn ibv_wc_status_str(status: ibv_wc_status) -> *const c_char {
    text(
        &[
            c"success",
            c"local length error",
            c"local QP operation error",
            c"local EE context operation error",
            c"local protection error",
            c"Work Request Flushed Error",
            c"memory management operation error",
            c"bad response error",
            c"local access error",
            c"remote invalid request error",
            c"remote access error",
            c"remote operation error",
            c"transport retry counter exceeded",
            c"RNR retry counter exceeded",
            c"local RDD violation error",
            c"remote invalid RD request",
            c"aborted error",
            c"invalid EE context number",
            c"invalid EE context state",
            c"fatal error",
            c"response timeout error",
            c"general error",
            c"TM error",
            c"TM software rendezvous",
        ],
        status.0,
    )
}

#[unsafe(no_mangle)]
extern "C" fn ibv_node_type_str(kind: ibv_node_type) -> *const c_char {
    text(
        &[
            c"unknown",
            c"InfiniBand channel adapter",
            c"InfiniBand switch",
            c"InfiniBand router",
            c"iWARP NIC",
            c"usNIC",
            c"usNIC UDP",
            c"unspecified",
        ],
        kind.0.cast_unsigned(),
    )
}

#[unsafe(no_mangle)]
extern "C" fn ibv_port_state_str(state: ibv_port_state) -> *const c_char {
    text(
        &[
            c"no state change (NOP)",
            c"down",
            c"init",
            c"armed",
            c"active",
            c"active defer",
        ],
        state.0,
    )
}

#[unsafe(no_mangle)]
extern "C" fn ibv_event_type_str(kind: ibv_event_type) -> *const c_char {
    text(
        &[
            c"CQ error",
            c"local work queue catastrophic error",
            c"invalid request local work queue error",
            c"local access violation work queue error",
            c"communication established",
            c"send queue drained",
            c"path migrated",
            c"path migration request error",
            c"local catastrophic error",
            c"port active",
            c"port error",
            c"LID change",
            c"P_Key change",
            c"SM change",
            c"SRQ catastrophic error",
            c"SRQ limit reached",
            c"last WQE reached",
            c"client reregistration",
            c"GID table change",
            c"WQ fatal",
            c"device speed change",
        ],
        kind.0,
    )
}

/// A private function of libibverbs, which its libraries beside call.
#[unsafe(no_mangle)]
extern "C" fn ibv_wr_opcode_str(opcode: ibv_wr_opcode) -> *const c_char {
    text(
        &[
            c"rdma-write",
            c"rdma-write-with-imm",
            c"send",
            c"send-with-imm",
            c"rdma-read",
            c"atomic-cmp-and-swp",
            c"atomic-fetch-and-add",
            c"local-inv",
            c"bind-mw",
            c"send-with-inv",
            c"tso",
            c"driver1",
            c"unknown",
            c"unknown",
            c"flush",
            c"atomic-write",
        ],
        opcode.0,
    )
}
