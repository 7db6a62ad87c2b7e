//! The queue pair under attack, and the packets of the hostile peer.

use gdr_roce::wire::{
    AtomicEth, Bth, Headers, ImmDt, MAX_DATAGRAM, NakCode, Opcode, Packet, Reth, Syndrome, icrc,
};
use gdr_roce::{
    Access, Data, Event, HeapMemory, Immediate, Lkey, Operation, PacketBudget, PartitionKey, Psn,
    QueuePair, Rkey, Segment, SendFlags, SendRequest, State, Time, WrId,
};

use crate::fixture::{BASE, QPNS, Settings, connect, path};

pub(crate) const LEN: usize = 16 << 10;
pub(crate) const MTU: usize = 1024;
pub(crate) const SECRET: u8 = 0x5e;

/// A packet sent by the target.
#[derive(Debug, PartialEq)]
pub(crate) enum Sent {
    Nothing,
    Ack(Syndrome, u32),
    Packet(Opcode),
}

pub(crate) const fn nak(code: NakCode, psn: u32) -> Sent {
    Sent::Ack(Syndrome::Nak(code), psn)
}

/// A queue pair in the role of side 1. The hostile peer acts as side 0.
pub(crate) struct Target {
    pub(crate) qp: QueuePair,
    pub(crate) memory: HeapMemory,
    /// A region with all access rights.
    pub(crate) open: (Lkey, Rkey),
    /// A region that permits only remote reads.
    pub(crate) readable: (Lkey, Rkey),
    /// The first PSN expected by the target.
    pub(crate) first: u32,
}

impl Target {
    pub(crate) fn new() -> Self {
        Self::with(&Settings::default())
    }

    pub(crate) fn with(settings: &Settings) -> Self {
        Self::with_budget(settings, &PacketBudget::default())
    }

    pub(crate) fn with_budget(settings: &Settings, budget: &PacketBudget) -> Self {
        let mut memory = HeapMemory::new();
        let open = memory.register(BASE, vec![SECRET; LEN], Access::all());
        let readable = Access::REMOTE_READ;
        let readable = memory.register(BASE + (1 << 20), vec![SECRET; LEN], readable);
        let qp = QueuePair::with_config(QPNS[1], settings.caps, settings.config);
        let qp = connect(qp.with_packet_budget(budget), QPNS[0], 1, settings);
        Self {
            qp,
            memory,
            open,
            readable,
            first: settings.psns[0].get(),
        }
    }

    /// Connects the queue pair, which must be in RESET.
    pub(crate) fn connect_again(&mut self, settings: &Settings) {
        let fresh = QueuePair::new(QPNS[1], settings.caps);
        let reset = std::mem::replace(&mut self.qp, fresh);
        self.qp = connect(reset, QPNS[0], 1, settings);
    }

    /// Receives a datagram, as from a socket.
    pub(crate) fn receive(&mut self, datagram: &[u8]) {
        self.receive_at(Time::EPOCH, datagram);
    }

    pub(crate) fn receive_at(&mut self, now: Time, datagram: &[u8]) {
        if !icrc::matches(&path(), datagram) {
            return;
        }
        if let Ok(packet) = Packet::new(datagram) {
            self.qp.receive(now, &packet, &mut self.memory);
        }
    }

    pub(crate) fn poll(&mut self) -> Sent {
        let mut out = [0; MAX_DATAGRAM];
        let Some(len) = self
            .qp
            .poll_transmit(Time::EPOCH, &mut self.memory, &mut out)
        else {
            return Sent::Nothing;
        };
        let packet = Packet::new(&out[..len]).expect("valid packet");
        match (packet.opcode(), packet.aeth()) {
            (Opcode::Acknowledge, Some(aeth)) => Sent::Ack(aeth.syndrome, packet.bth().psn.get()),
            (opcode, _) => Sent::Packet(opcode),
        }
    }

    /// Returns the PSN of the next packet that is sent at `now`.
    pub(crate) fn poll_psn_at(&mut self, now: Time) -> Option<Psn> {
        let mut out = [0; MAX_DATAGRAM];
        let len = self.qp.poll_transmit(now, &mut self.memory, &mut out)?;
        let packet = Packet::new(&out[..len]).expect("valid packet");
        Some(packet.bth().psn)
    }

    pub(crate) fn is_untouched(&self) -> bool {
        [self.open.0, self.readable.0].iter().all(|lkey| {
            self.memory
                .bytes(*lkey)
                .is_some_and(|bytes| bytes.iter().all(|b| *b == SECRET))
        })
    }

    /// Asserts that the target answers the datagram with a NAK, enters ERR and places nothing.
    pub(crate) fn assert_nak(mut self, datagram: &[u8], code: NakCode) {
        self.receive(datagram);
        assert!(self.is_untouched());
        assert_eq!(self.poll(), nak(code, self.first & 0xff_ffff));
        assert_eq!(self.poll(), Sent::Nothing);
        assert_eq!(self.qp.state(), State::Error);
        let event = if code == NakCode::RemoteAccess {
            Event::AccessViolation
        } else {
            Event::InvalidRequest
        };
        assert_eq!(self.qp.poll_event(), Some(event));
        self.receive(datagram);
        assert_eq!(self.poll(), Sent::Nothing, "nothing is sent in ERR");
    }

    pub(crate) fn post(&mut self, operation: Operation, len: u32) {
        let segments = [Segment {
            lkey: self.open.0,
            addr: BASE,
            len,
        }];
        let request = SendRequest {
            id: WrId(1),
            operation,
            data: Data::Segments(&segments),
            flags: SendFlags::SIGNALLED,
        };
        self.qp.post_send(&request).expect("room");
    }
}

/// Returns the headers of a packet from side 0; `psn` counts from the first expected one.
pub(crate) fn headers(opcode: Opcode, psn: u32) -> Headers {
    let bth = Bth {
        opcode: opcode.byte(),
        solicited: false,
        migrated: true,
        pad: 0,
        version: 0,
        partition: PartitionKey::DEFAULT,
        fecn: false,
        becn: false,
        dest_qpn: QPNS[1],
        ack_request: true,
        filled: false,
        psn: Settings::default().psns[0].wrapping_add(psn),
    };
    Headers::new(opcode, bth)
}

pub(crate) fn seal(headers: &Headers, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; headers.datagram_len(payload.len())];
    let at = headers.emit(payload.len(), &mut bytes);
    bytes[at..at + payload.len()].copy_from_slice(payload);
    icrc::seal(&path(), &mut bytes);
    bytes
}

pub(crate) fn reth(
    opcode: Opcode,
    psn: u32,
    rkey: Rkey,
    addr: u64,
    dma_len: u32,
    payload: usize,
) -> Vec<u8> {
    let reth = Some(Reth {
        addr,
        rkey,
        dma_len,
    });
    seal(
        &Headers {
            reth,
            ..headers(opcode, psn)
        },
        &vec![0xbb; payload],
    )
}

pub(crate) fn plain(opcode: Opcode, psn: u32, payload: usize) -> Vec<u8> {
    let immediate = Some(ImmDt(Immediate(1)));
    seal(
        &Headers {
            immediate,
            ..headers(opcode, psn)
        },
        &vec![0xbb; payload],
    )
}

pub(crate) fn atomic(psn: u32, rkey: Rkey, addr: u64) -> Vec<u8> {
    let atomic = Some(AtomicEth {
        addr,
        rkey,
        swap_or_add: 1,
        compare: 0,
    });
    seal(
        &Headers {
            atomic,
            ..headers(Opcode::FetchAdd, psn)
        },
        &[],
    )
}
