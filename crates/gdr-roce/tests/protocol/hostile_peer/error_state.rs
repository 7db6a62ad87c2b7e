//! The end of a connection: what is sent before ERR, and that nothing is sent in ERR.

use gdr_roce::wire::{NakCode, Opcode};
use gdr_roce::{Access, RecvRequest, Rkey, Segment, State, WcStatus, WrId};

use super::target::{LEN, MTU, Sent, Target, nak, plain, reth};
use crate::fixture::BASE;

/// Returns a target with queued responses to a READ of its whole region, and their number.
fn with_queued_read() -> (Target, u32) {
    let mut target = Target::new();
    let rkey = target.open.1;
    target.receive(&reth(Opcode::ReadRequest, 0, rkey, BASE, LEN as u32, 0));
    (target, (LEN / MTU) as u32)
}

#[test]
fn nothing_is_sent_in_err() {
    let (mut target, _) = with_queued_read();
    target.receive(&plain(Opcode::SendOnly, (LEN / MTU) as u32, 4)); // No receive is posted: an RNR NAK is queued.
    target.qp.to_error();
    assert_eq!(target.qp.state(), State::Error);
    assert_eq!(target.poll(), Sent::Nothing);
    assert_eq!(target.qp.next_deadline(), None);
}

#[test]
fn a_partly_sent_read_response_stops_in_err() {
    let (mut target, _) = with_queued_read();
    assert_eq!(target.poll(), Sent::Packet(Opcode::ReadResponseFirst));
    target.qp.to_error();
    assert_eq!(target.poll(), Sent::Nothing);
}

#[test]
fn a_fatal_nak_follows_the_responses_to_the_requests_before_it() {
    let (mut target, packets) = with_queued_read();
    let segments = [Segment {
        lkey: target.open.0,
        addr: BASE,
        len: 16,
    }];
    let receive = RecvRequest {
        id: WrId(7),
        segments: &segments,
    };
    target.qp.post_recv(&receive).expect("room");
    target.receive(&reth(Opcode::WriteOnly, packets, Rkey(0), BASE, 16, 16));
    // Packets after the invalid request are dropped, new ones and duplicates.
    target.receive(&plain(Opcode::SendOnly, packets + 1, 4));
    target.receive(&plain(Opcode::SendOnly, packets, 4));
    target.receive(&reth(Opcode::ReadRequest, 0, target.open.1, BASE, 16, 0));
    for index in 0..packets {
        assert_eq!(target.qp.state(), State::ReadyToSend);
        assert!(matches!(target.poll(), Sent::Packet(_)), "{index}");
    }
    let invalid = (target.first + packets) & 0xff_ffff;
    assert_eq!(target.poll(), nak(NakCode::RemoteAccess, invalid));
    assert_eq!(target.qp.state(), State::Error);
    assert_eq!(target.poll(), Sent::Nothing);
    let flushed = target.qp.poll_completion().expect("the receive completes");
    assert_eq!((flushed.id, flushed.status), (WrId(7), WcStatus::WrFlushed));
    assert!(target.is_untouched());
}

#[test]
fn a_read_of_deregistered_memory_fails_the_connection_and_later_requests() {
    let (mut target, packets) = with_queued_read();
    target.receive(&reth(Opcode::WriteOnly, packets, Rkey(0), 0, 0, 0));
    assert_eq!(target.poll(), Sent::Packet(Opcode::ReadResponseFirst));
    target.memory.deregister(target.open.0);
    target.memory.register(BASE, vec![0; LEN], Access::empty());
    let gone = (target.first + 1) & 0xff_ffff;
    assert_eq!(target.poll(), nak(NakCode::RemoteAccess, gone));
    assert_eq!(target.qp.state(), State::Error);
    assert_eq!(target.poll(), Sent::Nothing);
}
