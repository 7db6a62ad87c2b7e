//! The window, acknowledgements, and retransmission.

mod fixture;

use std::time::Duration;

use fixture::{BASE, Pair, Settings, pair};
use gdr_roce::wire::{Opcode, Packet};
use gdr_roce::{
    Access, AckTimeout, Data, Operation, Remote, RetryCount, RetryLimit, RnrRetry, Segment,
    SendFlags, SendRequest, Time, TransportConfig, WcStatus, WrId,
};

const LEN: usize = 256 << 10;

/// A small window, and as few acknowledgements as possible.
const FEW_ACKS: TransportConfig = TransportConfig::DEFAULT
    .with_window(8)
    .with_read_packets(4)
    .with_ack_request_interval(1000)
    .with_ack_interval(1000);

/// Shorter than any timeout, and longer than a transfer without one.
const NO_TIMER: Duration = Duration::from_millis(1);

fn few_acks() -> Pair {
    let timeout = AckTimeout::new(14);
    let settings = Settings {
        config: FEW_ACKS,
        timeout,
        ..Settings::default()
    };
    pair(&settings, LEN, Access::all())
}

impl Pair {
    fn post(&mut self, id: u64, read: bool, len: u32) {
        let remote = Remote {
            rkey: self.rkeys[1],
            addr: BASE,
        };
        let operation = if read {
            Operation::Read { remote }
        } else {
            Operation::Write {
                remote,
                immediate: None,
            }
        };
        let segments = [Segment {
            lkey: self.lkeys[0],
            addr: BASE,
            len,
        }];
        let data = Data::Segments(&segments);
        let flags = SendFlags::SIGNALLED;
        let request = SendRequest {
            id: WrId(id),
            operation,
            data,
            flags,
        };
        self.net.sides[0].qp.post_send(&request).expect("room");
    }

    /// All packets that side `from` has ready.
    fn burst(&mut self, from: usize) -> Vec<Vec<u8>> {
        std::iter::from_fn(|| self.net.poll(from)).collect()
    }

    fn succeeded(&mut self) -> usize {
        let done = self.net.completions(0);
        assert!(
            done.iter().all(|done| done.status == WcStatus::Success),
            "{done:?}"
        );
        done.len()
    }
}

#[test]
fn no_more_packets_than_the_window_are_outstanding() {
    let mut pair = few_acks();
    pair.post(1, false, 100 * 1024);
    let burst = pair.burst(0);
    assert_eq!(burst.len(), 8);
    let requests_ack =
        |bytes: &Vec<u8>| Packet::new(bytes).is_ok_and(|packet| packet.bth().ack_request);
    assert_eq!(burst.iter().filter(|bytes| requests_ack(bytes)).count(), 1);
    assert!(
        burst.last().is_some_and(requests_ack),
        "the last packet of the window requests an ACK"
    );
    for bytes in burst {
        pair.net.deliver(1, &bytes);
    }
    let responses = pair.burst(1);
    assert_eq!(responses.len(), 1);
    pair.net.deliver(0, &responses[0]);
    assert_eq!(pair.burst(0).len(), 8);
}

#[test]
fn read_responses_count_in_the_window() {
    let mut pair = few_acks();
    pair.post(1, true, 100 * 1024);
    assert_eq!(
        pair.burst(0).len(),
        2,
        "two READ requests of four responses"
    );
    let mut pair = fixture::pair(
        &Settings {
            config: FEW_ACKS.with_read_packets(5),
            ..Settings::default()
        },
        LEN,
        Access::all(),
    );
    pair.post(1, true, 100 * 1024);
    assert_eq!(pair.burst(0).len(), 1, "two of five do not fit");
}

#[test]
fn an_ack_acknowledges_all_earlier_requests() {
    let mut pair = few_acks();
    for id in 0..5 {
        pair.post(id, false, 10);
    }
    for bytes in pair.burst(0) {
        pair.net.deliver(1, &bytes);
    }
    let responses = pair.burst(1);
    assert_eq!(responses.len(), 1);
    pair.net.deliver(0, &responses[0]);
    assert_eq!(pair.succeeded(), 5);
}

#[test]
fn a_duplicate_rnr_nak_counts_once() {
    let settings = Settings {
        rnr_retry: RnrRetry::new(1),
        ..Settings::default()
    };
    let mut pair = pair(&settings, LEN, Access::all());
    let request = SendRequest {
        id: WrId(1),
        operation: Operation::Send { immediate: None },
        data: Data::Inline(b"x"),
        flags: SendFlags::SIGNALLED,
    };
    pair.net.sides[0].qp.post_send(&request).expect("room");
    let burst = pair.burst(0);
    pair.net.deliver(1, &burst[0]);
    let responses = pair.burst(1);
    for _ in 0..3 {
        pair.net.deliver(0, &responses[0]);
    }
    assert_eq!(pair.burst(0).len(), 0, "the requester waits");
    assert_eq!(pair.succeeded(), 0);
    let waits = pair.net.sides[0].qp.next_deadline().map(|at| at.elapsed());
    assert_eq!(waits, Some(settings.rnr_timer.duration()));
}

#[test]
fn without_losses_no_transfer_waits_for_a_timer() {
    for read in [false, true] {
        let mut pair = few_acks();
        pair.post(1, read, 1);
        pair.post(2, read, 100 * 1024);
        pair.post(3, read, 0);
        pair.net.settle();
        assert_eq!(pair.succeeded(), 3);
        assert!(pair.net.now.elapsed() < NO_TIMER, "{:?}", pair.net.now);
    }
}

#[test]
fn repeated_losses_within_a_message_are_recovered_without_a_timer() {
    for read in [false, true] {
        let mut pair = few_acks();
        pair.post(1, read, 200 * 1024);
        let mut lost = 0;
        for round in 0.. {
            assert!(round < 1000, "the transfer does not end");
            let mut requests = pair.burst(0);
            if !read && requests.len() > 2 && round % 3 == 0 {
                requests.remove(0);
                lost += 1;
            }
            for bytes in requests {
                pair.net.deliver(1, &bytes);
            }
            let mut responses = pair.burst(1);
            if read && responses.len() > 2 && round % 3 == 0 {
                responses.remove(0);
                lost += 1;
            }
            for bytes in responses {
                pair.net.deliver(0, &bytes);
            }
            if pair.succeeded() == 1 {
                break;
            }
        }
        assert!(lost > 7, "{lost} losses: more than the retry limit");
    }
}

#[test]
fn a_lost_last_packet_is_retransmitted_after_the_timeout() {
    let mut pair = few_acks();
    pair.post(1, false, 3 * 1024);
    let burst = pair.burst(0);
    for bytes in &burst[..2] {
        pair.net.deliver(1, bytes);
    }
    let deadline = pair.net.sides[0]
        .qp
        .next_deadline()
        .expect("a packet is outstanding");
    assert_eq!(Some(deadline.elapsed()), AckTimeout::new(14).duration());
    pair.net.settle();
    assert_eq!(pair.succeeded(), 1);
    assert!(pair.net.now > deadline);
    assert_eq!(pair.net.sides[0].qp.next_deadline(), None);
}

#[test]
fn a_read_repeated_before_its_responses_are_sent_gets_them_once() {
    let mut pair = few_acks();
    pair.post(1, true, 4 * 1024);
    let burst = pair.burst(0);
    for _ in 0..3 {
        pair.net.deliver(1, &burst[0]);
    }
    assert_eq!(pair.burst(1).len(), 4);
    pair.net.deliver(1, &burst[0]);
    let again = pair.burst(1);
    let opcodes: Vec<_> = again
        .iter()
        .map(|bytes| Packet::new(bytes).map(|packet| packet.opcode()))
        .collect();
    let expected = [
        Opcode::ReadResponseFirst,
        Opcode::ReadResponseMiddle,
        Opcode::ReadResponseMiddle,
        Opcode::ReadResponseLast,
    ];
    assert_eq!(opcodes, expected.map(Ok));
}

#[test]
fn requests_are_sent_between_the_responses_to_a_long_read() {
    let mut pair = few_acks();
    pair.post(1, true, 4 * 1024);
    for bytes in pair.burst(0) {
        pair.net.deliver(1, &bytes);
    }
    let remote = Remote {
        rkey: pair.rkeys[0],
        addr: BASE,
    };
    let segments = [Segment {
        lkey: pair.lkeys[1],
        addr: BASE,
        len: 2048,
    }];
    let request = SendRequest {
        id: WrId(9),
        operation: Operation::Write {
            remote,
            immediate: None,
        },
        data: Data::Segments(&segments),
        flags: SendFlags::SIGNALLED,
    };
    pair.net.sides[1].qp.post_send(&request).expect("room");
    let burst = pair.burst(1);
    let is_write = |bytes: &Vec<u8>| Packet::new(bytes).is_ok_and(|p| p.opcode().is_write());
    let writes: Vec<_> = burst.iter().map(is_write).collect();
    assert_eq!(writes.iter().filter(|write| **write).count(), 2);
    assert!(
        writes[..4].contains(&true),
        "not after all responses: {writes:?}"
    );
}

#[test]
fn a_read_response_replaces_the_ack_before_it() {
    let mut pair = few_acks();
    pair.post(1, false, 1000);
    pair.post(2, true, 1000);
    for packet in pair.burst(0) {
        pair.net.deliver(1, &packet);
    }
    let responses = pair.burst(1);
    let opcodes: Vec<_> = responses
        .iter()
        .map(|bytes| Packet::new(bytes).expect("whole").opcode())
        .collect();
    assert_eq!(opcodes, [Opcode::ReadResponseOnly]);
    pair.net.deliver(0, &responses[0]);
    assert_eq!(pair.succeeded(), 2);
}

#[test]
fn a_duplicate_write_is_not_acknowledged_with_the_psn_of_a_later_read() {
    let mut pair = few_acks();
    pair.post(1, false, 1000);
    pair.post(2, true, 1000);
    let requests = pair.burst(0);
    for packet in &requests {
        pair.net.deliver(1, packet);
    }
    // The response is lost.
    assert_eq!(pair.burst(1).len(), 1);
    pair.net.deliver(1, &requests[0]);
    let responses = pair.burst(1);
    let [response] = &responses[..] else {
        panic!("one response to one packet: {responses:?}");
    };
    let response = Packet::new(response).expect("whole");
    let request = Packet::new(&requests[0]).expect("whole");
    assert_eq!(response.opcode(), Opcode::Acknowledge);
    assert_eq!(response.bth().psn, request.bth().psn);
}

/// A connection that fails after `limit` without progress.
fn with_time_limit(limit: Duration) -> Pair {
    let settings = Settings {
        timeout: AckTimeout::new(14),
        retry_limit: RetryLimit::NoProgressFor(limit),
        ..Settings::default()
    };
    pair(&settings, LEN, Access::all())
}

impl Pair {
    /// Runs side 0 with every packet lost, until `end` or until it fails. Returns the packets that it
    /// sent.
    fn outage_until(&mut self, end: Time) -> Vec<Vec<u8>> {
        let mut sent = Vec::new();
        while self.net.now < end {
            sent.append(&mut self.burst(0));
            let deadline = self.net.sides[0].qp.next_deadline();
            let Some(deadline) = deadline.filter(|at| *at < end) else {
                break;
            };
            self.net.now = deadline;
            self.net.sides[0].qp.handle_deadline(deadline);
        }
        self.net.now = self.net.now.max(end);
        sent
    }
}

#[test]
fn an_outage_shorter_than_the_limit_is_survived() {
    let mut pair = with_time_limit(Duration::from_secs(60));
    pair.post(1, false, 3 * 1024);
    let end = Time::since_epoch(Duration::from_secs(59));
    let sent = pair.outage_until(end);
    assert!(
        sent.len() < 3 * 130,
        "{} packets: the retries back off",
        sent.len()
    );
    pair.net.settle();
    assert_eq!(pair.succeeded(), 1);
    let late = pair.net.now.saturating_since(end);
    assert!(
        late <= RetryLimit::MAX_BACKOFF,
        "resumed {late:?} after the outage"
    );
}

#[test]
fn a_connection_without_progress_fails_at_the_limit() {
    let limit = Duration::from_secs(5);
    let mut pair = with_time_limit(limit);
    // Idle time before the first packet does not count.
    pair.net.now = Time::since_epoch(Duration::from_secs(100));
    pair.post(1, false, 1024);
    pair.outage_until(Time::since_epoch(Duration::from_secs(200)));
    let done = pair.net.completions(0);
    assert_eq!(done[0].status, WcStatus::RetryExceeded);
    let deadline = Time::since_epoch(Duration::from_secs(100)) + limit;
    let mut earlier = with_time_limit(limit);
    earlier.net.now = Time::since_epoch(Duration::from_secs(100));
    earlier.post(1, false, 1024);
    earlier.outage_until(deadline);
    assert!(
        earlier.net.completions(0).is_empty(),
        "not before the limit"
    );
}

#[test]
fn a_connection_to_a_slow_peer_that_makes_progress_does_not_fail() {
    let settings = Settings {
        timeout: AckTimeout::new(14),
        retry_limit: RetryLimit::NoProgressFor(Duration::from_secs(1)),
        config: TransportConfig::DEFAULT.with_ack_interval(1),
        ..Settings::default()
    };
    let mut pair = pair(&settings, LEN, Access::all());
    pair.post(1, false, 16 * 1024);
    // The peer receives one packet in 600 ms, so the message takes ten times the limit.
    for taken in 0..16 {
        let sent = pair.outage_until(pair.net.now + Duration::from_millis(600));
        let wanted = settings.psns[0].wrapping_add(taken);
        let next = sent
            .iter()
            .find(|bytes| Packet::new(bytes).is_ok_and(|packet| packet.bth().psn == wanted));
        pair.net.deliver(1, next.expect("it is retransmitted"));
        for response in pair.burst(1) {
            pair.net.deliver(0, &response);
        }
    }
    assert_eq!(pair.succeeded(), 1);
}

#[test]
fn with_a_retry_count_all_retries_have_the_same_interval() {
    let settings = Settings {
        timeout: AckTimeout::new(14),
        retry_limit: RetryLimit::Count(RetryCount::new(3)),
        ..Settings::default()
    };
    let mut pair = pair(&settings, LEN, Access::all());
    pair.post(1, false, 10);
    let sent = pair.outage_until(Time::since_epoch(Duration::from_secs(10)));
    assert_eq!(sent.len(), 4, "one transmission and three retries");
    assert_eq!(pair.net.completions(0)[0].status, WcStatus::RetryExceeded);
}

#[test]
fn progress_resets_the_rnr_retry_count() {
    let settings = Settings {
        rnr_retry: RnrRetry::new(2),
        ..Settings::default()
    };
    let mut pair = pair(&settings, LEN, Access::all());
    for id in 0..5 {
        let request = SendRequest {
            id: WrId(id),
            operation: Operation::Send { immediate: None },
            data: Data::Inline(b"x"),
            flags: SendFlags::SIGNALLED,
        };
        pair.net.sides[0].qp.post_send(&request).expect("room");
        // Two RNR NAKs before a receive is posted: ten for the five messages.
        for waits in 0..3 {
            if waits == 2 {
                let receive = gdr_roce::RecvRequest {
                    id: WrId(id),
                    segments: &[Segment {
                        lkey: pair.lkeys[1],
                        addr: BASE,
                        len: 1,
                    }],
                };
                pair.net.sides[1].qp.post_recv(&receive).expect("room");
            }
            for bytes in pair.burst(0) {
                pair.net.deliver(1, &bytes);
            }
            for bytes in pair.burst(1) {
                pair.net.deliver(0, &bytes);
            }
            if let Some(at) = pair.net.sides[0].qp.next_deadline() {
                pair.net.now = at;
                pair.net.sides[0].qp.handle_deadline(at);
            }
        }
        assert_eq!(pair.succeeded(), 1, "message {id}");
    }
    assert_eq!(pair.net.sides[0].qp.statistics().rnr_naks_received, 10);
}

#[test]
fn progress_restarts_the_timer_of_outstanding_packets() {
    let mut pair = few_acks();
    pair.post(1, false, 10);
    pair.post(2, false, 10);
    let wait = AckTimeout::new(14).duration().expect("a timer");
    let burst = pair.burst(0);
    // The first is acknowledged shortly before the timer expires.
    pair.net.deliver(1, &burst[0]);
    let late = wait - Duration::from_millis(1);
    pair.net.now = Time::since_epoch(late);
    for bytes in pair.burst(1) {
        pair.net.deliver(0, &bytes);
    }
    assert_eq!(pair.succeeded(), 1);
    let deadline = pair.net.sides[0]
        .qp
        .next_deadline()
        .expect("one packet is outstanding");
    assert_eq!(deadline.elapsed(), late + wait);
    assert_eq!(pair.net.sides[0].qp.statistics().timeouts, 0);
}

#[test]
fn a_read_counts_in_the_message_sequence_number() {
    let mut pair = few_acks();
    pair.post(1, false, 10);
    pair.post(2, true, 10);
    pair.post(3, false, 10);
    for bytes in pair.burst(0) {
        pair.net.deliver(1, &bytes);
    }
    let numbers: Vec<_> = pair
        .burst(1)
        .iter()
        .filter_map(|bytes| Packet::new(bytes).ok()?.aeth().map(|aeth| aeth.msn.get()))
        .collect();
    assert_eq!(
        numbers,
        [2, 3],
        "the READ response, which includes the first ACK, and the last ACK"
    );
}

#[test]
fn losses_are_counted_on_both_sides() {
    let mut pair = few_acks();
    pair.post(1, false, 4 * 1024);
    let burst = pair.burst(0);
    pair.net.deliver(1, &burst[1]);
    for bytes in pair.burst(1) {
        pair.net.deliver(0, &bytes);
    }
    let [near, far] = [0, 1].map(|side| pair.net.sides[side].qp.statistics());
    assert_eq!(far.sequence_naks_sent, 1);
    assert_eq!(
        (
            near.sequence_naks_received,
            near.retransmissions,
            near.timeouts
        ),
        (1, 1, 0)
    );
}
