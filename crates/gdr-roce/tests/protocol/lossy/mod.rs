//! Two queue pairs over a network that loses, duplicates, delays and corrupts packets.
//!
//! The expected value of every byte of both memories is known in advance. The memories panic on a write of any other
//! value, on a write outside a posted and incomplete request, and on a write after its completion. Set `GDR_ROCE_SEED`
//! to run other cases.

mod image;
mod script;

use std::ops::Range;

use crate::fixture::{Faults, Network, Random, Settings, Side, connected};
use gdr_roce::{
    AckTimeout, Capabilities, Completion, Data, LossRecovery, Mtu, Operation, Psn, RecvRequest,
    RnrTimer, Segment, SendFlags, SendRequest, TransportConfig, WcOpcode, WcStatus, WrId,
};
use image::{BASE, Image, LKEY, Open};
use script::{Script, Step, write_step};

struct Case {
    net: Network<Image>,
    scripts: [Script; 2],
    settings: Settings,
    random: Random,
}

fn segments(pieces: &[Range<usize>]) -> Vec<Segment> {
    let segment = |piece: &Range<usize>| Segment {
        lkey: LKEY,
        addr: BASE + piece.start as u64,
        len: piece.len() as u32,
    };
    pieces.iter().map(segment).collect()
}

impl Case {
    fn new(mtu: Mtu, faults: Faults, seed: u64) -> Self {
        let mut random = Random(seed);
        let mut psn = || Psn::new(random.next() as u32);
        let psns = [psn(), psn()];
        let window = 2 + random.below(127) as u32;
        let settings = Settings {
            mtu,
            config: TransportConfig::DEFAULT
                .with_window(window)
                .with_read_packets(1 + random.below(window.into()) as u32)
                .with_ack_request_interval(1 + random.below(40) as u32)
                .with_ack_interval(1 + random.below(40) as u32),
            caps: Capabilities {
                max_send_wr: 32,
                max_recv_wr: 32,
                max_inline: 300,
            },
            recovery: if random.happens(5_000) {
                LossRecovery::Selective
            } else {
                LossRecovery::GoBackN
            },
            max_rd_atomic: 1 + random.below(8) as u8,
            timeout: AckTimeout::new(8),
            rnr_timer: RnrTimer::new(1 + random.below(6) as u8),
            psns,
            ..Settings::default()
        };
        let side = |side| Side {
            qp: connected(side, &settings),
            memory: Image {
                bytes: vec![0; 8],
                want: vec![0; 8],
                open: vec![Open::Closed; 8],
                atomics: 0,
            },
        };
        let mut net = Network::new([side(0), side(1)], random.next());
        net.faults = faults;
        let mut scripts = [Script::default(), Script::default()];
        for from in 0..2 {
            let to = 1 - from;
            scripts[to].counter.push(0);
            for _ in 0..120 {
                write_step(&mut net, &mut scripts, from, mtu, &mut random);
            }
            if let Some(last) = scripts[from].steps.last_mut() {
                last.flags |= SendFlags::SIGNALLED;
            }
        }
        Self {
            net,
            scripts,
            settings,
            random,
        }
    }

    /// Posts some of the next requests and receives.
    fn post(&mut self, side: usize) {
        let sends = self.random.below(6);
        for _ in 0..sends {
            let script = &mut self.scripts[side];
            let in_flight = script.posted - script.done;
            let Some(step) = script.steps.get(script.posted) else {
                break;
            };
            // Unsignalled requests complete silently, so every posted request counts as queued.
            if in_flight >= self.settings.caps.max_send_wr as usize || script.failed.is_some() {
                break;
            }
            let inline = self.net.sides[side].memory.gather(&step.local);
            let segments = segments(&step.local);
            let data = if step.inline {
                Data::Inline(&inline)
            } else {
                Data::Segments(&segments)
            };
            let request = SendRequest {
                id: WrId(script.posted as u64),
                operation: step.operation,
                data,
                flags: step.flags,
            };
            self.net.post(side, &request, &inline);
            script.posted += 1;
            let len = step.len as usize;
            match step.operation {
                Operation::Write { .. } => {
                    let memory = &mut self.net.sides[1 - side].memory;
                    memory.set(std::slice::from_ref(&step.remote), len, Open::Remote);
                }
                Operation::Read { .. } | Operation::Atomic { .. } => {
                    self.net.sides[side]
                        .memory
                        .set(&step.local, len, Open::Local);
                }
                _ => {}
            }
        }
        let receives = self.random.below(4);
        for _ in 0..receives {
            let script = &mut self.scripts[side];
            let waiting = script.receives_posted - script.received;
            let Some(awaited) = script.awaited.get(script.receives_posted) else {
                break;
            };
            if waiting >= self.settings.caps.max_recv_wr as usize {
                break;
            }
            let segments = segments(&awaited.pieces);
            let id = WrId(script.receives_posted as u64);
            let side = &mut self.net.sides[side];
            side.qp
                .post_recv(&RecvRequest {
                    id,
                    segments: &segments,
                })
                .expect("room");
            if awaited.opcode == WcOpcode::Recv {
                side.memory
                    .set(&awaited.pieces, awaited.len as usize, Open::Local);
            }
            script.receives_posted += 1;
        }
    }

    fn check_completions(&mut self, side: usize) {
        for done in self.net.completions(side) {
            if done.opcode.is_receive() {
                self.check_receive(side, &done);
            } else {
                self.check_send(side, &done);
            }
        }
    }

    fn check_receive(&mut self, side: usize, done: &Completion) {
        let script = &mut self.scripts[side];
        assert_eq!(
            done.id,
            WrId(script.received as u64),
            "receives complete in order"
        );
        script.received += 1;
        if done.status != WcStatus::Success {
            assert_eq!(done.status, WcStatus::WrFlushed);
            return;
        }
        let awaited = &script.awaited[done.id.0 as usize];
        assert_eq!((done.opcode, done.byte_len), (awaited.opcode, awaited.len));
        assert_eq!(
            (done.immediate, done.solicited),
            (awaited.immediate, awaited.solicited)
        );
        let memory = &mut self.net.sides[side].memory;
        if awaited.opcode == WcOpcode::Recv {
            memory.set(&awaited.pieces, awaited.len as usize, Open::Closed);
        } else {
            let range = awaited.written.clone();
            assert!(
                memory.bytes[range.clone()] == memory.want[range],
                "the completion came before the bytes"
            );
        }
    }

    fn check_send(&mut self, side: usize, done: &Completion) {
        let index = done.id.0 as usize;
        assert!(
            index >= self.scripts[side].done,
            "requests complete in order"
        );
        let success = done.status == WcStatus::Success;
        let first = self.scripts[side].done;
        // Earlier requests without a completion have completed silently.
        for at in first..index + usize::from(success) {
            let step = &self.scripts[side].steps[at];
            assert!(at == index || !step.flags.contains(SendFlags::SIGNALLED));
            let len = step.len as usize;
            match step.operation {
                Operation::Send { .. } => {}
                Operation::Write { .. } => {
                    let memory = &mut self.net.sides[1 - side].memory;
                    memory.set(std::slice::from_ref(&step.remote), len, Open::Closed);
                }
                _ => self.net.sides[side]
                    .memory
                    .set(&step.local, len, Open::Closed),
            }
        }
        let script = &mut self.scripts[side];
        if success {
            assert_eq!(script.failed, None, "nothing succeeds after a failure");
            assert_eq!(done.byte_len, script.steps[index].len);
            let consumes = |step: &&Step| match step.operation {
                Operation::Send { .. } => true,
                Operation::Write { immediate, .. } => immediate.is_some(),
                _ => false,
            };
            let consumed = script.steps[..=index].iter().filter(consumes).count();
            assert!(
                self.scripts[1 - side].received >= consumed,
                "acknowledged before received"
            );
        } else if script.failed.is_none() {
            // Only missing responses may fail the first request.
            assert!(
                matches!(done.status, WcStatus::RetryExceeded | WcStatus::WrFlushed),
                "{done:?}"
            );
            script.failed = Some(done.status);
        } else {
            assert_eq!(done.status, WcStatus::WrFlushed);
        }
        self.scripts[side].done = index + 1;
    }

    /// Runs to the end, and returns whether both sides completed all requests.
    fn run(&mut self) -> bool {
        let mut idle = 0;
        loop {
            for side in 0..2 {
                self.post(side);
            }
            let moved = self.net.step();
            for side in 0..2 {
                self.check_completions(side);
            }
            let over =
                |script: &Script| script.failed.is_some() || script.done == script.steps.len();
            if !moved && self.scripts.iter().all(over) {
                break;
            }
            idle = if moved { 0 } else { idle + 1 };
            assert!(idle < 1000, "the connection hangs");
        }
        for side in 0..2 {
            let (memory, script) = (&self.net.sides[side].memory, &self.scripts[side]);
            let counter = u64::from_ne_bytes(*memory.bytes.first_chunk().expect("eight"));
            assert_eq!(
                counter, script.counter[memory.atomics],
                "atomics are executed once, in order"
            );
            if self.scripts[1 - side].failed.is_none() {
                assert_eq!(memory.atomics + 1, script.counter.len());
            }
            // A retransmission never counts as an invalid request.
            assert_eq!(self.net.sides[side].qp.poll_event(), None);
        }
        self.scripts.iter().all(|script| script.failed.is_none())
    }
}

/// No faults, each fault alone, all together, and all at an extreme rate.
const FAULTS: [Faults; 7] = [
    Faults {
        lose: 0,
        duplicate: 0,
        delay: 0,
        corrupt: 0,
    },
    Faults {
        lose: 200,
        duplicate: 0,
        delay: 0,
        corrupt: 0,
    },
    Faults {
        lose: 0,
        duplicate: 1000,
        delay: 0,
        corrupt: 0,
    },
    Faults {
        lose: 0,
        duplicate: 0,
        delay: 500,
        corrupt: 0,
    },
    Faults {
        lose: 0,
        duplicate: 0,
        delay: 0,
        corrupt: 200,
    },
    Faults {
        lose: 100,
        duplicate: 200,
        delay: 200,
        corrupt: 100,
    },
    Faults {
        lose: 2000,
        duplicate: 2000,
        delay: 3000,
        corrupt: 1000,
    },
];

/// Runs cases with one MTU until 200,000 packets are sent: a million over all MTUs.
fn run(mtu: Mtu) {
    let base = std::env::var("GDR_ROCE_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
        .unwrap_or(1);
    let (mut packets, mut dropped, mut cases, mut whole) = (0, 0, 0u64, [0; FAULTS.len()]);
    while packets < 200_000 {
        let kind = cases as usize % FAULTS.len();
        let seed = Random(base ^ ((mtu.code() as u64) << 56) ^ (cases << 32)).next();
        println!(
            "mtu {mtu}, case {cases}, {:?}, GDR_ROCE_SEED={base}",
            FAULTS[kind]
        );
        let mut case = Case::new(mtu, FAULTS[kind], seed);
        let complete = case.run();
        let ends = [0, 1].map(|side| {
            let script = &case.scripts[side];
            (script.done, script.failed, case.net.sides[side].qp.state())
        });
        assert!(
            complete || kind == 6,
            "the connection survives moderate faults: {ends:?}"
        );
        whole[kind] += u32::from(complete);
        packets += case.net.packets;
        dropped += case.net.dropped;
        cases += 1;
    }
    println!("{cases} cases, {packets} packets, {dropped} dropped; completed by fault: {whole:?}");
    assert!(packets >= 200_000 && dropped > 0);
}

#[test]
fn network_faults_corrupt_no_byte_at_mtu_256() {
    run(Mtu::B256);
}

#[test]
fn network_faults_corrupt_no_byte_at_mtu_512() {
    run(Mtu::B512);
}

#[test]
fn network_faults_corrupt_no_byte_at_mtu_1024() {
    run(Mtu::B1024);
}

#[test]
fn network_faults_corrupt_no_byte_at_mtu_2048() {
    run(Mtu::B2048);
}

#[test]
fn network_faults_corrupt_no_byte_at_mtu_4096() {
    run(Mtu::B4096);
}
