use fake_ibverbs::DeviceSpec;
use gdr_rdma::{Error, NicError, PostError, RecvRequest, SendRequest, WrId};

use crate::fixture::*;

/// Devices with and without extended interfaces; the results must be the same.
fn kinds() -> [(DeviceSpec, DeviceSpec); 2] {
    let plain = || DeviceSpec {
        extended_queries: false,
        extended_queues: false,
        extended_requests: false,
        // mlx5 devices create queue pairs with a function of their own.
        scatter_to_cqe: false,
        ..roce()
    };
    [(roce(), roce()), (plain(), plain())]
}

#[test]
fn unsignalled_requests_retire_with_a_later_one_and_a_full_queue_is_reported() {
    let fake = clean_fake();
    let (a, b) = sides(&fake);
    let (source, target) = (a.memory(64), b.memory(64));
    let write = || {
        SendRequest::write(WrId(0), target.remote().at(0)).segment(source.segment(0, 64).unwrap())
    };
    hold(&fake, &a.name(), true);
    for _ in 0..127 {
        a.pair.post_send(write().unsignalled()).unwrap();
    }
    a.pair.post_send(write()).unwrap();
    let full = a.pair.post_send(write()).unwrap_err();
    assert!(
        matches!(full, Error::Nic(NicError::Post(PostError::Full(128)))),
        "{full}"
    );
    hold(&fake, &a.name(), false);
    a.done();
    assert!(a.queue.poll().unwrap().is_none());
    a.pair.post_send(write()).unwrap();
    a.done();
}

#[test]
fn a_waiter_that_sleeps_is_woken_by_its_completion() {
    let fake = clean_fake();
    let (a, b) = sides(&fake);
    let (source, target) = (a.memory(64), b.memory(64));
    hold(&fake, &a.name(), true);
    let write =
        SendRequest::write(WrId(5), target.remote().at(0)).segment(source.segment(0, 64).unwrap());
    a.pair.post_send(write).unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| a.done().id);
        let asked = || calls(&fake, &a.name(), &POSTING).len();
        assert_eq!(asked(), 1);
        hold(&fake, &a.name(), false);
        assert_eq!(waiter.join().unwrap(), WrId(5));
    });
}

#[test]
fn requests_are_extended_if_the_device_supports_them() {
    let fake = clean_fake();
    for (verb, (a, b)) in ["ibv_wr_complete", "ibv_post_send"]
        .into_iter()
        .zip(kinds())
    {
        let (a, b) = connected(&fake, &a, &b);
        let target = b.memory(3);
        let write = |n: u8| {
            let at = target.remote().at(n.into());
            SendRequest::write(WrId(n.into()), at).inline(&[n + 1])
        };
        a.pair.post_sends((0..3).map(write)).unwrap();
        let posted = calls(&fake, &a.name(), &POSTING);
        assert!(
            !posted.is_empty() && posted.iter().all(|call| call.verb == verb),
            "{posted:?}"
        );
        assert_eq!([(); 3].map(|()| a.done().id), [WrId(0), WrId(1), WrId(2)]);
        assert_eq!(bytes(&target), [1, 2, 3]);
    }
}

#[test]
fn a_single_request_is_posted_or_refused_as_one_of_a_list_is() {
    let fake = clean_fake();
    for (a, b) in kinds() {
        let (a, b) = connected(&fake, &a, &b);
        let (source, target) = (a.memory(64), b.memory(64));
        let sent = fill(&source, 9);
        let write = |n: u64| SendRequest::write(WrId(n), target.remote().at(0));
        let long = write(0).inline(&[1; 100_000]);
        let refused = a.pair.post_sends([long]).unwrap_err();
        assert_eq!(refused.posted, 0);
        assert!(
            matches!(
                refused.error,
                Error::Nic(NicError::Post(PostError::InlineTooLong {
                    len: 100_000,
                    ..
                }))
            ),
            "{refused}"
        );
        assert!(calls(&fake, &a.name(), &POSTING).is_empty());
        hold(&fake, &a.name(), true);
        let whole = || source.segment(0, 64).unwrap();
        let refused = (0..).find_map(|n| {
            let posted = a.pair.post_sends([write(n).segment(whole())]);
            posted.err().map(|refused| (n, refused))
        });
        let (count, refused) = refused.unwrap();
        assert_eq!((count, refused.posted), (128, 0));
        assert!(
            matches!(
                refused.error,
                Error::Nic(NicError::Post(PostError::Full(128)))
            ),
            "{refused}"
        );
        hold(&fake, &a.name(), false);
        for n in 0..count {
            assert_eq!(a.done().id, WrId(n));
        }
        assert_eq!(bytes(&target), sent);
    }
}

#[test]
fn received_messages_had_a_network_header_and_requests_that_were_sent_had_none() {
    let fake = clean_fake();
    for (a, b) in kinds() {
        let (a, b) = connected(&fake, &a, &b);
        b.pair.post_recv(RecvRequest::new(WrId(1))).unwrap();
        a.pair.post_send(SendRequest::send(WrId(2))).unwrap();
        assert!(b.done().has_network_header && !a.done().has_network_header);
    }
}
