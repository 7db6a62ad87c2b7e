//! The window, acknowledgements, and retransmission.

use std::time::Duration;

use crate::fixture::{BASE, Pair, Settings, pair};
use gdr_roce::wire::{Opcode, Packet};
use gdr_roce::{
    Access, AckTimeout, Data, LossRecovery, Operation, Remote, RetryCount, RetryLimit, RnrRetry,
    Segment, SendFlags, SendRequest, Time, TransportConfig, WcStatus, WrId,
};

const LEN: usize = 256 << 10;

/// A small window, and as few acknowledgements as possible.
const FEW_ACKS: TransportConfig = TransportConfig::DEFAULT
    .with_window(8)
    .with_read_packets(4)
    .with_ack_request_interval(1000)
    .with_ack_interval(1000);

/// Shorter than any timeout, but longer than a transfer without one.
const NO_TIMER: Duration = Duration::from_millis(1);

fn few_acks() -> Pair {
    let settings = Settings {
        config: FEW_ACKS,
        timeout: AckTimeout::new(14),
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
        let request = SendRequest {
            id: WrId(id),
            operation,
            data: Data::Segments(&segments),
            flags: SendFlags::SIGNALLED,
        };
        self.net.sides[0].qp.post_send(&request).expect("room");
    }

    /// Returns the packets that side `from` has ready.
    fn burst(&mut self, from: usize) -> Vec<Vec<u8>> {
        std::iter::from_fn(|| self.net.poll(from)).collect()
    }

    /// Delivers the packets that side 1 has ready.
    fn answer(&mut self) {
        for bytes in self.burst(1) {
            self.net.deliver(0, &bytes);
        }
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
    let requests: Vec<_> = burst.iter().map(requests_ack).collect();
    assert_eq!(
        requests,
        [true, false, false, false, false, false, false, true],
        "the first packet, for the round-trip time, and the last of the window"
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
    let mut pair = crate::fixture::pair(
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
            // Time for the pacing, too little for a timer.
            pair.net.now = pair.net.now + Duration::from_micros(20);
            let mut requests = pair.burst(0);
            if !read && requests.len() > 1 && round % 3 == 0 {
                requests.remove(0);
                lost += 1;
            }
            for bytes in requests {
                pair.net.deliver(1, &bytes);
            }
            let mut responses = pair.burst(1);
            if read && responses.len() > 1 && round % 3 == 0 {
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
    // Once a round trip is measured, the timer follows it.
    pair.net.settle();
    assert_eq!(pair.succeeded(), 1);
    assert!(pair.net.now < deadline);
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

/// Returns a connection that fails after `limit` without progress.
fn with_time_limit(limit: Duration) -> Pair {
    let settings = Settings {
        timeout: AckTimeout::new(14),
        retry_limit: RetryLimit::NoProgressFor(limit),
        ..Settings::default()
    };
    pair(&settings, LEN, Access::all())
}

impl Pair {
    /// Runs side 0 with every packet lost, until `end` or until it fails. Returns the packets that it sent.
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
        // Two RNR NAKs before each receive is posted: ten for the five messages.
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
    // The first packet is acknowledged shortly before the timer expires.
    pair.net.deliver(1, &burst[0]);
    let late = wait - Duration::from_millis(1);
    pair.net.now = Time::since_epoch(late);
    pair.answer();
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
    pair.answer();
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

impl Pair {
    /// Transfers a small message, so that the round-trip time is known.
    fn measure_round_trip(&mut self) {
        self.post(0, false, 10);
        self.net.settle();
        assert_eq!(self.succeeded(), 1);
    }

    /// Handles the next deadline of side 0.
    fn expire(&mut self) {
        let at = self.net.sides[0].qp.next_deadline();
        self.net.now = at.expect("packets are outstanding");
        self.net.sides[0].qp.handle_deadline(self.net.now);
    }
}

#[test]
fn after_a_timeout_one_packet_is_sent_and_late_acknowledgements_count_for_all() {
    let mut pair = few_acks();
    pair.measure_round_trip();
    pair.post(1, false, 8 * 1024);
    let burst = pair.burst(0);
    assert_eq!(burst.len(), 8);
    for bytes in &burst {
        pair.net.deliver(1, bytes);
    }
    // The peer has all packets, but its acknowledgement is late.
    let late = pair.burst(1);
    pair.expire();
    let probe = pair.burst(0);
    assert_eq!(probe.len(), 1);
    let packet = Packet::new(&probe[0]).expect("whole");
    assert_eq!(
        packet.bth().psn,
        Packet::new(&burst[0]).expect("whole").bth().psn
    );
    assert!(packet.bth().ack_request);
    for bytes in late {
        pair.net.deliver(0, &bytes);
    }
    assert_eq!(pair.succeeded(), 1);
    assert_eq!(pair.burst(0).len(), 0, "nothing was lost");
}

#[test]
fn a_slow_acknowledgement_does_not_repeat_the_packets_behind_the_probe() {
    let mut pair = few_acks();
    pair.measure_round_trip();
    pair.post(1, false, 16 * 1024);
    let burst = pair.burst(0);
    for bytes in &burst[..4] {
        pair.net.deliver(1, bytes);
    }
    pair.expire();
    let probe = pair.burst(0);
    pair.net.deliver(1, &probe[0]);
    pair.answer();
    let psn = |bytes: &Vec<u8>| Packet::new(bytes).expect("whole").bth().psn;
    let last = psn(&burst[7]);
    let next = pair.burst(0);
    assert_eq!(next.first().map(psn), Some(last.wrapping_add(1)));
    assert_eq!(next.len(), 4, "as many as were acknowledged");
}

#[test]
fn a_dead_peer_is_given_up_no_earlier_than_with_the_programs_timeout() {
    let settings = Settings {
        timeout: AckTimeout::new(14),
        retry_limit: RetryLimit::Count(RetryCount::new(3)),
        ..Settings::default()
    };
    let mut pair = pair(&settings, LEN, Access::all());
    pair.measure_round_trip();
    let begin = pair.net.now;
    pair.post(1, false, 10);
    let wait = AckTimeout::new(14).duration().expect("a timer");
    let sent = pair.outage_until(begin + wait * 4);
    assert_eq!(pair.net.completions(0), [], "not before four timeouts");
    assert!((4..60).contains(&sent.len()), "{} packets", sent.len());
    pair.outage_until(begin + wait * 4 + Duration::from_millis(1));
    assert_eq!(pair.net.completions(0)[0].status, WcStatus::RetryExceeded);
}

#[test]
fn responses_from_before_a_retransmission_do_not_cause_another() {
    let mut pair = few_acks();
    pair.post(1, true, 8 * 1024);
    for bytes in pair.burst(0) {
        pair.net.deliver(1, &bytes);
    }
    let responses = pair.burst(1);
    assert_eq!(responses.len(), 8);
    // The first and the third response are lost.
    pair.net.deliver(0, &responses[1]);
    let again = pair.burst(0);
    assert!(!again.is_empty());
    pair.net.deliver(1, &again[0]);
    let first = pair.burst(1);
    pair.net.deliver(0, &first[0]);
    for bytes in &responses[5..] {
        pair.net.deliver(0, bytes);
    }
    assert_eq!(pair.net.sides[0].qp.statistics().retransmissions, 1);
}

fn selective() -> Pair {
    let settings = Settings {
        config: FEW_ACKS,
        recovery: LossRecovery::Selective,
        timeout: AckTimeout::new(14),
        ..Settings::default()
    };
    pair(&settings, LEN, Access::all())
}

#[test]
fn with_selective_retransmission_only_the_missing_packets_are_sent_again() {
    let mut pair = selective();
    pair.measure_round_trip();
    pair.post(1, false, 8 * 1024);
    let burst = pair.burst(0);
    assert_eq!(burst.len(), 8);
    for (index, bytes) in burst.iter().enumerate() {
        if index != 2 && index != 5 {
            pair.net.deliver(1, bytes);
        }
    }
    pair.answer();
    assert_eq!(pair.succeeded(), 0);
    // Time for the pacing, too little for a timer.
    pair.net.now = pair.net.now + Duration::from_micros(100);
    let again = pair.burst(0);
    let psn = |bytes: &Vec<u8>| Packet::new(bytes).expect("whole").bth().psn;
    let psns: Vec<_> = again.iter().map(psn).collect();
    assert_eq!(psns, [psn(&burst[2]), psn(&burst[5])]);
    for bytes in &again {
        pair.net.deliver(1, bytes);
    }
    pair.answer();
    assert_eq!(pair.succeeded(), 1);
    assert_eq!(pair.net.sides[0].qp.statistics().timeouts, 0);
}

#[test]
fn with_selective_retransmission_a_lost_repetition_is_repeated_without_a_timer() {
    let mut pair = selective();
    pair.measure_round_trip();
    pair.post(1, false, 8 * 1024);
    let burst = pair.burst(0);
    for (index, bytes) in burst.iter().enumerate() {
        if index == 7 {
            pair.burst(1); // The reports so far are lost.
        }
        if index != 2 && index != 3 {
            pair.net.deliver(1, bytes);
        }
    }
    pair.answer();
    // Time for the pacing, too little for a timer.
    pair.net.now = pair.net.now + Duration::from_micros(100);
    let again = pair.burst(0);
    assert_eq!(again.len(), 2);
    // The second one is lost.
    pair.net.deliver(1, &again[0]);
    pair.net.now = pair.net.now + Duration::from_micros(100);
    pair.answer();
    pair.net.now = pair.net.now + Duration::from_micros(100);
    let third = pair.burst(0);
    assert_eq!(third, [again[1].clone()]);
    pair.net.deliver(1, &third[0]);
    pair.answer();
    assert_eq!(pair.succeeded(), 1);
    assert_eq!(pair.net.sides[0].qp.statistics().timeouts, 0);
}

#[test]
fn with_selective_retransmission_only_the_missing_responses_are_requested_again() {
    let mut pair = selective();
    pair.measure_round_trip();
    pair.post(1, true, 8 * 1024);
    for request in pair.burst(0) {
        pair.net.deliver(1, &request);
    }
    let responses = pair.burst(1);
    assert_eq!(responses.len(), 8);
    for (index, bytes) in responses.iter().enumerate() {
        if ![2, 3, 5].contains(&index) {
            pair.net.deliver(0, bytes);
        }
    }
    assert_eq!(pair.succeeded(), 0);
    // Time for the pacing, too little for a timer.
    pair.net.now = pair.net.now + Duration::from_micros(100);
    let again = pair.burst(0);
    let asked = |bytes: &Vec<u8>| {
        let packet = Packet::new(bytes).expect("whole");
        (packet.bth().psn, packet.reth().expect("a READ").dma_len)
    };
    let psn = |index: usize| Packet::new(&responses[index]).expect("whole").bth().psn;
    let asked: Vec<_> = again.iter().map(asked).collect();
    assert_eq!(asked, [(psn(2), 2048), (psn(5), 1024)]);
    for bytes in &again {
        pair.net.deliver(1, bytes);
    }
    let repeated = pair.burst(1);
    assert_eq!(repeated.len(), 3);
    // In any order, and more than once.
    for bytes in repeated.iter().rev().chain(&responses) {
        pair.net.deliver(0, bytes);
    }
    assert_eq!(pair.succeeded(), 1);
    assert_eq!(pair.net.sides[0].qp.statistics().timeouts, 0);
}

#[test]
fn with_selective_retransmission_nothing_behind_a_gap_is_placed_before_it_is_closed() {
    let mut pair = selective();
    pair.net.sides[0]
        .memory
        .bytes_mut(pair.lkeys[0])
        .expect("registered")
        .fill(7);
    pair.post(1, false, 3 * 1024);
    let burst = pair.burst(0);
    let placed = |pair: &Pair| {
        let bytes = pair.net.sides[1].memory.bytes(pair.lkeys[1]);
        let written = |byte: &&u8| **byte == 7;
        bytes.expect("registered").iter().filter(written).count()
    };
    pair.net.deliver(1, &burst[2]);
    pair.net.deliver(1, &burst[1]);
    assert_eq!(placed(&pair), 0);
    pair.net.deliver(1, &burst[0]);
    assert_eq!(placed(&pair), 3 * 1024);
    // A repetition changes nothing.
    pair.net.sides[1]
        .memory
        .bytes_mut(pair.lkeys[1])
        .expect("registered")
        .fill(1);
    pair.net.deliver(1, &burst[1]);
    assert_eq!(placed(&pair), 0);
}

#[test]
fn the_loss_recovery_of_a_connected_queue_pair_stays() {
    let mut pair = selective();
    let qp = &mut pair.net.sides[0].qp;
    assert!(qp.set_loss_recovery(LossRecovery::GoBackN).is_err());
}
