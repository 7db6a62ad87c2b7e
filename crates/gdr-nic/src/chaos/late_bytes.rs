//! Message bytes that become visible late or out of order.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use gdr_chaos::PlacementOrder;
use gdr_roce::{Access, AccessError, AtomicOp, Extent, Key, Memory, Time};

/// The number of steps in which the bytes become visible.
const STEPS: u32 = 8;

/// The payload of one packet.
#[derive(Debug)]
struct Part {
    key: Key,
    addr: u64,
    bytes: Vec<u8>,
}

/// The bytes of a message that are not in memory yet.
#[derive(Debug)]
pub(super) struct LateBytes {
    parts: Vec<Part>,
    order: PlacementOrder,
    piece: usize,
    by: Duration,
    /// Set once the message is complete.
    plan: Option<Plan>,
}

/// The order and timing of the placement.
#[derive(Debug)]
struct Plan {
    /// The pieces still to be placed: the index of a part, and a byte range in it.
    pieces: VecDeque<(usize, Range<usize>)>,
    begin: Time,
    /// The initial number of pieces.
    count: usize,
}

impl LateBytes {
    pub(super) fn new(order: PlacementOrder, piece: u32, by: Duration) -> Self {
        Self {
            parts: Vec::new(),
            order,
            piece: piece.max(1) as usize,
            by,
            plan: None,
        }
    }

    /// Starts to place the bytes, once the message is complete. `draw` returns the random numbers for the shuffled
    /// order.
    pub(super) fn begin(&mut self, now: Time, draw: impl Fn(u64) -> u64) {
        let piece = self.piece;
        let mut pieces: Vec<_> = (self.parts.iter().enumerate())
            .flat_map(|(at, part)| {
                let starts = (0..part.bytes.len()).step_by(piece);
                starts.map(move |start| (at, start..part.bytes.len().min(start + piece)))
            })
            .collect();
        match self.order {
            PlacementOrder::Reverse => pieces.reverse(),
            PlacementOrder::Shuffle => {
                for at in (1..pieces.len()).rev() {
                    pieces.swap(at, (draw(at as u64) % (at as u64 + 1)) as usize);
                }
            }
            PlacementOrder::Late => {}
        }
        self.plan = Some(Plan {
            count: pieces.len(),
            pieces: pieces.into(),
            begin: now,
        });
    }

    pub(super) fn has_begun(&self) -> bool {
        self.plan.is_some()
    }

    /// Returns when the next bytes become visible.
    pub(super) fn next(&self) -> Option<Time> {
        let plan = self.plan.as_ref()?;
        let whole = plan.begin + self.by;
        if self.order == PlacementOrder::Late || plan.count == 0 {
            return Some(whole);
        }
        let placed = plan.count - plan.pieces.len();
        let step = (placed * STEPS as usize / plan.count) as u32 + 1;
        Some(plan.begin + self.by * step.min(STEPS) / STEPS)
    }

    /// Writes the pieces that are due to memory; returns whether all of them have been written.
    pub(super) fn place(&mut self, now: Time, memory: &mut dyn Memory) -> bool {
        let Some(plan) = &mut self.plan else {
            return false;
        };
        let elapsed = now.elapsed().saturating_sub(plan.begin.elapsed());
        let is_over = elapsed >= self.by;
        let wanted = match (is_over, self.order) {
            (true, _) => plan.count,
            (false, PlacementOrder::Late) => 0,
            (false, _) => {
                let step = elapsed.as_nanos() * u128::from(STEPS) / self.by.as_nanos().max(1);
                (plan.count * step as usize / STEPS as usize).max(1)
            }
        };
        while plan.count - plan.pieces.len() < wanted
            && let Some((at, range)) = plan.pieces.pop_front()
        {
            let part = &self.parts[at];
            // The region may have been deregistered meanwhile, in which case the bytes are dropped.
            let _ = memory.write(part.key, part.addr + range.start as u64, &part.bytes[range]);
        }
        is_over
    }
}

/// Memory that defers the writes of a message, and whose words appear to be changed by another party.
pub(crate) struct LateMemory<'a> {
    pub(crate) memory: &'a mut dyn Memory,
    pub(super) late: Option<&'a mut LateBytes>,
    /// The value that a compare-and-swap finds, instead of the one it compares with.
    pub(super) contended: Option<u64>,
}

impl Memory for LateMemory<'_> {
    fn check(&self, key: Key, extent: Extent, access: Access) -> Result<(), AccessError> {
        self.memory.check(key, extent, access)
    }

    fn read(&mut self, key: Key, addr: u64, out: &mut [u8]) -> Result<(), AccessError> {
        self.memory.read(key, addr, out)
    }

    fn write(&mut self, key: Key, addr: u64, bytes: &[u8]) -> Result<(), AccessError> {
        let Some(late) = &mut self.late else {
            return self.memory.write(key, addr, bytes);
        };
        let access = match key {
            Key::Local(_) => Access::LOCAL_WRITE,
            Key::Remote(_) => Access::REMOTE_WRITE,
        };
        let len = bytes.len() as u32;
        self.memory.check(key, Extent { addr, len }, access)?;
        late.parts.push(Part {
            key,
            addr,
            bytes: bytes.to_vec(),
        });
        Ok(())
    }

    fn atomic(&mut self, key: Key, addr: u64, op: AtomicOp) -> Result<u64, AccessError> {
        match (op, self.contended) {
            (AtomicOp::CompareSwap { compare, .. }, Some(other)) => {
                let extent = Extent { addr, len: 8 };
                self.memory.check(key, extent, Access::REMOTE_ATOMIC)?;
                Ok(if other == compare { !other } else { other })
            }
            _ => self.memory.atomic(key, addr, op),
        }
    }
}
