//! An honest queue pair, and the means to lie to it.

use gdr_roce::wire::{
    AtomicEth, Bth, Headers, ImmDt, MAX_DATAGRAM, NakCode, Opcode, Packet, Reth, Syndrome, icrc,
};
use gdr_roce::{
    Access, Data, Event, HeapMemory, Immediate, Lkey, Operation, PartitionKey, QueuePair, Rkey,
    Segment, SendFlags, SendRequest, State, Time, WrId,
};

use crate::fixture::{BASE, QPNS, Settings, connected, path};

pub(crate) const LEN: usize = 16 << 10;
pub(crate) const MTU: usize = 1024;
pub(crate) const SECRET: u8 = 0x5e;

/// What the liar's packets get back.
#[derive(Debug, PartialEq)]
pub(crate) enum Answer {
    Nothing,
    Said(Syndrome, u32),
    Content(Opcode),
}

pub(crate) const fn nak(code: NakCode, psn: u32) -> Answer {
    Answer::Said(Syndrome::Nak(code), psn)
}

/// An honest queue pair, side 1, that a liar talks to as side 0.
pub(crate) struct Victim {
    pub(crate) qp: QueuePair,
    pub(crate) memory: HeapMemory,
    /// Everything is allowed.
    pub(crate) open: (Lkey, Rkey),
    /// The peer may read only.
    pub(crate) readable: (Lkey, Rkey),
    pub(crate) first: u32,
}

impl Victim {
    pub(crate) fn new() -> Self {
        Self::with(&Settings::default())
    }

    pub(crate) fn with(settings: &Settings) -> Self {
        let mut memory = HeapMemory::new();
        let open = memory.register(BASE, vec![SECRET; LEN], Access::all());
        let readable = Access::REMOTE_READ;
        let readable = memory.register(BASE + (1 << 20), vec![SECRET; LEN], readable);
        let qp = connected(1, settings);
        Self {
            qp,
            memory,
            open,
            readable,
            first: settings.psns[0].get(),
        }
    }

    /// Takes bytes as they come from a socket.
    pub(crate) fn hear(&mut self, datagram: &[u8]) {
        if !icrc::matches(&path(), datagram) {
            return;
        }
        if let Ok(packet) = Packet::new(datagram) {
            self.qp.receive(Time::EPOCH, &packet, &mut self.memory);
        }
    }

    pub(crate) fn answer(&mut self) -> Answer {
        let mut out = [0; MAX_DATAGRAM];
        let Some(len) = self
            .qp
            .poll_transmit(Time::EPOCH, &mut self.memory, &mut out)
        else {
            return Answer::Nothing;
        };
        let packet = Packet::new(&out[..len]).expect("honest");
        match (packet.opcode(), packet.aeth()) {
            (Opcode::Acknowledge, Some(aeth)) => {
                Answer::Said(aeth.syndrome, packet.bth().psn.get())
            }
            (opcode, _) => Answer::Content(opcode),
        }
    }

    pub(crate) fn is_untouched(&self) -> bool {
        [self.open.0, self.readable.0].iter().all(|lkey| {
            self.memory
                .bytes(*lkey)
                .is_some_and(|bytes| bytes.iter().all(|b| *b == SECRET))
        })
    }

    /// The packet is refused for good.
    pub(crate) fn refuses(mut self, datagram: &[u8], code: NakCode) {
        self.hear(datagram);
        assert!(self.is_untouched());
        assert_eq!(self.answer(), nak(code, self.first & 0xff_ffff));
        assert_eq!(self.answer(), Answer::Nothing);
        assert_eq!(self.qp.state(), State::Error);
        let event = if code == NakCode::RemoteAccess {
            Event::AccessViolation
        } else {
            Event::InvalidRequest
        };
        assert_eq!(self.qp.poll_event(), Some(event));
        self.hear(datagram);
        assert_eq!(self.answer(), Answer::Nothing, "it is over");
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

/// A packet that side 1 may take as its peer's; `psn` is counted from the first expected one.
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
