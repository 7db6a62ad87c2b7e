//! A ring of records in shared memory, from one process to another.
//!
//! A record is a word with its length, and that many bytes. It begins at a multiple of [`LINE`], so a short
//! one is one cache line, which is all that moves between the two processors. The word is written last, and
//! shows that the record is there; the word after the last record is 0.
//!
//! A short record is copied before anything of it is used. Only the start of a long one is: the rest is payload, which
//! is copied once, to its destination. A record can also say where in the memory of the producer the
//! payload is, which the consumer then reads.
//!
//! Each end trusts the other with nothing but its own bytes: a word or a position that cannot be makes the ring
//! [`Broken`], and no byte outside of it is touched.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use gdr_roce::wire::{Bth, Opcode};
use gdr_roce::{Extent, PayloadBy};

use super::primitives::{AtomicU32, AtomicU64, Deadline, fence};
use super::segment::Segment;

/// The unit in which records take room.
pub(super) const LINE: usize = 64;
/// The bytes of a record before its contents.
const WORD: usize = 8;
/// Instead of a length: the next record is at the start of the ring.
const WRAP: u32 = u32::MAX;
/// With the length: the record ends with where its payload is.
const REFERENCE: u32 = 1 << 31;
/// How many bytes that takes.
const REFERENCE_LEN: usize = 12;

/// Up to this length a record is copied as a whole.
const SHORT: usize = 256;
/// How much of a longer one is copied: more than the headers of any packet.
const START: usize = 64;
/// How many bytes of short records the producer shows together at most.
const MOST_HIDDEN: u64 = 1024;
/// How far before it writes them the producer fetches the cache lines of short records.
const AHEAD: u64 = 512;
/// In how many parts the consumer gives the room of a ring back.
const PARTS: u64 = 8;
/// For what a processor fetches a cache line.
#[derive(Clone, Copy, Debug)]
pub(super) enum FetchedTo {
    Read,
    Write,
}

/// The start of a record, or all of it.
pub(super) type RecordStart = [u8; SHORT];

/// The other end wrote what cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Broken;

/// How many bytes a record with `len` bytes takes.
fn taken(len: usize) -> usize {
    (WORD + len).next_multiple_of(LINE)
}

/// Whether the other end asked to be woken. It is asked for once: the caller wakes it, though it may just have asked
/// again.
pub(super) fn take_request(asked: &AtomicU32) -> bool {
    // Usually only a load, because a store would move the cache line from the other processor.
    let is_asked = asked.load(Ordering::Relaxed) != 0;
    if is_asked {
        asked.store(0, Ordering::Relaxed);
    }
    is_asked
}

/// The end that writes records.
#[derive(Debug)]
pub(super) struct Producer {
    segment: Arc<Segment>,
    /// The longest record.
    most: usize,
    /// How many bytes were written since the beginning. The next record begins there.
    tail: u64,
    /// How many of these the consumer had given back when this end looked last.
    head: u64,
    batch: Batch,
}

/// The records that were added since the last [`Producer::flush`]. The consumer sees the first one at once, and the others
/// later and together: if it took each at once, the cache line of the next one would move to its processor while that
/// is written.
#[derive(Debug)]
enum Batch {
    Empty,
    /// The consumer sees all of them.
    Shown,
    /// The word of the one at `first` is not stored, and the consumer comes to none of those after it.
    Hidden {
        first: u64,
        word: u32,
    },
}

impl Producer {
    /// Returns the producer of an empty ring for records of up to `most` bytes.
    pub(super) fn new(segment: Arc<Segment>, most: usize) -> Self {
        Self {
            segment,
            most,
            tail: 0,
            head: 0,
            batch: Batch::Empty,
        }
    }

    /// Where the next record begins.
    fn offset(&self) -> usize {
        self.offset_of(self.tail)
    }

    fn offset_of(&self, position: u64) -> usize {
        // The length of a ring is a power of two.
        position as usize & (self.segment.ring_len() - 1)
    }

    /// How many bytes may be written, as far as is known.
    fn free(&self) -> usize {
        self.segment.ring_len() - (self.tail - self.head) as usize
    }

    /// Whether there is room for the longest record and the word after it.
    fn fits(&self) -> bool {
        let needed = taken(self.most) + LINE;
        let to_end = self.segment.ring_len() - self.offset();
        // A record that does not fit before the end begins at the start, and the rest stays empty.
        let skipped = if to_end < needed { to_end } else { 0 };
        self.free() >= skipped + needed
    }

    /// Looks how much the consumer has given back; returns whether there is room for the longest record.
    pub(super) fn has_room(&mut self) -> Result<bool, Broken> {
        if self.fits() {
            return Ok(true);
        }
        // Pairs with the release of the consumer: it has read what is overwritten next.
        let head = self.segment.header().head().load(Ordering::Acquire);
        // A position that goes back, or is beyond what was written, would make room where unread
        // records are.
        if head < self.head || head > self.tail {
            return Err(Broken);
        }
        self.head = head;
        Ok(self.fits())
    }

    /// Room for the longest record, if there is some.
    pub(super) fn room(&mut self) -> Result<Option<&mut [u8]>, Broken> {
        if !self.has_room()? {
            return Ok(None);
        }
        if self.segment.ring_len() - self.offset() < taken(self.most) + LINE {
            self.skip_to_start();
        }
        let at = self.segment.at(self.offset() + WORD, self.most);
        // SAFETY: the bytes are inside the mapping, after the last record: this end alone uses them until
        // it adds that record. A process that breaks this rule can change them, but they are only written here.
        Ok(at.map(|at| unsafe { NonNull::slice_from_raw_parts(at, self.most).as_mut() }))
    }

    /// Continues at the start of the ring.
    fn skip_to_start(&mut self) {
        let offset = self.offset();
        let to_end = self.segment.ring_len() - offset;
        if let (Some(first), Some(this)) = (self.segment.word(0), self.segment.word(offset)) {
            // Cleared before the mark leads the consumer there.
            first.store(0, Ordering::Relaxed);
            this.store(WRAP, Ordering::Release);
            self.tail += to_end as u64;
        }
    }

    /// Adds a record with the first `len` bytes of [`Producer::room`]. The consumer sees it after [`Producer::flush`], if
    /// not before.
    pub(super) fn push(&mut self, len: usize) {
        self.add(len, PayloadBy::Copy);
    }

    /// Adds a record with the first `len` bytes of [`Producer::room`], whose payload is at `payload` in the memory of
    /// this process. Returns the position of its end.
    pub(super) fn push_reference(&mut self, len: usize, payload: Extent) -> u64 {
        if let Some(at) = self.segment.at(self.offset() + WORD + len, REFERENCE_LEN) {
            // SAFETY: inside the mapping, in the room that this end alone uses, at any alignment.
            unsafe {
                at.cast::<u64>().write_unaligned(payload.addr);
                at.add(8).cast::<u32>().write_unaligned(payload.len);
            }
            self.add(len + REFERENCE_LEN, PayloadBy::Reference);
        }
        self.tail
    }

    fn add(&mut self, len: usize, by: PayloadBy) {
        let (offset, position) = (self.offset(), self.tail);
        let len = len.min(self.most);
        let flag = match by {
            PayloadBy::Copy => 0,
            PayloadBy::Reference => REFERENCE,
        };
        let word = len as u32 | flag;
        if let (Some(this), Some(next)) = (
            self.segment.word(offset),
            self.segment.word(offset + taken(len)),
        ) {
            // Stored before the release of `show`: otherwise the consumer would take old bytes after this record for a
            // length.
            next.store(0, Ordering::Relaxed);
            self.tail += taken(len) as u64;
            match self.batch {
                // It may be the only one, for which the consumer waits.
                Batch::Empty => {
                    this.store(word, Ordering::Release);
                    self.batch = Batch::Shown;
                }
                Batch::Shown => {
                    let first = position;
                    self.batch = Batch::Hidden { first, word };
                }
                Batch::Hidden { .. } => this.store(word, Ordering::Relaxed),
            }
        }
        if len <= SHORT {
            for line in (0..taken(len)).step_by(LINE) {
                let ahead = self.offset_of(self.tail + AHEAD + line as u64);
                self.segment.fetch(ahead, FetchedTo::Write);
            }
        }
        // Others are shown at once, with those before them: the consumer begins with them while this end goes on.
        let is_short = len <= SHORT && by == PayloadBy::Copy;
        let hidden = match &self.batch {
            Batch::Hidden { first, .. } => self.tail - first,
            Batch::Empty | Batch::Shown => 0,
        };
        if !is_short || hidden >= MOST_HIDDEN {
            self.show();
        }
    }

    /// Shows the consumer all records.
    fn show(&mut self) {
        if let Batch::Hidden { first, word } = self.batch
            && let Some(place) = self.segment.word(self.offset_of(first))
        {
            place.store(word, Ordering::Release);
        }
        self.batch = Batch::Shown;
    }

    /// Makes all references void, without waiting for one that is being read.
    pub(super) fn void_references(&self) {
        let now = Deadline::after(Duration::ZERO);
        self.segment.header().void_references(self.tail, now);
    }

    pub(super) fn segment(&self) -> &Arc<Segment> {
        &self.segment
    }

    /// Shows the consumer all that was added; returns whether it must be woken for it.
    pub(super) fn flush(&mut self) -> bool {
        self.show();
        self.batch = Batch::Empty;
        // The consumer stores that it sleeps, and then looks for records.
        fence(Ordering::SeqCst);
        let idle = self.segment.header().consumer_idle();
        take_request(idle)
    }

    /// Asks the consumer to wake this end when there is room. The caller looks for room once more.
    pub(super) fn ask_for_room(&self) {
        // Stored before the caller looks for room again. The consumer gives room back before it
        // looks for this request.
        self.segment.header().waiting().store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }
}

/// Shows whether there is a record, without the end that takes it.
#[derive(Clone, Debug)]
pub(super) struct RecordWatch {
    segment: Arc<Segment>,
    /// How many bytes were taken since the beginning. The next record is there.
    taken: Arc<AtomicU64>,
    /// A record that was taken waits for its payload.
    waits: Arc<AtomicBool>,
}

impl RecordWatch {
    fn offset(&self) -> usize {
        // The length of a ring is a power of two.
        self.taken.load(Ordering::Relaxed) as usize & (self.segment.ring_len() - 1)
    }

    /// Whether there is a record, or one waits for its payload.
    pub(super) fn has_record(&self) -> bool {
        self.waits.load(Ordering::Relaxed) || matches!(self.length(), Ok(len) if len != 0)
    }

    fn length(&self) -> Result<u32, Broken> {
        let word = self.segment.word(self.offset()).ok_or(Broken)?;
        Ok(word.load(Ordering::Acquire))
    }
}

/// A record that was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Record {
    /// All of it was copied: this many bytes.
    Whole(usize),
    /// It is long, and only its start was copied. This is where it is in the memory of this process until its room is
    /// given back.
    Long(Extent),
    /// This many bytes, without the payload, which is there in the memory of the producer.
    Referring(usize, Extent),
    /// Like `Referring`, to memory of a GPU.
    InDevice(usize, Extent),
    /// What it refers to is void: it is lost.
    Void,
}

/// Records of one message that refer to one range of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Continuation {
    /// How many bytes.
    pub(super) len: u32,
    /// The position where the last one ends.
    pub(super) end: u64,
}

pub(super) fn ends_message(header: Bth) -> bool {
    Opcode::from_byte(header.opcode).is_none_or(|opcode| opcode.position().is_last())
}

/// Looks for such records.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    addr: u64,
    most: u32,
    /// The header of the last one.
    header: Bth,
    all: Continuation,
}

impl Run {
    /// Begins with a record that ends at `end`. No more than `most` bytes are added.
    pub(super) fn new(header: Bth, payload: Extent, end: u64, most: u32) -> Self {
        let Extent { addr, len } = payload;
        Self {
            addr,
            most,
            header,
            all: Continuation { len, end },
        }
    }

    /// Adds the next record, if it continues the message and refers to the adjacent bytes; returns whether it does.
    pub(super) fn add(&mut self, header: Bth, next: Extent, end: u64) -> bool {
        let continues = !ends_message(self.header)
            && header.dest_qpn == self.header.dest_qpn
            && header.psn.compare(self.header.psn).is_gt()
            && next.addr == self.addr.wrapping_add(self.all.len.into())
            && next.len <= self.most.saturating_sub(self.all.len);
        if continues {
            self.header = header;
            self.all.len += next.len;
            self.all.end = end;
        }
        continues
    }

    pub(super) fn all(&self) -> Continuation {
        self.all
    }
}

/// The end that takes records.
#[derive(Debug)]
pub(super) struct Consumer {
    next: RecordWatch,
    /// The longest record.
    most: usize,
    /// While the memory of the producer is read: before which position references are void.
    void_before: Option<u64>,
    /// How many bytes were taken, as [`RecordWatch`] has it.
    taken: u64,
    /// How many the producer knows to be taken.
    given_back: u64,
    /// The other end broke the rules. Nothing more is taken.
    is_stopped: bool,
}

impl Consumer {
    /// Returns the consumer of a ring with records of up to `most` bytes.
    pub(super) fn new(segment: Arc<Segment>, most: usize) -> Self {
        Self {
            most,
            void_before: None,
            next: RecordWatch {
                segment,
                taken: Arc::default(),
                waits: Arc::default(),
            },
            taken: 0,
            given_back: 0,
            is_stopped: false,
        }
    }

    pub(super) fn watch(&self) -> RecordWatch {
        self.next.clone()
    }

    /// Whether there is a record.
    pub(super) fn has_record(&self) -> bool {
        !self.is_stopped && self.next.has_record()
    }

    /// The position of the next record.
    pub(super) fn position(&self) -> u64 {
        self.taken
    }

    /// Takes nothing from `position` on again: what was taken since is taken once more.
    pub(super) fn go_back(&mut self, position: u64) {
        self.taken = position.clamp(self.given_back, self.taken);
        self.next.taken.store(self.taken, Ordering::Relaxed);
    }

    /// The record that was taken last, which begins with `first` and refers to `payload`, and the records after it that
    /// continue it, up to `most` bytes in all. Nothing is taken.
    pub(super) fn continuation(&self, first: Bth, payload: Extent, most: u32) -> Continuation {
        let segment = &self.next.segment;
        let mut run = Run::new(first, payload, self.taken, most);
        let mut at = self.taken;
        // Go around once at most: the other process could write references everywhere, and the search would
        // never end.
        while at - self.taken < segment.ring_len() as u64 {
            // The length of a ring is a power of two.
            let offset = at as usize & (segment.ring_len() - 1);
            let word = segment.word(offset);
            let word = word.map_or(0, |word| word.load(Ordering::Acquire));
            // A wrap at the start would lead to itself.
            if word == WRAP && offset != 0 {
                at += (segment.ring_len() - offset) as u64;
                continue;
            }
            let len = (word & !REFERENCE) as usize;
            // Only a record that refers to memory continues another one, and it has a header at
            // least.
            if word & REFERENCE == 0 || !(Bth::LEN + REFERENCE_LEN..=SHORT).contains(&len) {
                break;
            }
            let Some(bytes) = segment.at(offset + WORD, len) else {
                break;
            };
            // SAFETY: inside the mapping, of integer types, at any alignment. A process that changes them changes only
            // what is read.
            let (header, next) = unsafe {
                let reference = bytes.add(len - REFERENCE_LEN);
                let next = Extent {
                    addr: reference.cast::<u64>().read_unaligned(),
                    len: reference.add(8).cast::<u32>().read_unaligned(),
                };
                (bytes.cast::<[u8; Bth::LEN]>().read_unaligned(), next)
            };
            at += taken(len) as u64;
            if !run.add(Bth::parse(&header), next, at) {
                break;
            }
        }
        run.all()
    }

    /// Takes nothing more.
    pub(super) fn stop(&mut self) {
        self.is_stopped = true;
    }

    fn advance(&mut self, bytes: usize) {
        self.taken += bytes as u64;
        self.next.taken.store(self.taken, Ordering::Relaxed);
    }

    /// Takes the next record and copies its start to `start`. From the first record that refers to the producer's memory
    /// until [`Consumer::end_reads`], the producer waits before it gives that memory away. It does not wait for GPU
    /// memory, which `is_in_device` identifies: a copy of it is dropped if the producer has voided the record meanwhile.
    pub(super) fn take(
        &mut self,
        start: &mut RecordStart,
        is_in_device: impl Fn(Extent) -> bool,
    ) -> Result<Option<Record>, Broken> {
        if self.is_stopped {
            return Ok(None);
        }
        let mut len = self.next.length()?;
        if len == WRAP {
            let offset = self.next.offset();
            // A wrap at the start would lead to itself forever.
            if offset == 0 {
                return Err(Broken);
            }
            self.advance(self.next.segment.ring_len() - offset);
            len = self.next.length()?;
        }
        if len == 0 {
            return Ok(None);
        }
        let refers = len & REFERENCE != 0;
        let len = (len & !REFERENCE) as usize;
        if len > self.most || refers && !(REFERENCE_LEN..=SHORT).contains(&len) {
            return Err(Broken);
        }
        // A short record is copied whole, so that the other process cannot change a header after it
        // was checked.
        let copied = if len > SHORT { START } else { len };
        let (segment, offset) = (&self.next.segment, self.next.offset());
        // The word of the next record must be inside the ring, too.
        segment.at(offset, taken(len) + LINE).ok_or(Broken)?;
        let bytes = segment.at(offset + WORD, len).ok_or(Broken)?;
        // SAFETY: the bytes are inside the mapping and outside of `start`, and of an integer type. By the rules
        // of the ring no process writes them until they are given back; one that does changes only what is read.
        unsafe { bytes.copy_to_nonoverlapping(NonNull::from(&mut *start).cast(), copied) };
        let record = if refers {
            let without = len - REFERENCE_LEN;
            self.referring(without, &start[without..len], is_in_device)
        } else if len > SHORT {
            Record::Long(Extent {
                addr: bytes.as_ptr().expose_provenance() as u64,
                len: len as u32,
            })
        } else {
            Record::Whole(len)
        };
        self.advance(taken(len));
        // The next record is often there already, and of the same length.
        if len <= SHORT {
            let next = self.next.offset();
            for line in (0..taken(len)).step_by(LINE) {
                self.next.segment.fetch(next + line, FetchedTo::Read);
            }
        }
        Ok(Some(record))
    }

    fn referring(
        &mut self,
        len: usize,
        reference: &[u8],
        is_in_device: impl Fn(Extent) -> bool,
    ) -> Record {
        let (Some(addr), Some(payload_len)) = (reference.first_chunk(), reference.last_chunk())
        else {
            return Record::Void;
        };
        let payload = Extent {
            addr: u64::from_ne_bytes(*addr),
            len: u32::from_ne_bytes(*payload_len),
        };
        if is_in_device(payload) {
            return Record::InDevice(len, payload);
        }
        let segment = &self.next.segment;
        // Once for all records of a quantum: from here to `end_reads` the producer waits before it
        // gives memory away.
        let void_before = *self
            .void_before
            .get_or_insert_with(|| segment.header().begin_reads());
        // The producer has made older references void, and may have given their memory away.
        match self.taken >= void_before {
            true => Record::Referring(len, payload),
            false => Record::Void,
        }
    }

    /// The memory of the producer is not read any more for the records that were taken.
    pub(super) fn end_reads(&mut self) {
        if self.void_before.take().is_some() {
            self.next.segment.header().end_reads();
        }
    }

    /// Asks the producer not to refer to its memory.
    pub(super) fn refuse_references(&self) {
        self.next.segment.header().refuse_references();
    }

    /// Whether so much was taken that its room is worth to be given back. The producer has the other parts of the ring
    /// until then.
    pub(super) fn owes_room(&self) -> bool {
        self.taken - self.given_back >= self.next.segment.ring_len() as u64 / PARTS
    }

    /// Gives the room of what was taken back if it is worth it, up to the record at `first`, which still waits; returns
    /// whether the producer waits for it and must be woken.
    pub(super) fn give_back(&mut self, first: Option<u64>) -> bool {
        let until = first
            .unwrap_or(self.taken)
            .clamp(self.given_back, self.taken);
        self.next.waits.store(first.is_some(), Ordering::Relaxed);
        if self.given_back == until || !self.owes_room() {
            return false;
        }
        self.given_back = until;
        let segment = &self.next.segment;
        // The release ends all reads of the room that is given back.
        segment.header().head().store(until, Ordering::Release);
        // The producer stores that it waits, and then looks for room.
        fence(Ordering::SeqCst);
        let waiting = segment.header().waiting();
        take_request(waiting)
    }

    /// Asks the producer to wake this end for the next record. The caller looks for one once more.
    pub(super) fn sleep(&self) {
        self.next
            .segment
            .header()
            .consumer_idle()
            // Stored before the caller looks for a record again. The producer adds one before it
            // looks for this request.
            .store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Reverses [`Consumer::sleep`].
    pub(super) fn wake(&self) {
        self.next
            .segment
            .header()
            .consumer_idle()
            .store(0, Ordering::Relaxed);
    }
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::thread;

    use gdr_roce::wire::Position;
    use gdr_roce::{Psn, Qpn};
    use proptest::prelude::*;

    use super::*;

    /// The smallest ring, and the longest record in it.
    const RING: usize = 1 << 14;
    const MOST: usize = 1000;

    fn ends() -> (Producer, Consumer, Arc<Segment>) {
        let segment = Arc::new(Segment::create(RING).unwrap().0);
        let producer = Producer::new(Arc::clone(&segment), MOST);
        (producer, Consumer::new(Arc::clone(&segment), MOST), segment)
    }

    /// Adds a record; returns whether there was room.
    fn add(producer: &mut Producer, record: &[u8]) -> bool {
        let Some(room) = producer.room().unwrap() else {
            return false;
        };
        room[..record.len()].copy_from_slice(record);
        producer.push(record.len());
        producer.flush();
        true
    }

    fn take(consumer: &mut Consumer) -> Option<Vec<u8>> {
        let mut start = [0; _];
        match consumer.take(&mut start, |_| false).unwrap()? {
            Record::Whole(len) => Some(start[..len].to_vec()),
            Record::Long(extent) => {
                let bytes = std::ptr::with_exposed_provenance::<u8>(extent.addr as usize);
                let mut out = vec![0; extent.len as usize];
                // SAFETY: a record in the mapping, which no thread writes before its room is given back.
                unsafe { bytes.copy_to_nonoverlapping(out.as_mut_ptr(), out.len()) };
                assert_eq!(out[..START], start[..START]);
                Some(out)
            }
            other => panic!("{other:?}"),
        }
    }

    proptest! {
        #[test]
        fn records_arrive_whole_and_in_order(
            steps in prop::collection::vec((1..=MOST, any::<u8>(), 0..4_usize), 1..400),
        ) {
            let (mut producer, mut consumer, _) = ends();
            let mut expected = VecDeque::new();
            for (len, byte, takes) in steps {
                let record = vec![byte; len];
                if add(&mut producer, &record) {
                    expected.push_back(record);
                } else {
                    let kept: usize = expected.iter().map(|record| taken(record.len())).sum();
                    prop_assert!(kept + 2 * (taken(MOST) + LINE) >= RING, "{} bytes are kept", kept);
                }
                for _ in 0..takes {
                    prop_assert_eq!(take(&mut consumer), expected.pop_front());
                    consumer.give_back(None);
                }
            }
            while let Some(record) = expected.pop_front() {
                prop_assert!(consumer.has_record());
                prop_assert_eq!(take(&mut consumer), Some(record));
            }
            prop_assert!(!consumer.has_record());
        }

        /// A process that writes whatever it likes.
        #[test]
        fn no_word_of_the_other_end_leads_out_of_the_ring(
            words in prop::collection::vec((0..RING / LINE, any::<u32>()), 0..64),
            head: u64,
        ) {
            let (mut producer, mut consumer, segment) = ends();
            for (line, value) in words {
                segment.word(line * LINE).unwrap().store(value, Ordering::Relaxed);
            }
            let mut start = [0; _];
            let inside = segment.at(0, RING).unwrap().as_ptr().addr() as u64;
            while let Ok(Some(record)) = consumer.take(&mut start, |_| false) {
                if let (Record::Referring(_, payload), Some(header)) = (record, start.first_chunk()) {
                    let all = consumer.continuation(Bth::parse(header), payload, 1 << 20);
                    prop_assert!(all.end - consumer.position() <= RING as u64);
                    prop_assert!(all.len <= payload.len.max(1 << 20));
                }
                match record {
                    Record::Whole(len) | Record::Referring(len, _) | Record::InDevice(len, _) => {
                        prop_assert!(len <= SHORT);
                    }
                    Record::Long(Extent { addr, len }) => {
                        prop_assert!(addr >= inside && len as usize <= MOST);
                        prop_assert!(addr + u64::from(len) <= inside + RING as u64);
                    }
                    Record::Void => {}
                }
                consumer.give_back(None);
                // Else the records that are there would be taken again and again.
                if consumer.taken > 4 * RING as u64 {
                    break;
                }
            }
            while add(&mut producer, &[1; MOST]) {}
            segment.header().head().store(head, Ordering::Relaxed);
            let room = producer.room().map(|room| room.map(|room| room.len()));
            if head > RING as u64 {
                prop_assert_eq!(room, Err(Broken));
            } else if let Ok(Some(len)) = room {
                prop_assert_eq!(len, MOST);
            }
        }
    }

    #[test]
    fn a_consumer_that_sleeps_is_woken_once_and_a_producer_that_waits_as_well() {
        let (mut producer, mut consumer, _) = ends();
        add(&mut producer, &[1]);
        assert!(!producer.flush(), "it does not sleep");
        consumer.sleep();
        assert!(producer.flush());
        assert!(!producer.flush(), "it was woken");
        consumer.sleep();
        consumer.wake();
        assert!(!producer.flush());
        while add(&mut producer, &[2; MOST]) {}
        while take(&mut consumer).is_some() {}
        assert!(!consumer.give_back(None), "it does not wait");
        while add(&mut producer, &[2; MOST]) {}
        producer.ask_for_room();
        assert_eq!(producer.has_room(), Ok(false));
        while take(&mut consumer).is_some() {}
        assert!(consumer.give_back(None));
        assert_eq!(producer.has_room(), Ok(true));
    }

    /// Adds a record of this length, and does not flush.
    fn push(producer: &mut Producer, len: usize) {
        producer.room().unwrap().unwrap();
        producer.push(len);
    }

    #[test]
    fn short_records_are_shown_together_and_a_long_one_at_once_with_those_before_it() {
        let (mut producer, mut consumer, _) = ends();
        for _ in 0..2 {
            push(&mut producer, 8);
            assert!(take(&mut consumer).is_some(), "the first is shown at once");
            push(&mut producer, 8);
            push(&mut producer, 8);
            assert!(!consumer.has_record());
            producer.flush();
            assert!(take(&mut consumer).is_some() && take(&mut consumer).is_some());
        }
        push(&mut producer, 8);
        assert!(take(&mut consumer).is_some());
        let together = MOST_HIDDEN as usize / LINE;
        (1..together).for_each(|_| push(&mut producer, 8));
        assert!(!consumer.has_record());
        push(&mut producer, 8);
        let shown = std::iter::from_fn(|| take(&mut consumer)).count();
        assert_eq!(shown, together, "no more are kept");
        push(&mut producer, 8);
        push(&mut producer, SHORT + 1);
        assert!(take(&mut consumer).is_some() && take(&mut consumer).is_some());
    }

    #[test]
    fn room_is_given_back_in_parts_of_the_ring() {
        let (mut producer, mut consumer, segment) = ends();
        let head = || segment.header().head().load(Ordering::Relaxed);
        let part = RING as u64 / PARTS;
        for taken in (LINE as u64..).step_by(LINE) {
            add(&mut producer, &[1]);
            take(&mut consumer).unwrap();
            consumer.give_back(None);
            assert_eq!(head(), if taken < part { 0 } else { part });
            if taken == part {
                return;
            }
        }
    }

    #[test]
    fn two_threads_pass_records_through_a_ring_that_is_mostly_full() {
        const RECORDS: u64 = 100_000;
        let (mut producer, mut consumer, _) = ends();
        let sender = thread::spawn(move || {
            for n in 0..RECORDS {
                let len = 8 + (n % 100) as usize * 8;
                let record: Vec<u8> = n.to_ne_bytes().repeat(len / 8);
                while !add(&mut producer, &record) {
                    thread::yield_now();
                }
            }
        });
        for n in 0..RECORDS {
            let record = loop {
                if let Some(record) = take(&mut consumer) {
                    break record;
                }
                consumer.give_back(None);
                thread::yield_now();
            };
            assert!(record.chunks(8).all(|word| word == n.to_ne_bytes()), "{n}");
        }
        sender.join().unwrap();
    }

    #[test]
    fn a_reference_arrives_unless_it_was_made_void() {
        let (mut producer, mut consumer, segment) = ends();
        let payload = Extent {
            addr: 0x1234_5678_9abc,
            len: 4096,
        };
        let refer = |producer: &mut Producer| {
            producer.room().unwrap().unwrap()[..3].copy_from_slice(b"abc");
            producer.push_reference(3, payload)
        };
        let mut start = [0; _];
        refer(&mut producer);
        let taken = consumer.take(&mut start, |_| false);
        assert_eq!(taken, Ok(Some(Record::Referring(3, payload))));
        assert_eq!(start[..3], *b"abc");
        let soon = || Deadline::after(Duration::from_millis(1));
        let end = refer(&mut producer);
        assert!(
            !segment.header().void_references(end, soon()),
            "it is being read"
        );
        consumer.end_reads();
        assert!(segment.header().void_references(end, soon()));
        let before = refer(&mut producer);
        assert_eq!(consumer.take(&mut start, |_| false), Ok(Some(Record::Void)));
        let taken = consumer.take(&mut start, |_| false);
        assert_eq!(
            taken,
            Ok(Some(Record::Referring(3, payload))),
            "it is a later one"
        );
        consumer.end_reads();
        consumer.give_back(None);
        assert!(
            segment.header().void_references(before, soon()),
            "all are taken"
        );
        refer(&mut producer);
        let taken = consumer.take(&mut start, |_| false);
        assert_eq!(
            taken,
            Ok(Some(Record::Referring(3, payload))),
            "nothing was void"
        );
    }

    /// A packet of a SEND, at this many packets from the first.
    fn header(position: Position, qpn: u32, psn: u32) -> [u8; Bth::LEN] {
        let bth = Bth {
            opcode: Opcode::send(position, false).byte(),
            dest_qpn: Qpn::new(qpn),
            psn: Psn::new(psn),
            ..Bth::parse(&[0; Bth::LEN])
        };
        let mut bytes = [0; Bth::LEN];
        bth.emit(&mut bytes);
        bytes
    }

    #[test]
    fn a_continuation_is_of_one_message_and_one_range() {
        const PACKET: u32 = 1000;
        use Position::{First, Last, Middle, Only};
        // The packets after a first one: which it is, its queue pair, its PSN, the packets before its payload, its length.
        let last = (Last, 5, 12, 2, 500);
        type Packet = (Position, u32, u32, u32, u32);
        let cases: [(&[Packet], u32); _] = [
            (&[], 1000),
            (&[(Middle, 5, 11, 1, PACKET), last], 2500),
            (
                &[(Middle, 5, 11, 1, PACKET), last, (Only, 5, 13, 3, 7)],
                2500,
            ),
            (&[(Middle, 6, 11, 1, PACKET), last], 1000),
            (&[(Middle, 5, 10, 1, PACKET), last], 1000),
            (&[(Middle, 5, 11, 2, PACKET), last], 1000),
            (
                &[(Middle, 5, 11, 1, PACKET), (Middle, 5, 12, 2, PACKET)],
                2000,
            ),
        ];
        for (behind, expected) in cases {
            let (mut producer, mut consumer, _) = ends();
            // So that some cases go over the end of the ring.
            for _ in 0..RING / LINE - 2 {
                add(&mut producer, &[0; 8]);
                take(&mut consumer).unwrap();
                consumer.give_back(None);
            }
            let mut ends = Vec::new();
            let packets = [(First, 5, 10, 0, PACKET)]
                .into_iter()
                .chain(behind.iter().copied());
            for (position, qpn, psn, before, len) in packets {
                let room = producer.room().unwrap().unwrap();
                room[..Bth::LEN].copy_from_slice(&header(position, qpn, psn));
                let addr = u64::from(0x1_0000 + before * PACKET);
                ends.push(producer.push_reference(Bth::LEN, Extent { addr, len }));
            }
            let start_at = consumer.position();
            let mut start = [0; _];
            let Some(Record::Referring(_, payload)) = consumer.take(&mut start, |_| false).unwrap()
            else {
                panic!("{behind:?}");
            };
            let first = Bth::parse(start.first_chunk().unwrap());
            let all = consumer.continuation(first, payload, 2500);
            assert_eq!(all.len, expected, "{behind:?}");
            let records = expected.div_ceil(PACKET) as usize;
            assert_eq!(all.end, ends[records - 1], "{behind:?}");
            consumer.go_back(start_at);
            let again = consumer.take(&mut start, |_| false).unwrap();
            assert_eq!(again, Some(Record::Referring(Bth::LEN, payload)));
        }
    }
}
