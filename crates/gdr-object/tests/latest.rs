//! Objects in latest mode, in host memory, between a server and links of one process.
#![allow(
    clippy::unwrap_used,
    reason = "a fixture that fails is a test that fails"
)]

mod fixture;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use gdr_object::{
    Deadline, Epoch, Error, Extent, Link, LinkOptions, Place, RemoteObject, Rights, Security,
};

use fixture::{StopOnDrop, limit, name, row, server, two_failed};

#[test]
fn a_reader_gets_what_was_published_last() {
    let server = server();
    let object = server.create(name("w"), row(1000), &Place::host()).unwrap();
    let link = fixture::link(&server);
    let remote = link.open(name("w"), limit()).unwrap();
    assert_eq!(remote.newest(limit()).unwrap(), None);
    assert!(matches!(remote.get(limit()), Err(Error::Empty { .. })));
    for round in 1..=10_u8 {
        let epoch = object.publish(&[round; 1000], limit()).unwrap();
        assert_eq!(epoch.get(), u64::from(round));
        assert_eq!(remote.newest(limit()).unwrap(), Some(epoch));
        assert_eq!(remote.get(limit()).unwrap(), (epoch, vec![round; 1000]));
    }
}

#[test]
fn parts_of_an_object_are_read_to_where_they_belong() {
    let server = server();
    let object = server.create(name("w"), row(100), &Place::host()).unwrap();
    let bytes: Vec<u8> = (0..100).collect();
    let epoch = object.publish(&bytes, limit()).unwrap();
    let link = fixture::link(&server);
    let remote = link.open(name("w"), limit()).unwrap();
    let memory = link.host_memory(10).unwrap();
    let read = remote.read_at(40, 5, &memory, 2, limit()).unwrap();
    assert_eq!(read, epoch);
    let mut seen = [0; 10];
    memory.buffer().read_at(0, &mut seen).unwrap();
    assert_eq!(seen, [0, 0, 40, 41, 42, 43, 44, 0, 0, 0]);
    for (offset, len, at) in [(96, 5, 0), (0, 5, 6), (u64::MAX, 5, 0), (0, 5, u64::MAX)] {
        let refused = remote.read_at(offset, len, &memory, at, limit());
        assert!(matches!(refused, Err(Error::OutOfRange { .. })));
    }
    let refused = remote.get_into(&memory, limit()).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "w has 100 bytes, but the memory has 10; pass memory of the object's size"
    );
}

/// Returns extents of four bytes at these offsets, copied one after the other.
fn fours<const N: usize>(offsets: [u64; N]) -> [Extent; N] {
    let mut to = 0;
    offsets.map(|from| {
        let extent = Extent { from, len: 4, to };
        to += 4;
        extent
    })
}

#[test]
fn several_parts_are_read_together_and_each_is_checked() {
    let server = server();
    let object = server.create(name("w"), row(100), &Place::host()).unwrap();
    let link = fixture::link(&server);
    let remote = link.open(name("w"), limit()).unwrap();
    let memory = link.host_memory(12).unwrap();
    let three = fours([96, 0, 50]);
    let empty = remote.get_extents(&three, &memory, limit());
    assert!(matches!(empty, Err(Error::Empty { .. })));
    let bytes: Vec<u8> = (0..100).collect();
    let epoch = object.publish(&bytes, limit()).unwrap();
    let none = remote.get_extents(&[], &memory, limit()).unwrap();
    assert_eq!(none, epoch);
    remote.get_extents(&three, &memory, limit()).unwrap();
    let mut seen = [0; 12];
    memory.buffer().read_at(0, &mut seen).unwrap();
    assert_eq!(seen, [96, 97, 98, 99, 0, 1, 2, 3, 50, 51, 52, 53]);
    for wrong in [[0, 97, 0], [0, 0, u64::MAX]] {
        let refused = remote.get_extents(&fours(wrong), &memory, limit());
        assert!(matches!(refused, Err(Error::OutOfRange { size: 100, .. })));
    }
    let refused = remote.get_extents(&fours([0; 4]), &memory, limit());
    assert!(matches!(refused, Err(Error::OutOfRange { size: 12, .. })));
}

#[test]
fn parts_that_are_read_together_are_of_one_publication() {
    const LEN: usize = 1 << 20;
    let server = server();
    let object = server
        .create(name("w"), row(LEN as u64), &Place::host())
        .unwrap();
    object.publish(&[0; LEN], limit()).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = StopOnDrop(&stop);
        scope.spawn(|| {
            for round in (0..=u8::MAX).cycle() {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                object.publish(&[round; LEN], limit()).unwrap();
            }
        });
        let link = fixture::link(&server);
        let remote = link.open(name("w"), limit()).unwrap();
        let mut offset = 0;
        let spread = [(); 200].map(|()| {
            offset += 5000;
            offset
        });
        let extents = fours(spread);
        let memory = link.host_memory(800).unwrap();
        let mut last = None;
        for _ in 0..200 {
            let epoch = remote.get_extents(&extents, &memory, limit()).unwrap();
            assert!(last <= Some(epoch));
            last = Some(epoch);
            let mut bytes = [0; 800];
            memory.buffer().read_at(0, &mut bytes).unwrap();
            assert!(bytes.iter().all(|it| *it == bytes[0]));
        }
    });
}

#[test]
fn a_waiting_reader_is_woken_by_the_next_publication() {
    let server = server();
    let object = server.create(name("w"), row(8), &Place::host()).unwrap();
    let link = fixture::link(&server);
    let remote = link.open(name("w"), limit()).unwrap();
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut seen: Option<Epoch> = None;
            while seen.is_none_or(|seen| seen.get() < 200) {
                let newer = remote.wait_newer(seen, limit()).unwrap();
                assert!(seen < Some(newer));
                seen = Some(newer);
            }
        });
        for round in 0..200_u64 {
            object.publish(&round.to_le_bytes(), limit()).unwrap();
        }
        reader.join().unwrap();
    });
}

#[test]
fn a_wait_ends_at_its_deadline_with_what_was_seen() {
    let server = server();
    let object = server.create(name("w"), row(8), &Place::host()).unwrap();
    let remote = fixture::link(&server).open(name("w"), limit()).unwrap();
    let ended = ended(&remote, None);
    assert!(
        matches!(ended, Error::NothingNewer { seen: None, .. }),
        "{ended}"
    );
    let epoch = object.publish(&[0; 8], limit()).unwrap();
    assert_eq!(remote.wait_newer(None, limit()).unwrap(), epoch);
    let ended = self::ended(&remote, Some(epoch));
    assert!(
        ended.to_string().contains("nothing newer than epoch 1"),
        "{ended}"
    );
}

/// Returns the error of a short wait. The wait is extended if the owner, on a busy machine, does not answer in time.
fn ended(remote: &RemoteObject, seen: Option<Epoch>) -> Error {
    let mut wait = Duration::from_millis(30);
    loop {
        match remote.wait_newer(seen, Deadline::after(wait)).unwrap_err() {
            Error::Stalled { .. } | Error::NoAnswer { .. } if wait < Duration::from_secs(60) => {
                wait *= 2;
            }
            ended => return ended,
        }
    }
}

/// Gets an object of `LEN` bytes `count` times while its owner publishes without a pause.
fn get_from_a_writer_that_never_stops<const LEN: usize>(count: u32) {
    let server = server();
    let object = server
        .create(name("w"), row(LEN as u64), &Place::host())
        .unwrap();
    object.publish(&[0; LEN], limit()).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut round = 0_u8;
            while !stop.load(Ordering::Relaxed) {
                round = round.wrapping_add(1);
                object.publish(&[round; LEN], limit()).unwrap();
            }
        });
        let _stop = StopOnDrop(&stop);
        let link = fixture::link(&server);
        let remote = link.open(name("w"), limit()).unwrap();
        let memory = link.host_memory(LEN as u64).unwrap();
        let mut bytes = [0; LEN];
        let mut last = None;
        for _ in 0..count {
            let epoch = remote.get_into(&memory, limit()).unwrap();
            memory.buffer().read_at(0, &mut bytes).unwrap();
            let published = (epoch.get() - 1) as u8;
            assert_eq!(bytes.iter().find(|byte| **byte != published), None);
            assert!(last <= Some(epoch));
            last = Some(epoch);
        }
    });
}

#[test]
fn no_get_is_torn_while_the_owner_publishes_without_pause() {
    get_from_a_writer_that_never_stops::<65_536>(300);
    get_from_a_writer_that_never_stops::<4_096>(5_000);
}

#[test]
#[ignore = "takes minutes; run it with --release"]
fn no_get_of_a_million_is_torn_while_the_owner_publishes_without_pause() {
    get_from_a_writer_that_never_stops::<4_096>(1_000_000);
}

#[test]
fn large_objects_are_moved_over_several_queue_pairs_whole() {
    const LEN: usize = (17 << 20) + 5;
    let server = server();
    let options = row(LEN as u64).grant(gdr_object::Grantee::Everyone, Rights::ReadWrite);
    let object = server.create(name("w"), options, &Place::host()).unwrap();
    let bytes = |seed: usize| -> Vec<u8> { (0..LEN).map(|at| ((at * seed) >> 9) as u8).collect() };
    let link = fixture::link(&server);
    let remote = link.open(name("w"), limit()).unwrap();
    let memory = link.host_memory(LEN as u64).unwrap();
    let mut seen = vec![0; LEN];
    for seed in [3, 5] {
        let published = bytes(seed);
        object.publish(&published, limit()).unwrap();
        remote.get_into(&memory, limit()).unwrap();
        memory.buffer().read_at(0, &mut seen).unwrap();
        assert!(seen == published, "{seed}");
    }
    let put = bytes(7);
    memory.buffer().write_at(0, &put).unwrap();
    let epoch = remote.put_from(&memory, limit()).unwrap();
    memory.buffer().write_at(0, &vec![0; LEN]).unwrap();
    // A large part, to another offset.
    let part = 16 << 20;
    let read = remote.read_at(1000, part, &memory, 7, limit()).unwrap();
    assert_eq!(read, epoch);
    memory.buffer().read_at(0, &mut seen).unwrap();
    let part = part as usize;
    assert!(seen[7..7 + part] == put[1000..1000 + part]);
    assert!(seen[7 + part..].iter().all(|byte| *byte == 0));
    // Small reads still work on the same link.
    remote.read_at(1000, 9, &memory, 0, limit()).unwrap();
}

#[test]
fn names_and_shapes_that_no_object_has_are_refused() {
    let server = server();
    let _first = server.create(name("w"), row(1), &Place::host()).unwrap();
    let again = server
        .create(name("w"), row(1), &Place::host())
        .unwrap_err();
    assert!(
        again.to_string().contains("object w already exists"),
        "{again}"
    );
    let link = fixture::link(&server);
    let missing = link.open(name("v"), limit()).unwrap_err();
    assert!(matches!(missing, Error::NoSuchObject { .. }), "{missing}");
    let refused = server
        .create(name("v"), row(1), &Place::host())
        .unwrap()
        .publish(&[1, 2], limit())
        .unwrap_err();
    assert!(matches!(
        refused,
        Error::Size {
            object: 1,
            memory: 2,
            ..
        }
    ));
}

#[test]
fn a_list_has_every_object_in_the_order_of_names() {
    let server = server();
    let objects: Vec<_> = (0..100)
        .map(|at| {
            server
                .create(name(&format!("o{at:03}")), row(1), &Place::host())
                .unwrap()
        })
        .collect();
    let link = fixture::link(&server);
    let listed = link.list(limit()).unwrap();
    let names: Vec<_> = listed.iter().map(|it| it.name.clone()).collect();
    let expected: Vec<_> = objects.iter().map(|it| it.name().clone()).collect();
    assert_eq!(names, expected);
    assert_eq!(listed[0].path.to_string(), "soft, host");
    drop(objects);
    assert!(link.list(limit()).unwrap().is_empty());
}

#[test]
fn a_link_without_the_key_opens_nothing() {
    let security = fixture::key(1);
    let options = gdr_object::ServerOptions::new(security.clone());
    let server = gdr_object::ObjectServer::bind("127.0.0.1:0".parse().unwrap(), options).unwrap();
    let object = server.create(name("w"), row(1), &Place::host()).unwrap();
    object.publish(&[5], limit()).unwrap();
    for wrong in [fixture::key(2), Security::Loopback] {
        let refused = Link::connect(server.address(), LinkOptions::new(wrong), limit());
        assert!(matches!(refused, Err(Error::Rdma(_))), "{refused:?}");
    }
    let link = Link::connect(server.address(), LinkOptions::new(security), limit()).unwrap();
    let remote = link.open(name("w"), limit()).unwrap();
    assert_eq!(remote.get(limit()).unwrap().1, [5]);
    two_failed(&server);
}

#[test]
fn many_objects_are_got_together_while_their_owner_publishes() {
    const OBJECTS: usize = 60;
    let server = server();
    let objects: Vec<_> = (0..OBJECTS)
        .map(|at| {
            // Every third object may be written by peers, and is in another protection domain.
            let rights = match at % 3 {
                0 => gdr_object::Rights::ReadWrite,
                _ => gdr_object::Rights::Read,
            };
            let options = row(5000).grant(gdr_object::Grantee::Everyone, rights);
            server
                .create(name(&format!("o{at}")), options, &Place::host())
                .unwrap()
        })
        .collect();
    let link = fixture::link(&server);
    let remotes: Vec<_> = objects
        .iter()
        .map(|it| link.open(it.name().clone(), limit()).unwrap())
        .collect();
    let memory: Vec<_> = (0..OBJECTS)
        .map(|_| link.host_memory(5000).unwrap())
        .collect();
    let gets: Vec<_> = remotes.iter().zip(&memory).collect();
    let empty = link.get_many(&gets, limit());
    assert!(matches!(empty, Err(Error::Empty { .. })));
    for object in &objects {
        object.publish(&[0; 5000], limit()).unwrap();
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut round = 0_u8;
            while !stop.load(Ordering::Relaxed) {
                round = round.wrapping_add(1);
                for object in &objects {
                    object.publish(&[round; 5000], limit()).unwrap();
                }
            }
        });
        let _stop = StopOnDrop(&stop);
        let mut last = vec![None; OBJECTS];
        for _ in 0..20 {
            let epochs = link.get_many(&gets, limit()).unwrap();
            for (at, epoch) in epochs.into_iter().enumerate() {
                let mut bytes = [0; 5000];
                memory[at].buffer().read_at(0, &mut bytes).unwrap();
                let published = (epoch.get() - 1) as u8;
                assert_eq!(bytes.iter().find(|byte| **byte != published), None);
                assert!(last[at] <= Some(epoch));
                last[at] = Some(epoch);
            }
        }
    });
    let elsewhere = fixture::link(&server).open(name("o1"), limit()).unwrap();
    let mixed = link.get_many(&[gets[0], (&elsewhere, &memory[1])], limit());
    assert!(matches!(mixed, Err(Error::OtherLink { .. })));
    let mut objects = objects;
    drop(objects.remove(1));
    let gone = link.get_many(&gets, limit());
    assert!(matches!(gone, Err(Error::Gone { .. })), "{gone:?}");
    assert!(link.get_many(&gets[2..], limit()).is_ok());
}
