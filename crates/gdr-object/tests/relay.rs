//! Relays, whose objects have the epochs of another owner's object.
#![allow(
    clippy::unwrap_used,
    reason = "a fixture that fails is a test that fails"
)]

mod fixture;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use gdr_object::{Error, GoneReason, Mode, ObjectServer, Place, Relay};

use fixture::{StopOnDrop, limit, link, name, row, server};

const LEN: usize = 256 << 10;
const LIMIT: Duration = Duration::from_secs(60);

fn relay(server: &ObjectServer, from: &ObjectServer) -> Relay {
    let from = link(from).open(name("w"), limit()).unwrap();
    Relay::start(server, name("w"), from, LIMIT).unwrap()
}

/// Gets from a relay and checks that each byte of an epoch is the owner's epoch number.
fn read(from: &ObjectServer, count: u32) {
    let remote = link(from).open(name("w"), limit()).unwrap();
    let mut last = None;
    for _ in 0..count {
        let newer = remote.wait_newer(last, limit()).unwrap();
        let (epoch, bytes) = remote.get(limit()).unwrap();
        assert!(last < Some(newer) && newer <= epoch);
        let published = epoch.get() as u8;
        assert_eq!(bytes.iter().find(|byte| **byte != published), None);
        last = Some(epoch);
    }
}

#[test]
fn readers_of_relays_get_whole_epochs_with_their_owners_numbers() {
    let (owner, first, second) = (server(), server(), server());
    let object = owner
        .create(name("w"), row(LEN as u64), &Place::host())
        .unwrap();
    let relays = [relay(&first, &owner), relay(&second, &owner)];
    // A relay of a relay.
    let third = server();
    let last = relay(&third, &first);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (object, stop) = (&object, &stop);
        scope.spawn(move || {
            let mut number = 0_u8;
            while !stop.load(Ordering::Relaxed) {
                number = number.wrapping_add(1);
                object.publish(&[number; LEN], limit()).unwrap();
            }
        });
        let _stop = StopOnDrop(stop);
        let readers: Vec<_> = [&first, &first, &second, &third]
            .map(|from| scope.spawn(|| read(from, 60)))
            .into();
        for reader in readers {
            reader.join().unwrap();
        }
    });
    assert_eq!(object.readers(), 2);
    assert!(last.newest() <= object.newest());

    // When the owner ends, relays report that, and serve nothing that may be stale.
    let stale = link(&third).open(name("w"), limit()).unwrap();
    drop(object);
    for relay in &relays {
        let why = relay.wait(limit());
        assert!(matches!(why, Some(Error::Gone { .. })), "{why:?}");
        assert_eq!((relay.newest(), relay.readers()), (None, 0));
    }
    assert!(matches!(last.wait(limit()), Some(Error::Gone { .. })));
    let Err(Error::Gone { why, .. }) = stale.get(limit()) else {
        panic!("a reader got something of an owner that is gone");
    };
    assert_eq!(why, GoneReason::Closed);
}

#[test]
fn a_relay_ends_at_once_and_is_for_objects_in_latest_mode() {
    let (owner, other) = (server(), server());
    let object = owner.create(name("w"), row(8), &Place::host()).unwrap();
    let relay = relay(&other, &owner);
    assert_eq!((relay.name(), relay.newest()), (&name("w"), None));
    assert!(
        relay
            .wait(gdr_object::Deadline::after(Duration::ZERO))
            .is_none()
    );
    drop(relay);
    assert!(other.objects().is_empty());
    let live = owner
        .create(name("l"), row(8).mode(Mode::Live), &Place::host())
        .unwrap();
    let from = link(&owner).open(name("l"), limit()).unwrap();
    let refused = Relay::start(&other, name("l"), from, LIMIT);
    assert!(matches!(refused, Err(Error::WrongMode { .. })));
    drop((object, live));
}

#[test]
fn an_object_goes_on_at_a_later_epoch_and_never_goes_back() {
    let owner = server();
    let object = owner.create(name("w"), row(8), &Place::host()).unwrap();
    let epoch = |number| gdr_object::Epoch::new(number).unwrap();
    object.continue_at(epoch(1000)).unwrap();
    assert_eq!(object.publish(&[1; 8], limit()).unwrap(), epoch(1000));
    assert_eq!(object.publish(&[1; 8], limit()).unwrap(), epoch(1001));
    for earlier in [1, 1001] {
        let refused = object.continue_at(epoch(earlier)).unwrap_err();
        assert_eq!(
            refused.to_string(),
            format!("w is at epoch 1001, and {earlier} is not later; publish a later epoch")
        );
    }
    object.continue_at(epoch(1002)).unwrap();
    assert_eq!(object.publish(&[1; 8], limit()).unwrap(), epoch(1002));
}
