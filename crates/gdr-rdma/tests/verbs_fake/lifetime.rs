use std::sync::Arc;

use fake_ibverbs::Fake;
use gdr_rdma::{Access, Buffer, MemoryRegion, SendRequest, WrId};

use crate::fixture::*;

/// Everything that can be dropped by itself.
enum Part {
    Side(Box<Side>),
    Region(MemoryRegion),
    Buffer(Buffer),
}

/// All orders of so many things.
fn orders(count: usize) -> Vec<Vec<usize>> {
    if count == 0 {
        return vec![Vec::new()];
    }
    let mut all = Vec::new();
    for shorter in orders(count - 1) {
        for place in 0..=shorter.len() {
            let mut order = shorter.clone();
            order.insert(place, count - 1);
            all.push(order);
        }
    }
    all
}

#[test]
fn everything_may_be_dropped_in_any_order() {
    let fake = Fake::load();
    for order in orders(4) {
        let (a, b) = sides(&fake);
        let buffer = Buffer::host(4096).unwrap();
        let region = b.domain.register(&buffer, Access::all()).unwrap();
        let mut parts: Vec<Option<Part>> = [
            Part::Side(Box::new(a)),
            Part::Side(Box::new(b)),
            Part::Region(region),
            Part::Buffer(buffer),
        ]
        .into_iter()
        .map(Some)
        .collect();
        for place in &order {
            match parts[*place].take() {
                Some(Part::Side(side)) => drop(side),
                Some(Part::Region(region)) => drop(region),
                Some(Part::Buffer(buffer)) => drop(buffer),
                None => unreachable!("an order has each place once"),
            }
        }
        fake.assert_clean();
    }
}

#[test]
fn an_outstanding_request_keeps_its_region_registered() {
    let fake = Fake::load();
    let (a, b) = sides(&fake);
    let (source, target) = (a.memory(4096), b.memory(4096));
    let sent = fill(&source, 9);
    hold(&fake, &a.name(), true);
    let write = SendRequest::write(WrId(1), target.remote().at(0))
        .segment(source.segment(0, 4096).unwrap());
    a.pair.post_send(write).unwrap();
    drop(source);
    assert_eq!(fake.live(&a.name()).regions, 1);
    hold(&fake, &a.name(), false);
    a.done();
    assert!(bytes(&target) == sent);
    assert_eq!(fake.live(&a.name()).regions, 0);
    drop(target);
    close(&fake, a, b);
}

#[test]
fn requests_that_a_queue_pair_holds_are_released_with_it() {
    let fake = Fake::load();
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
    close(&fake, a, b);
    let ended = calls(&fake, &name, &["ibv_destroy_qp", "ibv_dereg_mr"]);
    let ended: Vec<_> = ended.iter().map(|call| call.verb.as_str()).collect();
    assert_eq!(ended, ["ibv_destroy_qp", "ibv_dereg_mr"]);
}

#[test]
fn a_clone_of_a_region_is_the_same_registration() {
    let fake = Fake::load();
    let (a, b) = sides(&fake);
    let region = a.memory(64);
    let copies: Vec<_> = (0..8).map(|_| region.clone()).collect();
    assert_eq!(fake.live(&a.name()).regions, 1);
    drop(region);
    assert_eq!(fake.live(&a.name()).regions, 1);
    drop(copies);
    assert_eq!(fake.live(&a.name()).regions, 0);
    close(&fake, a, b);
}

#[test]
fn several_threads_may_post_poll_and_drop() {
    let fake = Fake::load();
    let (a, b) = sides(&fake);
    let (a, b) = (Arc::new(a), Arc::new(b));
    let target = b.memory(4 * 1024);
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let (a, target) = (Arc::clone(&a), target.clone());
            scope.spawn(move || {
                for round in 0..20_u64 {
                    let source = a.memory(1024);
                    fill(&source, thread as u8);
                    let write = SendRequest::write(
                        WrId(thread * 100 + round),
                        target.remote().at(thread * 1024),
                    )
                    .segment(source.segment(0, 1024).unwrap());
                    a.pair.post_send(write).unwrap();
                    a.done();
                }
            });
        }
    });
    let got = bytes(&target);
    for thread in 0..4 {
        assert!(got[thread * 1024..][..1024] == pattern(1024, thread as u8));
    }
    drop(target);
    let (a, b) = (Arc::into_inner(a).unwrap(), Arc::into_inner(b).unwrap());
    close(&fake, a, b);
}
