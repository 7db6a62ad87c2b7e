//! Payloads that the receiver reads from the memory of the sender.

use gdr_nic::{Buffer, Region};

use super::*;

/// Longer than one poll processes, and not a multiple of the path MTU.
const LEN: usize = (1 << 20) + 5;

/// Registers zeroed memory; returns it with its address and key.
pub(super) fn zeros(side: &Side) -> ((Buffer, Region), Remote) {
    let buffer = Buffer::host(LEN).unwrap();
    let len = LEN as u64;
    let region =
        side.device
            .register_buffer(side.domain, (buffer.clone(), 0, len), 0, Access::all());
    let region = region.unwrap();
    let remote = Remote {
        rkey: Rkey(region.key()),
        addr: 0,
    };
    ((buffer, region), remote)
}

/// Like [`zeros`], with bytes that depend on their offset and on `seed`.
pub(super) fn pattern(side: &Side, seed: u8) -> ((Buffer, Region), Remote) {
    let made = zeros(side);
    made.0.0.write_at(0, &bytes(seed)).unwrap();
    made
}

pub(super) fn bytes(seed: u8) -> Vec<u8> {
    (0..LEN).map(|at| (at / 8 + at) as u8 ^ seed).collect()
}

pub(super) fn content(buffer: &Buffer) -> Vec<u8> {
    let mut bytes = vec![0; LEN];
    buffer.read_at(0, &mut bytes).unwrap();
    bytes
}

pub(super) fn largest_byte(buffer: &Buffer) -> u8 {
    content(buffer).into_iter().max().unwrap_or_default()
}

/// Returns a segment of the whole region.
pub(super) fn all(region: &Region) -> Segment {
    Segment {
        lkey: Lkey(region.key()),
        addr: 0,
        len: LEN as u32,
    }
}

pub(super) fn request<'a>(operation: Operation, data: Data<'a>) -> SendRequest<'a> {
    SendRequest {
        id: WrId(9),
        operation,
        data,
        flags: SendFlags::SIGNALLED,
    }
}

pub(super) fn write_to(remote: Remote) -> Operation {
    Operation::Write {
        remote,
        immediate: None,
    }
}

pub(super) fn post(side: &Side, requests: &[SendRequest<'_>]) {
    let posted = side
        .pair
        .post_sends(|queue| requests.iter().try_for_each(|request| queue.push(request)));
    posted.unwrap().unwrap();
}

#[test]
fn long_messages_are_read_in_the_memory_of_their_sender() {
    let _alone = alone();
    let [a, b] = connected(Wires::All, Wires::All);
    let ((source, from), source_remote) = pattern(&a, 1);
    let ((target, to), target_remote) = zeros(&b);

    post(
        &a,
        &[request(
            write_to(target_remote),
            Data::Segments(&[all(&from)]),
        )],
    );
    assert_eq!(a.completion().status, WcStatus::Success);
    assert_eq!(content(&target), bytes(1));

    target.write_at(0, &bytes(2)).unwrap();
    let read = Operation::Read {
        remote: target_remote,
    };
    post(&a, &[request(read, Data::Segments(&[all(&from)]))]);
    assert_eq!(a.completion().status, WcStatus::Success);
    assert_eq!(content(&source), bytes(2));

    source.write_at(0, &bytes(3)).unwrap();
    let receive = RecvRequest {
        id: WrId(2),
        segments: &[all(&to)],
    };
    b.pair
        .post_recvs(|queue| queue.push(&receive))
        .unwrap()
        .unwrap();
    let send = Operation::Send { immediate: None };
    post(&a, &[request(send, Data::Segments(&[all(&from)]))]);
    for side in [&a, &b] {
        assert_eq!(side.completion().status, WcStatus::Success);
    }
    assert_eq!(content(&target), bytes(3));

    // Each packet stands for up to 64. READs are requested in growing pieces, and the last one may be short.
    let merged = (LEN as u64).div_ceil(64 * 4096);
    assert_eq!(a.device.counters().sent_by_reference, 2 * merged);
    let answered = b.device.counters().sent_by_reference;
    assert!(
        (merged - 1..LEN as u64 / 4096).contains(&answered),
        "{answered}"
    );
    drop((from, to, source_remote));
}

#[test]
fn what_follows_a_long_message_comes_later() {
    /// So few packets that the receiver finds them together with the following message.
    const SHORT: usize = 48 << 10;
    let _alone = alone();
    let [a, b] = connected(Wires::All, Wires::All);
    let ((_source, from), _) = pattern(&a, 1);
    let ((target, _to), remote) = zeros(&b);
    let start = Segment {
        len: SHORT as u32,
        ..all(&from)
    };
    let middle = Remote {
        addr: SHORT as u64 / 2,
        ..remote
    };
    for round in 0..50_u8 {
        post(
            &a,
            &[
                request(write_to(remote), Data::Segments(&[start])),
                request(write_to(middle), Data::Inline(&[round; 16])),
            ],
        );
        for _ in 0..2 {
            assert_eq!(a.completion().status, WcStatus::Success);
        }
        let mut expected = bytes(1);
        expected[SHORT / 2..][..16].fill(round);
        assert_eq!(content(&target)[..SHORT], expected[..SHORT]);
    }
}

/// How a program regains memory whose payload the other process has not read.
#[derive(Clone, Copy, Debug)]
enum Back {
    Deregistered,
    Flushed,
}

#[test]
fn memory_that_is_deregistered_before_it_is_read_reaches_no_peer() {
    get_back(Back::Deregistered);
}

#[test]
fn memory_of_a_request_that_was_flushed_before_it_is_read_reaches_no_peer() {
    get_back(Back::Flushed);
}

fn get_back(how: Back) {
    let _alone = alone();
    let mut other = Other::start(None);
    let side = Side::new(Wires::All);
    let remote = other.connect(&side);
    let ((buffer, region), _) = pattern(&side, 1);
    side.send();
    assert_eq!(side.completion().status, WcStatus::Success);
    other.stop();
    post(
        &side,
        &[request(write_to(remote), Data::Segments(&[all(&region)]))],
    );
    assert!(side.device.counters().sent_by_reference > 0);
    match how {
        Back::Deregistered => drop(region),
        Back::Flushed => {
            side.pair.to_error().unwrap();
            assert_eq!(side.completion().status, WcStatus::WrFlushed);
        }
    }
    // From here on, the memory no longer holds the message.
    buffer.write_at(0, &vec![0xee; LEN]).unwrap();
    other.resume();
    if let Back::Deregistered = how {
        let status = side.completion().status;
        let copied = "it is sent again, as a copy";
        assert_eq!(status, WcStatus::LocalProtection, "{copied}");
    }
    other.stream.write_all(b"?").unwrap();
    assert_eq!(receive_line(&mut other.stream), "0");
}
