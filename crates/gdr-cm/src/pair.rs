//! Two managers and a lossy link between them.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::Duration;

use proptest::prelude::*;

use super::{
    Addressee, CmEvent, CmStateError, CommId, IdPair, IpAddresses, Mad, Manager, Message, Mra,
    Path, Rej, RejectReason, Rejected, Rep, Req, ServiceId, SidrRep, SidrReq, SidrStatus,
};
use gdr_roce::Psn;
use gdr_roce::Reliability;
use gdr_roce::Time;
use gdr_roce::{PartitionKey, Qkey, Qpn};

const SERVICE: ServiceId = ServiceId::of_port(0x0106, 7174);
const NO_DATA: &[u8; Rej::PRIVATE] = &[0; Rej::PRIVATE];
/// Longer than any side keeps retransmitting, even with an MRA.
const LONG: Duration = Duration::from_secs(400);

fn req(qpn: u32) -> Req {
    Req {
        id: CommId::default(),
        service: SERVICE,
        ca_guid: 0x0200_0000_7f00_0001,
        qkey: Qkey(0),
        qpn: Qpn::new(qpn),
        responder_resources: 3,
        initiator_depth: 4,
        remote_response_timeout: 20,
        reliability: Some(Reliability::Reliable),
        has_flow_control: false,
        starting_psn: Psn::new(5),
        local_response_timeout: 20,
        retry_count: 7,
        partition: PartitionKey::DEFAULT,
        path_mtu: 3,
        rnr_retry_count: 7,
        max_cm_retries: 15,
        has_shared_receives: false,
        path: Path {
            local_gid: [1; 16],
            remote_gid: [2; 16],
            flow_label: 0,
            traffic_class: 0,
            hop_limit: 64,
            ack_timeout: 18,
        },
        private_data: [7; Req::PRIVATE],
    }
}

fn rep(qpn: u32) -> Rep {
    Rep {
        ids: IdPair::default(),
        qkey: Qkey(0),
        qpn: Qpn::new(qpn),
        target_qpn: Qpn::default(),
        starting_psn: Psn::new(6),
        responder_resources: 4,
        initiator_depth: 3,
        target_ack_delay: 0,
        has_flow_control: false,
        rnr_retry_count: 7,
        has_shared_receives: false,
        ca_guid: 0x0200_0000_7f00_0002,
        private_data: [8; Rep::PRIVATE],
    }
}

fn address(side: usize) -> IpAddr {
    IpAddr::from([127, 0, 0, 1 + side as u8])
}

/// Two ends, of which end 0 connects to end 1.
struct Pair<L> {
    ends: [Manager; 2],
    now: Time,
    /// Messages in flight, with the receiving end.
    wire: VecDeque<(usize, Mad)>,
    events: [Vec<CmEvent>; 2],
    /// Decides which messages are lost, by sequence number.
    is_lost: L,
    sent: usize,
}

impl<L: FnMut(usize) -> bool> Pair<L> {
    fn new(is_lost: L) -> Self {
        let mut ends = [Manager::new(1, 9), Manager::new(2, 9)];
        ends[1].listen(SERVICE);
        Self {
            ends,
            now: Time::EPOCH,
            wire: VecDeque::new(),
            events: [Vec::new(), Vec::new()],
            is_lost,
            sent: 0,
        }
    }

    /// Delivers messages until none is in flight, without advancing the time.
    fn settle(&mut self) {
        loop {
            for side in 0..2 {
                while let Some((to, mad)) = self.ends[side].poll_transmit() {
                    assert_eq!(to, address(1 - side));
                    if !(self.is_lost)(self.sent) {
                        self.wire.push_back((1 - side, mad));
                    }
                    self.sent += 1;
                    assert!(self.sent < 1000, "messages without end");
                }
                while let Some(event) = self.ends[side].poll_event() {
                    self.events[side].push(event);
                }
            }
            let Some((to, mad)) = self.wire.pop_front() else {
                return;
            };
            self.ends[to].receive(self.now, address(1 - to), &mad);
        }
    }

    /// Advances the time until a condition holds. Returns whether it does.
    fn wait(&mut self, limit: Duration, is_met: impl Fn(&Self) -> bool) -> bool {
        let end = self.now + limit;
        loop {
            self.settle();
            if is_met(self) {
                return true;
            }
            let deadlines = self.ends.iter().filter_map(Manager::deadline);
            match deadlines.min() {
                Some(next) if next <= end => self.now = self.now.max(next),
                _ => {
                    self.now = end;
                    return is_met(self);
                }
            }
            for end in &mut self.ends {
                end.poll(self.now);
            }
        }
    }

    fn requested(&self) -> Option<CommId> {
        self.events[1].iter().find_map(|event| match event {
            CmEvent::Requested { id, .. } => Some(*id),
            _ => None,
        })
    }

    fn accepted(&self) -> Option<CommId> {
        self.events[0].iter().find_map(|event| match event {
            CmEvent::Accepted { id, .. } => Some(*id),
            _ => None,
        })
    }

    /// Connects. Returns both IDs if the connection is established on both sides.
    fn connect(&mut self) -> Option<(CommId, CommId)> {
        let id = self.ends[0].connect(self.now, address(1), &req(17));
        if !self.wait(LONG, |pair| pair.requested().is_some()) {
            return None;
        }
        let passive = self.requested()?;
        self.ends[1].accept(self.now, passive, &rep(18)).ok()?;
        if !self.wait(LONG, |pair| pair.accepted().is_some()) {
            return None;
        }
        self.ends[0].confirm(id).ok()?;
        let established = CmEvent::Established { id: passive };
        let is_established = self.wait(LONG, |pair| pair.events[1].contains(&established));
        is_established.then_some((id, passive))
    }

    fn is_over(&self, side: usize, id: CommId) -> bool {
        self.events[side].contains(&CmEvent::Disconnected { id })
            && self.events[side].contains(&CmEvent::TimeWaitOver { id })
    }
}

#[test]
fn a_connection_takes_three_messages_and_its_end_two() {
    let mut pair = Pair::new(|_| false);
    let (active, passive) = pair.connect().unwrap();
    assert_eq!(pair.sent, 3);
    let Some(CmEvent::Requested {
        from, req: asked, ..
    }) = pair.events[1].first()
    else {
        panic!("{:?}", pair.events);
    };
    assert_eq!(
        (*from, asked.qpn, asked.private_data),
        (address(0), Qpn::new(17), [7; 92])
    );
    let Some(CmEvent::Accepted { rep: answer, .. }) = pair.events[0].first() else {
        panic!("{:?}", pair.events);
    };
    assert_eq!((answer.qpn, answer.private_data), (Qpn::new(18), [8; 196]));
    pair.ends[0].disconnect(pair.now, active).unwrap();
    assert!(pair.wait(LONG, |pair| pair.is_over(0, active)
        && pair.is_over(1, passive)));
    assert_eq!(pair.sent, 5);
    assert_eq!(pair.ends[0].deadline(), None);
    assert_eq!(Manager::prefix_of(active), 1);
    assert_eq!(Manager::prefix_of(passive), 2);
}

#[test]
fn an_extended_connection_ends_at_a_target() {
    let mut pair = Pair::new(|_| false);
    let asked = Req {
        reliability: Some(Reliability::Extended),
        ..req(17)
    };
    let active = pair.ends[0].connect(pair.now, address(1), &asked);
    pair.settle();
    let Some(CmEvent::Requested { id, req, .. }) = pair.events[1].first() else {
        panic!("{:?}", pair.events);
    };
    assert_eq!(req.reliability, Some(Reliability::Extended));
    let passive = *id;
    pair.ends[1].accept(pair.now, passive, &rep(18)).unwrap();
    let (_, mad) = pair.ends[1].poll_transmit().unwrap();
    let Ok(Message::Rep(sent)) = Message::parse(&mad) else {
        panic!("{mad:?}");
    };
    assert_eq!((sent.qpn, sent.target_qpn), (Qpn::new(0), Qpn::new(18)));
    pair.wire.push_back((0, mad));
    pair.settle();
    let Some(CmEvent::Accepted { id, rep }) = pair.events[0].first() else {
        panic!("{:?}", pair.events);
    };
    assert_eq!((*id, rep.qpn), (active, Qpn::new(18)));
    // The DREQ also names the target.
    pair.ends[0].confirm(active).unwrap();
    pair.ends[0].disconnect(pair.now, active).unwrap();
    let dreq = std::iter::from_fn(|| pair.ends[0].poll_transmit()).last();
    let Some(Ok(Message::Dreq(dreq))) = dreq.map(|(_, mad)| Message::parse(&mad)) else {
        panic!("it does not end");
    };
    assert_eq!(dreq.remote_qpn, Qpn::new(18));
}

#[test]
fn the_end_of_a_process_ends_its_connections_in_any_state() {
    let (active_prefix, passive_prefix) = (1, 2);
    // Established.
    for side in 0..2 {
        let mut pair = Pair::new(|_| false);
        let (active, passive) = pair.connect().unwrap();
        let (id, prefix) = [(active, passive_prefix), (passive, active_prefix)][side];
        let peer = address(1 - side);
        pair.ends[side].peer_ended(pair.now, peer, prefix ^ 4);
        pair.ends[side].peer_ended(pair.now, address(side), prefix);
        pair.settle();
        let disconnected = CmEvent::Disconnected { id };
        assert!(
            !pair.events[side].contains(&disconnected),
            "of another process"
        );
        pair.ends[side].peer_ended(pair.now, peer, prefix);
        pair.ends[side].peer_ended(pair.now, peer, prefix);
        assert!(pair.wait(LONG, |pair| pair.is_over(side, id)));
        let count = pair.events[side].iter().filter(|it| **it == disconnected);
        assert_eq!(count.count(), 1);
        assert_eq!(pair.sent, 3, "no one is there to receive");
    }
    // Neither side's program has responded: the passive one has not replied, the active one has not confirmed.
    let mut pair = Pair::new(|_| false);
    pair.ends[0].connect(pair.now, address(1), &req(17));
    pair.settle();
    let passive = pair.requested().unwrap();
    pair.ends[1].peer_ended(pair.now, address(0), active_prefix);
    pair.settle();
    let is_rejected =
        |event: &CmEvent, of| matches!(event, CmEvent::Rejected { id, .. } if *id == of);
    assert!(is_rejected(&pair.events[1][1], passive));
    assert_eq!(
        pair.ends[1].accept(pair.now, passive, &rep(18)),
        Err(CmStateError)
    );

    let mut pair = Pair::new(|_| false);
    let active = pair.ends[0].connect(pair.now, address(1), &req(17));
    pair.settle();
    let passive = pair.requested().unwrap();
    pair.ends[1].accept(pair.now, passive, &rep(18)).unwrap();
    pair.settle();
    pair.ends[0].peer_ended(pair.now, address(1), passive_prefix);
    pair.settle();
    assert!(is_rejected(&pair.events[0][1], active));
    // The passive side is waiting for the RTU.
    pair.ends[1].peer_ended(pair.now, address(0), active_prefix);
    assert!(pair.wait(LONG, |pair| pair.is_over(1, passive)));
}

#[test]
fn each_message_may_be_lost_in_turn() {
    for lost in 0..9 {
        for ending in 0..2 {
            let mut pair = Pair::new(|at| at == lost);
            let (active, passive) = pair.connect().unwrap();
            let id = [active, passive][ending];
            pair.ends[ending].disconnect(pair.now, id).unwrap();
            let is_over = |pair: &Pair<_>| pair.is_over(0, active) && pair.is_over(1, passive);
            assert!(pair.wait(LONG, is_over), "{lost} {:?}", pair.events);
            // Nothing is reported twice.
            assert_eq!(
                pair.events.each_ref().map(Vec::len),
                [3, 4],
                "{lost} {:?}",
                pair.events
            );
        }
    }
}

#[test]
fn a_request_that_comes_twice_is_one_and_is_acknowledged() {
    let mut pair = Pair::new(|_| false);
    pair.ends[0].connect(pair.now, address(1), &req(17));
    let (_, mad) = pair.ends[0].poll_transmit().unwrap();
    for _ in 0..2 {
        pair.ends[1].receive(pair.now, address(0), &mad);
    }
    let (_, answer) = pair.ends[1].poll_transmit().unwrap();
    let Ok(Message::Mra(Mra { message, .. })) = Message::parse(&answer) else {
        panic!("{answer:?}");
    };
    assert_eq!(message, Rejected::Req);
    pair.settle();
    assert_eq!(pair.events[1].len(), 1);
}

#[test]
fn who_has_a_mra_waits_for_a_slow_program() {
    let mut pair = Pair::new(|_| false);
    let id = pair.ends[0].connect(pair.now, address(1), &req(17));
    // The second REQ is answered by an MRA, which is valid for 69 s.
    assert!(!pair.wait(Duration::from_secs(65), |pair| !pair.events[0].is_empty()));
    assert_eq!(pair.sent, 3);
    let passive = pair.requested().unwrap();
    pair.ends[1].accept(pair.now, passive, &rep(18)).unwrap();
    assert!(pair.wait(LONG, |pair| pair.accepted() == Some(id)));
}

#[test]
fn a_service_without_a_listener_is_refused_for_that_reason() {
    let mut pair = Pair::new(|_| false);
    pair.ends[1].ignore(SERVICE);
    let id = pair.ends[0].connect(pair.now, address(1), &req(17));
    pair.settle();
    let [CmEvent::Rejected { id: of, reason, .. }] = &pair.events[0][..] else {
        panic!("{:?}", pair.events);
    };
    assert_eq!((*of, *reason), (id, RejectReason::INVALID_SERVICE_ID));
    assert!(pair.events[1].is_empty());
}

#[test]
fn a_refusal_of_the_program_carries_its_data_also_if_it_is_lost_first() {
    for lost in [None, Some(1)] {
        let mut pair = Pair::new(|at| Some(at) == lost);
        let id = pair.ends[0].connect(pair.now, address(1), &req(17));
        pair.settle();
        let passive = pair.requested().unwrap();
        let data = &[9; Rej::PRIVATE];
        pair.ends[1]
            .reject(pair.now, passive, RejectReason::CONSUMER, data)
            .unwrap();
        pair.ends[1].abandon(pair.now, passive);
        assert!(pair.wait(LONG, |pair| !pair.events[0].is_empty()));
        let expected = CmEvent::Rejected {
            id,
            reason: RejectReason::CONSUMER,
            private_data: data.as_slice().into(),
        };
        assert_eq!(pair.events[0], [expected]);
        assert_eq!(pair.events[1].len(), 1);
    }
}

#[test]
fn crossing_ends_end_both_sides_once() {
    let mut pair = Pair::new(|_| false);
    let (active, passive) = pair.connect().unwrap();
    pair.ends[0].disconnect(pair.now, active).unwrap();
    pair.ends[1].disconnect(pair.now, passive).unwrap();
    assert!(pair.wait(LONG, |pair| pair.is_over(0, active)
        && pair.is_over(1, passive)));
    assert_eq!(pair.events.each_ref().map(Vec::len), [3, 4]);
}

#[test]
fn a_peer_that_is_gone_is_unreachable_or_disconnected() {
    let mut pair = Pair::new(|_| true);
    let id = pair.ends[0].connect(pair.now, address(1), &req(17));
    assert!(pair.wait(LONG, |pair| pair.events[0] == [CmEvent::Unreachable { id }]));
    assert_eq!(pair.sent, 16);
    let after = pair.now.saturating_since(Time::EPOCH).as_secs();
    assert!((45..70).contains(&after), "{after} s");

    let mut pair = Pair::new(|at| at >= 3);
    let (active, passive) = pair.connect().unwrap();
    pair.ends[0].disconnect(pair.now, active).unwrap();
    assert!(pair.wait(LONG, |pair| pair.is_over(0, active)));
    assert!(!pair.is_over(1, passive));
}

#[test]
fn a_queue_pair_that_connects_again_ends_the_connection_that_it_had() {
    let mut pair = Pair::new(|_| false);
    let (_, passive) = pair.connect().unwrap();
    // The peer was killed, and its successor reuses the queue pair number.
    pair.ends[0] = Manager::new(1, 1000);
    pair.events[0].clear();
    let id = pair.ends[0].connect(pair.now, address(1), &req(17));
    pair.settle();
    let [CmEvent::Rejected { id: of, reason, .. }] = &pair.events[0][..] else {
        panic!("{:?}", pair.events);
    };
    assert_eq!((*of, *reason), (id, RejectReason::STALE_CONNECTION));
    // The successor replies for a connection that it does not know.
    assert!(pair.wait(LONG, |pair| pair.is_over(1, passive)));
    pair.ends[1].abandon(pair.now, passive);
    pair.events = [Vec::new(), Vec::new()];
    assert!(pair.connect().is_some());
}

#[test]
fn the_side_that_is_asked_is_informed_if_the_other_one_gives_up() {
    let mut pair = Pair::new(|_| false);
    let id = pair.ends[0].connect(pair.now, address(1), &req(17));
    pair.settle();
    let passive = pair.requested().unwrap();
    pair.ends[0].abandon(pair.now, id);
    pair.settle();
    assert!(matches!(
        &pair.events[1][1..],
        [CmEvent::Rejected { id, reason: RejectReason::TIMEOUT, .. }] if *id == passive
    ));
    assert!(pair.ends[1].accept(pair.now, passive, &rep(18)).is_err());
    assert!(pair.events[0].is_empty());
}

#[test]
fn who_gives_up_a_request_says_by_what_the_peer_finds_it() {
    let mut pair = Pair::new(|_| false);
    let id = pair.ends[0].connect(pair.now, address(1), &req(17));
    pair.ends[0].abandon(pair.now, id);
    let _req = pair.ends[0].poll_transmit().unwrap();
    let (_, mad) = pair.ends[0].poll_transmit().unwrap();
    let Ok(message @ Message::Rej(rej)) = Message::parse(&mad) else {
        panic!("{mad:?}");
    };
    // IBTA 12.6.7.2: with reason 4, the additional information is the device's GUID.
    assert_eq!((rej.reason, rej.info_len), (RejectReason::TIMEOUT, 8));
    assert_eq!(rej.info[..8], req(17).ca_guid.to_be_bytes());
    assert_eq!(message.addressee(), Addressee::Request(id));
}

#[test]
fn a_connection_that_the_program_gives_up_ends_without_events() {
    let mut pair = Pair::new(|_| false);
    let (active, passive) = pair.connect().unwrap();
    pair.ends[0].abandon(pair.now, active);
    assert!(pair.wait(LONG, |pair| pair.is_over(1, passive)));
    assert_eq!(pair.events[0].len(), 1);
    assert!(
        pair.ends[0].disconnect(pair.now, active).is_err(),
        "it is forgotten"
    );
}

#[test]
fn traffic_stands_for_a_confirmation_that_was_lost() {
    let mut pair = Pair::new(|at| at == 2);
    let id = pair.ends[0].connect(pair.now, address(1), &req(17));
    pair.settle();
    let passive = pair.requested().unwrap();
    pair.ends[1].accept(pair.now, passive, &rep(18)).unwrap();
    pair.settle();
    pair.ends[0].confirm(id).unwrap();
    pair.settle();
    pair.ends[1].note_traffic(passive).unwrap();
    pair.settle();
    assert_eq!(pair.events[1][1..], [CmEvent::Established { id: passive }]);
    assert_eq!(pair.ends[1].deadline(), None);
}

#[test]
fn messages_of_another_host_change_nothing() {
    let mut pair = Pair::new(|_| false);
    let (active, passive) = pair.connect().unwrap();
    let ids = IdPair {
        local: active,
        remote: passive,
    };
    let stranger = IpAddr::from([10, 0, 0, 9]);
    let rej = Rej::plain(ids, Rejected::Other(2), RejectReason::CONSUMER);
    for message in [Message::Rej(rej), Message::Drep(ids), Message::Rtu(ids)] {
        pair.ends[1].receive(pair.now, stranger, &message.emit(1));
        assert_eq!(pair.ends[1].poll_transmit(), None);
        assert_eq!(pair.ends[1].poll_event(), None);
    }
}

#[test]
fn requests_without_an_answer_take_bounded_room() {
    let mut pair = Pair::new(|_| false);
    for qpn in 0..2000 {
        let id = CommId(qpn + 1);
        let mad = Message::Req(Req {
            id,
            ..req(qpn + 17)
        })
        .emit(1);
        pair.ends[1].receive(pair.now, address(0), &mad);
    }
    let events = std::iter::from_fn(|| pair.ends[1].poll_event());
    assert_eq!(events.count(), 1024);
}

fn sidr_req() -> SidrReq {
    let addresses = IpAddresses {
        source_port: 9,
        source: address(0),
        destination: address(1),
    };
    let mut private_data = [0; SidrReq::PRIVATE];
    private_data[..IpAddresses::LEN].copy_from_slice(&addresses.emit());
    SidrReq {
        id: CommId::default(),
        partition: PartitionKey::DEFAULT,
        service: SERVICE,
        private_data,
    }
}

#[test]
fn a_datagram_service_is_resolved_also_if_a_message_is_lost() {
    for lost in 0..4 {
        let mut pair = Pair::new(|at| at == lost);
        let id = pair.ends[0].resolve(pair.now, address(1), &sidr_req());
        assert!(pair.wait(LONG, |pair| !pair.events[1].is_empty()));
        let [
            CmEvent::Resolving {
                id: passive, req, ..
            },
        ] = &pair.events[1][..]
        else {
            panic!("{:?}", pair.events);
        };
        assert_eq!(
            IpAddresses::parse(&req.private_data).map(|it| it.source),
            Some(address(0))
        );
        let answer = SidrRep {
            qpn: Qpn::new(99),
            qkey: Qkey(0x0123_4567),
            ..SidrRep::refusal(SidrStatus::SUCCESS)
        };
        pair.ends[1].answer(pair.now, *passive, &answer).unwrap();
        assert!(pair.wait(LONG, |pair| !pair.events[0].is_empty()));
        let expected = SidrRep {
            id,
            service: SERVICE,
            ..answer
        };
        assert_eq!(
            pair.events[0],
            [CmEvent::Resolved {
                id,
                rep: Box::new(expected)
            }]
        );
        assert!(pair.wait(LONG, |pair| pair.ends[1].deadline().is_none()));
        assert_eq!(pair.events[1].len(), 1);
    }
}

#[test]
fn a_datagram_service_without_a_listener_is_refused() {
    let mut pair = Pair::new(|_| false);
    pair.ends[1].ignore(SERVICE);
    pair.ends[0].resolve(pair.now, address(1), &sidr_req());
    pair.settle();
    assert!(matches!(
        &pair.events[0][..],
        [CmEvent::Resolved { rep, .. }] if rep.status == SidrStatus::UNSUPPORTED
    ));
}

#[test]
fn what_names_no_connection_gets_the_answer_that_ends_it() {
    let ids = IdPair {
        local: CommId(5),
        remote: CommId(6),
    };
    let answer = |message: Message| {
        let answer = Manager::answer_to_stray(&message.emit(7))?;
        assert_eq!(answer.transaction(), 7);
        Some(Message::parse(&answer).unwrap())
    };
    let rep = Message::Rep(Rep { ids, ..rep(18) });
    assert!(matches!(
        answer(rep),
        Some(Message::Rej(Rej { reason: RejectReason::INVALID_COMM_ID, ids, .. }))
            if ids.remote == CommId(5)
    ));
    assert_eq!(answer(Message::Rtu(ids)), None);
    assert_eq!(answer(Message::Drep(ids)), None);
    let rej = Rej::plain(ids, Rejected::Req, RejectReason::CONSUMER);
    assert_eq!(
        answer(Message::Rej(rej)),
        None,
        "two managers would answer each other forever"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Whatever is lost, both sides reach the same final state, or the side left waiting reports it.
    #[test]
    fn both_sides_agree_in_the_end(losses: Vec<bool>, ends: bool, refuses: bool) {
        let mut pair = Pair::new(|at| losses.get(at).copied().unwrap_or(false));
        let id = pair.ends[0].connect(pair.now, address(1), &req(17));
        prop_assert!(pair.wait(LONG, |pair| !pair.events[0].is_empty() || !pair.events[1].is_empty()));
        let unreachable = CmEvent::Unreachable { id };
        let Some(passive) = pair.requested() else {
            prop_assert_eq!(&pair.events[0], &[unreachable]);
            return Ok(());
        };
        if refuses {
            pair.ends[1].reject(pair.now, passive, RejectReason::CONSUMER, NO_DATA).unwrap();
            prop_assert!(pair.wait(LONG, |pair| !pair.events[0].is_empty()));
            let is_refused = matches!(pair.events[0][0], CmEvent::Rejected { .. });
            prop_assert!(is_refused || pair.events[0][0] == unreachable);
            return Ok(());
        }
        let _given_up = pair.ends[1].accept(pair.now, passive, &rep(18));
        prop_assert!(pair.wait(LONG, |pair| !pair.events[0].is_empty()));
        if pair.accepted().is_none() {
            prop_assert_eq!(&pair.events[0][0], &unreachable);
            return Ok(());
        }
        if pair.ends[0].confirm(id).is_err() {
            let is_rejected = matches!(pair.events[0][1], CmEvent::Rejected { .. });
            prop_assert!(is_rejected);
            return Ok(());
        }
        prop_assert!(pair.wait(LONG, |pair| pair.events[1].len() > 1));
        if pair.events[1][1] == (CmEvent::Unreachable { id: passive }) {
            return Ok(());
        }
        prop_assert_eq!(&pair.events[1][1], &CmEvent::Established { id: passive });
        let (side, name) = if ends { (0, id) } else { (1, passive) };
        pair.ends[side].disconnect(pair.now, name).unwrap();
        prop_assert!(pair.wait(LONG, |pair| pair.is_over(side, name)));
        let other = [passive, id][side];
        // The losses may all hit the teardown; the other side then ends by itself.
        if !pair.is_over(1 - side, other) {
            pair.ends[1 - side].disconnect(pair.now, other).unwrap();
            prop_assert!(pair.wait(LONG, |pair| pair.is_over(1 - side, other)));
        }
        for (side, name) in [(0, id), (1, passive)] {
            pair.ends[side].abandon(pair.now, name);
            prop_assert_eq!(pair.ends[side].deadline(), None);
        }
    }

    /// Any sequence of datagrams leaves the manager functional.
    #[test]
    fn messages_of_a_hostile_peer_leave_a_manager_that_works(
        mads in proptest::collection::vec((0x10_u16..0x19, any::<[u8; 16]>(), 0_usize..2), 0..40),
    ) {
        let mut pair = Pair::new(|_| false);
        let (active, passive) = pair.connect().unwrap();
        for (attribute, data, names) in mads {
            let mut mad = Mad::new(attribute, 3);
            mad.put(0, &data);
            if names == 1 {
                mad.put(0, &active.0.to_be_bytes());
                mad.put(4, &passive.0.to_be_bytes());
            }
            pair.ends[1].receive(pair.now, address(0), &mad);
            pair.ends[1].poll(pair.now);
        }
        while pair.ends[1].poll_transmit().is_some() {}
        pair.ends[1].abandon(pair.now, passive);
        pair.events = [Vec::new(), Vec::new()];
        pair.ends[0] = Manager::new(1, 500);
        let other = Req { service: ServiceId(3), ..req(55) };
        pair.ends[1].listen(ServiceId(3));
        let id = pair.ends[0].connect(pair.now, address(1), &other);
        pair.settle();
        let is_reported = pair.events[1].iter().any(|event| matches!(
            event, CmEvent::Requested { req, .. } if req.id == id
        ));
        prop_assert!(is_reported);
    }
}
