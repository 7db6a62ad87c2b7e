//! Requests and lists of them: what is posted, and what is refused.

use std::iter;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use gdr_rdma::{
    Capabilities, Error, NicError, PostError, QueuePairOptions, RecvRequest, SendRequest, WrId,
};

use crate::{Bench, bytes, connect, fill, soon};

fn is_full(refused: &Error) -> bool {
    matches!(refused, Error::Nic(NicError::Post(PostError::Full(_))))
}

fn is_too_long(refused: &Error) -> bool {
    matches!(
        refused,
        Error::Nic(NicError::Post(PostError::InlineTooLong { .. }))
    )
}

pub fn an_iterator_may_use_the_device_that_it_posts_to(bench: &Bench<'_>) {
    let (a, b) = bench.sides();
    let (done, ended) = channel();
    let posting = thread::spawn(move || {
        let mut spare = Some(a.another());
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
    posting.join().unwrap();
}

pub fn a_list_is_posted_up_to_the_first_request_that_is_refused(bench: &Bench<'_>) {
    let (a, b) = bench.sides();
    let target = b.memory(8);
    let write =
        |n: u8| SendRequest::write(WrId(n.into()), target.remote().at(n.into())).inline(&[n + 1]);
    a.pair.post_sends((0..8).map(write)).unwrap();
    for n in 0..8 {
        assert_eq!(a.done().id, WrId(n));
    }
    assert_eq!(bytes(&target), [1, 2, 3, 4, 5, 6, 7, 8]);

    let long = SendRequest::send(WrId(9)).inline(&[0; 100_000]);
    let refusal = a.pair.post_sends([write(0), write(1), long, write(2)]);
    let refusal = refusal.expect_err("100,000 inline bytes");
    assert_eq!(refusal.posted, 2);
    assert!(is_too_long(&refusal.error), "{refusal}");
    assert_eq!([a.done().id, a.done().id], [WrId(0), WrId(1)]);
}

pub fn an_endless_list_is_refused_when_the_queue_is_full(bench: &Bench<'_>) {
    let (a, b) = bench.sides();
    // Long enough that none ends while others are posted.
    let (source, target) = (a.memory(128 << 10), b.memory(128 << 10));
    let endless = iter::repeat_with(|| crate::side::write(&source, target.remote().at(0)));
    let refusal = a.pair.post_sends(endless).expect_err("128 at most");
    assert!(is_full(&refusal.error), "{refusal}");
    assert!(refusal.posted >= 128, "{refusal}");
    for _ in 0..refusal.posted {
        a.done();
    }
    assert_eq!(a.queue.poll().unwrap(), None);
}

pub fn a_list_that_is_refused_in_part_keeps_the_regions_of_what_was_posted(bench: &Bench<'_>) {
    let (a, b) = bench.sides();
    let (one, other, target) = (a.memory(64), a.memory(64), b.memory(64));
    let sent = [fill(&one, 1), fill(&one, 1), fill(&other, 2)];
    let segments = [&one, &one, &other].map(|region| region.segment(0, 64).unwrap());
    drop((one, other));
    // All wait for receives. The last posted request and the refused one use one region, or two.
    for skipped in 0..3 {
        let endless = segments.iter().cycle().skip(skipped).cloned();
        let sends = endless.map(|segment| SendRequest::send(WrId(0)).segment(segment));
        let refusal = a.pair.post_sends(sends).expect_err("128 at most");
        assert!(is_full(&refusal.error), "{refusal}");
        for number in 0..refusal.posted {
            let place = target.segment(0, 64).unwrap();
            let receive = RecvRequest::new(WrId(1)).segment(place);
            b.pair.post_recv(receive).unwrap();
            b.done();
            a.done();
            assert!(bytes(&target) == sent[(skipped + number) % 3], "{number}");
        }
    }
}

pub fn completions_are_taken_several_at_a_time_in_order(bench: &Bench<'_>) {
    let (a, b) = bench.sides();
    let target = b.memory(8);
    let write = |n| SendRequest::write(WrId(n), target.remote().at(0)).inline(&[1]);
    a.pair.post_sends((0..8).map(write)).unwrap();
    let mut completions = Vec::new();
    let deadline = soon();
    while completions.len() < 8 {
        assert!(!deadline.has_passed());
        let before = completions.len();
        let taken = a.queue.poll_into(3, &mut completions).unwrap();
        assert!(taken <= 3 && completions.len() == before + taken, "{taken}");
    }
    let ids: Vec<_> = completions.iter().map(|it| it.id.0).collect();
    assert_eq!(ids, [0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(a.queue.poll_into(3, &mut completions).unwrap(), 0);
}

pub fn a_signalled_request_behind_unsignalled_ones_completes_under_its_own_id(bench: &Bench<'_>) {
    let (a, b) = bench.sides();
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

pub fn a_prepared_request_is_posted_as_often_as_wanted_and_keeps_its_memory(bench: &Bench<'_>) {
    let (a, b) = bench.sides();
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
    let kept = fill(&target, 4);
    read.post().unwrap();
    assert_eq!((a.done().id, bytes(&source) == kept), (WrId(2), true));
    drop(read);
    let message = SendRequest::send(WrId(3)).inline(b"inline");
    let mut message = a.pair.prepare(message).unwrap();
    for offset in [0, 100] {
        let place = target.segment(offset, 100).unwrap();
        let receive = RecvRequest::new(WrId(4)).segment(place);
        b.pair.post_recv(receive).unwrap();
        message.post().unwrap();
        assert_eq!((a.done().id, b.done().byte_len), (WrId(3), 6));
        assert_eq!(&bytes(&target)[offset as usize..][..6], b"inline");
    }
    let sent = fill(&source, 5);
    drop(source);
    write.post().unwrap();
    drop(write);
    a.done();
    assert_eq!(bytes(&target), sent);

    let write = || SendRequest::write(WrId(2), target.remote().at(0));
    let foreign = a
        .pair
        .prepare(write().segment(target.segment(0, 8).unwrap()));
    let foreign = foreign.unwrap_err();
    assert!(matches!(foreign, Error::Nic(NicError::Foreign(_))));
    // Checked either when prepared or when posted.
    let long = a.pair.prepare(write().inline(&[1; 100_000]));
    let long = long.and_then(|mut long| long.post()).unwrap_err();
    assert!(is_too_long(&long), "{long}");
}

pub fn posting_before_connecting_and_beyond_the_queue_is_refused(bench: &Bench<'_>) {
    let (mut a, b) = bench.apart();
    let send = || SendRequest::send(WrId(0)).inline(b"x");
    let early = a.pair.post_send(send());
    assert!(matches!(
        early,
        Err(Error::Nic(NicError::Post(PostError::State(_))))
    ));
    let capabilities = Capabilities {
        max_send_wr: 2,
        max_recv_wr: 1,
        max_inline: 1,
    };
    let small = QueuePairOptions::new(&a.queue).capabilities(capabilities);
    a.pair = a.domain.queue_pair(&small).unwrap();
    connect(&a, &b, bench.connection());
    let receive = || a.pair.post_recv(RecvRequest::new(WrId(0)));
    receive().unwrap();
    assert!(is_full(&receive().unwrap_err()));
    // Nothing is received, so none of them ends.
    let full = (0..).find_map(|_| a.pair.post_send(send()).err());
    let full = full.unwrap();
    assert!(is_full(&full), "{full}");
}
