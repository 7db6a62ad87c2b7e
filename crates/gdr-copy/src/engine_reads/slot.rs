//! The slots through which readers and the copy engine's thread exchange requests.
//!
//! A slot holds a few words that both sides write; neither side ever waits for the other to do so. The reader claims a
//! slot, posts its request there, and checks which pieces have arrived. The thread takes the request and reports which
//! pieces it has queued. The slot is free once both have left it.

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, compiler_fence};

use super::pieces::{AHEAD, Pieces, RING};

/// State bit: a reader uses the slot; the other bits hold the address of its lease.
const READER: usize = 1;
/// State bit: there is a request that the thread has not taken.
const POSTED: usize = 2;
/// State bit: the thread works on the request, and so may the copy engine.
const THREAD: usize = 4;
const FLAGS: usize = READER | POSTED | THREAD;

/// The progress of a reader that takes no more pieces.
const ENDED: u64 = u64::MAX;

/// The distance between two flags, so that each has its own line.
const FLAG: usize = 64;
/// The size in bytes of a ring and the flags that follow it.
pub(super) const RING_WITH_FLAGS: usize = RING + AHEAD * FLAG;

/// Returns the position of the flag of piece `number` in a ring.
pub(super) fn flag_of(number: usize) -> usize {
    RING + number % AHEAD * FLAG
}

/// A reader's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) source: u64,
    /// The offset in the buffer of the source.
    pub(super) offset: u64,
    pub(super) len: u64,
}

/// A slot for one read at a time.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub(super) struct Slot {
    state: AtomicUsize,
    source: AtomicU64,
    offset: AtomicU64,
    len: AtomicU64,
    /// The number of leading bytes of the request that the reader has, from either source, or [`ENDED`].
    copied: AtomicU64,
    /// Written by the thread before `queued`: the ring, and the flag value that piece 0 would have.
    ring: AtomicPtr<u8>,
    flag: AtomicU32,
    first: AtomicUsize,
    /// The pieces from the first up to, but not including, this one may be queued.
    queued: AtomicUsize,
}

impl Slot {
    /// Claims the slot for the reader with this lease, unless it is in use.
    pub(super) fn claim(&'static self, lease: &Lease) -> bool {
        lease
            .slot
            .store(ptr::from_ref(self).cast_mut(), Ordering::Relaxed);
        // A signal handler that leaves the read after this point finds the slot in the lease.
        compiler_fence(Ordering::SeqCst);
        // A lease is aligned to 8 bytes, so the low bits of its address are free for the flags.
        let (free, claimed) = (0, lease.address() | READER);
        let order = (Ordering::Acquire, Ordering::Relaxed);
        let swapped = self.state.compare_exchange(free, claimed, order.0, order.1);
        swapped.is_ok()
    }

    /// Posts the reader's request; the reader has its first `copied` bytes.
    pub(super) fn post(&self, request: Request, copied: u64) {
        self.source.store(request.source, Ordering::Relaxed);
        self.offset.store(request.offset, Ordering::Relaxed);
        self.len.store(request.len, Ordering::Relaxed);
        self.copied.store(copied, Ordering::Relaxed);
        self.first.store(0, Ordering::Relaxed);
        self.queued.store(0, Ordering::Relaxed);
        // Stored last, because it publishes all stores above to the thread.
        self.state.fetch_or(POSTED, Ordering::SeqCst);
    }

    /// Records that the reader has the first `copied` bytes.
    pub(super) fn progress(&self, copied: u64) {
        // Release: the thread overwrites positions in the ring that the reader has read.
        self.copied.store(copied, Ordering::Release);
    }

    /// Returns the ring that contains piece `number`, if it has arrived. Called by the reader.
    pub(super) fn arrived(&self, number: usize) -> Option<*mut u8> {
        // Acquire: the ring and the flag were written before.
        let queued = self.queued.load(Ordering::Acquire);
        if number >= queued || number < self.first.load(Ordering::Relaxed) {
            return None;
        }
        let ring = self.ring.load(Ordering::Relaxed);
        let wanted = self
            .flag
            .load(Ordering::Relaxed)
            .wrapping_add(number as u32);
        // SAFETY: the thread keeps the ring and its flags until this reader has left.
        let flag = unsafe { AtomicU32::from_ptr(ring.add(flag_of(number)).cast()) };
        // Acquire: the GPU wrote the piece before.
        (flag.load(Ordering::Acquire) == wanted).then_some(ring)
    }

    /// Returns whether piece `number` has been queued. Called by the reader.
    pub(super) fn is_queued(&self, number: usize) -> bool {
        number < self.queued.load(Ordering::Relaxed)
    }

    /// Stops the read: from here on the thread queues no piece.
    pub(super) fn stop(&self) {
        // Sequentially consistent, like the store in `may_queue`: either the thread sees this store, or the reader sees
        // which piece the thread queues.
        self.copied.store(ENDED, Ordering::SeqCst);
    }

    /// Returns whether the copy engine may still read for the reader, which has stopped.
    pub(super) fn is_read(&self) -> bool {
        let is_taken = self.state.load(Ordering::SeqCst) & THREAD != 0;
        let queued = self.queued.load(Ordering::SeqCst);
        let first = self.first.load(Ordering::Relaxed);
        is_taken && (first..queued).any(|number| self.arrived(number).is_none())
    }

    /// Ends the reader's use of the slot, if this lease holds it. Withdraws a request that the thread has not taken.
    fn leave(&self, lease: usize) {
        let mut state = self.state.load(Ordering::Relaxed);
        // Only with this lease, because another reader may have claimed the slot in the meantime.
        while state & READER != 0 && state & !FLAGS == lease {
            // The thread's bit stays set until it has finished.
            let left = state & THREAD;
            let order = (Ordering::SeqCst, Ordering::Relaxed);
            let swapped = self.state.compare_exchange(state, left, order.0, order.1);
            match swapped {
                Ok(_) => return,
                Err(now) => state = now,
            }
        }
    }

    /// Returns whether there is a request to take.
    pub(super) fn is_posted(&self) -> bool {
        self.state.load(Ordering::SeqCst) & POSTED != 0
    }

    /// Takes the request, if there is one. Called by the thread, which later calls [`Slot::finish`].
    pub(super) fn take(&self) -> Option<Request> {
        let state = self.state.load(Ordering::Acquire);
        if state & POSTED == 0 {
            return None;
        }
        let request = Request {
            source: self.source.load(Ordering::Relaxed),
            offset: self.offset.load(Ordering::Relaxed),
            len: self.len.load(Ordering::Relaxed),
        };
        let taken = state & !POSTED | THREAD;
        let order = (Ordering::SeqCst, Ordering::Relaxed);
        // On failure the reader has left in the meantime, and another one may have claimed the slot.
        let swapped = self.state.compare_exchange(state, taken, order.0, order.1);
        swapped.is_ok().then_some(request)
    }

    /// Records the ring of the pieces from `first` on; the first of them has the flag `first_flag`.
    pub(super) fn begin(&self, ring: *mut u8, first: usize, first_flag: u32) {
        self.ring.store(ring, Ordering::Relaxed);
        self.flag
            .store(first_flag.wrapping_sub(first as u32), Ordering::Relaxed);
        self.first.store(first, Ordering::Relaxed);
        self.queued.store(first, Ordering::Release);
    }

    /// Returns whether piece `number` may be queued now, because its reader still wants it. If not, no later piece may
    /// be queued.
    pub(super) fn may_queue(&self, number: usize, end: u64) -> bool {
        // See `stop`.
        self.queued.store(number + 1, Ordering::SeqCst);
        let is_wanted = self.has_reader() && self.copied.load(Ordering::SeqCst) < end;
        if !is_wanted {
            // Withdrawn, so that `is_read` does not wait for a piece that is not queued.
            self.queued.store(number, Ordering::SeqCst);
        }
        is_wanted
    }

    /// Returns whether the reader still uses the slot. Called by the thread.
    pub(super) fn has_reader(&self) -> bool {
        self.state.load(Ordering::SeqCst) & READER != 0
    }

    /// Returns the number of leading bytes that the reader has. Called by the thread.
    pub(super) fn copied(&self) -> u64 {
        self.copied.load(Ordering::Acquire)
    }

    /// Ends the thread's work on the request: the copy engine has finished with it.
    pub(super) fn finish(&self) {
        self.state.fetch_and(!THREAD, Ordering::Release);
    }

    /// Returns whether the thread works on a request for this source.
    pub(super) fn serves(&self, source: u64) -> bool {
        self.state.load(Ordering::SeqCst) & THREAD != 0
            && self.source.load(Ordering::Relaxed) == source
    }

    #[cfg(test)]
    pub(super) fn is_free(&self) -> bool {
        self.state.load(Ordering::SeqCst) == 0
    }
}

/// Records which slot a read uses. It belongs to one read at a time; if that read is left by a jump, [`Lease::end`]
/// frees its slot.
#[derive(Debug, Default)]
#[repr(align(8))]
pub struct Lease {
    slot: AtomicPtr<Slot>,
}

impl Lease {
    /// Creates a lease that no read uses yet.
    pub const fn new() -> Self {
        Self {
            slot: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// Ends an abandoned read. Neither waits nor allocates; a second call does nothing.
    pub fn end(&self) {
        // SAFETY: null or a slot; slots are never freed.
        if let Some(slot) = unsafe { self.slot.load(Ordering::Relaxed).as_ref() } {
            slot.leave(self.address());
            // If a handler leaves the read here, the next call frees the slot.
            compiler_fence(Ordering::SeqCst);
            self.slot.store(ptr::null_mut(), Ordering::Relaxed);
        }
    }

    fn address(&self) -> usize {
        ptr::from_ref(self).addr()
    }
}

/// Returns the pieces of a request.
pub(super) fn pieces_of(request: &Request, buffer: u64) -> Pieces {
    Pieces::of(buffer.wrapping_add(request.offset), request.len)
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUEST: Request = Request {
        source: 7,
        offset: 4096,
        len: 1 << 20,
    };

    fn slot() -> &'static Slot {
        Box::leak(Box::default())
    }

    #[test]
    fn a_slot_has_one_reader_and_is_free_when_both_sides_have_left() {
        let (slot, lease, other) = (slot(), Lease::new(), Lease::new());
        assert!(slot.claim(&lease));
        assert!(!slot.claim(&other), "it is in use");
        other.end();
        assert!(!slot.is_free(), "another lease ends nothing");
        assert_eq!(slot.take(), None, "nothing is posted");
        slot.post(REQUEST, 0);
        assert_eq!(slot.take(), Some(REQUEST));
        assert_eq!(slot.take(), None, "once");
        lease.end();
        lease.end();
        assert!(!slot.is_free() && slot.serves(7) && !slot.serves(8));
        assert!(
            !slot.claim(&other),
            "the engine may still write to the ring"
        );
        slot.finish();
        assert!(slot.is_free() && slot.claim(&other));
        lease.end();
        assert!(!slot.is_free(), "an ended lease ends nothing");
    }

    #[test]
    fn a_request_that_its_reader_left_is_not_taken() {
        let (slot, lease) = (slot(), Lease::new());
        assert!(slot.claim(&lease));
        slot.post(REQUEST, 0);
        lease.end();
        assert!(slot.is_free());
        assert_eq!(slot.take(), None);
    }

    #[test]
    fn nothing_is_queued_for_a_reader_that_has_stopped_left_or_has_the_bytes() {
        let (slot, lease) = (slot(), Lease::new());
        let taken = || {
            assert!(slot.claim(&lease));
            slot.post(REQUEST, 0);
            assert!(slot.take().is_some());
            slot.begin(ptr::null_mut(), 0, 1);
            assert!(!slot.is_read());
        };
        taken();
        slot.progress(100);
        assert!(!slot.may_queue(0, 100));
        slot.stop();
        assert!(!slot.may_queue(0, 1 << 20));
        assert!(!slot.is_read(), "nothing was queued");
        lease.end();
        slot.finish();
        taken();
        lease.end();
        assert!(!slot.may_queue(0, 1 << 20));
        slot.finish();
    }

    #[test]
    fn a_piece_has_arrived_when_the_ring_has_its_flag() {
        let (slot, lease) = (slot(), Lease::new());
        let words = vec![0u32; RING_WITH_FLAGS / 4].leak();
        let ring = words.as_mut_ptr().cast::<u8>();
        assert!(slot.claim(&lease));
        slot.post(REQUEST, 0);
        assert!(slot.take().is_some());
        slot.begin(ring, 3, 9);
        assert!(!slot.is_queued(3));
        assert!(slot.may_queue(3, 1 << 20) && slot.may_queue(4, 1 << 20));
        assert!(slot.is_queued(4) && !slot.is_queued(5));
        assert_eq!(slot.arrived(3), None);
        assert!(slot.is_read());
        // SAFETY: a word in the memory above.
        unsafe { ring.add(flag_of(3)).cast::<u32>().write(9) };
        assert_eq!(slot.arrived(3), Some(ring));
        assert_eq!(slot.arrived(2), None, "before the first");
        assert_eq!(slot.arrived(4), None);
        assert_eq!(slot.arrived(5), None, "not queued");
        assert!(slot.is_read());
        // SAFETY: another word in the same memory.
        unsafe { ring.add(flag_of(4)).cast::<u32>().write(10) };
        assert!(!slot.is_read());
        lease.end();
    }
}
