//! Posting of the requests in the intake.

use std::mem;

use gdr_roce::{Qpn, State};

use super::Engine;
use crate::send_queue::SendQueue;
use crate::shard::intake::Terms;
use crate::shard::qp_context::{IntakeUse, QpContext};
use crate::shard::transport::Transport;

/// After this many consecutive posts of a queue pair that found the engine unlocked, its intake stays closed.
const UNUSED: u32 = 256;

impl Engine {
    /// Returns whether a thread that unlocks the engine must check the intake: requests may have been left meanwhile,
    /// or were taken but not sent.
    pub(crate) fn has_intake(&self) -> bool {
        if self.has_taken {
            self.intake.call();
        }
        self.has_taken || self.open_intakes > 0
    }

    /// Posts the requests in the intake.
    pub(crate) fn take_left(&mut self) {
        if !self.intake.has_any() {
            return;
        }
        let mut taken = mem::take(&mut self.taken);
        self.intake.take(&mut taken);
        for left in taken.drain(..) {
            let Some(qp) = self.schedule(Qpn::new(left.qpn)) else {
                continue;
            };
            if let IntakeUse::Open { unused, .. } = &mut qp.intake {
                *unused = 0;
            }
            let posted = SendQueue::of(qp).map(|mut queue| left.request.post(&mut queue));
            if !matches!(posted, Some(Ok(()))) {
                // The terms were wrong. The program must notice.
                qp.transport.enter_error();
            }
        }
        self.taken = taken;
        self.has_taken = true;
    }

    /// Posts the requests left for a queue pair, and accepts no more until the intake is opened again. Returns how it
    /// was used.
    pub(crate) fn close_intake(&mut self, qpn: Qpn) -> IntakeUse {
        // The common case first.
        if self.open_intakes == 0 || !self.uses_intake(qpn) {
            return IntakeUse::Closed;
        }
        self.intake.close(qpn.get());
        self.open_intakes -= 1;
        self.take_left();
        match self.qps.get_mut(qpn.get()) {
            Some(qp) => mem::replace(&mut qp.intake, IntakeUse::Closed),
            None => IntakeUse::Closed,
        }
    }

    /// Returns whether a request may be posted to a queue pair without closing its intake.
    pub(super) fn leaves_room(qp: &QpContext) -> bool {
        match (qp.intake, &qp.transport) {
            (IntakeUse::Closed, _) => true,
            // After many such posts it is closed.
            (IntakeUse::Open { unused, promised }, Transport::Connection(roce)) => {
                roce.send_room() > promised && unused < UNUSED
            }
            (IntakeUse::Open { .. }, _) => false,
        }
    }

    fn uses_intake(&self, qpn: Qpn) -> bool {
        let qp = self.qps.qps.get(&qpn.get());
        qp.is_some_and(|qp| qp.intake != IntakeUse::Closed)
    }

    /// Opens the intake for a connection in RTS, unless it has been of no use for long.
    pub(crate) fn open_intake(&mut self, qpn: Qpn, unused: u32) {
        let Some(qp) = self.qps.get_mut(qpn.get()) else {
            return;
        };
        let Transport::Connection(roce) = &qp.transport else {
            return;
        };
        if unused > UNUSED || roce.state() != State::ReadyToSend {
            return;
        }
        // The rest is for requests that are sent as they are posted, with the intake open.
        let promised = roce.send_room().div_ceil(2);
        let terms = Terms {
            room: promised,
            max_inline: roce.capabilities().max_inline,
            takes_reads: roce.takes_reads(),
        };
        qp.intake = IntakeUse::Open { unused, promised };
        self.intake.open(qpn.get(), terms);
        self.open_intakes += 1;
    }
}
