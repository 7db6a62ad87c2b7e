use fake_ibverbs::Kind;
use gdr_rdma::{SendRequest, WrId};

use crate::fixture::*;

#[test]
fn an_outstanding_request_keeps_its_region_registered() {
    let fake = clean_fake();
    let (a, b) = sides(&fake);
    let (source, target) = (a.memory(4096), b.memory(4096));
    let sent = fill(&source, 9);
    hold(&fake, &a.name(), true);
    let write = SendRequest::write(WrId(1), target.remote().at(0))
        .segment(source.segment(0, 4096).unwrap());
    a.pair.post_send(write).unwrap();
    drop(source);
    assert_eq!(fake.live(&a.name(), Kind::Region), 1);
    hold(&fake, &a.name(), false);
    a.done();
    assert!(bytes(&target) == sent);
    assert_eq!(fake.live(&a.name(), Kind::Region), 0);
}

#[test]
fn requests_that_a_queue_pair_holds_are_released_with_it() {
    let fake = clean_fake();
    let (a, b) = sides(&fake);
    let (source, target) = (a.memory(4096), b.memory(4096));
    hold(&fake, &a.name(), true);
    for id in 0..3 {
        let write = SendRequest::write(WrId(id), target.remote().at(0))
            .segment(source.segment(0, 4096).unwrap());
        a.pair.post_send(write).unwrap();
    }
    drop((source, target));
    let name = a.name();
    drop((a, b));
    let ended = calls(&fake, &name, &["ibv_destroy_qp", "ibv_dereg_mr"]);
    let ended: Vec<_> = ended.iter().map(|call| call.verb.as_str()).collect();
    assert_eq!(ended, ["ibv_destroy_qp", "ibv_dereg_mr"]);
}

#[test]
fn a_clone_of_a_region_is_the_same_registration() {
    let fake = clean_fake();
    let (a, _b) = sides(&fake);
    let region = a.memory(64);
    let copies: Vec<_> = (0..8).map(|_| region.clone()).collect();
    assert_eq!(fake.live(&a.name(), Kind::Region), 1);
    drop(region);
    assert_eq!(fake.live(&a.name(), Kind::Region), 1);
    drop(copies);
    assert_eq!(fake.live(&a.name(), Kind::Region), 0);
}
