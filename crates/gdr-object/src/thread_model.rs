//! Models of the threads of an owner and its readers, with schedules chosen by shuttle.

use shuttle::sync::atomic::{AtomicU64, Ordering, fence};
use shuttle::sync::mpsc::channel;
use shuttle::sync::{Arc, Mutex};
use shuttle::{check_pct, thread};

use crate::epoch::Epoch;
use crate::mode::{Mode, WhenFull};
use crate::peer_channel::Wanted;
use crate::slot_model::{Kind, Owner, Reader};

/// Number of schedules of each model, and number of places in which a thread is preempted.
const SCHEDULES: usize = 300;
const SWITCHES: usize = 4;
const STEPS: usize = 60;

/// Runs an owner and readers, each a thread. Between any two steps other threads run.
fn run(mode: Mode, kinds: &'static [Kind]) {
    check_pct(
        move || {
            let owner = Arc::new(Mutex::new(Owner::new(mode)));
            // What each follower has read.
            let read: Arc<Vec<AtomicU64>> = Arc::new(kinds.iter().map(|_| 0.into()).collect());
            let readers: Vec<_> = kinds
                .iter()
                .enumerate()
                .map(|(at, &kind)| {
                    let (owner, read) = (Arc::clone(&owner), Arc::clone(&read));
                    thread::spawn(move || {
                        let mut reader = Reader::new(kind);
                        for _ in 0..STEPS {
                            reader.step(&mut owner.lock().unwrap());
                            read[at].store(reader.last(), Ordering::SeqCst);
                        }
                    })
                })
                .collect();
            for step in 0..2 * STEPS {
                let followers = kinds
                    .iter()
                    .zip(&**read)
                    .filter(|(kind, _)| **kind == Kind::Follower);
                let least = followers.map(|(_, read)| read.load(Ordering::SeqCst)).min();
                owner.lock().unwrap().step(least, step % 17 == 0);
            }
            for reader in readers {
                reader.join().unwrap();
            }
        },
        SCHEDULES,
        SWITCHES,
    );
}

#[test]
fn no_schedule_of_threads_tears_a_snapshot_or_goes_back() {
    run(Mode::Latest, &[Kind::Newest, Kind::Lease, Kind::Lease]);
}

#[test]
fn no_schedule_of_threads_loses_an_epoch_of_a_ring_that_blocks() {
    let ring = Mode::Ring {
        slots: 3,
        when_full: WhenFull::Block,
    };
    run(ring, &[Kind::Follower, Kind::Follower, Kind::Newest]);
}

/// Models a link that waits for each epoch in turn, as `await_newer` does but without checking again, and the owner
/// that wakes it. It would wait forever if a wake-up were lost.
#[test]
fn no_schedule_of_threads_loses_a_wake_up() {
    const EPOCHS: u64 = 5;
    check_pct(
        || {
            let newest = Arc::new(AtomicU64::new(0));
            let wanted = Arc::new(AtomicU64::new(0));
            let (wake, woken) = channel();
            let link = {
                let (newest, wanted) = (Arc::clone(&newest), Arc::clone(&wanted));
                thread::spawn(move || {
                    let (mut seen, mut wake_ups) = (0, 0);
                    while seen < EPOCHS {
                        wanted.store(seen + 1, Ordering::Relaxed);
                        fence(Ordering::SeqCst);
                        let found = newest.load(Ordering::Relaxed);
                        if found > seen {
                            seen = found;
                            continue;
                        }
                        // A wake-up may belong to an earlier wait, which a check has ended.
                        while seen < wanted.load(Ordering::Relaxed) {
                            let epoch: u64 = woken.recv().expect("a wake-up");
                            wake_ups += 1;
                            seen = seen.max(epoch);
                        }
                    }
                    assert!(wake_ups <= EPOCHS, "more wake-ups than were asked for");
                })
            };
            let mut answered = Wanted(0);
            for number in 1..=EPOCHS {
                newest.store(number, Ordering::Relaxed);
                fence(Ordering::SeqCst);
                let wanted = Wanted(wanted.load(Ordering::Relaxed));
                let epoch = Epoch::new(number).expect("an epoch");
                if wanted.is_answered_by(epoch, answered) {
                    answered = wanted;
                    // A link that has seen the last epoch by checking is gone.
                    let _gone = wake.send(number);
                }
            }
            link.join().unwrap();
        },
        2000,
        SWITCHES,
    );
}
