//! What the peer answered.

use super::Requester;
use crate::completion::WcStatus;
use crate::link::{Broken, Link, Results};
use crate::memory::Memory;
use crate::psn::Psn;
use crate::request::{Operation, SendFlags};
use crate::timer::{RnrTimer, Time};
use crate::wire::{NakCode, Packet, Syndrome};

impl Requester {
    /// Takes an acknowledgement or an answer with content.
    pub(crate) fn receive(
        &mut self,
        now: Time,
        packet: &Packet<'_>,
        link: &Link,
        memory: &mut dyn Memory,
        results: &mut Results,
    ) -> Result<(), Broken> {
        let psn = packet.bth().psn;
        if psn.distance_from(self.una) >= self.highest.distance_from(self.una) {
            // An answer to what was answered before, or to nothing that was ever sent.
            return Ok(());
        }
        if packet.opcode().is_read_response() {
            return self.content(now, psn, packet.payload(), link, memory, results);
        }
        if let Some(ack) = packet.atomic_ack() {
            return self.content(now, psn, &ack.original.to_ne_bytes(), link, memory, results);
        }
        let Some(aeth) = packet.aeth() else {
            return Ok(());
        };
        match aeth.syndrome {
            Syndrome::Ack { .. } => {
                let end = psn.wrapping_add(1);
                self.acknowledge(now, end, results)?;
                // A READ before it was not answered: its answer is lost.
                if self.una == end {
                    Ok(())
                } else {
                    self.lost(results)
                }
            }
            Syndrome::Nak(NakCode::SequenceError) => {
                self.acknowledge(now, psn, results)?;
                self.lost(results)
            }
            Syndrome::Nak(code) => {
                self.acknowledge(now, psn, results)?;
                if self.una != psn {
                    return self.lost(results);
                }
                let status = match code {
                    NakCode::RemoteAccess => WcStatus::RemoteAccess,
                    NakCode::RemoteOperation => WcStatus::RemoteOperation,
                    NakCode::InvalidRequest | NakCode::SequenceError => {
                        WcStatus::RemoteInvalidRequest
                    }
                };
                self.fail(status, results)
            }
            Syndrome::ReceiverNotReady(timer) => {
                self.acknowledge(now, psn, results)?;
                if self.una != psn {
                    return self.lost(results);
                }
                self.receiver_not_ready(now, timer, results)
            }
            Syndrome::Reserved(_) => Ok(()),
        }
    }

    /// Takes everything before `end` as done, up to the first READ or atomic whose answer is
    /// still missing. `end` was sent.
    fn acknowledge(&mut self, now: Time, end: Psn, results: &mut Results) -> Result<(), Broken> {
        let before = self.una;
        while self.una != end {
            let Some(entry) = self.queue.front() else {
                break;
            };
            let Some(first) = entry.first else {
                break;
            };
            if entry.needs_answer() {
                break;
            }
            let entry_end = first.wrapping_add(entry.packets);
            if entry_end.distance_from(self.una) > end.distance_from(self.una) {
                self.una = end;
                break;
            }
            self.una = entry_end;
            self.complete(results);
        }
        if self.una == before {
            Ok(())
        } else {
            self.progress(now, before, results)
        }
    }

    /// Places a packet of a READ's or an atomic's answer.
    fn content(
        &mut self,
        now: Time,
        psn: Psn,
        bytes: &[u8],
        link: &Link,
        memory: &mut dyn Memory,
        results: &mut Results,
    ) -> Result<(), Broken> {
        // An answer says that everything before it was done.
        self.acknowledge(now, psn, results)?;
        if self.una != psn {
            return self.lost(results);
        }
        let Some(entry) = self.queue.front_mut() else {
            return Ok(());
        };
        let (offset, expected) = match entry.operation {
            Operation::Read { .. } => {
                let mtu = link.mtu.bytes() as u32;
                let offset = entry.answered * mtu;
                (offset, (entry.len - offset).min(mtu))
            }
            Operation::Atomic { .. } => (0, entry.len),
            // It answers a question that was not asked.
            Operation::Send { .. } | Operation::Write { .. } => return Ok(()),
        };
        if bytes.len() != expected as usize {
            return self.fail(WcStatus::BadResponse, results);
        }
        if entry.place(memory, offset, bytes).is_err() {
            return self.fail(WcStatus::LocalProtection, results);
        }
        entry.answered += 1;
        let done = entry.answered == entry.packets;
        let before = self.una;
        self.una = before.wrapping_add(1);
        if done {
            self.complete(results);
        }
        self.progress(now, before, results)
    }

    /// The first request of the queue is done.
    fn complete(&mut self, results: &mut Results) {
        if let Some(entry) = self.queue.pop_front() {
            self.cursor = self.cursor.saturating_sub(1);
            if entry.flags.contains(SendFlags::SIGNALLED) {
                results
                    .completions
                    .push_back(entry.completion(WcStatus::Success, self.qpn));
            }
        }
    }

    /// `una` moved on from `before`.
    fn progress(&mut self, now: Time, before: Psn, results: &mut Results) -> Result<(), Broken> {
        let moved = self.una.distance_from(before);
        if self.next.distance_from(before) < moved {
            // What was about to be sent again has been answered meanwhile.
            self.next = self.una;
            self.cursor = 0;
        }
        while self
            .reads
            .front()
            .is_some_and(|last| last.distance_from(before) < moved)
        {
            self.reads.pop_front();
        }
        self.recovering = false;
        self.retries_left = self.attributes.retry_count.get();
        self.rnr_retries_left = self.attributes.rnr_retry.times();
        self.wait_until = None;
        self.retransmit_at = match self.attributes.timeout.duration() {
            Some(wait) if self.una != self.highest => Some(now + wait),
            _ => None,
        };
        match self.queue.front().and_then(|entry| entry.failed) {
            Some(status) => self.fail(status, results),
            None => Ok(()),
        }
    }

    /// A packet was lost, on one way or the other.
    fn lost(&mut self, results: &mut Results) -> Result<(), Broken> {
        if self.recovering {
            Ok(())
        } else {
            self.retry(results)
        }
    }

    fn receiver_not_ready(
        &mut self,
        now: Time,
        timer: RnrTimer,
        results: &mut Results,
    ) -> Result<(), Broken> {
        if self.wait_until.is_some() {
            return Ok(());
        }
        match &mut self.rnr_retries_left {
            Some(0) => return self.fail(WcStatus::RnrRetryExceeded, results),
            Some(left) => *left -= 1,
            None => {}
        }
        self.go_back();
        self.wait_until = Some(now + timer.duration());
        Ok(())
    }
}
