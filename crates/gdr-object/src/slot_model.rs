//! A model of the slot protocol: one owner and some readers, whose steps are interleaved at random.
//!
//! Each memory access is a separate step: a word of the header, or one word of a slot. The model runs the owner's
//! decisions and the header that readers parse. It replaces RDMA by loads, and the network's delays by other threads'
//! steps in between.

use std::time::{Duration, Instant};

use proptest::prelude::*;

use crate::epoch::{Epoch, Generation};
use crate::header::{Header, LINE, ObjectLine, Slot, SlotLine, SlotState};
use crate::link_table::LinkId;
use crate::mode::{Mode, WhenFull};
use crate::slots::{Claim, LeaseId, Slots, Writer};

/// Words of a slot.
pub(crate) const WORDS: usize = 4;

/// An object and its owner.
pub(crate) struct Owner {
    slots: Slots,
    pub(crate) header: Header,
    pub(crate) words: Vec<[u64; WORDS]>,
    /// The slot being written, and how many of its words are.
    writing: Option<(Claim, usize)>,
    now: Instant,
    /// How many leases it has given.
    leases: u64,
}

impl Owner {
    pub(crate) fn new(mode: Mode) -> Self {
        Self {
            slots: Slots::new(mode, None),
            header: Header::new(mode.slots(), Generation(1), 0).unwrap(),
            words: vec![[0; WORDS]; usize::from(mode.slots())],
            writing: None,
            now: Instant::now(),
            leases: 0,
        }
    }

    /// Takes the next step of publishing. `read` is what followers have read.
    pub(crate) fn step(&mut self, read: Option<u64>, gives_up: bool) {
        let Some((claim, written)) = &mut self.writing else {
            if let Ok(claim) = self.slots.claim(Writer::Owner, read, self.now) {
                let busy = SlotState::Busy(claim.epoch);
                self.header.mark(claim.slot, busy).unwrap();
                self.writing = Some((claim, 0));
            }
            return;
        };
        let claim = *claim;
        if *written < WORDS {
            self.words[claim.slot.index()][*written] = claim.epoch.get();
            *written += 1;
            return;
        }
        self.writing = None;
        if gives_up {
            self.header.mark(claim.slot, SlotState::Empty).unwrap();
            self.slots.abandon(claim);
            return;
        }
        let epoch = claim.epoch;
        self.header.mark_whole(claim.slot, epoch, 0, 0).unwrap();
        if let Some(newest) = self.slots.commit(claim) {
            self.header.point(newest.epoch, newest.slot).unwrap();
        }
    }

    fn line(&self, at: u64) -> [u8; LINE as usize] {
        let mut bytes = [0; LINE as usize];
        self.header.buffer().read_at(at, &mut bytes).unwrap();
        bytes
    }

    pub(crate) fn newest(&self) -> Option<(Epoch, Slot)> {
        ObjectLine::parse(&self.line(0)).unwrap().newest
    }

    fn state(&self, slot: Slot) -> SlotState {
        SlotLine::parse(&self.line(slot.line())).unwrap().state
    }
}

/// A reader of the newest epoch, with or without a lease, or of every epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Newest,
    Lease,
    Follower,
}

/// A reader between two of its steps.
pub(crate) struct Reader {
    kind: Kind,
    last: u64,
    reading: Option<Reading>,
    whole: u64,
    overtaken: u64,
}

struct Reading {
    epoch: Epoch,
    slot: Slot,
    words: Vec<u64>,
    lease: Option<LeaseId>,
}

impl Reader {
    pub(crate) const fn new(kind: Kind) -> Self {
        Self {
            kind,
            last: 0,
            reading: None,
            whole: 0,
            overtaken: 0,
        }
    }

    /// Returns the last epoch that it has read.
    pub(crate) const fn last(&self) -> u64 {
        self.last
    }

    /// Takes the next step of reading.
    pub(crate) fn step(&mut self, owner: &mut Owner) {
        let Some(reading) = &mut self.reading else {
            self.reading = self.begin(owner);
            return;
        };
        if let Some(word) = owner.words[reading.slot.index()].get(reading.words.len()) {
            reading.words.push(*word);
            return;
        }
        let epoch = reading.epoch;
        if owner.state(reading.slot) == SlotState::Whole(epoch) {
            assert_eq!(reading.words, [epoch.get(); WORDS], "torn");
            match self.kind {
                Kind::Follower => assert_eq!(epoch.get(), self.last + 1, "missed"),
                Kind::Newest | Kind::Lease => assert!(epoch.get() >= self.last, "back"),
            }
            self.last = epoch.get();
            self.whole += 1;
        } else {
            assert_eq!(
                self.kind,
                Kind::Newest,
                "a slot that was kept was overwritten"
            );
            self.overtaken += 1;
        }
        if let Some(lease) = reading.lease {
            owner.slots.release(lease);
        }
        self.reading = None;
    }

    fn begin(&self, owner: &mut Owner) -> Option<Reading> {
        let (newest, slot) = owner.newest()?;
        let mut lease = None;
        let (epoch, slot) = match self.kind {
            Kind::Newest => (newest, slot),
            Kind::Lease => {
                let until = owner.now + Duration::from_secs(1);
                owner.leases += 1;
                let (link, number) = (LinkId(0), owner.leases);
                let id = *lease.insert(LeaseId { link, number });
                let claim = owner.slots.lease(id, newest, owner.now, until)?;
                (claim.epoch, claim.slot)
            }
            Kind::Follower => {
                let next = Epoch::new(self.last + 1).filter(|next| *next <= newest)?;
                let slots = owner.words.len() as u64;
                (next, Slot((self.last % slots) as u16))
            }
        };
        Some(Reading {
            epoch,
            slot,
            words: Vec::new(),
            lease,
        })
    }
}

/// Runs the steps in `schedule`, of the owner or of one of the readers.
fn run(mode: Mode, kinds: &[Kind], schedule: &[(u8, bool)]) -> (u64, u64) {
    let mut owner = Owner::new(mode);
    let mut readers: Vec<Reader> = kinds.iter().copied().map(Reader::new).collect();
    for (who, gives_up) in schedule {
        let who = usize::from(*who) % (readers.len() + 1);
        match who.checked_sub(1).and_then(|at| readers.get_mut(at)) {
            Some(reader) => reader.step(&mut owner),
            None => {
                let followers = readers.iter().filter(|it| it.kind == Kind::Follower);
                let read = followers.map(|it| it.last).min();
                owner.step(read, *gives_up);
            }
        }
    }
    let sum = |of: fn(&Reader) -> u64| readers.iter().map(of).sum();
    (sum(|it| it.whole), sum(|it| it.overtaken))
}

fn schedules(readers: u8) -> impl Strategy<Value = Vec<(u8, bool)>> {
    let step = (0..=readers, prop::bool::weighted(0.1));
    prop::collection::vec(step, 0..2000)
}

proptest! {
    #[test]
    fn in_latest_mode_no_schedule_tears_or_goes_back(schedule in schedules(3)) {
        let kinds = [Kind::Newest, Kind::Lease, Kind::Lease];
        let (whole, overtaken) = run(Mode::Latest, &kinds, &schedule);
        prop_assert!(whole + overtaken <= schedule.len() as u64);
    }

    #[test]
    fn in_a_ring_that_blocks_no_schedule_loses_an_epoch(
        schedule in schedules(3),
        slots in 2..6_u16,
    ) {
        let mode = Mode::Ring { slots, when_full: WhenFull::Block };
        run(mode, &[Kind::Follower, Kind::Follower, Kind::Newest], &schedule);
    }

    #[test]
    fn in_a_ring_that_drops_no_schedule_tears(schedule in schedules(2), slots in 2..6_u16) {
        let mode = Mode::Ring { slots, when_full: WhenFull::DropOldest };
        run(mode, &[Kind::Newest, Kind::Newest], &schedule);
    }
}

#[test]
fn a_reader_that_is_slower_than_the_owner_gets_whole_epochs_only_by_a_lease() {
    // The owner makes ten steps for each of the reader.
    let schedule: Vec<(u8, bool)> = (0..11_000_u32)
        .map(|step| (u8::from(step % 11 == 0), false))
        .collect();
    let (whole, overtaken) = run(Mode::Latest, &[Kind::Newest], &schedule);
    assert_eq!(whole, 0);
    assert!(overtaken > 100);
    let (whole, overtaken) = run(Mode::Latest, &[Kind::Lease], &schedule);
    assert!(whole > 100);
    assert_eq!(overtaken, 0);
}
