//! Several processes with soft devices at one address and port. In a binary of its own, which also
//! is the program of the other processes.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a fixture that fails is a test that fails"
)]

#[path = "../soft_loopback/fixture.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod fixture;
mod member;

use std::net::{IpAddr, SocketAddr};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{self, UnixListener};

use gdr_rdma::{
    AckTimeout, Device, Error, PortSharingError, PortUse, RetryCount, SendRequest, SoftOptions,
    WcStatus, WrId,
};

use crate::fixture::{Side, connect, options, wait_until};
use crate::member::{Member, slot};

/// An address for one test.
fn address(n: u8) -> IpAddr {
    IpAddr::from([127, 0, 53, n])
}

fn shared(address: IpAddr) -> SoftOptions {
    // A device takes a slot for each shard.
    SoftOptions::new(address)
        .port_use(PortUse::Shared)
        .shards(1)
}

fn hub(address: IpAddr) -> Device {
    Device::soft_with(shared(address)).unwrap()
}

fn reason(result: gdr_rdma::Result<Device>) -> PortSharingError {
    match result {
        Err(Error::PortSharing { reason, .. }) => reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn processes_exit_join_and_are_killed_while_the_others_move_bytes() {
    let device = hub(address(1));
    let mut steady = Member::start(&device);
    let (mut exits, mut killed) = (Member::start(&device), Member::start(&device));
    let slots = [&steady, &exits, &killed].map(|member| slot(member.qpn()));
    for member in [&mut steady, &mut exits, &mut killed] {
        member.write_on();
        member.wait_for_more();
    }

    killed.kill();
    steady.wait_for_more();
    let mut joined = Member::start(&device);
    assert_eq!(slot(joined.qpn()), slots[2], "the slot of the killed one");
    joined.write_on();
    for member in [&steady, &exits, &joined] {
        member.wait_for_more();
    }

    let report = exits.stop();
    assert_eq!(report.unknown_queue_pair, 0);
    assert!(report.writes > 0);
    let mut last = Member::start(&device);
    assert_eq!(slot(last.qpn()), slots[1], "the slot of the one that ended");
    last.write_on();
    for member in [&steady, &joined, &last] {
        member.wait_for_more();
    }

    for member in [steady, joined, last] {
        let report = member.stop();
        assert_eq!(report.unknown_queue_pair, 0);
        assert_eq!(report.sequence_naks, 0, "nothing was lost");
    }
    assert_eq!(device.counters().unknown_queue_pair, 0);
    assert_eq!(device.counters().sequence_naks_sent, 0);
}

#[test]
fn a_device_that_takes_a_slot_accepts_no_packet_for_the_one_before() {
    let device = hub(address(2));
    let mut options = options();
    (options.timeout, options.retry_count) = (AckTimeout::new(10), RetryCount::new(2));
    let mut killed = Member::start_with(&device, &options);
    killed.kill();
    let next = Member::start(&device);
    assert_eq!(slot(next.qpn()), slot(killed.qpn()));
    let write = SendRequest::write(WrId(1), killed.target()).inline(&[0xff; 8]);
    killed.side.pair.post_send(write).unwrap();
    assert_eq!(killed.side.status(), WcStatus::RetryExceeded);
    let report = next.stop();
    assert!(report.unknown_queue_pair > 0, "it arrived there");
    assert_eq!(report.first_word, 0, "and was not placed");
}

#[test]
fn what_one_device_sends_at_once_reaches_two_processes() {
    let device = hub(address(3));
    let members = [Member::start(&device), Member::start(&device)];
    const ROUNDS: u64 = 200;
    for round in 0..ROUNDS {
        // Of one length and to one address; those behind the first wait for a poll.
        for _ in 0..4 {
            for member in &members {
                let write = SendRequest::write(WrId(round), member.target())
                    .inline(&(round + 1).to_ne_bytes());
                member.side.pair.post_send(write).unwrap();
            }
        }
        for member in &members {
            for _ in 0..4 {
                member.side.done();
            }
        }
    }
    for member in members {
        let report = member.stop();
        assert_eq!(report.first_word, ROUNDS);
        assert_eq!(report.unknown_queue_pair, 0);
    }
    assert_eq!(device.counters().sequence_naks_received, 0);
}

#[test]
fn devices_of_one_process_share_a_port_with_numbers_of_their_own() {
    let (a, b) = (Side::on(hub(address(4))), Side::on(hub(address(4))));
    assert_ne!(slot(a.pair.qpn()), slot(b.pair.qpn()));
    connect(&a, &b, &options());
    let target = b.memory(8);
    let write = SendRequest::write(WrId(1), target.remote().at(0)).inline(&[7; 8]);
    a.pair.post_send(write).unwrap();
    a.done();
    assert_eq!(fixture::bytes(&target), [7; 8]);
    // More queue pairs do not leave the slot.
    let options = gdr_rdma::QueuePairOptions::new(&a.queue);
    let pairs: Vec<_> = (0..300)
        .map(|_| a.domain.queue_pair(&options).unwrap())
        .collect();
    assert!(
        pairs
            .iter()
            .all(|pair| slot(pair.qpn()) == slot(a.pair.qpn()))
    );
}

#[test]
fn a_shared_port_and_an_exclusive_one_exclude_each_other() {
    let in_use = |result: gdr_rdma::Result<Device>| matches!(result, Err(Error::PortInUse { .. }));
    let first = hub(address(5));
    assert!(in_use(Device::soft(address(5))));
    drop(first);
    let first = Device::soft(address(5)).unwrap();
    assert!(in_use(Device::soft_with(shared(address(5)))));
    drop(first);
    hub(address(5));
}

/// Takes the name of a slot, as a process that does not answer.
fn occupy(address: IpAddr, slot: usize) -> UnixListener {
    let address = SocketAddr::new(address, gdr_roce::wire::UDP_PORT);
    let name = format!("gdr-roce/{address}/{slot}");
    let name = net::SocketAddr::from_abstract_name(name).unwrap();
    UnixListener::bind_addr(&name).unwrap()
}

#[test]
fn a_group_without_a_free_slot_refuses_another_device() {
    let first = hub(address(6));
    let mut others: Vec<_> = (1..64).map(|n| occupy(address(6), n)).collect();
    let refused = reason(Device::soft_with(shared(address(6))));
    assert!(matches!(refused, PortSharingError::Full { slots: 64 }));
    others.pop();
    let last = Side::on(hub(address(6)));
    assert_eq!(slot(last.pair.qpn()), 63);
    drop(first);
}

#[test]
fn a_group_whose_members_do_not_answer_is_left_alone() {
    let stopped = occupy(address(7), 0);
    let refused = reason(Device::soft_with(shared(address(7))));
    assert!(matches!(refused, PortSharingError::Silent), "{refused}");
    drop(stopped);
    hub(address(7));
}

#[test]
fn devices_that_open_at_the_same_time_form_one_group() {
    let devices: Vec<_> = (0..6)
        .map(|_| std::thread::spawn(|| Side::on(hub(address(8)))))
        .collect();
    let sides: Vec<_> = devices.into_iter().map(|it| it.join().unwrap()).collect();
    let mut slots: Vec<_> = sides.iter().map(|side| slot(side.pair.qpn())).collect();
    slots.sort_unstable();
    assert_eq!(slots, [0, 1, 2, 3, 4, 5]);
    // They have the same sockets: each reaches the next.
    for pair in sides.windows(2) {
        let more = pair[1]
            .domain
            .queue_pair(&gdr_rdma::QueuePairOptions::new(&pair[1].queue));
        let more = more.unwrap();
        pair[0].pair.connect(&more.endpoint(), &options()).unwrap();
        more.connect(&pair[0].pair.endpoint(), &options()).unwrap();
        let target = pair[1].memory(1);
        let write = SendRequest::write(WrId(1), target.remote().at(0)).inline(&[9]);
        pair[0].pair.post_send(write).unwrap();
        pair[0].done();
        wait_until(|| fixture::bytes(&target) == [9]);
    }
}

#[test]
fn devices_join_while_the_last_members_end() {
    let opened = || {
        for _ in 0..40 {
            drop(hub(address(9)));
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(opened);
        }
    });
}
