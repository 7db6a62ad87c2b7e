//! Packets of a peer that may send anything, against a queue pair that is at work.
//!
//! Whatever comes, every request ends exactly once and no byte outside the one open region is
//! placed.

#![no_main]

use std::time::Duration;

use arbitrary::Arbitrary;
use gdr_roce::wire::{
    Aeth, AtomicAckEth, AtomicEth, Headers, MAX_DATAGRAM, Opcode, Packet, Reth, Syndrome, XrcEth,
};
use gdr_roce::{
    Access, AckTimeout, AtomicOp, Capabilities, Data, HeapMemory, Lkey, Msn, Mtu, Operation, Psn,
    Qpn, QueuePair, RecvRequest, Remote, RetryCount, RetryLimit, Rkey, RnrRetry, RnrTimer,
    RtrAttributes, RtsAttributes, Segment, SendFlags, SendRequest, SharedReceiveQueue, Time,
    TransportConfig, WrId, XrcDomain, XrcSrqn,
};
use libfuzzer_sys::fuzz_target;

const LEN: usize = 4096;
const OWN: Qpn = Qpn::new(5);
const SECRET: u8 = 0x5e;
/// The shared receive queue of an extended connection.
const NUMBER: u32 = 3;

#[derive(Arbitrary, Debug)]
enum Step {
    /// Arbitrary bytes.
    Raw(Vec<u8>),
    /// A packet with right lengths, and numbers that are near the right ones.
    Near {
        opcode: u8,
        psn: u8,
        ack_request: bool,
        wild_key: Option<u32>,
        addr: u16,
        dma_len: u16,
        syndrome: u8,
        payload: u16,
    },
    Send {
        kind: u8,
        len: u16,
        flags: u8,
    },
    Receive {
        len: u16,
    },
    Transmit {
        packets: u8,
    },
    Wait {
        millis: u8,
    },
}

struct Victim {
    qp: QueuePair,
    /// Where an extended connection has its receives.
    named: Option<SharedReceiveQueue>,
    memory: HeapMemory,
    open: (Lkey, Rkey),
    secret: Lkey,
    now: Time,
    posted: usize,
    ended: usize,
}

fn victim(is_extended: bool) -> Victim {
    let mut memory = HeapMemory::new();
    let open = memory.register(0, vec![0; LEN], Access::all());
    let (secret, _) = memory.register(LEN as u64, vec![SECRET; LEN], Access::REMOTE_READ);
    let caps = Capabilities {
        max_send_wr: 16,
        max_recv_wr: 16,
        max_inline: 16,
    };
    let named = is_extended.then(|| SharedReceiveQueue::new(16));
    let mut qp = match &named {
        None => QueuePair::new(OWN, caps),
        Some(queue) => {
            let domain = XrcDomain::new();
            domain.insert(XrcSrqn::new(NUMBER), queue);
            QueuePair::target(OWN, TransportConfig::default(), &domain)
        }
    };
    qp.to_init(Access::all()).expect("from RESET");
    qp.to_rtr(&RtrAttributes {
        dest_qpn: Qpn::new(6),
        rq_psn: Psn::new(0),
        path_mtu: Mtu::B256,
        max_dest_rd_atomic: 4,
        min_rnr_timer: RnrTimer::new(1),
    })
    .expect("from INIT");
    qp.to_rts(&RtsAttributes {
        sq_psn: Psn::new(0),
        timeout: AckTimeout::new(8),
        retry_limit: RetryLimit::Count(RetryCount::new(2)),
        rnr_retry: RnrRetry::new(2),
        max_rd_atomic: 4,
    })
    .expect("from RTR");
    Victim {
        qp,
        named,
        memory,
        open,
        secret,
        now: Time::EPOCH,
        posted: 0,
        ended: 0,
    }
}

impl Victim {
    fn hear(&mut self, bytes: &[u8]) {
        if let Ok(packet) = Packet::new(bytes) {
            self.qp.receive(self.now, &packet, &mut self.memory);
        }
    }

    fn transmit(&mut self, packets: u8) {
        let mut out = [0; MAX_DATAGRAM];
        for _ in 0..packets {
            let Some(len) = self.qp.poll_transmit(self.now, &mut self.memory, &mut out) else {
                break;
            };
            Packet::new(&out[..len]).expect("what is sent can be read");
        }
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Raw(bytes) => self.hear(bytes),
            Step::Near {
                opcode,
                psn,
                ack_request,
                wild_key,
                addr,
                dma_len,
                syndrome,
                payload,
            } => {
                let opcode = Opcode::ALL[usize::from(*opcode) % Opcode::ALL.len()];
                let blank = [0; 16];
                let parsed = Packet::new(&blank).expect("SEND first of no bytes");
                let mut headers = Headers::new(opcode, *parsed.bth());
                // An extended connection names its receives as well.
                headers.xrceth = Some(XrcEth(XrcSrqn::new(u32::from(*psn) % (NUMBER + 1))));
                if opcode.is_of_connection() {
                    headers.bth.opcode = self.qp.reliability().byte(opcode);
                }
                headers.bth.partition = gdr_roce::PartitionKey::DEFAULT;
                headers.bth.dest_qpn = OWN;
                headers.bth.ack_request = *ack_request;
                headers.bth.psn = Psn::new(u32::from(*psn).wrapping_sub(32));
                let rkey = wild_key.map_or(self.open.1, Rkey);
                let (addr, dma_len) = (u64::from(*addr) % (LEN as u64 + 64), (*dma_len).into());
                headers.reth = Some(Reth {
                    addr,
                    rkey,
                    dma_len,
                });
                headers.atomic = Some(AtomicEth {
                    addr,
                    rkey,
                    swap_or_add: 1,
                    compare: 0,
                });
                headers.aeth = Some(Aeth {
                    syndrome: Syndrome::from_byte(*syndrome),
                    msn: Msn::new(0),
                });
                headers.atomic_ack = Some(AtomicAckEth { original: 7 });
                let payload = if opcode.has_payload() {
                    usize::from(*payload) % 300
                } else {
                    0
                };
                let mut bytes = vec![0xbb; headers.datagram_len(payload)];
                headers.emit(payload, &mut bytes);
                self.hear(&bytes);
            }
            Step::Send { kind, len, flags } => {
                let remote = Remote {
                    rkey: Rkey(1),
                    addr: 0,
                };
                let operation = match kind % 4 {
                    0 => Operation::Send { immediate: None },
                    1 => Operation::Write {
                        remote,
                        immediate: None,
                    },
                    2 => Operation::Read { remote },
                    _ => Operation::Atomic {
                        remote,
                        op: AtomicOp::FetchAdd { add: 1 },
                    },
                };
                let len = if kind % 4 == 3 { 8 } else { (*len).into() };
                let segments = [Segment {
                    lkey: self.open.0,
                    addr: 0,
                    len,
                }];
                let request = SendRequest {
                    id: WrId(0),
                    operation,
                    data: Data::Segments(&segments),
                    flags: SendFlags::from_bits_truncate(*flags) | SendFlags::SIGNALLED,
                };
                self.posted += usize::from(self.qp.post_send(&request).is_ok());
            }
            Step::Receive { len } => {
                let segments = [Segment {
                    lkey: self.open.0,
                    addr: 0,
                    len: (*len).into(),
                }];
                let request = RecvRequest {
                    id: WrId(0),
                    segments: &segments,
                };
                let posted = match &self.named {
                    None => self.qp.post_recv(&request),
                    Some(queue) => queue.post(&request),
                };
                self.posted += usize::from(posted.is_ok());
            }
            Step::Transmit { packets } => self.transmit(*packets),
            Step::Wait { millis } => {
                self.now = self.now + Duration::from_millis((*millis).into());
                self.qp.handle_deadline(self.now);
            }
        }
        self.ended += std::iter::from_fn(|| self.qp.poll_completion()).count();
    }
}

fuzz_target!(|input: (bool, Vec<Step>)| {
    let (is_extended, steps) = &input;
    let mut victim = victim(*is_extended);
    for step in steps {
        victim.step(step);
    }
    victim.qp.to_error();
    victim.ended += std::iter::from_fn(|| victim.qp.poll_completion()).count();
    let left = victim.named.as_ref().map_or(0, SharedReceiveQueue::len);
    assert_eq!(
        victim.posted,
        victim.ended + left,
        "every request ends once"
    );
    victim.transmit(u8::MAX);
    let secret = victim.memory.bytes(victim.secret).expect("registered");
    assert!(secret.iter().all(|byte| *byte == SECRET));
});
