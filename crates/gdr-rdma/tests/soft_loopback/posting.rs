//! Lists of requests, and what the program does while they are posted.

use std::iter;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use gdr_rdma::{
    Error, NicError, PostError, QueuePairOptions, RecvRequest, SendRequest, WcStatus, WrId,
};

use crate::fixture::*;

#[test]
fn an_iterator_may_use_the_device_that_it_posts_to() {
    let Some((a, b)) = sides() else { return };
    let (done, ended) = channel();
    thread::spawn(move || {
        let mut spare = Some(
            a.domain
                .queue_pair(&QueuePairOptions::new(&a.queue))
                .unwrap(),
        );
        let target = b.memory(8);
        let requests = (0..3).map(|n| {
            a.pair.state();
            a.device.counters();
            a.pair.post_recv(RecvRequest::new(WrId(100 + n))).unwrap();
            assert_eq!(a.queue.poll().unwrap(), None);
            drop(spare.take());
            SendRequest::write(WrId(n), target.remote().at(0)).inline(&[1])
        });
        a.pair.post_sends(requests).unwrap();
        for n in 0..3 {
            assert_eq!(a.done().id, WrId(n));
        }
        done.send(()).unwrap();
    });
    assert_eq!(ended.recv_timeout(Duration::from_secs(60)), Ok(()));
}

#[test]
fn a_slow_iterator_delays_no_other_queue_pair() {
    let Some((a, b)) = sides() else { return };
    let (other, peer) = (Side::on(a.device.clone()), Side::on(b.device.clone()));
    connect(&other, &peer, &options());
    let (here, there) = (other.memory(8), b.memory(8));
    let requests = (0..1).map(|n| {
        // Of no use without the engine of `a`, in the middle of a post to it.
        let write = SendRequest::write(WrId(9), here.remote().at(0)).inline(&[1; 8]);
        peer.pair.post_send(write).unwrap();
        peer.done();
        SendRequest::write(WrId(n), there.remote().at(0)).inline(&[2; 8])
    });
    a.pair.post_sends(requests).unwrap();
    a.done();
    assert_eq!((bytes(&here), bytes(&there)), (vec![1; 8], vec![2; 8]));
}

#[test]
fn an_endless_list_is_refused_when_the_queue_is_full() {
    let Some((a, b)) = sides() else { return };
    let target = b.memory(8);
    let endless =
        iter::repeat_with(|| SendRequest::write(WrId(1), target.remote().at(0)).inline(&[1]));
    let refusal = a
        .pair
        .post_sends(endless)
        .expect_err("128 requests at most");
    assert_eq!(refusal.posted, 128);
    assert!(matches!(
        refusal.error,
        Error::Nic(NicError::Post(PostError::Full(128)))
    ));
}

#[test]
fn a_list_longer_than_the_queue_is_flushed_whole_in_error() {
    let Some((a, _b)) = sides() else { return };
    a.pair.to_error();
    let list = (0..300).map(|n| SendRequest::send(WrId(n)).inline(&[1]));
    a.pair.post_sends(list).unwrap();
    for n in 0..300 {
        let completion = a.queue.wait(soon()).unwrap();
        let expected = (WrId(n), WcStatus::WrFlushed);
        assert_eq!((completion.id, completion.status), expected);
    }
}

#[test]
fn a_signalled_request_behind_unsignalled_ones_completes_under_its_own_id() {
    let Some((a, b)) = sides() else { return };
    let (source, target) = (a.memory(8), b.memory(8));
    for round in 0..3 {
        let write = |n: u64| {
            let id = WrId(100 * round + n);
            SendRequest::write(id, target.remote().at(0)).segment(source.segment(0, 8).unwrap())
        };
        let unsignalled = (1..=5).map(|n| write(n).unsignalled());
        let signalled = iter::once(write(6));
        a.pair.post_sends(unsignalled.chain(signalled)).unwrap();
        assert_eq!(a.done().id, WrId(100 * round + 6));
        assert_eq!(a.queue.poll().unwrap(), None);
    }
}

#[test]
fn a_prepared_request_is_posted_as_often_as_wanted_and_keeps_its_memory() {
    let Some((a, b)) = sides() else { return };
    let (source, target) = (a.memory(64), b.memory(64));
    let whole = source.segment(0, 64).unwrap();
    let write = SendRequest::write(WrId(1), target.remote().at(0)).segment(whole);
    let mut write = a.pair.prepare(write).unwrap();
    for seed in [1, 2, 3] {
        let sent = fill(&source, seed);
        write.post().unwrap();
        assert_eq!(a.done().id, WrId(1));
        assert_eq!(bytes(&target), sent);
    }
    let sent = fill(&source, 4);
    drop(source);
    write.post().unwrap();
    drop(write);
    a.done();
    assert_eq!(bytes(&target), sent);

    let foreign = target.segment(0, 8).unwrap();
    let write = SendRequest::write(WrId(2), target.remote().at(0)).segment(foreign);
    let refused = a.pair.prepare(write).unwrap_err();
    assert!(
        matches!(refused, Error::Nic(NicError::Foreign(_))),
        "{refused}"
    );
}
