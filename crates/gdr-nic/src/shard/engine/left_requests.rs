//! Requests that posters left for the engine.

use std::mem;

use gdr_roce::{Qpn, State};

use super::Engine;
use crate::send_queue::SendQueue;
use crate::shard::intake::Terms;
use crate::shard::qp_context::IntakeUse;
use crate::shard::transport::Transport;

/// After this many posts of a queue pair in succession that found the engine unlocked, later ones are not left.
const UNUSED: u32 = 256;

impl Engine {
    /// Whether a thread that unlocks the engine must look at the intake: requests may have been left meanwhile, or
    /// were taken and not sent.
    pub(crate) fn has_intake(&self) -> bool {
        if self.has_taken {
            self.intake.call();
        }
        self.has_taken || self.open_intakes > 0
    }

    /// Posts what was left in the intake.
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
            if let IntakeUse::Open { unused } = &mut qp.intake {
                *unused = 0;
            }
            let posted = SendQueue::of(qp).map(|mut queue| left.request.post(&mut queue));
            if !matches!(posted, Some(Ok(()))) {
                // Its terms would not have been true. The program must notice.
                qp.transport.enter_error();
            }
        }
        self.taken = taken;
        self.has_taken = true;
    }

    /// Posts what was left for a queue pair, and lets nothing be left until the intake is opened again. Returns how it
    /// was used.
    pub(crate) fn close_intake(&mut self, qpn: Qpn) -> IntakeUse {
        // First what is usual.
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

    fn uses_intake(&self, qpn: Qpn) -> bool {
        let qp = self.qps.qps.get(&qpn.get());
        qp.is_some_and(|qp| qp.intake != IntakeUse::Closed)
    }

    /// Lets requests be left for a connection that sends, unless that was of no use for long.
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
        let terms = Terms {
            room: roce.send_room(),
            max_inline: roce.capabilities().max_inline,
            takes_reads: roce.takes_reads(),
        };
        qp.intake = IntakeUse::Open { unused };
        self.intake.open(qpn.get(), terms);
        self.open_intakes += 1;
    }
}
