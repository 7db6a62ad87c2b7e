//! The choice of the slot of an object that is written next: the owner's decisions, without memory,
//! clocks or threads.

use std::collections::VecDeque;
use std::time::Instant;

use gdr_cuda::StreamId;

use crate::epoch::Epoch;
use crate::header::Slot;
use crate::link_table::LinkId;
use crate::mode::{Mode, WhenFull};

/// A slot to write, and the epoch that it will hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) slot: Slot,
    pub(crate) epoch: Epoch,
}

/// The writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Writer {
    /// A thread of the owner. It may give up, so no other writer may claim a slot meanwhile.
    Owner,
    /// A peer that puts; the same rules as for [`Writer::Owner`] apply.
    Peer,
    /// A copy that is queued on this stream. Once queued it cannot give up, and other copies may be
    /// queued after it.
    Stream(StreamId),
}

impl Writer {
    const fn is_stream(self) -> bool {
        matches!(self, Self::Stream(_))
    }
}

/// Why no slot can be written now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// This writer has not finished.
    Busy(Writer),
    /// Every slot that may be overwritten waits for its copy.
    Queued,
    /// A follower has not read the oldest epoch.
    Full,
    /// All epochs have been used.
    Exhausted,
}

/// Identifies a lease among all leases of an owner: the link that holds it, and its number on that
/// link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeaseId {
    pub(crate) link: LinkId,
    pub(crate) number: u64,
}

/// A slot that readers hold: it is not overwritten while any of them does.
#[derive(Clone, Debug, PartialEq, Eq)]
struct KeptSlot {
    slot: Slot,
    epoch: Epoch,
    /// There is at least one reader.
    leases: Vec<Lease>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Lease {
    id: LeaseId,
    until: Instant,
}

/// The slots of an object.
#[derive(Debug)]
pub(crate) struct Slots {
    mode: Mode,
    /// The epoch that each slot holds or is to hold.
    epochs: Vec<Option<Epoch>>,
    newest: Option<Claim>,
    /// The epoch of the last claim that was not abandoned.
    last: Option<Epoch>,
    /// Claims that are neither committed nor abandoned, oldest first.
    claims: VecDeque<(Claim, Writer, Progress)>,
    kept: Option<KeptSlot>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    Writing,
    /// Its bytes are visible, but an older claim's are not yet.
    Written,
}

impl Slots {
    /// Creates the slots of an object whose epochs begin after `last`.
    pub(crate) fn new(mode: Mode, last: Option<Epoch>) -> Self {
        Self {
            mode,
            epochs: vec![None; usize::from(mode.slots())],
            newest: None,
            last,
            claims: VecDeque::new(),
            kept: None,
        }
    }

    pub(crate) fn newest(&self) -> Option<Claim> {
        self.newest
    }

    /// Returns the epoch of the last claim.
    pub(crate) fn last(&self) -> Option<Epoch> {
        self.last
    }

    /// Makes the next claim this epoch. Returns false if this epoch or a later one was already
    /// claimed.
    pub(crate) fn continue_at(&mut self, epoch: Epoch) -> bool {
        let is_later = self.last < Some(epoch);
        if is_later {
            self.last = Epoch::new(epoch.get() - 1);
        }
        is_later
    }

    /// Returns the writer that has claimed a slot and not finished yet.
    pub(crate) fn writer(&self) -> Option<Writer> {
        self.claims.front().map(|(_, writer, _)| *writer)
    }

    /// Claims the slot for the next epoch. `read` is the last epoch that every follower has read;
    /// `None` without followers.
    pub(crate) fn claim(
        &mut self,
        writer: Writer,
        read: Option<u64>,
        now: Instant,
    ) -> Result<Claim, Refusal> {
        for (_, other, _) in &self.claims {
            if !(other.is_stream() && writer.is_stream()) {
                return Err(Refusal::Busy(*other));
            }
        }
        let epoch = match self.last {
            None => Epoch::FIRST,
            Some(last) => last.next().ok_or(Refusal::Exhausted)?,
        };
        let slot = match self.mode {
            Mode::Live => Slot(0),
            Mode::Latest => {
                let free = self.free(now).or_else(|| self.replace_last(writer));
                free.ok_or(Refusal::Queued)?
            }
            Mode::Ring { slots, when_full } => {
                let slots = u64::from(slots);
                let slot = Slot(((epoch.get() - 1) % slots) as u16);
                if self.claims.iter().any(|(claim, ..)| claim.slot == slot) {
                    return Err(Refusal::Queued);
                }
                let oldest = epoch.get().saturating_sub(slots);
                if when_full == WhenFull::Block && read.is_some_and(|read| read < oldest) {
                    return Err(Refusal::Full);
                }
                slot
            }
        };
        let claim = Claim { slot, epoch };
        if let Some(held) = self.epochs.get_mut(slot.index()) {
            *held = Some(epoch);
        }
        self.last = Some(epoch);
        self.claims.push_back((claim, writer, Progress::Writing));
        Ok(claim)
    }

    /// Returns the slot of an object in latest mode that is neither the newest, nor held, nor being written, and has
    /// the oldest epoch.
    fn free(&mut self, now: Instant) -> Option<Slot> {
        self.end_leases(|lease| lease.until <= now);
        let taken = |slot: Slot| {
            self.newest.is_some_and(|newest| newest.slot == slot)
                || self.kept.as_ref().is_some_and(|kept| kept.slot == slot)
                || self.claims.iter().any(|(claim, ..)| claim.slot == slot)
        };
        let slots = (0..self.mode.slots())
            .map(Slot)
            .filter(|slot| !taken(*slot));
        slots.min_by_key(|slot| self.epochs[slot.index()].map_or(0, Epoch::get))
    }

    /// Gives up the last claim if a copy on the same stream replaces it: the stream overwrites the
    /// slot once it has written it. Older claims stay, so that copies are published even if they
    /// are always queued ahead of the GPU.
    fn replace_last(&mut self, writer: Writer) -> Option<Slot> {
        match self.claims.back() {
            Some((last, other, _)) if *other == writer => {
                let slot = last.slot;
                self.claims.pop_back();
                Some(slot)
            }
            _ => None,
        }
    }

    /// Returns whether a claim's slot still belongs to that claim.
    pub(crate) fn holds(&self, claim: Claim) -> bool {
        self.claims.iter().any(|(it, ..)| *it == claim)
    }

    /// Records that a claim's bytes are visible, and returns the newest epoch if there is a new
    /// one. In a ring, that is the last epoch before the first gap.
    pub(crate) fn commit(&mut self, claim: Claim) -> Option<Claim> {
        let before = self.newest;
        if !matches!(self.mode, Mode::Ring { .. }) {
            self.claims.retain(|(it, ..)| *it != claim);
            if self.newest.is_none_or(|newest| newest.epoch < claim.epoch) {
                self.newest = Some(claim);
            }
        } else {
            for (it, _, progress) in &mut self.claims {
                if *it == claim {
                    *progress = Progress::Written;
                }
            }
            while let Some((written, _, Progress::Written)) = self.claims.front() {
                self.newest = Some(*written);
                self.claims.pop_front();
            }
        }
        self.newest.filter(|newest| before != Some(*newest))
    }

    /// Gives the last claim back. The next claim gets its epoch, but its slot holds nothing.
    pub(crate) fn abandon(&mut self, claim: Claim) {
        if self.claims.back().is_some_and(|(last, ..)| *last == claim) {
            self.claims.pop_back();
            self.last = Epoch::new(claim.epoch.get() - 1);
            if let Some(held) = self.epochs.get_mut(claim.slot.index()) {
                *held = None;
            }
        }
    }

    /// Holds the newest epoch for a reader, or an earlier one that others hold, if it is `least` or
    /// later. Returns `None` if neither is possible.
    pub(crate) fn lease(
        &mut self,
        id: LeaseId,
        least: Epoch,
        now: Instant,
        until: Instant,
    ) -> Option<Claim> {
        self.end_leases(|lease| lease.until <= now);
        if self.mode != Mode::Latest {
            return None;
        }
        let newest = self.newest?;
        let kept = self.kept.get_or_insert_with(|| KeptSlot {
            slot: newest.slot,
            epoch: newest.epoch,
            leases: Vec::new(),
        });
        if kept.epoch < least && kept.epoch != newest.epoch {
            return None;
        }
        kept.leases.push(Lease { id, until });
        Some(Claim {
            slot: kept.slot,
            epoch: kept.epoch,
        })
    }

    /// Ends a lease, and no other reader's. Ending a lease twice is not an error.
    pub(crate) fn release(&mut self, id: LeaseId) {
        self.end_leases(|lease| lease.id == id);
    }

    fn end_leases(&mut self, has_ended: impl Fn(&Lease) -> bool) {
        if let Some(kept) = &mut self.kept {
            kept.leases.retain(|lease| !has_ended(lease));
            if kept.leases.is_empty() {
                self.kept = None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn epoch(number: u64) -> Epoch {
        Epoch::new(number).unwrap()
    }

    fn lease(link: u64, number: u64) -> LeaseId {
        let link = LinkId(link);
        LeaseId { link, number }
    }

    fn publish(slots: &mut Slots) -> Claim {
        let claim = slots.claim(Writer::Owner, None, Instant::now()).unwrap();
        slots.commit(claim);
        claim
    }

    #[test]
    fn in_latest_mode_neither_the_newest_nor_the_held_slot_is_overwritten() {
        let mut slots = Slots::new(Mode::Latest, None);
        let (now, first) = (Instant::now(), publish(&mut slots));
        let until = now + Duration::from_secs(3600);
        let (here, there) = (lease(1, 1), lease(2, 1));
        assert_eq!(slots.lease(here, epoch(1), now, until), Some(first));
        for _ in 0..10 {
            let newest = slots.newest().unwrap();
            let claim = publish(&mut slots);
            assert!(claim.slot != first.slot && claim.slot != newest.slot);
        }
        // A reader that has seen a later epoch does not go back to the held one.
        assert_eq!(slots.lease(there, epoch(2), now, until), None);
        assert_eq!(slots.lease(there, epoch(1), now, until), Some(first));
        slots.release(here);
        assert_eq!(slots.lease(here, epoch(2), now, until), None);
        slots.release(there);
        assert_eq!(slots.lease(here, epoch(2), now, until), slots.newest());
    }

    /// Returns whether any of six publications takes this slot.
    fn is_overwritten(slots: &mut Slots, slot: Slot, now: Instant) -> bool {
        let claims: Vec<Slot> = (0..6)
            .map(|_| {
                let claim = slots.claim(Writer::Owner, None, now).unwrap();
                slots.commit(claim);
                claim.slot
            })
            .collect();
        claims.contains(&slot)
    }

    #[test]
    fn a_lease_ends_by_the_owners_clock() {
        let mut slots = Slots::new(Mode::Latest, None);
        let (now, first) = (Instant::now(), publish(&mut slots));
        let until = now + Duration::from_secs(1);
        slots.lease(lease(1, 1), epoch(1), now, until);
        assert!(!is_overwritten(&mut slots, first.slot, now));
        assert!(is_overwritten(&mut slots, first.slot, until));
    }

    #[test]
    fn the_end_of_a_lease_by_release_or_by_time_ends_no_other_one() {
        let (second, minute) = (Duration::from_secs(1), Duration::from_secs(60));
        let mut slots = Slots::new(Mode::Latest, None);
        let (now, first) = (Instant::now(), publish(&mut slots));
        let (brief, long) = (lease(1, 1), lease(2, 1));
        slots.lease(brief, epoch(1), now, now + second);
        let later = now + second;
        assert_eq!(
            slots.lease(long, epoch(1), later, now + minute),
            Some(first)
        );
        // The first lease has ended because its time is over; nothing is released in its name any
        // more.
        for other in [brief, lease(1, 2), lease(3, 1)] {
            slots.release(other);
            assert!(!is_overwritten(&mut slots, first.slot, later));
        }
        slots.release(long);
        assert!(is_overwritten(&mut slots, first.slot, later));
    }

    #[test]
    fn a_writer_that_may_give_up_is_alone_and_its_epoch_is_used_again() {
        let mut slots = Slots::new(Mode::Latest, None);
        let now = Instant::now();
        let claim = slots.claim(Writer::Peer, None, now).unwrap();
        for other in [Writer::Owner, Writer::Peer, stream()] {
            let refused = slots.claim(other, None, now);
            assert_eq!(refused, Err(Refusal::Busy(Writer::Peer)));
        }
        slots.abandon(claim);
        assert_eq!(slots.newest(), None);
        let again = slots.claim(Writer::Owner, None, now).unwrap();
        assert_eq!(again.epoch, claim.epoch);
        assert_eq!(slots.commit(again), Some(again));
        // A committed claim does not change.
        slots.abandon(again);
        assert_eq!(slots.newest(), Some(again));
    }

    /// Returns a writer with its own stream.
    fn stream() -> Writer {
        let driver = gdr_cuda::SimDriver::new(1);
        let gpu = gdr_cuda::Gpu::open(driver, gdr_cuda::Ordinal(0)).unwrap();
        Writer::Stream(gpu.stream().unwrap().id())
    }

    #[test]
    fn copies_of_two_streams_that_end_out_of_order_never_bring_readers_back() {
        let (now, here, there) = (Instant::now(), stream(), stream());
        let mut slots = Slots::new(Mode::Latest, None);
        let first = slots.claim(here, None, now).unwrap();
        let second = slots.claim(there, None, now).unwrap();
        assert_eq!(slots.commit(second), Some(second));
        assert_eq!(slots.commit(first), None);
        assert_eq!(slots.newest(), Some(second));

        let ring = Mode::Ring {
            slots: 2,
            when_full: WhenFull::DropOldest,
        };
        let mut slots = Slots::new(ring, None);
        let first = slots.claim(here, None, now).unwrap();
        let second = slots.claim(there, None, now).unwrap();
        assert_eq!(slots.claim(here, None, now), Err(Refusal::Queued));
        // A follower gets every epoch, so the second writer waits for the first.
        assert_eq!(slots.commit(second), None);
        assert_eq!(slots.commit(first), Some(second));
    }

    #[test]
    fn copies_that_are_queued_far_ahead_replace_the_last_and_the_oldest_is_published() {
        let (now, here) = (Instant::now(), stream());
        let mut slots = Slots::new(Mode::Latest, None);
        let claims: Vec<Claim> = (0..10)
            .map(|_| slots.claim(here, None, now).unwrap())
            .collect();
        // Three slots: two wait, and the third is written again and again.
        let kept: Vec<u64> = claims
            .iter()
            .filter(|claim| slots.holds(**claim))
            .map(|claim| claim.epoch.get())
            .collect();
        assert_eq!(kept, [1, 2, 10]);
        // A copy on another stream could finish before the copies on this one.
        assert_eq!(slots.claim(stream(), None, now), Err(Refusal::Queued));
        assert_eq!(slots.commit(claims[0]), Some(claims[0]));
        let next = slots.claim(here, None, now).unwrap();
        assert_eq!(next.epoch.get(), 11);
        assert!(!slots.holds(claims[9]));
        assert_eq!(slots.commit(claims[1]), Some(claims[1]));
        assert_eq!(slots.commit(next), Some(next));
    }

    #[test]
    fn a_ring_that_blocks_waits_for_the_slowest_follower() {
        let ring = Mode::Ring {
            slots: 3,
            when_full: WhenFull::Block,
        };
        let mut slots = Slots::new(ring, None);
        let now = Instant::now();
        for number in 1..=3 {
            let claim = slots.claim(Writer::Owner, Some(0), now).unwrap();
            assert_eq!(claim.epoch, epoch(number));
            slots.commit(claim);
        }
        assert_eq!(slots.claim(Writer::Owner, Some(0), now), Err(Refusal::Full));
        let claim = slots.claim(Writer::Owner, Some(1), now).unwrap();
        assert_eq!((claim.epoch, claim.slot), (epoch(4), Slot(0)));
        slots.commit(claim);
        assert_eq!(slots.claim(Writer::Owner, Some(1), now), Err(Refusal::Full));
        assert!(slots.claim(Writer::Owner, None, now).is_ok());
    }

    #[test]
    fn epochs_end() {
        let last = Epoch::new(Epoch::GREATEST.get() - 1);
        let mut slots = Slots::new(Mode::Live, last);
        assert_eq!(publish(&mut slots).epoch, Epoch::GREATEST);
        let refused = slots.claim(Writer::Owner, None, Instant::now());
        assert_eq!(refused, Err(Refusal::Exhausted));
    }
}
