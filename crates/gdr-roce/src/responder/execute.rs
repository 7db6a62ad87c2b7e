//! Execution of the expected request, with the specification's checks in its order.

use super::response::{RequestKind, Response};
use super::{MAX_DMA_LEN, Message, Nak, ReadRecord, Responder, check};
use crate::completion::{Completion, WcOpcode, WcStatus};
use crate::connection::{Connection, Notifications, Reliability};
use crate::ids::Key;
use crate::memory::{Access, AccessError, AtomicOp, Extent, Memory};
use crate::payload::MOST_MERGED;
use crate::receive_queue::RecvWqe;
use crate::sge;
use crate::wire::{Feth, Ieth, NakCode, Opcode, Packet, Position, Syndrome, XrcEth};

impl Responder {
    /// Executes the expected packet, or queues a NAK. Returns whether it was executed; otherwise the expected PSN does
    /// not advance.
    pub(super) fn execute_expected(
        &mut self,
        packet: &Packet<'_>,
        connection: &Connection,
        memory: &mut dyn Memory,
        notifications: &mut Notifications,
    ) -> bool {
        let (psn, opcode) = (self.expected_psn, packet.opcode());
        // The expected packet has arrived, so the next gap may be reported.
        self.nak_sent = false;
        let checked = self
            .check_sequence_and_access(opcode)
            .and_then(|()| self.select_receives(packet, connection));
        let executed = match (checked, opcode) {
            (Err(nak), _) => Err(nak),
            (Ok(()), Opcode::ReadRequest) => self.read(packet, connection, memory),
            (Ok(()), Opcode::CompareSwap | Opcode::FetchAdd) => self.atomic(packet, memory),
            (Ok(()), Opcode::AtomicWrite) => self.atomic_write(packet, memory),
            (Ok(()), Opcode::Flush) => self.flush_range(packet, memory),
            (Ok(()), _) => self
                .place(packet, connection, memory, notifications)
                .map(|()| self.acknowledge(packet, connection)),
        };
        match executed {
            Ok(()) => return true,
            // Neither an answer nor an error: the owner passes the packet in again once its bytes are copied.
            Err(Nak::NotYet) => {}
            Err(Nak::ReceiverNotReady) => {
                // One NAK is enough: what follows the packet was sent before the peer saw the NAK, and is retransmitted
                // with it.
                self.send_nak(Syndrome::ReceiverNotReady(self.rnr_timer));
            }
            Err(Nak::Fatal(code, status)) => {
                // Queued after the responses to earlier requests, because the peer treats a NAK as the answer to
                // everything before it.
                self.fatal_nak_queued = true;
                self.responses
                    .push_back(Response::FatalNak { psn, code, status });
            }
        }
        false
    }

    /// Checks that the packet continues the message in progress, or starts one if there is none, and that the queue
    /// pair permits its operation.
    pub(super) fn check_sequence_and_access(&self, opcode: Opcode) -> Result<(), Nak> {
        let in_sequence = match self.message {
            Message::None => opcode.position().is_first(),
            Message::Send { .. } => opcode.is_send() && !opcode.position().is_first(),
            Message::Write { .. } => opcode.is_write() && !opcode.position().is_first(),
        };
        if !in_sequence {
            return Err(Nak::INVALID);
        }
        let needed = match opcode {
            Opcode::ReadRequest => Access::REMOTE_READ,
            Opcode::CompareSwap | Opcode::FetchAdd => Access::REMOTE_ATOMIC,
            Opcode::AtomicWrite => Access::REMOTE_WRITE,
            _ if opcode.is_write() => Access::REMOTE_WRITE,
            _ => Access::empty(),
        };
        // An operation that the queue pair does not permit is an invalid request; access errors concern regions.
        if self.access.contains(needed) {
            Ok(())
        } else {
            Err(Nak::INVALID)
        }
    }

    /// Selects the shared receive queue of an extended connection's message, which its first packet determines.
    fn select_receives(&mut self, packet: &Packet<'_>, connection: &Connection) -> Result<(), Nak> {
        if connection.reliability != Reliability::Extended || !packet.opcode().position().is_first()
        {
            return Ok(());
        }
        match packet.xrceth() {
            Some(XrcEth(number)) if self.receives.select(number) => Ok(()),
            _ => Err(Nak::INVALID),
        }
    }

    /// Places a packet of a SEND or WRITE.
    pub(super) fn place(
        &mut self,
        packet: &Packet<'_>,
        connection: &Connection,
        memory: &mut dyn Memory,
        notifications: &mut Notifications,
    ) -> Result<(), Nak> {
        let (opcode, len) = (packet.opcode(), packet.contents().len());
        let packets = packet.contents().packets(connection.mtu);
        let most = packets as usize * connection.mtu.bytes();
        // Only the last packet of a message may be short, and only a single-packet message may be empty: the peer
        // counts PSNs by full packets.
        let fits = match opcode.position() {
            Position::First | Position::Middle => len == most,
            Position::Last => (1..=most).contains(&len),
            Position::Only => len <= most,
        };
        // Bounds how far a single packet can advance the expected PSN.
        if !fits || packets > MOST_MERGED {
            return Err(Nak::INVALID);
        }
        if opcode.is_write() {
            self.write(packet, memory, notifications)
        } else {
            self.send(packet, memory, notifications)
        }
    }

    /// Advances the expected PSN. Queues an acknowledgement if the peer requests one or the interval has elapsed.
    fn acknowledge(&mut self, packet: &Packet<'_>, connection: &Connection) {
        if packet.opcode().position().is_last() {
            self.msn = self.msn.wrapping_next();
        }
        let packets = packet.contents().packets(connection.mtu);
        // A packet that stands for several uses as many PSNs, and is acknowledged with the last one.
        let psn = self.expected_psn.wrapping_add(packets - 1);
        self.expected_psn = psn.wrapping_add(1);
        self.duplicate_ack_psn = psn;
        self.unacknowledged += packets;
        // A peer that never requests one would fill its window and wait for its timer.
        if packet.bth().ack_request || self.unacknowledged >= self.ack_interval {
            self.unacknowledged = 0;
            self.send_ack(Syndrome::ACK, psn);
        }
    }

    fn send(
        &mut self,
        packet: &Packet<'_>,
        memory: &mut dyn Memory,
        notifications: &mut Notifications,
    ) -> Result<(), Nak> {
        let invalidated = packet.invalidate().map(|Ieth(rkey)| rkey);
        // READs through this key that are already queued are sent first; meanwhile the peer retries the SEND.
        if invalidated.is_some_and(|rkey| self.is_read_by(Key::Remote(rkey))) {
            return Err(Nak::ReceiverNotReady);
        }
        if packet.opcode().position().is_first() {
            let receive = self.receives.take().ok_or(Nak::ReceiverNotReady)?;
            self.message = Message::Send { receive, placed: 0 };
        }
        let Message::Send { receive, placed } = &mut self.message else {
            return Err(Nak::INVALID);
        };
        let payload = packet.contents();
        let end = u64::from(*placed) + payload.len() as u64;
        // The sender's request is invalid while the receiver's buffer is too short, so each side gets its own status.
        if end > receive.capacity || end > MAX_DMA_LEN.into() {
            return Err(Nak::Fatal(NakCode::InvalidRequest, WcStatus::LocalLength));
        }
        // The message length is known only from the last packet, so segments beyond it are not checked. Each packet is
        // placed as a whole or not at all.
        let segments = &receive.segments;
        let stored = sge::check(
            memory,
            segments,
            *placed,
            payload.len(),
            Access::LOCAL_WRITE,
        )
        .and_then(|()| sge::scatter(memory, segments, *placed, payload));
        if stored == Err(AccessError::NotYet) && packet.opcode().position().is_first() {
            // When passed in again, the packet takes the same receive.
            self.put_back();
            return Err(Nak::NotYet);
        }
        stored.map_err(Nak::local)?;
        *placed = end as u32;
        if let Some(rkey) = invalidated {
            memory.invalidate(rkey).map_err(|_| Nak::INVALID)?;
        }
        if packet.opcode().position().is_last()
            && let Message::Send { receive, placed } =
                std::mem::replace(&mut self.message, Message::None)
        {
            self.complete_receive(packet, receive, WcOpcode::Recv, placed, notifications);
        }
        Ok(())
    }

    fn write(
        &mut self,
        packet: &Packet<'_>,
        memory: &mut dyn Memory,
        notifications: &mut Notifications,
    ) -> Result<(), Nak> {
        // Before any byte is placed: without a receive the packet is not executed.
        let receive = match packet.opcode().has_immediate() {
            true => Some(self.receives.take().ok_or(Nak::ReceiverNotReady)?),
            false => None,
        };
        match (self.place_write(packet, memory), receive) {
            (Ok(len), Some(receive)) => {
                let opcode = WcOpcode::RecvWriteImmediate;
                self.complete_receive(packet, receive, opcode, len, notifications);
                Ok(())
            }
            (Ok(_), None) => Ok(()),
            (Err(nak), receive) => {
                if let Some(receive) = receive {
                    self.receives.put_back(receive);
                }
                Err(nak)
            }
        }
    }

    /// Places the payload of a WRITE. Returns the length of the message.
    fn place_write(&mut self, packet: &Packet<'_>, memory: &mut dyn Memory) -> Result<u32, Nak> {
        let payload = packet.contents();
        let last = packet.opcode().position().is_last();
        let reth = packet.reth();
        let (key, addr, left, len) = match (&self.message, reth) {
            (
                Message::Write {
                    key,
                    addr,
                    left,
                    len,
                },
                _,
            ) => (*key, *addr, *left, *len),
            (_, Some(reth)) => (
                Key::Remote(reth.rkey),
                reth.addr,
                reth.dma_len,
                reth.dma_len,
            ),
            (_, None) => return Err(Nak::INVALID),
        };
        // Payload lengths must add up to the RETH's DMA length.
        let payload_len = payload.len() as u32;
        let fits = if last {
            payload_len == left
        } else {
            payload_len < left
        };
        if !fits || len > MAX_DMA_LEN {
            return Err(Nak::INVALID);
        }
        // Once for the whole message, so that a WRITE that goes out of bounds places nothing.
        if reth.is_some() {
            check(memory, key, Extent { addr, len }, Access::REMOTE_WRITE).map_err(Nak::remote)?;
        }
        // An empty WRITE needs no valid key (IBTA C9-88), so the memory must not see the key.
        if !payload.is_empty() {
            payload
                .store(memory, key, addr, left)
                .map_err(Nak::remote)?;
        }
        self.message = if last {
            self.served.writes += 1;
            self.served.written_bytes += u64::from(len);
            Message::None
        } else {
            Message::Write {
                key,
                // In bounds: the whole range was checked.
                addr: addr.wrapping_add(payload_len.into()),
                left: left - payload_len,
                len,
            }
        };
        Ok(len)
    }

    fn read(
        &mut self,
        packet: &Packet<'_>,
        connection: &Connection,
        memory: &dyn Memory,
    ) -> Result<(), Nak> {
        let Some(reth) = packet.reth() else {
            return Err(Nak::INVALID);
        };
        // The peer exceeds the negotiated limit; nothing else bounds the queue of responses.
        if self.outstanding_reads() >= self.max_rd_atomic || reth.dma_len > MAX_DMA_LEN {
            return Err(Nak::INVALID);
        }
        let (key, extent) = (
            Key::Remote(reth.rkey),
            Extent {
                addr: reth.addr,
                len: reth.dma_len,
            },
        );
        check(memory, key, extent, Access::REMOTE_READ).map_err(Nak::remote)?;
        let packets = connection.mtu.packets(reth.dma_len);
        self.respond(key, extent, packets);
        Ok(())
    }

    /// Queues the responses to a READ, or to a request that is answered like an empty one.
    fn respond(&mut self, key: Key, extent: Extent, packets: u32) {
        self.msn = self.msn.wrapping_next();
        let psn = self.expected_psn;
        // A peer repeats only outstanding READs, and may have only so many.
        if self.reads.len() >= self.max_rd_atomic {
            self.reads.pop_front();
        }
        self.reads.push_back(ReadRecord {
            psn,
            packets,
            key,
            extent,
        });
        self.queue_response(Response::read(
            psn,
            key,
            extent,
            packets,
            self.msn,
            RequestKind::New,
        ));
        // Responses use the request's PSNs, one each; the next request follows them.
        self.expected_psn = psn.wrapping_add(packets);
    }

    /// Executes an atomic WRITE of eight bytes.
    fn atomic_write(&mut self, packet: &Packet<'_>, memory: &mut dyn Memory) -> Result<(), Nak> {
        let (contents, Some(reth)) = (packet.contents(), packet.reth()) else {
            return Err(Nak::INVALID);
        };
        let is_word = contents.len() == 8 && reth.dma_len == 8 && reth.addr.is_multiple_of(8);
        if self.outstanding_reads() >= self.max_rd_atomic || !is_word {
            return Err(Nak::INVALID);
        }
        let (key, addr) = (Key::Remote(reth.rkey), reth.addr);
        check(memory, key, Extent { addr, len: 8 }, Access::REMOTE_WRITE).map_err(Nak::remote)?;
        contents.store(memory, key, addr, 8).map_err(Nak::remote)?;
        self.respond(key, Extent { addr, len: 0 }, 1);
        Ok(())
    }

    /// Checks a FLUSH. Writes are visible before any response leaves, so there is nothing else to do.
    fn flush_range(&mut self, packet: &Packet<'_>, memory: &dyn Memory) -> Result<(), Nak> {
        let (Some(feth), Some(reth)) = (packet.feth(), packet.reth()) else {
            return Err(Nak::INVALID);
        };
        let mut access = Access::empty();
        access.set(Access::FLUSH_GLOBAL, feth.global);
        access.set(Access::FLUSH_PERSISTENT, feth.persistent);
        let is_full = self.outstanding_reads() >= self.max_rd_atomic;
        if is_full || access.is_empty() || !self.access.contains(access) {
            return Err(Nak::INVALID);
        }
        let (key, addr) = (Key::Remote(reth.rkey), reth.addr);
        let extent = Extent {
            addr,
            len: reth.dma_len,
        };
        match feth.selectivity {
            Feth::RANGE => check(memory, key, extent, access),
            Feth::REGION => memory.check_region(key, access),
            _ => return Err(Nak::INVALID),
        }
        .map_err(Nak::remote)?;
        self.respond(key, Extent { addr, len: 0 }, 1);
        Ok(())
    }

    fn atomic(&mut self, packet: &Packet<'_>, memory: &mut dyn Memory) -> Result<(), Nak> {
        let Some(atomic) = packet.atomic() else {
            return Err(Nak::INVALID);
        };
        // The bit shows that the peer runs this crate, which allows more than the program sets.
        let most = match packet.bth().filled {
            true => self.most_atomics(),
            false => self.max_rd_atomic,
        };
        if self.outstanding_reads() >= most || !atomic.addr.is_multiple_of(8) {
            return Err(Nak::INVALID);
        }
        let key = Key::Remote(atomic.rkey);
        let extent = Extent {
            addr: atomic.addr,
            len: 8,
        };
        check(memory, key, extent, Access::REMOTE_ATOMIC).map_err(Nak::remote)?;
        let op = if packet.opcode() == Opcode::CompareSwap {
            AtomicOp::CompareSwap {
                compare: atomic.compare,
                swap: atomic.swap_or_add,
            }
        } else {
            AtomicOp::FetchAdd {
                add: atomic.swap_or_add,
            }
        };
        // Recorded before it is answered: a repeated request must get this result rather than be executed again (IBTA
        // 9.4.5).
        let original = memory.atomic(key, atomic.addr, op).map_err(Nak::remote)?;
        let psn = self.expected_psn;
        if self.atomics.len() >= self.most_atomics() {
            self.atomics.pop_front();
        }
        self.atomics.push_back((psn, original));
        self.msn = self.msn.wrapping_next();
        self.queue_response(Response::Atomic {
            psn,
            original,
            msn: self.msn,
            request: RequestKind::New,
        });
        self.expected_psn = psn.wrapping_add(1);
        Ok(())
    }

    /// Completes a receive successfully.
    fn complete_receive(
        &self,
        packet: &Packet<'_>,
        receive: RecvWqe,
        opcode: WcOpcode,
        byte_len: u32,
        notifications: &mut Notifications,
    ) {
        notifications.completions.push_back(Completion {
            id: receive.id,
            status: WcStatus::Success,
            opcode,
            byte_len,
            immediate: packet.immediate().map(|immediate| immediate.0),
            invalidated: packet.invalidate().map(|Ieth(rkey)| rkey),
            time: None,
            solicited: packet.bth().solicited,
            qpn: self.qpn,
            source_qpn: None,
            has_network_header: true,
            ip_checksum_ok: false,
        });
    }
}
