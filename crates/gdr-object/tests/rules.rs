//! Guarantees for readers when objects, owners and rights change.

mod fixture;

use std::time::Duration;

use gdr_object::{
    BusyReason, Checksum, Deadline, Error, GoneReason, Grantee, Handle, Mode, ObjectServer, Place,
    Rights, Security, ServerOptions, Shape,
};

use gdr_rdma::Session;

use fixture::{limit, name, row, server};

fn why<T: std::fmt::Debug>(result: gdr_object::Result<T>) -> GoneReason {
    match result {
        Err(Error::Gone { why, .. }) => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_closed_object_is_gone_and_shows_no_bytes_of_its_successor() {
    let server = server();
    let object = server.create(name("w"), row(4096), &Place::host()).unwrap();
    object.publish(&[1; 4096], limit()).unwrap();
    let link = fixture::link(&server);
    let remote = link.open(name("w"), limit()).unwrap();
    let memory = link.host_memory(4096).unwrap();
    remote.get_into(&memory, limit()).unwrap();
    object.close();
    let next = server.create(name("w"), row(4096), &Place::host()).unwrap();
    next.publish(&[2; 4096], limit()).unwrap();
    for _ in 0..3 {
        assert_eq!(why(remote.get_into(&memory, limit())), GoneReason::Closed);
        assert_eq!(memory.buffer().load_u8(0).unwrap(), 1);
    }
    assert_eq!(why(remote.newest(limit())), GoneReason::Closed);
    assert_eq!(why(remote.wait_newer(None, limit())), GoneReason::Closed);
    assert_eq!(
        link.open(name("w"), limit())
            .unwrap()
            .get(limit())
            .unwrap()
            .1,
        [2; 4096]
    );
}

#[test]
fn closing_ends_a_wait_before_its_deadline() {
    let server = server();
    let object = server.create(name("w"), row(8), &Place::host()).unwrap();
    let epoch = object.publish(&[1; 8], limit()).unwrap();
    let remote = fixture::link(&server).open(name("w"), limit()).unwrap();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| remote.wait_newer(Some(epoch), limit()));
        object.close();
        assert_eq!(why(waits.join().unwrap()), GoneReason::Closed);
    });
}

#[test]
fn an_object_that_was_resized_is_read_with_its_new_size_and_later_epochs() {
    let server = server();
    let object = server.create(name("w"), row(100), &Place::host()).unwrap();
    let first = object.publish(&[1; 100], limit()).unwrap();
    let link = fixture::link(&server);
    let remote = link.open(name("w"), limit()).unwrap();
    let memory = link.host_memory(100).unwrap();
    remote.get_into(&memory, limit()).unwrap();
    object.resize(Shape::row(200).unwrap()).unwrap();
    let second = object.publish(&[2; 200], limit()).unwrap();
    assert!(second > first);
    let short = remote.get_into(&memory, limit()).unwrap_err();
    assert!(
        matches!(
            short,
            Error::Size {
                object: 200,
                memory: 100,
                ..
            }
        ),
        "{short}"
    );
    assert_eq!(remote.info().bytes, 200);
    assert_eq!(remote.get(limit()).unwrap(), (second, vec![2; 200]));
    object.resize(Shape::row(50).unwrap()).unwrap();
    assert!(matches!(remote.get(limit()), Err(Error::Empty { .. })));
}

#[test]
fn an_owner_that_was_started_again_answers_gone_to_everything_of_its_former_run() {
    let server = server();
    let address = server.address();
    let object = server.create(name("w"), row(8), &Place::host()).unwrap();
    object.publish(&[1; 8], limit()).unwrap();
    let link = fixture::link(&server);
    let remote = link.open(name("w"), limit()).unwrap();
    let handle = Handle::from_bytes(&remote.handle().to_bytes()).unwrap();
    let again = link.open_handle(&handle, limit()).unwrap();
    assert_eq!(again.get(limit()).unwrap().1, [1; 8]);
    drop(object);
    drop(server);
    assert_eq!(why(remote.get(limit())), GoneReason::Disconnected);

    let server = ObjectServer::bind(address, ServerOptions::new(Security::Loopback)).unwrap();
    let object = server.create(name("w"), row(8), &Place::host()).unwrap();
    object.publish(&[2; 8], limit()).unwrap();
    assert_eq!(why(remote.get(limit())), GoneReason::Restarted);
    assert_eq!(
        why(link.open_handle(&handle, limit())),
        GoneReason::Restarted
    );
    // The link has reconnected by itself.
    let remote = link.open(name("w"), limit()).unwrap();
    assert_eq!(remote.get(limit()).unwrap().1, [2; 8]);
}

#[test]
fn peers_put_only_what_they_may() {
    let server = server();
    let nowhere = "192.0.2.1".parse().unwrap();
    let shared = row(4).grant(Grantee::Everyone, Rights::ReadWrite);
    let only_read = row(4).grant(Grantee::Address(nowhere), Rights::ReadWrite);
    let hidden = row(4)
        .grant(Grantee::Everyone, Rights::Nothing)
        .grant(Grantee::Address(nowhere), Rights::Read);
    let shared = server.create(name("a"), shared, &Place::host()).unwrap();
    let _only_read = server.create(name("b"), only_read, &Place::host()).unwrap();
    let _hidden = server.create(name("c"), hidden, &Place::host()).unwrap();
    let link = fixture::link(&server);
    let listed = link.list(limit()).unwrap();
    let rights: Vec<_> = listed
        .iter()
        .map(|it| (it.name.as_str(), it.rights))
        .collect();
    assert_eq!(rights, [("a", Rights::ReadWrite), ("b", Rights::Read)]);
    let hidden = link.open(name("c"), limit());
    assert!(matches!(hidden, Err(Error::NoSuchObject { .. })));

    let memory = link.host_memory(4).unwrap();
    memory.buffer().write_at(0, &[7; 4]).unwrap();
    let denied = link
        .open(name("b"), limit())
        .unwrap()
        .put_from(&memory, limit());
    assert_eq!(
        denied.unwrap_err().to_string(),
        "the owner permits this peer only to read b, not to read and write it"
    );
    let remote = link.open(name("a"), limit()).unwrap();
    let epoch = remote.put_from(&memory, limit()).unwrap();
    assert_eq!(shared.newest(), Some(epoch));
    assert_eq!(remote.get(limit()).unwrap(), (epoch, vec![7; 4]));
    let next = shared.publish(&[8; 4], limit()).unwrap();
    assert_eq!(
        fixture::link(&server)
            .open(name("a"), limit())
            .unwrap()
            .get(limit())
            .unwrap(),
        (next, vec![8; 4])
    );
    let short = link.host_memory(3).unwrap();
    assert!(matches!(
        remote.put_from(&short, limit()),
        Err(Error::Size { .. })
    ));
    assert_eq!(server.stats().requests_refused, 2);
}

#[test]
fn a_failed_writer_publishes_nothing_and_blocks_nothing() {
    let server = server();
    let object = server.create(name("w"), row(4), &Place::host()).unwrap();
    let first = object.publish(&[1; 4], limit()).unwrap();
    let failed = object.write_with(limit(), |slot| {
        slot.write_at(0, &[9; 4])?;
        slot.write_at(1, &[9; 4])
    });
    assert!(matches!(failed, Err(Error::OutOfRange { .. })));
    assert_eq!(object.newest(), Some(first));
    let nested = object.write_with(limit(), |_| object.publish(&[2; 4], limit()).map(drop));
    assert!(matches!(
        nested,
        Err(Error::Busy {
            by: BusyReason::OwnerWrites,
            ..
        })
    ));
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        object.write_with(limit(), |_| panic!("expected by this test"))
    }));
    assert!(panicked.is_err());
    let remote = fixture::link(&server).open(name("w"), limit()).unwrap();
    assert_eq!(remote.get(limit()).unwrap(), (first, vec![1; 4]));
    assert!(object.publish(&[2; 4], limit()).unwrap() > first);
}

#[test]
fn a_live_object_has_one_copy_that_changes_in_place() {
    let server = server();
    let live = row(8).mode(Mode::Live);
    let object = server.create(name("step"), live, &Place::host()).unwrap();
    let remote = fixture::link(&server).open(name("step"), limit()).unwrap();
    for step in 1..=20_u64 {
        let epoch = object.publish(&step.to_le_bytes(), limit()).unwrap();
        assert_eq!(remote.wait_newer(None, limit()).unwrap(), epoch);
        assert_eq!(
            remote.get(limit()).unwrap(),
            (epoch, step.to_le_bytes().to_vec())
        );
    }
}

#[test]
fn a_link_that_another_thread_uses_is_busy_at_the_deadline() {
    let server = server();
    let object = server.create(name("w"), row(8), &Place::host()).unwrap();
    let link = fixture::link(&server);
    let remote = link.open(name("w"), limit()).unwrap();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| remote.wait_newer(None, limit()));
        let busy = loop {
            let soon = Deadline::after(Duration::from_millis(1));
            // The call succeeds before the other thread begins, and may not get any time at all.
            if let Err(Error::Busy { by, .. }) = link.list(soon) {
                break by;
            }
        };
        assert_eq!(busy, BusyReason::LinkInUse);
        object.publish(&[1; 8], limit()).unwrap();
        waits.join().unwrap().unwrap();
    });
}

#[test]
fn more_links_than_an_owner_serves_are_refused_and_counted() {
    let options = ServerOptions::new(Security::Loopback).most_peers(2);
    let server = ObjectServer::bind("127.0.0.1:0".parse().unwrap(), options).unwrap();
    let _object = server.create(name("w"), row(8), &Place::host()).unwrap();
    let links = [(); 2].map(|()| fixture::link(&server));
    let opened = links
        .each_ref()
        .map(|it| it.open(name("w"), limit()).unwrap());
    let options = gdr_object::LinkOptions::new(Security::Loopback);
    let third = gdr_object::Link::connect(server.address(), options, limit()).unwrap_err();
    assert!(
        third
            .to_string()
            .contains("serves 2 links of your user already"),
        "{third}"
    );
    assert_eq!(server.stats().links_refused, 1);
    drop((opened, links));
    let options = gdr_object::LinkOptions::new(Security::Loopback);
    while gdr_object::Link::connect(server.address(), options.clone(), limit()).is_err() {
        std::thread::yield_now();
    }
}

#[test]
fn publications_with_a_checksum_are_checked_and_arrive() {
    let server = server();
    let summed = row(1000)
        .checksum(Checksum::Sum64)
        .grant(Grantee::Everyone, Rights::ReadWrite);
    let object = server.create(name("w"), summed, &Place::host()).unwrap();
    let link = fixture::link(&server);
    let remote = link.open(name("w"), limit()).unwrap();
    let first = object.publish(&[3; 1000], limit()).unwrap();
    assert_eq!(remote.get(limit()).unwrap(), (first, vec![3; 1000]));
    let memory = link.host_memory(1000).unwrap();
    let second = remote.put_from(&memory, limit()).unwrap();
    assert_eq!(remote.get(limit()).unwrap(), (second, vec![0; 1000]));
    // A part of an object has no checksum of its own.
    remote.read_at(990, 10, &memory, 0, limit()).unwrap();
}

/// Sends messages as a peer that violates the protocol; returns the answers or the error.
fn send(server: &ObjectServer, messages: &[&str]) -> gdr_rdma::Result<Vec<Vec<u8>>> {
    let mut session = Session::connect(server.address(), &Security::Loopback, limit())?;
    messages
        .iter()
        .map(|message| {
            session.send(message.as_bytes(), limit())?;
            session.receive(limit())
        })
        .collect()
}

#[test]
fn messages_that_break_the_protocol_end_their_link_and_nothing_else() {
    const HELLO: &str = r#"{"hello":{"version":1}}"#;
    let server = server();
    let shared = row(4).grant(Grantee::Everyone, Rights::ReadWrite);
    let object = server.create(name("w"), shared, &Place::host()).unwrap();
    let epoch = object.publish(&[1; 4], limit()).unwrap();
    let link = fixture::link(&server);
    let remote = link.open(name("w"), limit()).unwrap();

    let long = "x".repeat(60_000);
    for malformed in ["", "{}", "\0\u{1b}", r#"{"open":{"name":"-"}}"#, &long] {
        let ended = send(&server, &[HELLO, malformed]);
        assert!(
            matches!(ended, Err(gdr_rdma::Error::Handshake(_))),
            "{malformed:?}"
        );
    }
    assert_eq!(server.stats().requests_malformed, 5);
    for early in [
        r#"{"list":{"after":null}}"#,
        r#"{"hello":{"version":2}}"#,
        r#""ping""#,
    ] {
        assert!(send(&server, &[early]).is_err(), "{early}");
    }
    assert!(send(&server, &[HELLO, HELLO]).is_err());

    // Requests for objects that another link opened, or for puts that were not begun, are refused.
    for refused in [
        r#"{"lease":{"object":1,"least":1,"milliseconds":18446744073709551615}}"#,
        r#"{"follow":{"object":1}}"#,
        r#"{"begin-put":{"object":1,"milliseconds":0}}"#,
        r#"{"end-put":{"object":1,"epoch":1,"checksum":0}}"#,
        r#"{"open":{"name":"another"}}"#,
        r#"{"widen":{"domain":"read-only","mtu":5}}"#,
    ] {
        let answers = send(&server, &[HELLO, refused]).unwrap();
        let answer = String::from_utf8_lossy(&answers[1]);
        assert!(answer.starts_with(r#"{"refused":"#), "{answer}");
    }
    assert_eq!(server.stats().requests_refused, 6);
    // A put that is begun and abandoned ends with its link, or at its time limit.
    let begin = r#"{"begin-put":{"object":1,"milliseconds":60000}}"#;
    let open = r#"{"open":{"name":"w"}}"#;
    let answers = send(&server, &[HELLO, open, begin]).unwrap();
    assert!(answers[2].starts_with(br#"{"writable""#));
    let second = loop {
        match object.publish(&[2; 4], limit()) {
            Err(Error::Busy {
                by: BusyReason::PeerWrites,
                ..
            }) => std::thread::yield_now(),
            published => break published.unwrap(),
        }
    };
    assert!(second > epoch);
    assert_eq!(remote.get(limit()).unwrap(), (second, vec![2; 4]));
}

#[test]
fn a_put_whose_bytes_have_another_checksum_is_refused_and_not_published() {
    let server = server();
    let summed = row(4)
        .checksum(Checksum::Sum64)
        .grant(Grantee::Everyone, Rights::ReadWrite);
    let object = server.create(name("w"), summed, &Place::host()).unwrap();
    let first = object.publish(&[1; 4], limit()).unwrap();
    let answers = send(
        &server,
        &[
            r#"{"hello":{"version":1}}"#,
            r#"{"open":{"name":"w"}}"#,
            r#"{"begin-put":{"object":1,"milliseconds":60000}}"#,
            r#"{"end-put":{"object":1,"epoch":2,"checksum":1}}"#,
        ],
    );
    let answers = answers.unwrap();
    assert_eq!(answers[3], br#"{"refused":"damaged"}"#);
    assert_eq!(object.newest(), Some(first));
    let second = object.publish(&[2; 4], limit()).unwrap();
    assert_eq!(second.get(), 2);
}

#[test]
fn a_put_that_is_late_is_refused_and_its_slot_is_used_by_others() {
    let server = server();
    let shared = row(4).grant(Grantee::Everyone, Rights::ReadWrite);
    let object = server.create(name("w"), shared, &Place::host()).unwrap();
    let mut session = Session::connect(server.address(), &Security::Loopback, limit()).unwrap();
    let mut ask = |message: &str| {
        session.send(message.as_bytes(), limit()).unwrap();
        String::from_utf8(session.receive(limit()).unwrap()).unwrap()
    };
    ask(r#"{"hello":{"version":1}}"#);
    ask(r#"{"open":{"name":"w"}}"#);
    let begun = ask(r#"{"begin-put":{"object":1,"milliseconds":1}}"#);
    assert!(begun.starts_with(r#"{"writable":{"epoch":1,"#), "{begun}");
    while object.publish(&[1; 4], limit()).is_err() {
        std::thread::yield_now();
    }
    let late = ask(r#"{"end-put":{"object":1,"epoch":1,"checksum":0}}"#);
    assert_eq!(late, r#"{"refused":"late"}"#);
    assert_eq!(object.newest().map(|it| it.get()), Some(1));
}

#[test]
fn an_interrupt_ends_the_calls_in_progress_and_the_next_one_connects_again() {
    /// Longer than any wait of the test.
    const HOURS: Duration = Duration::from_secs(10 * 3600);
    let server = server();
    let object = server.create(name("w"), row(8), &Place::host()).unwrap();
    let link = fixture::link(&server);
    let remote = link.open(name("w"), limit()).unwrap();
    std::thread::scope(|scope| {
        // One thread waits for an epoch, the other one for the link.
        let waits =
            [(); 2].map(|()| scope.spawn(|| remote.wait_newer(None, Deadline::after(HOURS))));
        for wait in waits {
            while !wait.is_finished() {
                link.interrupt();
                std::thread::sleep(Duration::from_millis(1));
            }
            assert_eq!(why(wait.join().unwrap()), GoneReason::Interrupted);
        }
    });
    let epoch = object.publish(&[3; 8], limit()).unwrap();
    let memory = link.host_memory(8).unwrap();
    assert_eq!(remote.wait_newer(None, limit()).unwrap(), epoch);
    assert_eq!(remote.get_into(&memory, limit()).unwrap(), epoch);
    assert_eq!(memory.buffer().load_u8(7).unwrap(), 3);
}
