//! GPU memory of the producer of a ring that this process has imported, and the copies of payloads there.

use std::sync::Arc;
use std::time::{Duration, Instant};

use gdr_cuda::DeviceExport;
use gdr_roce::{AccessError, Extent};

use super::exports::export_of;
use super::header::{Answer, EXPORTS};
use super::process_memory::ProcessMemory;
use super::ring::Continuation;
use super::segment::Segment;
use crate::buffer::{Buffer, CopyThread, IncomingCopy, IncomingState, PeerMemory, PeerState};

/// How long a record waits for its copy before that is given up, if it has not begun: the driver may be held up by
/// a kernel that waits for these very bytes. The producer sends them again, by itself.
const LATE: Duration = Duration::from_micros(500);

/// What a ring's consumer has imported.
#[derive(Debug)]
pub(crate) struct Imports {
    segment: Arc<Segment>,
    /// How many changes of the exports were seen.
    seen: u32,
    imports: Vec<Import>,
    copies: Vec<PlacedRun>,
    /// Since when the next record waits.
    waits_since: Option<Instant>,
    /// The payload of the next record cannot be copied.
    is_lost: bool,
}

#[derive(Debug)]
struct Import {
    slot: usize,
    number: u64,
    export: DeviceExport,
    /// By each GPU of which memory was registered.
    memories: Vec<PeerMemory>,
    answer: Answer,
}

impl Import {
    fn has(&self, payload: Extent) -> bool {
        let (base, len) = (self.export.base().get(), self.export.len());
        let offset = payload.addr.checked_sub(base);
        offset
            .and_then(|offset| offset.checked_add(payload.len.into()))
            .is_some_and(|end| end <= len)
    }
}

/// A copy of the payloads of records that follow each other.
#[derive(Debug)]
struct PlacedRun {
    /// The positions of the first record and behind the last one.
    records: (u64, u64),
    from: Extent,
    to: Buffer,
    offset: u64,
    copy: IncomingCopy,
}

impl PlacedRun {
    /// Whether it has the payload of a record.
    fn has(&self, position: u64, from: Extent, to: &Buffer, offset: u64) -> bool {
        let before = from.addr.wrapping_sub(self.from.addr);
        (self.records.0..self.records.1).contains(&position)
            && before
                .checked_add(from.len.into())
                .is_some_and(|end| end <= self.from.len.into())
            && self.to.is_same(to)
            && self.offset.wrapping_add(before) == offset
    }
}

/// A record whose payload is in GPU memory of the producer, and those that continue it.
#[derive(Debug)]
pub(crate) struct DeviceRun<'a> {
    imports: &'a mut Imports,
    position: u64,
    /// The payloads of all of them.
    payloads: Extent,
    end: u64,
}

/// What becomes of a record whose payload is not there yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pending {
    /// It waits.
    Waits,
    /// It is dropped, as if it had been lost.
    Lost,
}

impl Imports {
    pub(super) fn new(segment: Arc<Segment>) -> Self {
        Self {
            segment,
            seen: 0,
            imports: Vec::new(),
            copies: Vec::new(),
            waits_since: None,
            is_lost: false,
        }
    }

    /// Whether the producer has changed its exports.
    pub(super) fn have_changed(&self) -> bool {
        self.segment.header().exports_changed() != self.seen
    }

    /// Whether the next record waits for its payload.
    pub(super) fn is_waiting(&self) -> bool {
        self.waits_since.is_some()
    }

    /// Follows the exports of the producer. What is new is imported by all of `threads`.
    pub(super) fn follow(
        &mut self,
        sender: Option<&ProcessMemory>,
        threads: impl FnOnce() -> Vec<CopyThread>,
    ) {
        let header = self.segment.header();
        if self.have_changed() {
            self.seen = header.exports_changed();
            let threads = threads();
            for slot in 0..EXPORTS {
                let export = header.export(slot);
                let number = export.map_or(0, |(number, _)| number);
                if self
                    .imports
                    .iter()
                    .any(|it| it.slot == slot && it.number == number)
                {
                    continue;
                }
                self.imports.retain(|import| import.slot != slot);
                let Some((number, words)) = export else {
                    continue;
                };
                let export = export_of(&words);
                let memories = threads.iter().map(|thread| {
                    let number = export.descriptor();
                    let descriptor = number.and_then(|number| sender?.descriptor(number).ok());
                    thread.import(export, descriptor)
                });
                self.imports.push(Import {
                    slot,
                    number,
                    export,
                    memories: memories.collect(),
                    answer: Answer::Pending,
                });
            }
        }
        for import in &mut self.imports {
            if import.answer == Answer::Pending {
                let mut states = import.memories.iter().map(PeerMemory::state);
                import.answer = match states.clone().any(|state| state == PeerState::Pending) {
                    true => Answer::Pending,
                    false if states.any(|state| state == PeerState::Ready) => Answer::Imported,
                    false => Answer::Refused,
                };
                if import.answer != Answer::Pending {
                    header.answer(import.slot, import.number, import.answer);
                }
            }
        }
    }

    /// Whether a payload is in memory that was imported.
    pub(super) fn have(&self, payload: Extent) -> bool {
        self.imports.iter().any(|import| import.has(payload))
    }

    /// The record at `position` with a payload at `addr`, and those behind it.
    pub(super) fn run(&mut self, position: u64, addr: u64, records: Continuation) -> DeviceRun<'_> {
        let Continuation { len, end } = records;
        DeviceRun {
            imports: self,
            position,
            payloads: Extent { addr, len },
            end,
        }
    }

    /// Decides about a record whose payload is not there yet.
    pub(super) fn wait(&mut self, payload: Extent) -> Pending {
        let since = *self.waits_since.get_or_insert_with(Instant::now);
        if !self.is_lost && since.elapsed() < LATE {
            return Pending::Waits;
        }
        // A copy that has begun is waited for: it may end after what is sent again was placed.
        let mut all_are_there = !self.is_lost;
        for run in &self.copies {
            match run.copy.state() {
                IncomingState::InProgress if !run.copy.cancel() => return Pending::Waits,
                IncomingState::InProgress | IncomingState::Failed => all_are_there = false,
                IncomingState::Complete => {}
            }
        }
        if all_are_there {
            return Pending::Waits;
        }
        let header = self.segment.header();
        for import in self.imports.iter_mut().filter(|import| import.has(payload)) {
            import.answer = Answer::Refused;
            header.answer(import.slot, import.number, import.answer);
        }
        self.end_wait();
        self.copies.clear();
        Pending::Lost
    }

    /// The next record does not wait any more.
    pub(super) fn end_wait(&mut self) {
        self.waits_since = None;
        self.is_lost = false;
    }
}

impl DeviceRun<'_> {
    /// Copies the bytes at `from` to `offset` in a buffer, where the message may write `room` bytes.
    ///
    /// # Errors
    /// [`AccessError::NotYet`] until they are there.
    pub(crate) fn place(
        &mut self,
        to: &Buffer,
        offset: u64,
        from: Extent,
        room: u32,
    ) -> Result<(), AccessError> {
        let (imports, position) = (&mut *self.imports, self.position);
        imports.copies.retain(|run| run.records.1 > position);
        let known = imports.copies.iter();
        let known = known.rev().find(|run| run.has(position, from, to, offset));
        if let Some(run) = known {
            match run.copy.state() {
                IncomingState::Complete => return Ok(()),
                IncomingState::InProgress => {}
                IncomingState::Failed => imports.is_lost = true,
            }
            return Err(AccessError::NotYet);
        }
        // The records behind this one have what follows it, in the same message.
        let before = from.addr.wrapping_sub(self.payloads.addr);
        let rest = u64::from(self.payloads.len).saturating_sub(before);
        let len = (rest as u32).min(room).max(from.len);
        let all = Extent { len, ..from };
        let begun = imports
            .imports
            .iter()
            .filter(|import| import.has(all) && import.answer == Answer::Imported)
            .flat_map(|import| &import.memories)
            .find_map(|memory| to.begin_copy_from(offset, memory, all.addr, all.len.into()));
        match begun {
            Some(copy) => imports.copies.push(PlacedRun {
                records: (position, self.end),
                from: all,
                to: to.clone(),
                offset,
                copy,
            }),
            None => imports.is_lost = true,
        }
        Err(AccessError::NotYet)
    }
}
