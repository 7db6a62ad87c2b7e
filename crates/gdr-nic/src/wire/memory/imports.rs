//! GPU memory of a ring's producer that this process has imported, and the copies of payloads from it.

use std::array;
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gdr_cuda::DeviceExport;
use gdr_roce::wire::{Bth, Opcode};
use gdr_roce::{AccessError, Extent, Qpn};

use super::exports::export_of;
use super::header::{Answer, EXPORTS};
use super::rendezvous::ExportNumber;
use super::ring::{Continuation, ends_message};
use super::segment::Segment;
use super::stalled::MOST_COPIED;
use crate::buffer::{Buffer, CopyThread, IncomingCopy, IncomingState, PeerMemory, PeerState};

/// How long a record waits for its copy if the copy has not started and no other copy ends: the driver may be blocked
/// by a kernel that waits for these very bytes. The record is then dropped, and the producer retransmits with copied
/// payloads.
const LATE: Duration = Duration::from_micros(500);

/// How long references to memory are refused after such a record, the first time. Each further time without a complete
/// copy from the memory in between multiplies the pause by four, up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_micros(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The memory that a ring's consumer has imported.
#[derive(Debug)]
pub(crate) struct Imports {
    segment: Arc<Segment>,
    /// The change count of the exports when they were last read.
    seen: u32,
    imports: Vec<Import>,
    /// Descriptors of exports that are not imported yet, by export number; `None` where this process could not open one
    /// more.
    descriptors: Vec<(u64, Option<OwnedFd>)>,
    copies: Vec<PlacedRun>,
    ended: Ended,
    /// Whether the payload of the last record cannot be copied now.
    is_lost: bool,
    /// Whether no payload from the same memory can be copied to that destination.
    is_useless: bool,
}

#[derive(Debug)]
struct Import {
    slot: usize,
    number: u64,
    export: DeviceExport,
    /// The import of each GPU with registered memory.
    memories: Vec<PeerMemory>,
    answer: Answer,
    /// The pause during which references to the memory are refused.
    pause: Option<Pause>,
    next_pause: Duration,
}

/// A pause after a late copy, which shows that the driver is blocked.
#[derive(Debug)]
struct Pause {
    until: Instant,
    /// The late copy, which ends once the driver is no longer blocked. `None` if the record found no place for a copy.
    late: Option<IncomingCopy>,
}

impl Pause {
    fn has_ended(&self) -> bool {
        self.late.as_ref().is_none_or(IncomingCopy::has_ended) && Instant::now() >= self.until
    }
}

impl Import {
    /// Makes the producer send copies of the memory's bytes until the pause and the copy `late` have ended.
    fn pause(&mut self, late: Option<IncomingCopy>) {
        let until = Instant::now() + self.next_pause;
        self.pause = Some(Pause { until, late });
        self.next_pause = (4 * self.next_pause).min(LONGEST_PAUSE);
        self.answer = Answer::Paused;
    }

    fn has(&self, payload: Extent) -> bool {
        let (base, len) = (self.export.base().get(), self.export.len());
        // The address comes from the other process, so it is checked before any addition.
        let offset = payload.addr.checked_sub(base);
        offset
            .and_then(|offset| offset.checked_add(payload.len.into()))
            .is_some_and(|end| end <= len)
    }
}

/// A copy of the payloads of consecutive records.
#[derive(Debug)]
struct PlacedRun {
    qpn: Qpn,
    /// The position of the first record, and the end of the last one if it is known.
    records: (u64, Option<u64>),
    from: Extent,
    to: Buffer,
    offset: u64,
    copy: IncomingCopy,
}

impl PlacedRun {
    fn has_record(&self, position: u64) -> bool {
        let (first, end) = self.records;
        first <= position && end.is_none_or(|end| position < end)
    }

    /// Returns whether the copy includes the payload of a record, at this destination.
    fn has(&self, position: u64, from: Extent, to: &Buffer, offset: u64) -> bool {
        let before = from.addr.wrapping_sub(self.from.addr);
        self.has_record(position)
            && before
                .checked_add(from.len.into())
                .is_some_and(|end| end <= self.from.len.into())
            && self.to.is_same(to)
            && self.offset.wrapping_add(before) == offset
    }
}

/// A record whose payload is in GPU memory of the producer.
pub(crate) struct DeviceRun<'a> {
    imports: &'a mut Imports,
    header: Bth,
    position: u64,
    addr: u64,
    /// Looks for later records that continue this one, at a cost for each of them.
    continuation: &'a dyn Fn() -> Continuation,
}

impl fmt::Debug for DeviceRun<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceRun")
            .field("position", &self.position)
            .finish_non_exhaustive()
    }
}

/// The number of ended copies of a copy thread when it was last checked; with several threads, the greatest number.
#[derive(Debug, Default)]
struct Ended {
    count: u64,
    /// When the number was last found to have grown.
    since: Option<Instant>,
}

impl Ended {
    /// Returns whether the number has grown, now or within the last [`LATE`].
    fn follow(&mut self, count: u64) -> bool {
        let grows = self.count < count;
        if grows {
            self.count = count;
            self.since = Some(Instant::now());
        }
        grows || self.since.is_some_and(|since| since.elapsed() < LATE)
    }
}

/// The decision on a record whose payload has not arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pending {
    /// The record waits.
    Waits,
    /// The record is dropped, as if it had been lost.
    Lost,
}

impl Imports {
    pub(super) fn new(segment: Arc<Segment>) -> Self {
        Self {
            segment,
            seen: 0,
            imports: Vec::new(),
            descriptors: Vec::new(),
            copies: Vec::new(),
            ended: Ended::default(),
            is_lost: false,
            is_useless: false,
        }
    }

    /// Returns whether the producer has changed its exports, or a descriptor has arrived.
    pub(super) fn have_changed(&self) -> bool {
        self.segment.header().exports_changed() != self.seen || !self.descriptors.is_empty()
    }

    /// Keeps the descriptor of an export until the export is imported. Closes descriptors of numbers that are not
    /// offered.
    pub(super) fn add_descriptor(&mut self, number: ExportNumber, descriptor: Option<OwnedFd>) {
        let header = self.segment.header();
        let offered: [_; EXPORTS] = array::from_fn(|slot| header.export(slot).map(|it| it.0));
        self.descriptors.retain(|it| it.0 != number.0);
        self.descriptors.push((number.0, descriptor));
        // At most one for each current export, whatever the producer sends.
        self.descriptors.retain(|it| offered.contains(&Some(it.0)));
    }

    /// Follows changes of the producer's exports. New ones are imported by all of `threads`.
    pub(super) fn follow(&mut self, threads: impl FnOnce() -> Vec<CopyThread>) {
        let header = self.segment.header();
        if self.have_changed() {
            // Read before the exports, so that the next call sees later changes.
            self.seen = header.exports_changed();
            let threads = threads();
            let mut descriptors = std::mem::take(&mut self.descriptors);
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
                // The producer has reused the slot, so the old export has ended.
                self.imports.retain(|import| import.slot != slot);
                let Some((number, words)) = export else {
                    continue;
                };
                let export = export_of(&words);
                let passed = descriptors.extract_if(.., |it| it.0 == number).last();
                if export.descriptor().is_some() && passed.is_none() {
                    // The descriptor arrives after the export.
                    continue;
                }
                let descriptor = passed.and_then(|it| it.1);
                let memories = threads.iter().map(|thread| {
                    let duplicate = descriptor.as_ref().and_then(|it| it.try_clone().ok());
                    thread.import(export, duplicate)
                });
                self.imports.push(Import {
                    slot,
                    number,
                    export,
                    memories: memories.collect(),
                    answer: Answer::Pending,
                    pause: None,
                    next_pause: FIRST_PAUSE,
                });
            }
        }
        for import in &mut self.imports {
            if import.pause.take_if(|pause| pause.has_ended()).is_some() {
                // The producer may refer to the memory again.
                import.answer = Answer::Imported;
                header.answer(import.slot, import.number, import.answer);
            }
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

    /// Returns whether a payload is in imported memory.
    pub(super) fn have(&self, payload: Extent) -> bool {
        self.imports.iter().any(|import| import.has(payload))
    }

    /// Returns the record at `position`, which begins with `header` and has its payload at `addr`.
    pub(super) fn run<'a>(
        &'a mut self,
        header: Bth,
        position: u64,
        addr: u64,
        continuation: &'a dyn Fn() -> Continuation,
    ) -> DeviceRun<'a> {
        DeviceRun {
            imports: self,
            header,
            position,
            addr,
            continuation,
        }
    }

    /// Records that the record with this header was processed or dropped. After the last record of a message, drops the
    /// message's copies.
    pub(super) fn pass(&mut self, header: Bth) {
        if ends_message(header) {
            self.copies.retain(|run| run.qpn != header.dest_qpn);
        }
    }

    /// Decides on a record whose payload has not arrived, and which was first passed at `since`.
    pub(super) fn wait(&mut self, position: u64, since: Instant, payload: Extent) -> Pending {
        let is_lost = std::mem::take(&mut self.is_lost);
        if !is_lost && (since.elapsed() < LATE || self.makes_progress(position)) {
            return Pending::Waits;
        }
        // Wait for a copy that has started to write, as it could overwrite bytes of the retransmission.
        let mut is_copied = false;
        let mut has_failed = is_lost;
        let of_record = self.copies.iter().filter(|run| run.has_record(position));
        for run in of_record {
            is_copied = true;
            match run.copy.cancel() {
                IncomingState::InProgress => return Pending::Waits,
                IncomingState::Failed => has_failed = true,
                IncomingState::Complete => {}
            }
        }
        let are_there = is_copied && !has_failed;
        if are_there {
            return Pending::Waits;
        }
        let of_record = |run: &mut PlacedRun| run.has_record(position);
        let late = self.copies.extract_if(.., of_record).last();
        if is_lost && std::mem::take(&mut self.is_useless) {
            // Refuse the memory permanently: no thread of this process can copy it.
            self.answer(payload, |import| import.answer = Answer::Refused);
        } else if !is_lost {
            // The end of the late copy will show that the driver makes progress again.
            let mut late = late.map(|run| run.copy);
            self.answer(payload, |import| import.pause(late.take()));
        }
        Pending::Lost
    }

    /// Returns whether other copies end while the copy for the record at `position` has not started.
    fn makes_progress(&mut self, position: u64) -> bool {
        let of_record = self.copies.iter().find(|run| run.has_record(position));
        // Without a copy of its own, the record waits for a place among the other copies.
        let run = of_record.or(self.copies.first());
        run.is_some_and(|run| self.ended.follow(run.copy.ended_of_thread()))
    }

    /// Changes the answers to the exports that contain a payload.
    fn answer(&mut self, payload: Extent, mut change: impl FnMut(&mut Import)) {
        let header = self.segment.header();
        for import in self.imports.iter_mut().filter(|import| import.has(payload)) {
            change(import);
            header.answer(import.slot, import.number, import.answer);
        }
    }
}

impl DeviceRun<'_> {
    /// Copies the bytes at `from` to `offset` in a buffer, where the message may still write `room` bytes.
    ///
    /// # Errors
    /// [`AccessError::NotYet`] until the bytes have arrived.
    pub(crate) fn place(
        &mut self,
        to: &Buffer,
        offset: u64,
        from: Extent,
        room: u32,
    ) -> Result<(), AccessError> {
        let (imports, position) = (&mut *self.imports, self.position);
        // The records of a queue pair are passed in order, and each message begins with a first or only packet.
        let opcode = Opcode::from_byte(self.header.opcode);
        let begins = opcode.is_none_or(|opcode| opcode.position().is_first());
        let is_past = |run: &PlacedRun| {
            let (first, end) = run.records;
            run.qpn == self.header.dest_qpn
                && (end.is_some_and(|end| end <= position) || begins && first < position)
        };
        imports.copies.retain(|run| !is_past(run));
        let known = imports.copies.iter();
        let known = known.rev().find(|run| run.has(position, from, to, offset));
        if let Some(run) = known {
            match run.copy.state() {
                // The producer reuses the memory only after it has made the record void, so these bytes are valid.
                IncomingState::Complete if imports.segment.header().void_before() <= position => {
                    let of_payload = imports.imports.iter_mut().filter(|it| it.has(from));
                    of_payload.for_each(|import| import.next_pause = FIRST_PAUSE);
                    return Ok(());
                }
                // The record is void, so the memory may have changed during the copy.
                IncomingState::Complete => imports.is_lost = true,
                IncomingState::InProgress => {}
                IncomingState::Failed => imports.is_lost = true,
            }
            return Err(AccessError::NotYet);
        }
        // The rest of a WRITE is copied as a whole, without checking later records: `room` is the length that the
        // message has left. If later records refer to other memory, their payloads are copied again.
        let all_of_message = Extent { len: room, ..from };
        let is_write = opcode.is_some_and(|opcode| opcode.is_write());
        let takes_all = is_write
            && room <= MOST_COPIED
            && imports
                .imports
                .iter()
                .any(|import| import.has(all_of_message));
        let (all, end) = match takes_all {
            true => (all_of_message, None),
            false => {
                let Continuation { len, end } = (self.continuation)();
                let before = from.addr.wrapping_sub(self.addr);
                let rest = u64::from(len).saturating_sub(before);
                let len = (rest as u32).min(room).max(from.len);
                (Extent { len, ..from }, Some(end))
            }
        };
        let begun = imports
            .imports
            .iter()
            .filter(|import| import.has(all) && import.answer == Answer::Imported)
            .flat_map(|import| &import.memories)
            .find_map(|memory| to.begin_copy_from(offset, memory, all.addr, all.len.into()));
        match begun {
            Some(copy) => {
                imports.ended.follow(copy.ended_of_thread());
                imports.copies.push(PlacedRun {
                    qpn: self.header.dest_qpn,
                    records: (position, end),
                    from: all,
                    to: to.clone(),
                    offset,
                    copy,
                });
            }
            None => {
                // If the driver refused a copy, the imported memory was closed.
                let may_copy = |memory: &PeerMemory| {
                    memory.state() == PeerState::Ready
                        && to.copy_thread().is_some_and(|it| it.has_opened(memory))
                };
                let of_payload = imports.imports.iter().filter(|import| import.has(all));
                imports.is_useless = !of_payload.flat_map(|it| &it.memories).any(may_copy);
                // If there are too many copies, wait until one of them ends.
                let mut copies = imports.copies.iter();
                let in_progress = |run: &PlacedRun| run.copy.state() == IncomingState::InProgress;
                imports.is_lost = imports.is_useless || !copies.any(in_progress);
            }
        }
        Err(AccessError::NotYet)
    }
}

#[cfg(test)]
mod tests {
    use gdr_copy::Context;
    use gdr_cuda::{DeviceBuffer, ExportedMemory, Gpu, MemoryKind, Ordinal, SimDriver};

    use super::*;
    use crate::buffer::CopyEngineThreshold;
    use crate::wire::memory::exports::words_of;
    use gdr_udp::Deadline;

    const LEN: u32 = 4096;
    /// The length of a record: one cache line.
    const LINE: u64 = 64;

    /// Imported memory of a producer, and memory of this process.
    struct Ends {
        imports: Imports,
        segment: Arc<Segment>,
        payload: Extent,
        to: Buffer,
        thread: CopyThread,
        _memories: (DeviceBuffer, ExportedMemory, Arc<DeviceBuffer>),
    }

    impl Ends {
        fn new() -> Self {
            let gpu = || Gpu::open(SimDriver::new(1), Ordinal(0)).unwrap();
            let theirs = gpu().allocate(MemoryKind::Plain, LEN.into()).unwrap();
            let (gpu, exported) = (gpu(), theirs.export().unwrap());
            let memory = Arc::new(gpu.allocate(MemoryKind::Plain, LEN.into()).unwrap());
            let pinned = Context::open_for(&gpu).unwrap().pin_buffer(&memory);
            let mapping = pinned.unwrap().map().unwrap();
            // SAFETY: the allocation outlives the buffer, and nothing else uses it.
            let borrowed = unsafe { DeviceBuffer::borrowed(&gpu, memory.ptr(), LEN.into()) };
            let thread = CopyThread::new(&gpu);
            let from = CopyEngineThreshold::From(u64::MAX);
            let to = Buffer::direct_with_copy_thread(mapping, borrowed.unwrap(), &thread, from);

            let segment = Arc::new(Segment::create(1 << 14).unwrap().0);
            let header = segment.header();
            header.set_export(0, 1, &words_of(exported.export()));
            let mut imports = Imports::new(Arc::clone(&segment));
            while header.answer_to(0, 1) == Answer::Pending {
                imports.follow(|| vec![thread.clone()]);
            }
            let payload = Extent {
                addr: theirs.ptr().get(),
                len: LEN,
            };
            assert!(imports.have(payload));
            Self {
                imports,
                segment,
                payload,
                to: to.unwrap(),
                thread,
                _memories: (theirs, exported, memory),
            }
        }

        /// Passes the record at `position`, which is for this queue pair.
        fn place(&mut self, qpn: u32, position: u64) -> Result<(), AccessError> {
            let records = || Continuation {
                len: LEN,
                end: position + LINE,
            };
            let header = Bth {
                dest_qpn: Qpn::new(qpn),
                ..Bth::parse(&[0; Bth::LEN])
            };
            let addr = self.payload.addr;
            let mut run = self.imports.run(header, position, addr, &records);
            run.place(&self.to, 0, self.payload, LEN)
        }

        /// Decides on the record at `position`, which is late.
        fn wait(&mut self, position: u64) -> Pending {
            let since = Instant::now().checked_sub(2 * LATE).unwrap();
            self.imports.wait(position, since, self.payload)
        }

        /// Starts copies until there is no place for another. Returns the queue pair and position of the record that
        /// found none.
        fn fill(&mut self) -> (u32, u64) {
            for qpn in 1.. {
                let position = u64::from(qpn) * LINE;
                assert_eq!(self.place(qpn, position), Err(AccessError::NotYet));
                if self.imports.copies.len() < qpn as usize {
                    return (qpn, position);
                }
            }
            panic!("there is always a place");
        }

        fn await_copy(&self, at: usize) {
            while self.imports.copies[at].copy.state() == IncomingState::InProgress {
                std::thread::yield_now();
            }
        }
    }

    #[test]
    fn vmm_memory_is_opened_once_its_descriptor_has_come() {
        let gpu = || Gpu::open(SimDriver::new(1), Ordinal(0)).unwrap();
        let theirs = gpu().allocate(MemoryKind::VmmPosixFd, 4096).unwrap();
        let exported = theirs.export().unwrap();
        let descriptor = || exported.descriptor().unwrap().try_clone_to_owned().unwrap();
        let segment = Arc::new(Segment::create(1 << 14).unwrap().0);
        let header = segment.header();
        let mut imports = Imports::new(Arc::clone(&segment));
        let thread = CopyThread::new(&gpu());
        let follow = |imports: &mut Imports| imports.follow(|| vec![thread.clone()]);

        imports.add_descriptor(ExportNumber(7), Some(descriptor()));
        assert!(imports.descriptors.is_empty(), "nothing has this number");
        header.set_export(3, 7, &words_of(exported.export()));
        follow(&mut imports);
        assert!(!imports.have_changed(), "it waits for the descriptor");
        assert!(imports.imports.is_empty());

        (0..3).for_each(|_| imports.add_descriptor(ExportNumber(7), Some(descriptor())));
        assert_eq!(imports.descriptors.len(), 1, "one for each export");
        assert!(imports.have_changed());
        while header.answer_to(3, 7) == Answer::Pending {
            follow(&mut imports);
        }
        assert_eq!(header.answer_to(3, 7), Answer::Imported);
        assert!(
            imports.descriptors.is_empty(),
            "what is not needed is closed"
        );
    }

    #[test]
    fn descriptors_of_exports_that_have_ended_take_no_room() {
        let gpu = Gpu::open(SimDriver::new(1), Ordinal(0)).unwrap();
        let theirs = gpu.allocate(MemoryKind::VmmPosixFd, 4096).unwrap();
        let exported = theirs.export().unwrap();
        let segment = Arc::new(Segment::create(1 << 14).unwrap().0);
        let mut imports = Imports::new(Arc::clone(&segment));
        // The producer uses each slot for two exports before this end checks.
        for number in 1..=2 * EXPORTS as u64 {
            let slot = number as usize % EXPORTS;
            let header = segment.header();
            header.set_export(slot, number, &words_of(exported.export()));
            let descriptor = exported.descriptor().unwrap().try_clone_to_owned();
            imports.add_descriptor(ExportNumber(number), Some(descriptor.unwrap()));
        }
        let kept = imports.descriptors.iter().map(|it| it.0);
        assert!(kept.eq(EXPORTS as u64 + 1..=2 * EXPORTS as u64));
    }

    /// The producer then offers the memory again.
    #[test]
    fn memory_for_whose_descriptor_there_was_no_room_is_refused() {
        let gpu = || Gpu::open(SimDriver::new(1), Ordinal(0)).unwrap();
        let theirs = gpu().allocate(MemoryKind::VmmPosixFd, 4096).unwrap();
        let exported = theirs.export().unwrap();
        let segment = Arc::new(Segment::create(1 << 14).unwrap().0);
        let header = segment.header();
        let mut imports = Imports::new(Arc::clone(&segment));
        let thread = CopyThread::new(&gpu());
        header.set_export(0, 1, &words_of(exported.export()));
        imports.add_descriptor(ExportNumber(1), None);
        let deadline = Deadline::after(Duration::from_secs(60));
        while header.answer_to(0, 1) == Answer::Pending {
            assert!(!deadline.has_passed(), "nothing is answered");
            imports.follow(|| vec![thread.clone()]);
        }
        assert_eq!(header.answer_to(0, 1), Answer::Refused);
    }

    #[test]
    fn a_copy_is_late_when_no_other_one_ends() {
        let mut ends = Ends::new();
        let mut held = ends.thread.hold_up();
        assert_eq!(ends.place(1, 0), Err(AccessError::NotYet));
        assert_eq!(ends.place(2, LINE), Err(AccessError::NotYet));
        // Each copy is on a stream of its own.
        held.remove(0);
        ends.await_copy(0);
        assert_eq!(ends.wait(LINE), Pending::Waits, "the first one has ended");
        while ends.wait(LINE) == Pending::Waits {
            std::thread::yield_now();
        }
        assert_eq!(ends.place(1, 0), Ok(()));
    }

    #[test]
    fn a_record_waits_for_a_place_among_the_copies() {
        let mut ends = Ends::new();
        let held = ends.thread.hold_up();
        let (qpn, position) = ends.fill();
        let payload = ends.payload;
        let waits = ends.imports.wait(position, Instant::now(), payload);
        assert_eq!(waits, Pending::Waits);
        drop(held);
        while ends.place(qpn, position) == Err(AccessError::NotYet) {
            std::thread::yield_now();
        }
        assert_eq!(ends.place(qpn, position), Ok(()));
    }

    #[test]
    fn a_record_that_finds_no_place_is_lost_when_no_copy_ends() {
        let mut ends = Ends::new();
        let _held = ends.thread.hold_up();
        let (_, position) = ends.fill();
        while ends.wait(position) == Pending::Waits {
            std::thread::yield_now();
        }
    }

    #[test]
    fn memory_of_a_late_copy_is_referred_to_again_once_the_driver_is_free_and_stays_open() {
        let mut ends = Ends::new();
        let thread = ends.thread.clone();
        for _ in 0..2 {
            let held = thread.hold_up_calls();
            assert_eq!(ends.place(1, 0), Err(AccessError::NotYet));
            while ends.wait(0) == Pending::Waits {
                std::thread::yield_now();
            }
            let answer = |ends: &Ends| ends.segment.header().answer_to(0, 1);
            let pause = ends.imports.imports[0].pause.as_ref().unwrap().until;
            while Instant::now() < pause {
                std::thread::yield_now();
            }
            ends.imports.follow(Vec::new);
            assert_eq!(answer(&ends), Answer::Paused, "the driver is held up");
            drop(held);
            let deadline = Deadline::after(Duration::from_secs(60));
            while answer(&ends) == Answer::Paused {
                assert!(!deadline.has_passed(), "the driver is free");
                ends.imports.follow(Vec::new);
            }
            assert_eq!(answer(&ends), Answer::Imported);
        }
        let import = &ends.imports.imports[0];
        assert_eq!(import.next_pause, 16 * FIRST_PAUSE, "no copy was made");
        assert_eq!(ends.place(1, 0), Err(AccessError::NotYet));
        ends.await_copy(0);
        assert_eq!(ends.place(1, 0), Ok(()));
        assert_eq!(ends.imports.imports[0].next_pause, FIRST_PAUSE);
    }

    /// The producer flushes a request, and its program reuses the memory, while the payload is copied.
    #[test]
    fn what_was_copied_for_a_record_that_is_void_by_then_is_not_delivered() {
        let mut ends = Ends::new();
        for (position, void_before, delivered) in
            [(0, 0, Ok(())), (LINE, 2 * LINE, Err(AccessError::NotYet))]
        {
            assert_eq!(ends.place(1, position), Err(AccessError::NotYet));
            ends.await_copy(ends.imports.copies.len() - 1);
            let now = Deadline::after(Duration::ZERO);
            let header = ends.segment.header();
            let is_done = header.void_references(void_before, now);
            assert!(is_done, "nothing is waited for");
            assert_eq!(ends.place(1, position), delivered);
        }
        let payload = ends.payload;
        let lost = ends.imports.wait(LINE, Instant::now(), payload);
        assert_eq!(lost, Pending::Lost);
    }
}
