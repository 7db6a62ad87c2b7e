//! Rings and their followers.

mod fixture;

use gdr_object::{Error, Mode, Place, WhenFull};

use fixture::{limit, name, row, server};

fn ring(slots: u16, when_full: WhenFull) -> gdr_object::ObjectOptions {
    row(8).mode(Mode::Ring { slots, when_full })
}

#[test]
fn a_follower_of_a_ring_that_blocks_reads_every_epoch() {
    let server = server();
    let object = server
        .create(name("frames"), ring(4, WhenFull::Block), &Place::host())
        .unwrap();
    object.publish(&u64::MAX.to_le_bytes(), limit()).unwrap();
    let link = fixture::link(&server);
    let remote = link.open(name("frames"), limit()).unwrap();
    let mut follower = remote.follow(limit()).unwrap();
    assert_eq!(follower.last().map(|it| it.get()), Some(1));
    let memory = link.host_memory(8).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for frame in 2..300_u64 {
                object.publish(&frame.to_le_bytes(), limit()).unwrap();
            }
        });
        for frame in 2..300_u64 {
            let received = follower.next_into(&memory, limit()).unwrap();
            assert_eq!((received.epoch.get(), received.missed), (frame, 0));
            assert_eq!(memory.buffer().load_u64(0).unwrap(), frame);
        }
    });
}

#[test]
fn a_full_ring_names_the_follower_that_is_behind_and_goes_on_without_it() {
    let server = server();
    let object = server
        .create(name("frames"), ring(2, WhenFull::Block), &Place::host())
        .unwrap();
    let link = fixture::link(&server);
    let remote = link.open(name("frames"), limit()).unwrap();
    let follower = remote.follow(limit()).unwrap();
    for _ in 0..2 {
        object.publish(&[0; 8], limit()).unwrap();
    }
    let soon = gdr_object::Deadline::after(std::time::Duration::from_millis(20));
    let full = object.publish(&[0; 8], soon).unwrap_err();
    let Error::RingFull {
        read: None,
        follower: peer,
        ..
    } = &full
    else {
        panic!("{full}");
    };
    assert!(peer.ip().is_loopback());
    drop(follower);
    object.publish(&[0; 8], limit()).unwrap();

    let follower = remote.follow(limit()).unwrap();
    std::mem::forget(follower);
    let waits = std::thread::scope(|scope| {
        let waits = scope.spawn(|| {
            for _ in 0..3 {
                object.publish(&[0; 8], limit()).unwrap();
            }
        });
        drop(remote);
        drop(link);
        waits.join()
    });
    waits.unwrap();
}

#[test]
fn a_follower_of_a_ring_that_drops_gets_the_number_of_missed_epochs() {
    let server = server();
    let object = server
        .create(
            name("frames"),
            ring(4, WhenFull::DropOldest),
            &Place::host(),
        )
        .unwrap();
    let link = fixture::link(&server);
    let remote = link.open(name("frames"), limit()).unwrap();
    let mut follower = remote.follow(limit()).unwrap();
    let memory = link.host_memory(8).unwrap();
    for frame in 1..=10_u64 {
        object.publish(&frame.to_le_bytes(), limit()).unwrap();
    }
    let received = follower.next_into(&memory, limit()).unwrap();
    assert_eq!((received.epoch.get(), received.missed), (7, 6));
    for frame in 8..=10_u64 {
        let received = follower.next_into(&memory, limit()).unwrap();
        assert_eq!((received.epoch.get(), received.missed), (frame, 0));
        assert_eq!(memory.buffer().load_u64(0).unwrap(), frame);
    }
}

#[test]
fn only_rings_are_followed() {
    let server = server();
    let _object = server.create(name("w"), row(8), &Place::host()).unwrap();
    let remote = fixture::link(&server).open(name("w"), limit()).unwrap();
    let refused = remote.follow(limit()).unwrap_err().to_string();
    assert_eq!(refused, "w is latest, which has no followers");
    for slots in [0, 1, 4097] {
        let refused = server.create(name("r"), ring(slots, WhenFull::Block), &Place::host());
        assert!(matches!(refused, Err(Error::Slots(_))));
    }
}
