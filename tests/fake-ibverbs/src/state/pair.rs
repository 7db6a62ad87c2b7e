//! Queue pairs.

use std::collections::VecDeque;
use std::time::Instant;

use gdr_verbs_sys::{ibv_qp_attr, ibv_qp_cap, ibv_qp_ex, ibv_qp_state as State, ibv_sge};

use super::device::DeviceId;
use super::request::{Data, Receive, Send};
use crate::c_abi::Handle;

pub(crate) struct Pair {
    pub(crate) device: DeviceId,
    pub(crate) domain: usize,
    pub(crate) object: Handle<ibv_qp_ex>,
    pub(crate) number: u32,
    pub(crate) send_cq: usize,
    pub(crate) recv_cq: usize,
    pub(crate) cap: ibv_qp_cap,
    pub(crate) signal_all: bool,
    /// Whether small messages are written to completions.
    pub(crate) scatters: bool,
    pub(crate) extended: bool,
    pub(crate) state: State,
    pub(crate) attr: ibv_qp_attr,
    pub(crate) sends: VecDeque<Send>,
    pub(crate) receives: VecDeque<Receive>,
    /// The requests of the current batch.
    pub(crate) batch: Option<Vec<Send>>,
    /// The numbers of posted requests, and of those whose completion the program has polled.
    pub(crate) posted: u64,
    pub(crate) freed: u64,
    /// Since when the first request has no response, or no receive of the peer.
    pub(crate) silent_since: Option<Instant>,
    pub(crate) unready_since: Option<Instant>,
}

impl Pair {
    /// Frees the requests up to this one, whose completion the program has polled.
    pub(crate) fn free(&mut self, upto: u64) {
        self.freed = self.freed.max(upto);
    }

    pub(crate) fn has_room(&self, more: u64) -> bool {
        self.posted - self.freed + more <= u64::from(self.cap.max_send_wr)
    }

    /// Whether a posted request uses the region with this key.
    pub(crate) fn uses(&self, key: u32) -> bool {
        let names = |segments: &[ibv_sge]| segments.iter().any(|segment| segment.lkey == key);
        let send = |send: &Send| match &send.data {
            Data::Segments(segments) => names(segments),
            Data::Inline(_) => false,
        };
        self.sends.iter().any(send) || self.receives.iter().any(|it| names(&it.segments))
    }

    pub(crate) fn set_state(&mut self, state: State) {
        self.state = state;
        self.attr.qp_state = state;
        // SAFETY: the object is never freed; programs read its state between calls at most.
        unsafe { (*self.object.as_ptr()).qp_base.state = state };
    }
}
