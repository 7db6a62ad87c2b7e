//! Requests that are prepared before they are posted.

use fake_ibverbs::Kind;
use gdr_rdma::{Error, NicError, PostError, SendRequest, WrId};

use crate::fixture::*;

#[test]
fn a_prepared_request_keeps_its_region_registered() {
    let fake = clean_fake();
    let (a, b) = sides(&fake);
    let (source, target) = (a.memory(4096), b.memory(4096));
    let sent = fill(&source, 5);
    let regions = || fake.live(&a.name(), Kind::Region);
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
}

#[test]
fn a_request_that_is_too_long_is_refused_before_it_is_posted() {
    let fake = clean_fake();
    let (a, _b) = sides(&fake);
    let long = SendRequest::send(WrId(1)).inline(&[1; 100_000]);
    let refused = a.pair.prepare(long).unwrap_err();
    let expected = Error::Nic(NicError::Post(PostError::InlineTooLong {
        len: 100_000,
        max: 0,
    }));
    assert_eq!(
        std::mem::discriminant(&refused),
        std::mem::discriminant(&expected)
    );
}

#[test]
fn a_prepared_request_that_finds_no_room_can_be_posted_later() {
    let fake = clean_fake();
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
}
