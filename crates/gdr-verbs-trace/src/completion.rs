//! Counts completions: received data, and errors.

use std::ffi::c_int;
use std::slice;

use gdr_trace::MemoryKind;
use gdr_verbs_sys::{ibv_cq, ibv_wc, ibv_wc_opcode, ibv_wc_status};

use crate::check::{self, Polled};
use crate::context::Context;
use crate::library::missing;
use crate::nesting::keep_quiet;
use crate::queue_pair::QueuePair;
use crate::receive_kinds::Received;

/// The counted fields of a completion.
pub(crate) struct Completed {
    pub(crate) status: ibv_wc_status,
    /// Not set if the status is an error.
    pub(crate) opcode: ibv_wc_opcode,
    /// If `None`, counted for the queue pairs without a row.
    pub(crate) qpn: Option<u32>,
    pub(crate) bytes: u32,
}

/// Counts a completion.
pub(crate) fn count(context: &Context, completion: &Completed) {
    let is_success = completion.status == ibv_wc_status::IBV_WC_SUCCESS;
    // All opcodes of receives have this bit.
    let is_receive = completion.opcode.0 & ibv_wc_opcode::IBV_WC_RECV.0 != 0;
    if is_success && !is_receive {
        return;
    }
    let pair = completion
        .qpn
        .and_then(|qpn| QueuePair::numbered(context, qpn));
    let row = pair.map_or(0, QueuePair::row);
    if !is_success {
        context.recorder.add_error(row, completion.status.0);
        if let Some(pair) = pair {
            pair.flush_receives();
        }
        return;
    }
    // The data of a WRITE with immediate are not in the receive's memory.
    let is_write = completion.opcode == ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM;
    let bytes = if is_write { 0 } else { completion.bytes };
    let received = Received { row, bytes };
    match pair.and_then(QueuePair::receives) {
        Some(ring) => ring.complete(received, |received, kind| {
            context.recorder.add_receive(received, kind);
        }),
        None => context.recorder.add_receive(received, MemoryKind::Unknown),
    }
}

/// # Safety
/// As for `ibv_poll_cq`.
pub(crate) unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, entries: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: the caller's queue.
    let context = Context::behind(unsafe { (*cq).context });
    let Some((context, real)) = context.and_then(|it| Some((it, it.real.basic.poll_cq?))) else {
        return missing::negative();
    };
    // SAFETY: the caller's arguments.
    let result = unsafe { real(cq, entries, wc) };
    if let Ok(found @ 1..) = usize::try_from(result) {
        keep_quiet(|| {
            // SAFETY: the library has written `found` completions.
            let completions = unsafe { slice::from_raw_parts(wc, found) };
            // SAFETY: the caller's queue.
            let of = unsafe { (*cq).context };
            check::polled(of, cq, completions.iter().map(polled));
            for wc in completions {
                let completion = Completed {
                    status: wc.status,
                    opcode: wc.opcode,
                    qpn: Some(wc.qp_num),
                    bytes: wc.byte_len,
                };
                count(context, &completion);
            }
        });
    } else if result == 0 {
        keep_quiet(|| check::polled_nothing(cq));
    }
    result
}

/// Returns a completion, as rules look at it.
fn polled(wc: &ibv_wc) -> Polled {
    let is_success = wc.status == ibv_wc_status::IBV_WC_SUCCESS;
    Polled {
        id: wc.wr_id,
        status: wc.status.0,
        qpn: Some(wc.qp_num),
        opcode: is_success.then_some(wc.opcode),
    }
}
