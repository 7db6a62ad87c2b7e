//! How much is on its way, and how soon what was lost comes again.

mod fixture;

use std::time::Duration;

use fixture::{BASE, Pair, Settings, pair};
use gdr_roce::wire::{Opcode, Packet};
use gdr_roce::{
    Access, AckTimeout, Data, Operation, Pace, Remote, RnrRetry, Segment, SendFlags, SendRequest,
    WcStatus, WrId,
};

const LEN: usize = 256 << 10;

/// No side acknowledges or asks but where it must.
const LAZY: Pace = Pace {
    window: 8,
    read_packets: 4,
    ack_request_every: 1000,
    ack_every: 1000,
};

/// Longer than any of this takes without waiting for it.
const NO_TIMER: Duration = Duration::from_millis(1);

fn lazy() -> Pair {
    let timeout = AckTimeout::new(14);
    let settings = Settings {
        pace: LAZY,
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

    /// All packets that side `from` has to send now.
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
fn no_more_packets_than_the_window_are_on_their_way() {
    let mut pair = lazy();
    pair.post(1, false, 100 * 1024);
    let burst = pair.burst(0);
    assert_eq!(burst.len(), 8);
    let asks = |bytes: &Vec<u8>| Packet::new(bytes).is_ok_and(|packet| packet.bth().ack_request);
    assert_eq!(burst.iter().filter(|bytes| asks(bytes)).count(), 1);
    assert!(
        burst.last().is_some_and(asks),
        "the last that may go asks for more"
    );
    for bytes in burst {
        pair.net.deliver(1, &bytes);
    }
    let answers = pair.burst(1);
    assert_eq!(answers.len(), 1);
    pair.net.deliver(0, &answers[0]);
    assert_eq!(pair.burst(0).len(), 8);
}

#[test]
fn answers_of_reads_count_in_the_window() {
    let mut pair = lazy();
    pair.post(1, true, 100 * 1024);
    assert_eq!(pair.burst(0).len(), 2, "two pieces of four answers");
    let pace = Pace {
        read_packets: 5,
        ..LAZY
    };
    let mut pair = fixture::pair(
        &Settings {
            pace,
            ..Settings::default()
        },
        LEN,
        Access::all(),
    );
    pair.post(1, true, 100 * 1024);
    assert_eq!(pair.burst(0).len(), 1, "two pieces of five do not fit");
}

#[test]
fn one_acknowledgement_speaks_for_all_before_it() {
    let mut pair = lazy();
    for id in 0..5 {
        pair.post(id, false, 10);
    }
    for bytes in pair.burst(0) {
        pair.net.deliver(1, &bytes);
    }
    let answers = pair.burst(1);
    assert_eq!(answers.len(), 1);
    pair.net.deliver(0, &answers[0]);
    assert_eq!(pair.succeeded(), 5);
}

#[test]
fn a_repeated_word_that_the_receiver_is_not_ready_counts_once() {
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
    let answers = pair.burst(1);
    for _ in 0..3 {
        pair.net.deliver(0, &answers[0]);
    }
    assert_eq!(pair.burst(0).len(), 0, "it waits");
    assert_eq!(pair.succeeded(), 0);
    let waits = pair.net.sides[0].qp.next_deadline().map(|at| at.elapsed());
    assert_eq!(waits, Some(settings.rnr_timer.duration()));
}

#[test]
fn nothing_waits_for_a_timer_where_nothing_is_lost() {
    for read in [false, true] {
        let mut pair = lazy();
        pair.post(1, read, 1);
        pair.post(2, read, 100 * 1024);
        pair.post(3, read, 0);
        pair.net.settle();
        assert_eq!(pair.succeeded(), 3);
        assert!(pair.net.now.elapsed() < NO_TIMER, "{:?}", pair.net.now);
    }
}

#[test]
fn a_loss_within_a_message_is_healed_without_a_timer_again_and_again() {
    for read in [false, true] {
        let mut pair = lazy();
        pair.post(1, read, 200 * 1024);
        let mut lost = 0;
        for round in 0.. {
            assert!(round < 1000, "no end");
            let mut requests = pair.burst(0);
            if !read && requests.len() > 2 && round % 3 == 0 {
                requests.remove(0);
                lost += 1;
            }
            for bytes in requests {
                pair.net.deliver(1, &bytes);
            }
            let mut answers = pair.burst(1);
            if read && answers.len() > 2 && round % 3 == 0 {
                answers.remove(0);
                lost += 1;
            }
            for bytes in answers {
                pair.net.deliver(0, &bytes);
            }
            if pair.succeeded() == 1 {
                break;
            }
        }
        assert!(lost > 7, "{lost} losses: more than retries in a row");
    }
}

#[test]
fn a_lost_tail_is_sent_again_when_the_timer_says_so() {
    let mut pair = lazy();
    pair.post(1, false, 3 * 1024);
    let burst = pair.burst(0);
    for bytes in &burst[..2] {
        pair.net.deliver(1, bytes);
    }
    let deadline = pair.net.sides[0]
        .qp
        .next_deadline()
        .expect("something is on its way");
    assert_eq!(Some(deadline.elapsed()), AckTimeout::new(14).duration());
    pair.net.settle();
    assert_eq!(pair.succeeded(), 1);
    assert!(pair.net.now > deadline);
    assert_eq!(pair.net.sides[0].qp.next_deadline(), None);
}

#[test]
fn a_question_that_is_repeated_before_its_answer_left_is_answered_once() {
    let mut pair = lazy();
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
fn requests_go_on_while_a_long_read_is_answered() {
    let mut pair = lazy();
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
        "not behind all answers: {writes:?}"
    );
}

#[test]
fn the_answer_to_a_read_stands_for_the_acknowledgement_before_it() {
    let mut pair = lazy();
    pair.post(1, false, 1000);
    pair.post(2, true, 1000);
    for packet in pair.burst(0) {
        pair.net.deliver(1, &packet);
    }
    let answers = pair.burst(1);
    let opcodes: Vec<_> = answers
        .iter()
        .map(|bytes| Packet::new(bytes).expect("whole").opcode())
        .collect();
    assert_eq!(opcodes, [Opcode::ReadResponseOnly]);
    pair.net.deliver(0, &answers[0]);
    assert_eq!(pair.succeeded(), 2);
}

#[test]
fn a_repeated_write_is_not_acknowledged_in_the_name_of_the_read_behind_it() {
    let mut pair = lazy();
    pair.post(1, false, 1000);
    pair.post(2, true, 1000);
    let requests = pair.burst(0);
    for packet in &requests {
        pair.net.deliver(1, packet);
    }
    // The answer is lost.
    assert_eq!(pair.burst(1).len(), 1);
    pair.net.deliver(1, &requests[0]);
    let answers = pair.burst(1);
    let [answer] = &answers[..] else {
        panic!("one answer to one packet: {answers:?}");
    };
    let answer = Packet::new(answer).expect("whole");
    let request = Packet::new(&requests[0]).expect("whole");
    assert_eq!(answer.opcode(), Opcode::Acknowledge);
    assert_eq!(answer.bth().psn, request.bth().psn);
}
