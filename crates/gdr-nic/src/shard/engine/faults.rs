//! The engine's work under a scenario with faults.

use gdr_chaos::Direction;
use gdr_roce::{Qpn, Time};

use super::{Engine, QUANTUM};
use crate::chaos::{ALARM, Checksum, DEVICE_ALARM, QpChaos};
use crate::shard::memory::{DomainMemory, RegionCache};
use crate::shard::qp_context::QpContext;
use crate::shard::qp_table::Acceptor;
use crate::shard::region_table::Regions;
use crate::wire::memory::Room;
use gdr_udp::UdpWire;

impl Engine {
    /// Handles a timer that belongs to a fault, of a queue pair or of the device.
    #[cold]
    pub(super) fn expire_fault(&mut self, entry: u32, now: Time, regions: &Regions) -> bool {
        if entry == DEVICE_ALARM {
            if let Some(faults) = &self.device.chaos {
                faults.advance(&self.device);
            }
            // The next timer of the device is set when one of them is settled.
            let qpns: Vec<_> = self.qps.qps.keys().copied().collect();
            qpns.into_iter().for_each(|qpn| {
                self.schedule(Qpn::new(qpn));
            });
            return true;
        }
        let qpn = entry & !ALARM;
        let cache = RegionCache::default();
        let Some(qp) = self.qps.get_mut(qpn) else {
            return false;
        };
        if let Some(faults) = &mut qp.chaos {
            let number = Qpn::new(qpn);
            let unfinished = &mut self.unfinished;
            let mut memory = DomainMemory::new(regions, &cache, qp.domain, number, unfinished);
            faults.place(now, &mut memory);
            push_due(faults, now, &mut self.wire);
        }
        self.flush();
        let mut acceptor = Acceptor::new(
            now,
            &self.wire.socket,
            &mut self.qps,
            regions,
            &mut self.unfinished,
            &mut self.counters,
        );
        acceptor.accept_due(qpn);
        self.flush();
        self.schedule(Qpn::new(qpn));
        true
    }

    /// Like [`Engine::transmit_one`], through the faults of the queue pair; or by its ring, which it has only where
    /// packets are captured and nothing strikes.
    #[cold]
    #[inline(never)]
    pub(super) fn transmit_by_chaos(
        &mut self,
        qp: &mut QpContext,
        regions: &Regions,
        now: Time,
        any: &mut bool,
    ) -> bool {
        let Some(mut faults) = qp.chaos.take() else {
            return false;
        };
        let cache = RegionCache::default();
        let number = qp.transport.qpn();
        let mut memory =
            DomainMemory::new(regions, &cache, qp.domain, number, &mut self.unfinished);
        let mut more = true;
        let limit = self.device.send_limit.rate();
        for _ in 0..QUANTUM {
            if qp.ring.is_none() && self.wire.batch.is_blocked() {
                break;
            }
            more = qp.may_transmit() && !faults.is_placing();
            if !more {
                break;
            }
            if let Some(until) = qp.limited_until(&self.device.send_limit, limit, now) {
                self.limited_until = Some(until);
                break;
            }
            if let Some(ring) = qp.ring {
                // The payload is copied into the ring, whether or not the receiver accepts references.
                let room = match self.rings.room(ring, number) {
                    Room::Free { bytes, .. } => bytes,
                    Room::Full => {
                        more = false;
                        break;
                    }
                    Room::Ended => {
                        qp.leave_ring(&self.rings);
                        continue;
                    }
                };
                let Some((len, to)) = qp.poll_transmit(now, &mut memory, room) else {
                    more = false;
                    break;
                };
                *any = true;
                let bytes = len as u64;
                if let Some(device) = &self.device.chaos {
                    let (chaos, own) = (&device.chaos, self.wire.socket.local());
                    chaos.capture(Direction::Out, to, &room[..len], Checksum::Right, own);
                }
                self.rings.push(len);
                self.counters.count_sent_by_memory(bytes);
                self.device.send_limit.count(limit, now, bytes);
                continue;
            }
            let room = self.wire.batch.room();
            let Some((len, to)) = qp.poll_transmit(now, &mut memory, room) else {
                more = false;
                break;
            };
            *any = true;
            self.device.send_limit.count(limit, now, len as u64);
            faults.leave(now, &room[..len], to);
            push_due(&mut faults, now, &mut self.wire);
        }
        qp.chaos = Some(faults);
        more
    }
}

/// Sends the due packets of a queue pair.
fn push_due(faults: &mut QpChaos, now: Time, wire: &mut UdpWire) {
    while let Some(packet) = faults.take_outbound(now) {
        if wire.batch.is_blocked() {
            faults.keep_outbound(packet);
            return;
        }
        faults.capture(Direction::Out, &packet, &wire.socket);
        let len = packet.bytes.len();
        wire.batch.room()[..len].copy_from_slice(&packet.bytes);
        match packet.is_corrupt {
            true => wire.batch.push_corrupt(packet.address, len),
            false => wire.batch.push(packet.address, len),
        }
    }
}
