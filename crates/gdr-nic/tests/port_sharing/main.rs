//! Several processes with soft devices at one address and port. This binary is also the program of the other processes.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a fixture that fails is a test that fails"
)]

mod member;

use std::fmt::Display;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{self, UnixListener};

use gdr_rdma::{
    AckTimeout, ConnectionOptions, Device, Error, Mtu, NicError, PortSharingError, PortUse,
    RetryCount, SendRequest, SocketError, SoftOptions, WcStatus, Wires, WrId,
};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::Signal;

use crate::member::{Member, slot};
use conformance::{Side, connect, wait_until};

fn options() -> ConnectionOptions {
    ConnectionOptions::new(Mtu::B4096)
}

/// Returns the address of one test.
fn address(n: u8) -> IpAddr {
    IpAddr::from([127, 0, 53, n])
}

fn shared(address: IpAddr) -> SoftOptions {
    // A device takes one slot for each shard.
    SoftOptions::new(address)
        .port_use(PortUse::Shared)
        .shards(1)
}

fn hub(address: IpAddr) -> Device {
    Device::soft_with(shared(address)).unwrap()
}

fn reason(result: gdr_rdma::Result<Device>) -> PortSharingError {
    match result {
        Err(Error::Nic(NicError::Socket(SocketError::PortSharing { reason, .. }))) => reason,
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
    // Over shared memory, the connection would notice that the process has ended, and send nothing.
    let device = Device::soft_with(shared(address(2)).wires(Wires::Udp)).unwrap();
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
        // All have one length and one destination; all but the first wait for a poll.
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
    assert_eq!(conformance::bytes(&target), [7; 8]);
    // Further queue pairs get numbers of the same slot, however many there are.
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
    let in_use = |result: gdr_rdma::Result<Device>| {
        matches!(
            result,
            Err(Error::Nic(NicError::Socket(SocketError::PortInUse { .. })))
        )
    };
    let first = hub(address(5));
    assert!(in_use(Device::soft(address(5))));
    drop(first);
    let first = Device::soft(address(5)).unwrap();
    assert!(in_use(Device::soft_with(shared(address(5)))));
    drop(first);
    hub(address(5));
}

/// Binds the name of a slot, or of the lock, as a process that never answers.
fn occupy(address: IpAddr, slot: impl Display) -> UnixListener {
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
fn a_name_without_sockets_behind_it_is_passed_over() {
    let silent = occupy(address(7), 0);
    let device = Side::on(hub(address(7)));
    assert_eq!(slot(device.pair.qpn()), 1);
    // A second device skips the silent name and joins the group.
    assert_eq!(slot(Side::on(hub(address(7))).pair.qpn()), 2);
    drop(silent);
}

/// Connects to a name until its backlog is full.
fn crowd(address: IpAddr, name: impl Display) -> Vec<OwnedFd> {
    let address = SocketAddr::new(address, gdr_roce::wire::UDP_PORT);
    let name = format!("gdr-roce/{address}/{name}");
    let name = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
    let mut waiting = Vec::new();
    loop {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let (family, kind) = (AddressFamily::UNIX, SocketType::STREAM);
        let socket = rustix::net::socket_with(family, kind, flags, None).unwrap();
        match rustix::net::connect(&socket, &name) {
            Ok(()) => waiting.push(socket),
            Err(Errno::AGAIN) => return waiting,
            Err(errno) => panic!("{errno}"),
        }
    }
}

#[test]
fn crowded_names_are_passed_over() {
    let silent = [occupy(address(10), 0), occupy(address(10), 5)];
    let _waiting = [crowd(address(10), 0), crowd(address(10), 5)];
    assert_eq!(slot(Side::on(hub(address(10))).pair.qpn()), 1);
    drop(silent);
}

#[test]
fn the_lock_of_a_process_that_does_not_join_is_not_waited_for() {
    let lock = occupy(address(11), "lock");
    let _waiting = crowd(address(11), "lock");
    let first = Side::on(hub(address(11)));
    assert_eq!(slot(Side::on(hub(address(11))).pair.qpn()), 1);
    drop((lock, first));
}

#[test]
fn the_name_of_a_port_without_a_device_does_not_keep_others_from_it() {
    let name = occupy(address(16), "sole");
    let _waiting = crowd(address(16), "sole");
    hub(address(16));
    drop(name);
}

#[test]
fn devices_that_make_a_group_without_its_lock_form_one() {
    let _lock = occupy(address(12), "lock");
    let _waiting = crowd(address(12), "lock");
    assert_one_group(&open_at_once(address(12), 4));
}

#[test]
fn a_stopped_member_is_passed_over_and_named_if_there_is_no_other() {
    let device = hub(address(13));
    let mut member = Member::start(&device);
    let process = member.process();
    let signal = |signal| rustix::process::kill_process(process, signal).unwrap();
    signal(Signal::STOP);
    wait_until(|| member.is_stopped());
    // Another member, which answers, has the first slot.
    drop(hub(address(13)));
    member.leave_for(hub(address(15)));
    drop(device);
    let refused = reason(Device::soft_with(shared(address(13))));
    let stopped = process.as_raw_nonzero().get();
    assert!(
        matches!(refused, PortSharingError::Stopped { process } if process == stopped),
        "{refused}"
    );
    signal(Signal::CONT);
    hub(address(13));
}

#[test]
fn a_group_whose_members_do_not_answer_is_left_alone() {
    let silent = occupy(address(14), 0);
    let at = SocketAddr::new(address(14), gdr_roce::wire::UDP_PORT);
    let bound = std::net::UdpSocket::bind(at).unwrap();
    let refused = reason(Device::soft_with(shared(address(14))));
    assert!(matches!(refused, PortSharingError::Silent), "{refused}");
    drop((silent, bound));
    hub(address(14));
}

/// Opens devices concurrently.
fn open_at_once(address: IpAddr, devices: usize) -> Vec<Side> {
    let devices: Vec<_> = (0..devices)
        .map(|_| std::thread::spawn(move || Side::on(hub(address))))
        .collect();
    devices.into_iter().map(|it| it.join().unwrap()).collect()
}

/// Fails unless the devices share their sockets, so that each reaches the next.
fn assert_one_group(sides: &[Side]) {
    for pair in sides.windows(2) {
        let more = pair[1].another();
        pair[0].pair.connect(&more.endpoint(), &options()).unwrap();
        more.connect(&pair[0].pair.endpoint(), &options()).unwrap();
        let target = pair[1].memory(1);
        let write = SendRequest::write(WrId(1), target.remote().at(0)).inline(&[9]);
        pair[0].pair.post_send(write).unwrap();
        pair[0].done();
        wait_until(|| conformance::bytes(&target) == [9]);
    }
}

#[test]
fn devices_that_open_at_the_same_time_form_one_group() {
    let sides = open_at_once(address(8), 6);
    let mut slots: Vec<_> = sides.iter().map(|side| slot(side.pair.qpn())).collect();
    slots.sort_unstable();
    assert_eq!(slots, [0, 1, 2, 3, 4, 5]);
    assert_one_group(&sides);
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
