//! The engine with unusual options and unusual callers.

use std::time::Duration;

use gdr_rdma::{SendRequest, SoftOptions, WcStatus, WrId};

use crate::fixture::*;

/// Returns two connected sides whose device options are changed by `change`.
fn sides_with(change: impl Fn(SoftOptions) -> SoftOptions) -> Option<(Side, Side)> {
    let side = |address| {
        let options = change(SoftOptions::new(address).port(0));
        device_with(options, address).map(Side::on)
    };
    let sides = (side(FIRST)?, side(SECOND)?);
    connect(&sides.0, &sides.1, &options());
    Some(sides)
}

/// Writes and reads back, and checks every byte.
fn exchange(a: &Side, b: &Side, len: usize, rounds: u8) {
    let (near, far, back) = (a.memory(len), b.memory(len), a.memory(len));
    let whole = |region: &gdr_rdma::MemoryRegion| region.segment(0, len as u64).unwrap();
    for round in 0..rounds {
        let sent = fill(&near, round);
        let write = SendRequest::write(WrId(0), far.remote().at(0)).segment(whole(&near));
        let read = SendRequest::read(WrId(1), far.remote().at(0)).segment(whole(&back));
        a.pair.post_sends([write, read]).unwrap();
        a.done();
        a.done();
        assert!(bytes(&far) == sent && bytes(&back) == sent, "round {round}");
    }
}

#[test]
fn threads_that_never_busy_poll_are_woken_for_each_completion() {
    let Some((a, b)) = sides_with(|options| options.busy_poll(Duration::ZERO)) else {
        return;
    };
    exchange(&a, &b, 3 << 20, 8);
    exchange(&a, &b, 1, 200);
}

#[test]
fn threads_that_always_busy_poll_do_not_starve_each_other() {
    let Some((a, b)) = sides_with(|options| options.busy_poll(Duration::from_secs(1))) else {
        return;
    };
    exchange(&a, &b, 1 << 20, 4);
    exchange(&a, &b, 1, 200);
}

#[test]
fn small_socket_buffers_lose_no_message() {
    // The kernel rounds this up to its minimum, which holds not even one segmented send.
    let Some((a, b)) = sides_with(|options| options.receive_buffer(1)) else {
        return;
    };
    exchange(&a, &b, 60_000, 2);
}

#[test]
fn the_default_socket_buffers_of_linux_suffice() {
    let Some((a, b)) = sides_with(|options| options.receive_buffer(212_992)) else {
        return;
    };
    exchange(&a, &b, 4 << 20, 4);
}

#[test]
fn a_deferred_request_is_sent_though_the_program_makes_no_further_call() {
    let Some((a, b)) = sides() else { return };
    let target = b.memory(4);
    let write = |at: u64, n: u8| SendRequest::write(WrId(at), target.remote().at(at)).inline(&[n]);
    for n in 1..=200 {
        // Polling makes the engine's thread leave the engine to the program, which then stops polling.
        for _ in 0..n {
            assert_eq!(a.queue.poll().unwrap(), None);
        }
        for at in 0..4 {
            a.pair.post_send(write(at, n)).unwrap();
        }
        let deadline = soon();
        while bytes(&target) != [n; 4] {
            assert!(!deadline.has_passed(), "round {n}");
            std::thread::yield_now();
        }
        for at in 0..4 {
            assert_eq!(a.done().id, WrId(at));
        }
    }
}

#[test]
fn a_slow_iterator_delays_no_other_queue_pair() {
    let Some((a, b)) = sides() else { return };
    let (other, peer) = (Side::on(a.device.clone()), Side::on(b.device.clone()));
    connect(&other, &peer, &options());
    let (here, there) = (other.memory(8), b.memory(8));
    let requests = (0..1).map(|n| {
        // This completes only if the engine of `a` makes progress in the middle of a post to it.
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
