//! Sending a request as it is posted gives the same packets and state as posting it and polling.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

use gdr_roce::wire::{MAX_DATAGRAM, Packet};
use gdr_roce::{
    Access, AckTimeout, Completion, Data, Immediate, LossRecovery, Operation, RecvRequest,
    Reliability, Remote, Segment, SendFlags, SendRequest, State, Time, TransportConfig, WrId,
};

use crate::fixture::{BASE, Pair, Random, Settings, pair};

const LEN: usize = 1 << 13;

/// A connection, and its packets in flight.
struct Link {
    pair: Pair,
    flights: VecDeque<(usize, Vec<u8>)>,
    sent: Vec<Vec<u8>>,
}

impl Link {
    fn new(settings: &Settings) -> Self {
        Self {
            pair: pair(settings, LEN, Access::all()),
            flights: VecDeque::new(),
            sent: Vec::new(),
        }
    }

    /// Sends everything that is ready.
    fn transmit(&mut self) {
        for side in 0..2 {
            while let Some(bytes) = self.pair.net.poll(side) {
                self.send(side, bytes);
            }
        }
    }

    fn send(&mut self, side: usize, bytes: Vec<u8>) {
        self.sent.push(bytes.clone());
        self.flights.push_back((1 - side, bytes));
    }

    /// Posts a request, and sends it at once if that is possible. Returns whether it was.
    fn post_at_once(&mut self, side: usize, request: &SendRequest<'_>, payload: &[u8]) -> bool {
        let mut out = vec![0; MAX_DATAGRAM];
        let now = self.pair.net.now;
        let fill = |to: &mut [u8]| {
            to.copy_from_slice(payload);
            Ok::<_, Infallible>(())
        };
        let qp = &mut self.pair.net.sides[side].qp;
        let Some(len) = qp.post_and_transmit(request, now, fill, &mut out) else {
            return false;
        };
        out.truncate(len);
        let bytes = self.pair.net.seal(out);
        self.send(side, bytes);
        true
    }

    fn post(&mut self, side: usize, request: &SendRequest<'_>) {
        // A full queue refuses it.
        let _ = self.pair.net.sides[side].qp.post_send(request);
    }

    fn deliver(&mut self) {
        if let Some((to, bytes)) = self.flights.pop_front() {
            self.pair.net.deliver(to, &bytes);
        }
    }

    fn advance(&mut self, by: Duration) {
        self.pair.net.now = self.pair.net.now + by;
        let now = self.pair.net.now;
        for side in &mut self.pair.net.sides {
            if side.qp.next_deadline().is_some_and(|at| at <= now) {
                side.qp.handle_deadline(now);
            }
        }
    }

    /// Everything that can be seen of it.
    fn view(&mut self) -> (String, Vec<Vec<u8>>, Vec<Completion>) {
        let qps = [0, 1].map(|side| format!("{:?}", self.pair.net.sides[side].qp));
        let completions = [0, 1].map(|side| self.pair.net.completions(side));
        (qps.join("\n"), self.sent.split_off(0), completions.concat())
    }
}

fn random_request<'a>(random: &mut Random, pair: &Pair, data: Data<'a>) -> SendRequest<'a> {
    let remote = Remote {
        rkey: pair.rkeys[1],
        addr: BASE,
    };
    let immediate = random.happens(3_000).then_some(Immediate(7));
    let operation = match random.below(10) {
        0 if matches!(data, Data::Segments(_)) => Operation::Read { remote },
        1..=4 => Operation::Send { immediate },
        _ => Operation::Write { remote, immediate },
    };
    let mut flags = SendFlags::empty();
    flags.set(SendFlags::SIGNALLED, random.happens(5_000));
    flags.set(SendFlags::SOLICITED, random.happens(2_000));
    flags.set(SendFlags::FENCE, random.happens(1_000));
    SendRequest {
        id: WrId(random.next()),
        operation,
        data,
        flags,
    }
}

#[test]
fn it_sends_what_posting_and_polling_would_send_and_leaves_the_same_state() {
    let mut at_once = 0;
    for seed in 0..60 {
        let mut random = Random(seed);
        let window = 2 + random.below(40) as u32;
        let settings = Settings {
            config: TransportConfig::DEFAULT
                .with_window(window)
                .with_ack_request_interval(1 + random.below(20) as u32)
                .with_ack_interval(1 + random.below(20) as u32),
            recovery: match random.happens(5_000) {
                true => LossRecovery::Selective,
                false => LossRecovery::GoBackN,
            },
            timeout: AckTimeout::new(8),
            ..Settings::default()
        };
        let [mut fast, mut slow] = [Link::new(&settings), Link::new(&settings)];
        for _ in 0..400 {
            match random.below(10) {
                0..=3 => {
                    // What they ask for is not sent yet.
                    for _ in 0..random.below(3) {
                        fast.deliver();
                        slow.deliver();
                    }
                    let len = match random.happens(2_000) {
                        true => random.below(4_000),
                        false => random.below(200),
                    };
                    let memory = &fast.pair.net.sides[0].memory;
                    let bytes = memory.bytes(fast.pair.lkeys[0]).unwrap();
                    let payload = bytes[..len as usize].to_vec();
                    let segments = [Segment {
                        lkey: fast.pair.lkeys[0],
                        addr: BASE,
                        len: len as u32,
                    }];
                    let data = match len < 256 && random.happens(5_000) {
                        true => Data::Inline(&payload),
                        false => Data::Segments(&segments),
                    };
                    let request = random_request(&mut random, &fast.pair, data);
                    match fast.post_at_once(0, &request, &payload) {
                        true => at_once += 1,
                        false => fast.post(0, &request),
                    }
                    slow.post(0, &request);
                }
                4..=6 => {
                    let loses = random.happens(100);
                    let arrive = random.below(12);
                    for link in [&mut fast, &mut slow] {
                        if loses {
                            link.flights.pop_front();
                        }
                        for _ in 0..arrive {
                            link.deliver();
                        }
                    }
                }
                7 => {
                    for link in [&mut fast, &mut slow] {
                        let receive = RecvRequest {
                            id: WrId(1),
                            segments: &[Segment {
                                lkey: link.pair.lkeys[1],
                                addr: BASE,
                                len: LEN as u32,
                            }],
                        };
                        // A full queue refuses some.
                        for _ in 0..8 {
                            let _ = link.pair.net.sides[1].qp.post_recv(&receive);
                        }
                    }
                }
                8 => {
                    for link in [&mut fast, &mut slow] {
                        let remote = Remote {
                            rkey: link.pair.rkeys[0],
                            addr: BASE + 4096,
                        };
                        let write = SendRequest {
                            id: WrId(2),
                            operation: Operation::Write {
                                remote,
                                immediate: None,
                            },
                            data: Data::Inline(&[0; 8]),
                            flags: SendFlags::SIGNALLED,
                        };
                        link.post(1, &write);
                    }
                }
                _ => {
                    let by = Duration::from_micros(random.below(100));
                    fast.advance(by);
                    slow.advance(by);
                }
            }
            fast.transmit();
            slow.transmit();
            assert_eq!(fast.view(), slow.view(), "seed {seed}");
        }
    }
    assert!(
        at_once > 2_000,
        "only {at_once} were sent as they were posted"
    );
}

#[test]
fn a_payload_that_cannot_be_copied_leaves_nothing_posted() {
    let mut link = Link::new(&Settings::default());
    let write = SendRequest {
        id: WrId(1),
        operation: Operation::Send { immediate: None },
        data: Data::Inline(&[1; 8]),
        flags: SendFlags::SIGNALLED,
    };
    let mut out = vec![0; MAX_DATAGRAM];
    let qp = &mut link.pair.net.sides[0].qp;
    let room = qp.send_room();
    let sent = qp.post_and_transmit(&write, Time::EPOCH, |_| Err(()), &mut out);
    assert_eq!((sent, qp.send_room()), (None, room));
    assert!(!qp.may_transmit() && !qp.has_outstanding());
    assert!(link.post_at_once(0, &write, &[1; 8]));
    let packet = Packet::new(&link.sent[0]).unwrap();
    assert_eq!(packet.bth().psn, Settings::default().psns[0]);
    assert_eq!(packet.payload(), [1; 8]);
}

#[test]
fn only_a_reliable_connection_in_rts_with_room_sends_at_once() {
    let mut settings = Settings::default();
    settings.caps.max_send_wr = 2;
    let mut link = Link::new(&settings);
    let send = SendRequest {
        id: WrId(1),
        operation: Operation::Send { immediate: None },
        data: Data::Inline(&[]),
        flags: SendFlags::SIGNALLED,
    };
    assert!(link.post_at_once(0, &send, &[]));
    assert!(link.post_at_once(0, &send, &[]));
    assert!(!link.post_at_once(0, &send, &[]), "the queue is full");
    let mut link = Link::new(&Settings::default());
    link.pair.net.sides[0].qp.to_sqd().unwrap();
    assert!(!link.post_at_once(0, &send, &[]), "it drains");
    let mut link = Link::new(&Settings::default());
    link.pair.net.sides[0].qp.to_error();
    assert_eq!(link.pair.net.sides[0].qp.state(), State::Error);
    assert!(!link.post_at_once(0, &send, &[]));
    let mut link = Link::new(&Settings::default());
    link.pair.net.sides[0].qp = crate::fixture::connect(
        gdr_roce::QueuePair::unreliable(crate::fixture::QPNS[0], settings.caps, None),
        crate::fixture::QPNS[1],
        0,
        &settings,
    );
    assert!(
        !link.post_at_once(0, &send, &[]),
        "{:?}",
        Reliability::Unreliable
    );
}

#[test]
fn an_acknowledgement_that_is_all_there_is_to_send_can_be_had_at_once() {
    let mut link = Link::new(&Settings::default());
    let mut out = vec![0; MAX_DATAGRAM];
    let write = SendRequest {
        id: WrId(1),
        operation: Operation::Write {
            remote: Remote {
                rkey: link.pair.rkeys[1],
                addr: BASE,
            },
            immediate: None,
        },
        data: Data::Inline(&[1; 8]),
        flags: SendFlags::SIGNALLED,
    };
    let near = &mut link.pair.net.sides[1].qp;
    assert_eq!(near.transmit_acknowledgement(&mut out), None);
    link.post(0, &write);
    link.transmit();
    link.deliver();
    let qp = &mut link.pair.net.sides[1].qp;
    let len = qp.transmit_acknowledgement(&mut out).unwrap();
    assert!(!qp.may_transmit());
    out.truncate(len);
    let bytes = link.pair.net.seal(out);
    link.pair.net.deliver(0, &bytes);
    assert_eq!(link.pair.net.completions(0).len(), 1);
}
