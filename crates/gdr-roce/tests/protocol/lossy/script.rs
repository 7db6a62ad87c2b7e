//! The requests and receives of both sides, generated in advance.

use std::ops::Range;

use gdr_roce::{AtomicOp, Immediate, Mtu, Operation, Remote, SendFlags, WcOpcode, WcStatus};

use super::image::{BASE, Image, RKEY};
use crate::fixture::{Network, Random};

/// A request and its memory.
pub(crate) struct Step {
    pub(crate) operation: Operation,
    pub(crate) len: u32,
    /// The local source or destination.
    pub(crate) local: Vec<Range<usize>>,
    /// The remote range of a WRITE or READ.
    pub(crate) remote: Range<usize>,
    pub(crate) flags: SendFlags,
    pub(crate) inline: bool,
}

/// A receive and the expected message.
pub(crate) struct Awaited {
    pub(crate) pieces: Vec<Range<usize>>,
    pub(crate) len: u32,
    pub(crate) opcode: WcOpcode,
    pub(crate) immediate: Option<Immediate>,
    pub(crate) solicited: bool,
    /// The range that a WRITE with immediate fills.
    pub(crate) written: Range<usize>,
}

/// The requests and receives of one side, and their progress.
#[derive(Default)]
pub(crate) struct Script {
    pub(crate) steps: Vec<Step>,
    pub(crate) posted: usize,
    pub(crate) done: usize,
    pub(crate) failed: Option<WcStatus>,
    pub(crate) awaited: Vec<Awaited>,
    pub(crate) receives_posted: usize,
    pub(crate) received: usize,
    /// The values of the counter after each atomic of the *peer*.
    pub(crate) counter: Vec<u64>,
}

/// Generates a request of side `from` and its memory.
pub(crate) fn write_step(
    net: &mut Network<Image>,
    scripts: &mut [Script; 2],
    from: usize,
    mtu: Mtu,
    random: &mut Random,
) {
    let to = 1 - from;
    let bytes = mtu.bytes() as u64;
    let len = match random.below(8) {
        0 => random.below(2),
        1 => bytes * (1 + random.below(2)) - 1 + random.below(3),
        2 => random.below(300),
        3 => random.below(bytes * 24),
        _ => random.below(bytes * 6),
    } as u32;
    let [first, second] = &mut net.sides;
    let (here, there) = if from == 0 {
        (&mut first.memory, &mut second.memory)
    } else {
        (&mut second.memory, &mut first.memory)
    };
    let immediate = random
        .happens(5000)
        .then(|| Immediate(random.next() as u32));
    let mut flags = SendFlags::empty();
    flags.set(SendFlags::SIGNALLED, random.happens(7000));
    flags.set(SendFlags::FENCE, random.happens(1000));
    flags.set(SendFlags::SOLICITED, random.happens(2000));
    let solicited = flags.contains(SendFlags::SOLICITED);
    let at = |range: &Range<usize>| Remote {
        rkey: RKEY,
        addr: BASE + range.start as u64,
    };
    let mut step = Step {
        operation: Operation::Send { immediate },
        len,
        local: vec![],
        remote: 0..0,
        flags,
        inline: false,
    };
    match random.below(10) {
        0..3 => {
            step.local = here.pieces(len, random);
            let pieces = there.pieces(len + random.below(64) as u32, random);
            there.expect(&pieces, &here.gather(&step.local));
            let opcode = WcOpcode::Recv;
            let awaited = Awaited {
                pieces,
                len,
                opcode,
                immediate,
                solicited,
                written: 0..0,
            };
            scripts[to].awaited.push(awaited);
        }
        3..6 => {
            step.local = here.pieces(len, random);
            step.remote = there.allocate(len, random);
            there.expect(
                std::slice::from_ref(&step.remote),
                &here.gather(&step.local),
            );
            step.operation = Operation::Write {
                remote: at(&step.remote),
                immediate,
            };
            if immediate.is_some() {
                let pieces = there.pieces(random.below(64) as u32, random);
                let (opcode, written) = (WcOpcode::RecvWriteImmediate, step.remote.clone());
                let awaited = Awaited {
                    pieces,
                    len,
                    opcode,
                    immediate,
                    solicited,
                    written,
                };
                scripts[to].awaited.push(awaited);
            }
        }
        6..8 => {
            step.local = here.pieces(len, random);
            step.remote = there.allocate(len, random);
            let bytes = there.gather(std::slice::from_ref(&step.remote));
            here.expect(&step.local, &bytes);
            step.operation = Operation::Read {
                remote: at(&step.remote),
            };
        }
        _ => {
            let counter = &mut scripts[to].counter;
            let old = *counter.last().expect("begins at zero");
            let op = match random.below(3) {
                0 => AtomicOp::FetchAdd { add: random.next() },
                1 => AtomicOp::CompareSwap {
                    compare: old,
                    swap: random.next(),
                },
                _ => AtomicOp::CompareSwap {
                    compare: !old,
                    swap: random.next(),
                },
            };
            counter.push(op.apply(old));
            step.len = 8;
            step.local = here.pieces(8, random);
            here.expect(&step.local, &old.to_ne_bytes());
            step.operation = Operation::Atomic {
                remote: at(&(0..8)),
                op,
            };
        }
    }
    let source = matches!(
        step.operation,
        Operation::Send { .. } | Operation::Write { .. }
    );
    step.inline = source && len <= 300 && random.happens(5000);
    scripts[from].steps.push(step);
}
