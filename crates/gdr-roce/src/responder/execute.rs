//! A request in its turn: checked in the specification's order, then done.

use super::reply::Reply;
use super::{MAX_DMA_LEN, Message, Receive, Refusal, Responder, check};
use crate::completion::{Completion, WcOpcode, WcStatus};
use crate::key::Key;
use crate::link::{Link, Results};
use crate::memory::{Access, AtomicOp, Extent, Memory};
use crate::scatter;
use crate::wire::{NakCode, Opcode, Packet, Position, Syndrome};

impl Responder {
    /// Serves the packet that is expected, or changes nothing.
    pub(super) fn execute(
        &mut self,
        packet: &Packet<'_>,
        link: &Link,
        memory: &mut dyn Memory,
        results: &mut Results,
    ) -> Result<(), Refusal> {
        let opcode = packet.opcode();
        let in_sequence = match self.message {
            Message::None => opcode.position().is_first(),
            Message::Send { .. } => opcode.is_send() && !opcode.position().is_first(),
            Message::Write { .. } => opcode.is_write() && !opcode.position().is_first(),
        };
        if !in_sequence || opcode.has_ieth() {
            return Err(Refusal::INVALID);
        }
        let needed = match opcode {
            Opcode::ReadRequest => Access::REMOTE_READ,
            Opcode::CompareSwap | Opcode::FetchAdd => Access::REMOTE_ATOMIC,
            _ if opcode.is_write() => Access::REMOTE_WRITE,
            _ => Access::empty(),
        };
        if !self.access.contains(needed) {
            return Err(Refusal::INVALID);
        }
        match opcode {
            Opcode::ReadRequest => self.read(packet, link, memory),
            Opcode::CompareSwap | Opcode::FetchAdd => self.atomic(packet, memory),
            _ => {
                let fits = match opcode.position() {
                    Position::First | Position::Middle => {
                        packet.payload().len() == link.mtu.bytes()
                    }
                    Position::Last => (1..=link.mtu.bytes()).contains(&packet.payload().len()),
                    Position::Only => packet.payload().len() <= link.mtu.bytes(),
                };
                if !fits {
                    return Err(Refusal::INVALID);
                }
                if opcode.is_write() {
                    self.write(packet, memory, results)?;
                } else {
                    self.send(packet, memory, results)?;
                }
                self.acknowledge(packet);
                Ok(())
            }
        }
    }

    /// Counts the packet, and acknowledges when asked or when it is time.
    fn acknowledge(&mut self, packet: &Packet<'_>) {
        if packet.opcode().position().is_last() {
            self.msn = self.msn.wrapping_next();
        }
        let psn = self.expected;
        self.expected = psn.wrapping_add(1);
        self.taken = psn;
        self.unacknowledged += 1;
        if packet.bth().ack_request || self.unacknowledged >= self.ack_every {
            self.unacknowledged = 0;
            self.say(Syndrome::ACK, psn);
        }
    }

    fn send(
        &mut self,
        packet: &Packet<'_>,
        memory: &mut dyn Memory,
        results: &mut Results,
    ) -> Result<(), Refusal> {
        if packet.opcode().position().is_first() {
            let receive = self.receives.pop_front().ok_or(Refusal::ReceiverNotReady)?;
            let usable = scatter::check(memory, &receive.segments, Access::LOCAL_WRITE);
            self.message = Message::Send { receive, placed: 0 };
            usable.map_err(Refusal::local)?;
        }
        let Message::Send { receive, placed } = &mut self.message else {
            return Err(Refusal::INVALID);
        };
        let payload = packet.payload();
        let end = u64::from(*placed) + payload.len() as u64;
        if end > receive.capacity || end > MAX_DMA_LEN.into() {
            return Err(Refusal::Fatal(
                NakCode::InvalidRequest,
                WcStatus::LocalLength,
            ));
        }
        scatter::scatter(memory, &receive.segments, *placed, payload).map_err(Refusal::local)?;
        *placed = end as u32;
        if packet.opcode().position().is_last()
            && let Message::Send { receive, placed } =
                std::mem::replace(&mut self.message, Message::None)
        {
            self.received(packet, receive, WcOpcode::Recv, placed, results);
        }
        Ok(())
    }

    fn write(
        &mut self,
        packet: &Packet<'_>,
        memory: &mut dyn Memory,
        results: &mut Results,
    ) -> Result<(), Refusal> {
        let payload = packet.payload();
        let last = packet.opcode().position().is_last();
        let (key, addr, left, len) = match (&self.message, packet.reth()) {
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
            (_, None) => return Err(Refusal::INVALID),
        };
        if packet.opcode().has_immediate() && self.receives.is_empty() {
            return Err(Refusal::ReceiverNotReady);
        }
        // As many bytes as announced, no fewer, no more.
        let payload_len = payload.len() as u32;
        let fits = if last {
            payload_len == left
        } else {
            payload_len < left
        };
        if !fits || len > MAX_DMA_LEN {
            return Err(Refusal::INVALID);
        }
        if packet.reth().is_some() {
            check(memory, key, Extent { addr, len }, Access::REMOTE_WRITE)
                .map_err(Refusal::remote)?;
        }
        if !payload.is_empty() {
            memory.write(key, addr, payload).map_err(Refusal::remote)?;
        }
        if !last {
            // No overflow: the whole range was checked.
            let addr = addr.wrapping_add(payload_len.into());
            self.message = Message::Write {
                key,
                addr,
                left: left - payload_len,
                len,
            };
            return Ok(());
        }
        self.message = Message::None;
        if packet.opcode().has_immediate()
            && let Some(receive) = self.receives.pop_front()
        {
            self.received(packet, receive, WcOpcode::RecvWriteImmediate, len, results);
        }
        Ok(())
    }

    fn read(
        &mut self,
        packet: &Packet<'_>,
        link: &Link,
        memory: &dyn Memory,
    ) -> Result<(), Refusal> {
        let Some(reth) = packet.reth() else {
            return Err(Refusal::INVALID);
        };
        if self.fresh >= self.max_rd_atomic || reth.dma_len > MAX_DMA_LEN {
            return Err(Refusal::INVALID);
        }
        let (key, extent) = (
            Key::Remote(reth.rkey),
            Extent {
                addr: reth.addr,
                len: reth.dma_len,
            },
        );
        check(memory, key, extent, Access::REMOTE_READ).map_err(Refusal::remote)?;
        let packets = link.mtu.packets(reth.dma_len);
        self.msn = self.msn.wrapping_next();
        self.fresh += 1;
        let psn = self.expected;
        self.answer(Reply::read(psn, key, extent, packets, self.msn, true));
        self.expected = psn.wrapping_add(packets);
        Ok(())
    }

    fn atomic(&mut self, packet: &Packet<'_>, memory: &mut dyn Memory) -> Result<(), Refusal> {
        let Some(atomic) = packet.atomic() else {
            return Err(Refusal::INVALID);
        };
        if self.fresh >= self.max_rd_atomic || !atomic.addr.is_multiple_of(8) {
            return Err(Refusal::INVALID);
        }
        let key = Key::Remote(atomic.rkey);
        let extent = Extent {
            addr: atomic.addr,
            len: 8,
        };
        check(memory, key, extent, Access::REMOTE_ATOMIC).map_err(Refusal::remote)?;
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
        let original = memory
            .atomic(key, atomic.addr, op)
            .map_err(Refusal::remote)?;
        let psn = self.expected;
        if self.atomics.len() >= self.max_rd_atomic {
            self.atomics.pop_front();
        }
        self.atomics.push_back((psn, original));
        self.msn = self.msn.wrapping_next();
        self.fresh += 1;
        self.answer(Reply::Atomic {
            psn,
            original,
            msn: self.msn,
            fresh: true,
        });
        self.expected = psn.wrapping_add(1);
        Ok(())
    }

    /// A receive was used up by a whole message.
    fn received(
        &self,
        packet: &Packet<'_>,
        receive: Receive,
        opcode: WcOpcode,
        byte_len: u32,
        results: &mut Results,
    ) {
        results.completions.push_back(Completion {
            id: receive.id,
            status: WcStatus::Success,
            opcode,
            byte_len,
            immediate: packet.immediate().map(|immediate| immediate.0),
            solicited: packet.bth().solicited,
            qpn: self.qpn,
        });
    }
}
