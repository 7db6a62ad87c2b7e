//! Packets of any host, against a queue pair for datagrams and a connection that share receives.
//!
//! Whatever comes, every request ends at most once, and no byte outside the open region is placed.

#![no_main]

use arbitrary::Arbitrary;
use gdr_roce::wire::{Deth, Grh, Headers, MAX_DATAGRAM, Opcode, Packet};
use gdr_roce::{
    Access, Capabilities, Data, HeapMemory, Lkey, Mtu, PartitionKey, Psn, Qkey, Qpn, QueuePair,
    RecvRequest, RnrTimer, RtrAttributes, Segment, SendFlags, SharedReceiveQueue, Time,
    TransportConfig, UdQueuePair, UdSendRequest, WrId,
};
use libfuzzer_sys::fuzz_target;

const LEN: usize = 4096;
const DATAGRAMS: Qpn = Qpn::new(5);
const CONNECTION: Qpn = Qpn::new(6);
const QKEY: Qkey = Qkey(0x1111_1111);
const SECRET: u8 = 0x5e;

#[derive(Arbitrary, Debug)]
enum Step {
    /// Arbitrary bytes.
    Raw(Vec<u8>),
    /// A datagram with right lengths.
    Datagram { immediate: bool, qkey: u8, payload: u16 },
    /// A packet of the connection.
    Send { opcode: u8, psn: u8, payload: u16 },
    Post { len: u16 },
    PostSend { len: u16, unsignalled: bool },
    Limit(u8),
    Transmit,
    ResetConnection,
}

struct Victim {
    queue: SharedReceiveQueue,
    ud: UdQueuePair<()>,
    rc: QueuePair,
    memory: HeapMemory,
    open: Lkey,
    posted: usize,
    ended: usize,
}

const CAPS: Capabilities = Capabilities {
    max_send_wr: 16,
    max_recv_wr: 0,
    max_inline: 16,
};

fn connect(rc: &mut QueuePair) {
    rc.to_init(Access::empty()).expect("from RESET");
    rc.to_rtr(&RtrAttributes {
        dest_qpn: Qpn::new(7),
        rq_psn: Psn::new(0),
        path_mtu: Mtu::B256,
        max_dest_rd_atomic: 0,
        min_rnr_timer: RnrTimer::new(1),
    })
    .expect("from INIT");
}

impl Victim {
    fn new() -> (Self, Lkey) {
        let mut memory = HeapMemory::new();
        let (open, _) = memory.register(0, vec![0; LEN], Access::LOCAL_WRITE);
        let (secret, _) = memory.register(LEN as u64, vec![SECRET; LEN], Access::empty());
        let queue = SharedReceiveQueue::new(8);
        let mut ud = UdQueuePair::with_shared_receives(DATAGRAMS, CAPS, Mtu::B256, &queue);
        ud.to_init(QKEY).expect("from RESET");
        ud.to_rtr().expect("from INIT");
        ud.to_rts(Psn::new(0)).expect("from RTR");
        let config = TransportConfig::DEFAULT;
        let mut rc = QueuePair::with_shared_receives(CONNECTION, CAPS, config, &queue);
        connect(&mut rc);
        let victim = Self {
            queue,
            ud,
            rc,
            memory,
            open,
            posted: 0,
            ended: 0,
        };
        (victim, secret)
    }

    fn receive(&mut self, bytes: &[u8]) {
        if let Ok(packet) = Packet::new(bytes) {
            let grh = Grh::from_bytes([0x47; Grh::LEN]);
            let _ = self.ud.receive(&packet, &grh, &mut self.memory);
            self.rc.receive(Time::EPOCH, &packet, &mut self.memory);
        }
    }

    fn receive_near(&mut self, opcode: Opcode, qpn: Qpn, psn: u8, qkey: u8, payload: u16) {
        let blank = [0; 16];
        let parsed = Packet::new(&blank).expect("SEND first of no bytes");
        let mut headers = Headers::new(opcode, *parsed.bth());
        headers.bth.partition = PartitionKey::DEFAULT;
        headers.bth.dest_qpn = qpn;
        headers.bth.psn = Psn::new(psn.into());
        headers.deth = Some(Deth {
            qkey: Qkey(QKEY.0 ^ u32::from(qkey & 1)),
            source_qpn: CONNECTION,
        });
        let payload = match opcode.has_payload() {
            true => usize::from(payload) % 300,
            false => 0,
        };
        let mut bytes = vec![0xbb; headers.datagram_len(payload)];
        headers.emit(payload, &mut bytes);
        self.receive(&bytes);
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Raw(bytes) => self.receive(bytes),
            Step::Datagram {
                immediate,
                qkey,
                payload,
            } => self.receive_near(Opcode::datagram(*immediate), DATAGRAMS, 0, *qkey, *payload),
            Step::Send {
                opcode,
                psn,
                payload,
            } => {
                let opcode = Opcode::ALL[usize::from(*opcode) % Opcode::ALL.len()];
                self.receive_near(opcode, CONNECTION, *psn % 8, 0, *payload);
            }
            Step::Post { len } => {
                let segments = [Segment {
                    lkey: self.open,
                    addr: 0,
                    len: u32::from(*len) % (LEN as u32 + 64),
                }];
                let request = RecvRequest {
                    id: WrId(0),
                    segments: &segments,
                };
                self.posted += usize::from(self.queue.post(&request).is_ok());
            }
            Step::PostSend { len, unsignalled } => {
                let segments = [Segment {
                    lkey: self.open,
                    addr: 0,
                    len: u32::from(*len) % 300,
                }];
                let request = UdSendRequest {
                    id: WrId(1),
                    to: (),
                    dest_qpn: CONNECTION,
                    qkey: QKEY,
                    immediate: None,
                    data: Data::Segments(&segments),
                    flags: match unsignalled {
                        true => SendFlags::empty(),
                        false => SendFlags::SIGNALLED,
                    },
                };
                // Refused when the queue is full, which is as good.
                let _ = self.ud.post_send(&request);
            }
            Step::Limit(limit) => self.queue.arm_limit((*limit).into()),
            Step::Transmit => {
                let mut out = [0; MAX_DATAGRAM];
                if let Some((len, ())) = self.ud.poll_transmit(&mut self.memory, &mut out) {
                    Packet::new(&out[..len]).expect("what is sent can be read");
                }
                while let Some(len) =
                    self.rc
                        .poll_transmit(Time::EPOCH, &mut self.memory, &mut out)
                {
                    Packet::new(&out[..len]).expect("what is sent can be read");
                }
            }
            Step::ResetConnection => {
                self.rc.to_reset();
                connect(&mut self.rc);
            }
        }
        self.count();
    }

    fn count(&mut self) {
        let datagrams = std::iter::from_fn(|| self.ud.poll_completion());
        self.ended += datagrams.filter(|done| done.opcode.is_receive()).count();
        self.ended += std::iter::from_fn(|| self.rc.poll_completion()).count();
    }
}

fuzz_target!(|steps: Vec<Step>| {
    let (mut victim, secret) = Victim::new();
    for step in &steps {
        victim.step(step);
    }
    victim.ud.to_error();
    victim.rc.to_error();
    victim.count();
    let left = victim.queue.len();
    assert_eq!(victim.posted, victim.ended + left, "no receive is lost");
    let secret = victim.memory.bytes(secret).expect("registered");
    assert!(secret.iter().all(|byte| *byte == SECRET));
});
