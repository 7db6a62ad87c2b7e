//! Requests that are prepared before they are posted.

use fake_ibverbs::Fake;
use gdr_rdma::{
    Access, Buffer, Error, Foreign, NicError, PostError, RecvRequest, SendRequest, WcOpcode, WrId,
};

use crate::fixture::*;

#[test]
fn a_prepared_request_is_posted_as_often_as_wanted() {
    let fake = Fake::load();
    let (a, b) = sides(&fake);
    let (source, target) = (a.memory(4096), b.memory(4096));
    let whole = source.segment(0, 4096).unwrap();
    let write = SendRequest::write(WrId(1), target.remote().at(0)).segment(whole.clone());
    let mut write = a.pair.prepare(write).unwrap();
    for seed in [1, 2, 3] {
        let sent = fill(&source, seed);
        write.post().unwrap();
        assert_eq!(a.done().id, WrId(1));
        assert!(bytes(&target) == sent, "{seed}");
    }
    let read = SendRequest::read(WrId(2), target.remote().at(0)).segment(whole);
    let mut read = a.pair.prepare(read).unwrap();
    let sent = fill(&target, 4);
    read.post().unwrap();
    let done = a.done();
    assert_eq!(
        (done.id, done.opcode, done.byte_len),
        (WrId(2), WcOpcode::Read, 4096)
    );
    assert!(bytes(&source) == sent);
    let mut message = a
        .pair
        .prepare(SendRequest::send(WrId(3)).inline(b"inline"))
        .unwrap();
    for offset in [0, 100] {
        let place = target.segment(offset, 100).unwrap();
        b.pair
            .post_recv(RecvRequest::new(WrId(4)).segment(place))
            .unwrap();
        message.post().unwrap();
        assert_eq!((a.done().id, b.done().byte_len), (WrId(3), 6));
        assert_eq!(&bytes(&target)[offset as usize..][..6], b"inline");
    }
    drop((write, read, message));
    drop((source, target));
    close(&fake, a, b);
}

#[test]
fn a_prepared_request_keeps_its_region_registered() {
    let fake = Fake::load();
    let (a, b) = sides(&fake);
    let (source, target) = (a.memory(4096), b.memory(4096));
    let sent = fill(&source, 5);
    let regions = || fake.live(&a.name()).regions;
    let write = SendRequest::write(WrId(1), target.remote().at(0))
        .segment(source.segment(0, 4096).unwrap());
    let mut write = a.pair.prepare(write).unwrap();
    drop(source);
    write.post().unwrap();
    a.done();
    assert!(bytes(&target) == sent);
    assert_eq!(regions(), 1, "it may be posted again");
    hold(&fake, &a.name(), true);
    write.post().unwrap();
    drop(write);
    assert_eq!(regions(), 1, "the request is outstanding");
    hold(&fake, &a.name(), false);
    a.done();
    assert_eq!(regions(), 0);
    drop(target);
    close(&fake, a, b);
}

#[test]
fn an_invalid_request_is_refused_before_it_is_posted() {
    let fake = Fake::load();
    let (a, b) = sides(&fake);
    let target = b.memory(64);
    let write = || SendRequest::write(WrId(1), target.remote().at(0));
    let elsewhere = a.pair.domain().device().protection_domain();
    let foreign = elsewhere
        .register(&Buffer::host(64).unwrap(), Access::LOCAL_WRITE)
        .unwrap();
    for region in [&foreign, &target] {
        let refused = a
            .pair
            .prepare(write().segment(region.segment(0, 8).unwrap()));
        let refused = refused.unwrap_err();
        assert!(
            matches!(
                refused,
                Error::Nic(NicError::Foreign(Foreign::MemoryRegion))
            ),
            "{refused}"
        );
    }
    let refused = a.pair.prepare(write().inline(&[1; 100_000])).unwrap_err();
    assert!(
        matches!(
            refused,
            Error::Nic(NicError::Post(PostError::InlineTooLong {
                len: 100_000,
                ..
            }))
        ),
        "{refused}"
    );
    drop((foreign, elsewhere, target));
    close(&fake, a, b);
}

#[test]
fn a_prepared_request_that_finds_no_room_can_be_posted_later() {
    let fake = Fake::load();
    let (a, b) = sides(&fake);
    let (source, target) = (a.memory(64), b.memory(64));
    let write =
        SendRequest::write(WrId(1), target.remote().at(0)).segment(source.segment(0, 64).unwrap());
    let mut write = a.pair.prepare(write).unwrap();
    hold(&fake, &a.name(), true);
    for _ in 0..128 {
        write.post().unwrap();
    }
    let refused = write.post().unwrap_err();
    assert!(
        matches!(refused, Error::Nic(NicError::Post(PostError::Full(128)))),
        "{refused}"
    );
    hold(&fake, &a.name(), false);
    for _ in 0..128 {
        a.done();
    }
    let sent = fill(&source, 6);
    write.post().unwrap();
    a.done();
    assert!(bytes(&target) == sent);
    drop(write);
    drop((source, target));
    close(&fake, a, b);
}
