//! When acknowledgements are requested and sent.
use crate::fixture::{BASE, Pair, Settings, pair};
use gdr_roce::wire::Packet;
use gdr_roce::{
    Access, AckTimeout, Data, Lkey, Operation, Remote, Segment, SendFlags, SendRequest, State,
    WcStatus, WrId,
};

const LEN: u32 = 8;

/// Returns a connection without a retransmission timer.
fn without_timer() -> Pair {
    let settings = Settings {
        timeout: AckTimeout::NEVER,
        ..Settings::default()
    };
    pair(&settings, 1 << 16, Access::all())
}

fn write_from(pair: &mut Pair, side: usize, id: u64, lkey: Lkey) {
    let segments = [Segment {
        lkey,
        addr: BASE,
        len: LEN,
    }];
    let remote = Remote {
        rkey: pair.rkeys[1 - side],
        addr: BASE,
    };
    let request = SendRequest {
        id: WrId(id),
        operation: Operation::Write {
            remote,
            immediate: None,
        },
        data: Data::Segments(&segments),
        flags: SendFlags::SIGNALLED,
    };
    pair.net.sides[side].qp.post_send(&request).unwrap();
}

fn write(pair: &mut Pair, side: usize, id: u64) {
    write_from(pair, side, id, pair.lkeys[side]);
}

fn statuses(pair: &mut Pair, side: usize) -> Vec<(u64, WcStatus)> {
    let done = pair.net.completions(side).into_iter();
    done.map(|done| (done.id.0, done.status)).collect()
}

fn all_well(count: u64) -> Vec<(u64, WcStatus)> {
    (0..count).map(|id| (id, WcStatus::Success)).collect()
}

/// Returns, for each packet that a side has ready, whether it is a response.
fn responses(pair: &mut Pair, side: usize) -> Vec<bool> {
    let packets = std::iter::from_fn(|| pair.net.poll(side));
    packets
        .map(|bytes| Packet::new(&bytes).unwrap().opcode().is_response())
        .collect()
}

#[test]
fn an_acknowledgement_goes_behind_the_first_requests_that_are_ready() {
    for requests in [0, 1, 3, 16] {
        let mut pair = without_timer();
        write(&mut pair, 0, 0);
        let packet = pair.net.poll(0).unwrap();
        pair.net.deliver(1, &packet);
        assert!(pair.net.sides[1].qp.owes_only_acknowledgement());
        for id in 0..requests {
            write(&mut pair, 1, id);
            assert!(!pair.net.sides[1].qp.owes_only_acknowledgement());
        }
        let sent = responses(&mut pair, 1);
        let expected = (0..=requests).map(|n| n == requests).collect::<Vec<_>>();
        assert_eq!(sent, expected);
    }
}

#[test]
fn executed_requests_are_acknowledged_although_an_own_request_fails() {
    let mut pair = without_timer();
    write(&mut pair, 0, 0);
    let packet = pair.net.poll(0).unwrap();
    pair.net.deliver(1, &packet);
    write_from(&mut pair, 1, 7, Lkey(0xdead));
    pair.net.settle();
    assert_eq!(pair.net.sides[1].qp.state(), State::Error);
    assert_eq!(statuses(&mut pair, 1), [(7, WcStatus::LocalProtection)]);
    assert_eq!(statuses(&mut pair, 0), all_well(1));
}
