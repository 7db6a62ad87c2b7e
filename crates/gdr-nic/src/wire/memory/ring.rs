//! A ring of records in shared memory, from one process to another.
//!
//! A record is a word with its length, followed by that many bytes. It begins at a multiple of [`LINE`], so a short
//! record is a single cache line, and nothing else moves between the two processors. The word is written last and
//! publishes the record; the word after the last record is 0.
//!
//! A short record is copied before any of it is used. Of a long record only the start is copied: the rest is payload,
//! which is copied once, to its destination. Instead of payload, a record can contain its location in the producer's
//! memory, which the consumer then reads.
//!
//! Neither end trusts the other with anything but its own bytes. An impossible word or position makes the ring
//! [`Broken`], and no byte outside of the ring is touched.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use gdr_roce::wire::{Bth, Opcode};
use gdr_roce::{Extent, PayloadBy};

use super::primitives::{AtomicU32, AtomicU64, Deadline, fence};
use super::segment::Segment;

/// The granularity of records in bytes.
pub(super) const LINE: usize = 64;
/// The size of a record's length word in bytes.
const WORD: usize = 8;
/// In place of a length: the next record is at the start of the ring.
const WRAP: u32 = u32::MAX;
/// Flag in the length word: the record ends with the location of its payload.
const REFERENCE: u32 = 1 << 31;
/// The size of that location in bytes.
const REFERENCE_LEN: usize = 12;

/// The maximum length of a record that is copied as a whole.
const SHORT: usize = 256;
/// The number of bytes copied from a longer record: more than the headers of any packet.
const START: usize = 64;
/// Maximum number of bytes of short records that the producer publishes together.
const MOST_HIDDEN: u64 = 1024;
/// How far ahead of its writes, in bytes, the producer prefetches.
const AHEAD: u64 = 512;
/// The number of parts in which the consumer returns the room of a ring.
const PARTS: u64 = 8;
/// The access that a cache line is prefetched for.
#[derive(Clone, Copy, Debug)]
pub(super) enum FetchedTo {
    Read,
    Write,
}

/// The start of a long record, or all of a short one.
pub(super) type RecordStart = [u8; SHORT];

/// The other end has violated the rules of the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Broken;

/// Returns the bytes that a record of length `len` occupies.
fn taken(len: usize) -> usize {
    (WORD + len).next_multiple_of(LINE)
}

/// Returns whether the other end asked to be woken, and withdraws its request: the caller must wake it, even if it has
/// just renewed the request.
pub(super) fn take_request(asked: &AtomicU32) -> bool {
    // Load first: a store would move the cache line from the other processor.
    let is_asked = asked.load(Ordering::Relaxed) != 0;
    if is_asked {
        asked.store(0, Ordering::Relaxed);
    }
    is_asked
}

/// The writing end of a ring.
#[derive(Debug)]
pub(super) struct Producer {
    segment: Arc<Segment>,
    /// The maximum length of a record.
    most: usize,
    /// The number of bytes written so far, which is the position of the next record.
    tail: u64,
    /// The number of bytes returned by the consumer, when last looked at.
    head: u64,
    /// From each position before this one, there is room for the longest record, which neither the end of the ring nor
    /// an unread record interrupts.
    room_until: u64,
    batch: Batch,
}

/// The records added since the last [`Producer::flush`]. The first is published at once, and the others together later.
/// If the consumer took each at once, the cache line of the next record would move to its processor while the producer
/// writes it.
#[derive(Debug)]
enum Batch {
    Empty,
    /// All of them are published.
    Shown,
    /// The word of the record at `first` is not stored yet, so the consumer sees neither that record nor later ones.
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
            room_until: 0,
            batch: Batch::Empty,
        }
    }

    /// Returns where the next record begins.
    fn offset(&self) -> usize {
        self.offset_of(self.tail)
    }

    fn offset_of(&self, position: u64) -> usize {
        // The length of a ring is a power of two.
        position as usize & (self.segment.ring_len() - 1)
    }

    /// Returns how many bytes may be written, as far as is known.
    fn free(&self) -> usize {
        self.segment.ring_len() - (self.tail - self.head) as usize
    }

    /// Returns the bytes that the longest record and the word after it occupy.
    fn needed(&self) -> usize {
        taken(self.most) + LINE
    }

    /// Returns the bytes from here to the end of the ring.
    fn to_end(&self) -> usize {
        self.segment.ring_len() - self.offset()
    }

    /// Returns whether there is room for the longest record and the word after it.
    fn fits(&self) -> bool {
        let (needed, to_end) = (self.needed(), self.to_end());
        // A record that does not fit before the end begins at the start, and the remainder stays empty.
        let skipped = if to_end < needed { to_end } else { 0 };
        self.free() >= skipped + needed
    }

    /// Reads how much the consumer has returned. Returns whether there is room for the longest record.
    pub(super) fn has_room(&mut self) -> Result<bool, Broken> {
        if self.tail < self.room_until || self.fits() {
            return Ok(true);
        }
        // Pairs with the consumer's release: it has read what is overwritten next.
        let head = self.segment.header().head().load(Ordering::Acquire);
        // A position that moves backwards, or beyond what was written, would make room where unread records are.
        if head < self.head || head > self.tail {
            return Err(Broken);
        }
        self.head = head;
        Ok(self.fits())
    }

    /// Returns room for the longest record, if there is any.
    pub(super) fn room(&mut self) -> Result<Option<&mut [u8]>, Broken> {
        if self.tail >= self.room_until && !self.find_room()? {
            return Ok(None);
        }
        let at = self.segment.at(self.offset() + WORD, self.most);
        // SAFETY: the bytes are inside the mapping, after the last record, so only this end uses them until it adds
        // that record. A process that violates this can change them, but they are only written here.
        Ok(at.map(|at| unsafe { NonNull::slice_from_raw_parts(at, self.most).as_mut() }))
    }

    /// Goes to where there is room for the longest record, if there is any. Returns whether there is.
    #[cold]
    fn find_room(&mut self) -> Result<bool, Broken> {
        if !self.has_room()? {
            return Ok(false);
        }
        let needed = self.needed();
        if self.to_end() < needed {
            self.skip_to_start();
        }
        let room = self.to_end().min(self.free());
        self.room_until = self.tail + (room + 1).saturating_sub(needed) as u64;
        Ok(true)
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

    /// Adds a record with the first `len` bytes of [`Producer::room`]. [`Producer::flush`] publishes it, unless it is
    /// published before.
    pub(super) fn push(&mut self, len: usize) {
        self.add(len, PayloadBy::Copy);
    }

    /// Adds a record with the first `len` bytes of [`Producer::room`] and the location of its payload in this process's
    /// memory. Returns the position of the record's end.
    pub(super) fn push_reference(&mut self, len: usize, payload: Extent) -> u64 {
        if let Some(at) = self.segment.at(self.offset() + WORD + len, REFERENCE_LEN) {
            // SAFETY: inside the mapping, in room that only this end uses. Any alignment is allowed.
            unsafe {
                at.cast::<u64>().write_unaligned(payload.addr);
                at.add(8).cast::<u32>().write_unaligned(payload.len);
            }
            self.add(len + REFERENCE_LEN, PayloadBy::Reference);
        }
        self.tail
    }

    /// Like [`Producer::push`], for a record that is published together with the next one.
    pub(super) fn push_with_next(&mut self, len: usize) {
        if let Batch::Empty = self.batch {
            self.batch = Batch::Shown;
        }
        self.add(len, PayloadBy::Copy);
    }

    fn add(&mut self, len: usize, by: PayloadBy) {
        let (offset, position) = (self.offset(), self.tail);
        let len = len.min(self.most);
        let flag = match by {
            PayloadBy::Copy => 0,
            PayloadBy::Reference => REFERENCE,
        };
        let (word, size) = (len as u32 | flag, taken(len));
        if let (Some(this), Some(next)) =
            (self.segment.word(offset), self.segment.word(offset + size))
        {
            // Stored before the release in `show`: otherwise the consumer could take stale bytes after this record for
            // a length.
            next.store(0, Ordering::Relaxed);
            self.tail += size as u64;
            match self.batch {
                // It may be the only record, which the consumer waits for.
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
            for line in (0..size).step_by(LINE) {
                let ahead = self.offset_of(self.tail + AHEAD + line as u64);
                self.segment.fetch(ahead, FetchedTo::Write);
            }
        }
        // Other records are published at once, with all before them, so that the consumer starts on them while this end
        // goes on.
        let is_short = len <= SHORT && by == PayloadBy::Copy;
        let hidden = match &self.batch {
            Batch::Hidden { first, .. } => self.tail - first,
            Batch::Empty | Batch::Shown => 0,
        };
        if !is_short || hidden >= MOST_HIDDEN {
            self.show();
        }
    }

    /// Publishes all records.
    fn show(&mut self) {
        if let Batch::Hidden { first, word } = self.batch
            && let Some(place) = self.segment.word(self.offset_of(first))
        {
            place.store(word, Ordering::Release);
        }
        self.batch = Batch::Shown;
    }

    /// Voids all references, without waiting for one that is being read.
    pub(super) fn void_references(&self) {
        let now = Deadline::after(Duration::ZERO);
        self.segment.header().void_references(self.tail, now);
    }

    pub(super) fn segment(&self) -> &Arc<Segment> {
        &self.segment
    }

    /// Publishes all records. Returns whether the consumer must be woken.
    pub(super) fn flush(&mut self) -> bool {
        self.show();
        self.batch = Batch::Empty;
        // Pairs with the consumer's fence between its request and its look for records.
        fence(Ordering::SeqCst);
        let idle = self.segment.header().consumer_idle();
        take_request(idle)
    }

    /// Asks the consumer to wake this end when there is room. The caller must look for room once more.
    pub(super) fn ask_for_room(&self) {
        // Stored before the caller looks for room again. The consumer returns room before it looks for this request.
        self.segment.header().waiting().store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }
}

/// Shows whether there is a record, without access to the consumer.
#[derive(Clone, Debug)]
pub(super) struct RecordWatch {
    segment: Arc<Segment>,
    /// The number of bytes taken so far, which is the position of the next record.
    taken: Arc<AtomicU64>,
    /// A taken record waits for its payload.
    waits: Arc<AtomicBool>,
}

impl RecordWatch {
    fn offset(&self) -> usize {
        // The length of a ring is a power of two.
        self.taken.load(Ordering::Relaxed) as usize & (self.segment.ring_len() - 1)
    }

    /// Returns whether there is a record, or a taken one waits for its payload.
    pub(super) fn has_record(&self) -> bool {
        self.waits.load(Ordering::Relaxed) || matches!(self.length(), Ok(len) if len != 0)
    }

    fn length(&self) -> Result<u32, Broken> {
        let word = self.segment.word(self.offset()).ok_or(Broken)?;
        Ok(word.load(Ordering::Acquire))
    }
}

/// A taken record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Record {
    /// All of it was copied: this many bytes.
    Whole(usize),
    /// A long record: only its start was copied. It stays at this address of this process until its room is returned.
    Long(Extent),
    /// This many bytes, without the payload, which is at this location of the producer's memory.
    Referring(usize, Extent),
    /// Like `Referring`, with the payload in GPU memory.
    InDevice(usize, Extent),
    /// Its reference is void, so its payload is lost.
    Void,
}

/// Consecutive records of one message that refer to one range of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Continuation {
    /// The number of bytes.
    pub(super) len: u32,
    /// The position of the last record's end.
    pub(super) end: u64,
}

pub(super) fn ends_message(header: Bth) -> bool {
    Opcode::from_byte(header.opcode).is_none_or(|opcode| opcode.position().is_last())
}

/// Searches for such records.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    addr: u64,
    most: u32,
    /// The header of the last record.
    header: Bth,
    all: Continuation,
}

impl Run {
    /// Starts with a record that ends at `end`. Adds no more than `most` bytes.
    pub(super) fn new(header: Bth, payload: Extent, end: u64, most: u32) -> Self {
        let Extent { addr, len } = payload;
        Self {
            addr,
            most,
            header,
            all: Continuation { len, end },
        }
    }

    /// Adds the next record if it continues the message and refers to the adjacent bytes. Returns whether it does.
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

/// The reading end of a ring.
#[derive(Debug)]
pub(super) struct Consumer {
    next: RecordWatch,
    /// The longest record.
    most: usize,
    /// While the producer's memory is read: the position before which references are void.
    void_before: Option<u64>,
    /// The number of bytes taken, as in [`RecordWatch`].
    taken: u64,
    /// The number of bytes returned to the producer.
    given_back: u64,
    /// The other end has violated the rules. Nothing more is taken.
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

    /// Returns whether there is a record.
    pub(super) fn has_record(&self) -> bool {
        !self.is_stopped && self.next.has_record()
    }

    /// Returns the position of the next record.
    pub(super) fn position(&self) -> u64 {
        self.taken
    }

    /// Goes back to `position`: what was taken since is taken again.
    pub(super) fn go_back(&mut self, position: u64) {
        self.taken = position.clamp(self.given_back, self.taken);
        self.next.taken.store(self.taken, Ordering::Relaxed);
    }

    /// Returns the record taken last, which begins with `first` and refers to `payload`, together with the following
    /// records that continue it, up to `most` bytes in all. Takes none of them.
    pub(super) fn continuation(&self, first: Bth, payload: Extent, most: u32) -> Continuation {
        let segment = &self.next.segment;
        let mut run = Run::new(first, payload, self.taken, most);
        let mut at = self.taken;
        // Goes around once at most: the other process could write references everywhere, and the search would never
        // end.
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
            // Only a record with a reference can continue another one, and it has at least one header.
            if word & REFERENCE == 0 || !(Bth::LEN + REFERENCE_LEN..=SHORT).contains(&len) {
                break;
            }
            let Some(bytes) = segment.at(offset + WORD, len) else {
                break;
            };
            // SAFETY: inside the mapping, of integer types, at any alignment. A process that changes them changes only
            // the values read.
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

    /// Stops taking records.
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
        // A short record is copied whole, so that the other process cannot change a header after it was checked.
        let copied = if len > SHORT { START } else { len };
        let (segment, offset) = (&self.next.segment, self.next.offset());
        // The word of the next record must be inside the ring, too.
        segment.at(offset, taken(len) + LINE).ok_or(Broken)?;
        let bytes = segment.at(offset + WORD, len).ok_or(Broken)?;
        // SAFETY: the bytes are inside the mapping, outside of `start`, and of an integer type. By the rules of the
        // ring no process writes them until they are returned; one that does changes only the values read.
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
        // The next record is often there already, and has the same length.
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
        // Once per quantum: until `end_reads` the producer waits before it gives memory away.
        let void_before = *self
            .void_before
            .get_or_insert_with(|| segment.header().begin_reads());
        // The producer has voided older references, and may have given their memory away.
        match self.taken >= void_before {
            true => Record::Referring(len, payload),
            false => Record::Void,
        }
    }

    /// Ends the reads of the producer's memory for the records taken so far.
    pub(super) fn end_reads(&mut self) {
        if self.void_before.take().is_some() {
            self.next.segment.header().end_reads();
        }
    }

    /// Asks the producer not to send references.
    pub(super) fn refuse_references(&self) {
        self.next.segment.header().refuse_references();
    }

    /// Returns whether enough was taken for its room to be worth returning. Until then, the producer has the other
    /// parts of the ring.
    pub(super) fn owes_room(&self) -> bool {
        self.taken - self.given_back >= self.next.segment.ring_len() as u64 / PARTS
    }

    /// Returns the room of taken records if that is worth it, up to the record at `first`, which still waits. Returns
    /// whether the producer waits for room and must be woken.
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
        // The release orders all reads of the returned room before it.
        segment.header().head().store(until, Ordering::Release);
        // Pairs with the producer's fence between its request and its look for room.
        fence(Ordering::SeqCst);
        let waiting = segment.header().waiting();
        take_request(waiting)
    }

    /// Asks the producer to wake this end for the next record. The caller must look for one once more.
    pub(super) fn sleep(&self) {
        self.next
            .segment
            .header()
            .consumer_idle()
            // Stored before the caller looks for a record again. The producer adds one before it looks for this
            // request.
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

    #[test]
    fn a_record_that_goes_with_the_next_one_is_not_seen_before_it() {
        let (mut producer, mut consumer, _) = ends();
        for byte in [1, 2] {
            producer.room().unwrap().unwrap()[0] = byte;
            match byte {
                1 => producer.push_with_next(1),
                _ => producer.push(1),
            }
            assert_eq!(take(&mut consumer), None);
        }
        producer.flush();
        let both = [(); 3].map(|()| take(&mut consumer));
        assert_eq!(both, [Some(vec![1]), Some(vec![2]), None]);
        producer.room().unwrap().unwrap()[0] = 3;
        producer.push(1);
        assert_eq!(take(&mut consumer), Some(vec![3]), "a new batch");
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

        /// A process that writes arbitrary bytes.
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
                // Otherwise the existing records would be taken again and again.
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
        let deadline = Deadline::after(Duration::from_secs(60));
        let wait = move || {
            assert!(!deadline.has_passed(), "the other end is stuck");
            thread::yield_now();
        };
        let sender = thread::spawn(move || {
            for n in 0..RECORDS {
                let len = 8 + (n % 100) as usize * 8;
                let record: Vec<u8> = n.to_ne_bytes().repeat(len / 8);
                while !add(&mut producer, &record) {
                    wait();
                }
            }
        });
        for n in 0..RECORDS {
            let record = loop {
                if let Some(record) = take(&mut consumer) {
                    break record;
                }
                consumer.give_back(None);
                wait();
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
