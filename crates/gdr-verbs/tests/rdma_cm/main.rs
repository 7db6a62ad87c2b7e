//! Connections between processes with the preloaded library, and their end when one process ends. The processes run
//! this binary, with one of the programs below.

#![allow(clippy::unwrap_used)]

#[path = "../library/built.rs"]
mod built;
mod device;

use std::env;
use std::io::{BufRead, BufReader, Lines, Write};
use std::net::{IpAddr, SocketAddrV4};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use gdr_cm::{Arrival, CmEvent, IdPair, Management, Manager, Message, ReceivedMad, Rep, ServiceId};
use gdr_nic::{Deadline, Device, PortUse, Psn, Qkey, Qpn, SoftOptions, Time};

use crate::built::libraries;
use crate::device::{
    CONNECT_REQUEST, CONNECT_RESPONSE, Cm, DISCONNECTED, ESTABLISHED, MULTICAST_JOIN, RC_OF_ANY,
    REJECTED, UDP, XRC_RECV, XRC_SEND,
};

/// Environment variables with the address of a program, and the address of its peer.
const OWN: &str = "GDR_NICS";
const PEER: &str = "GDR_TEST_PEER";
const PORT: u16 = 7471;
/// Longer than any correct wait, and shorter than a wait for a peer that does not answer.
const LIMIT: Duration = Duration::from_secs(40);

/// A process that runs one of the programs, and is killed when the test ends.
struct Program {
    child: Child,
    to: ChildStdin,
    from: Lines<BufReader<ChildStdout>>,
}

impl Program {
    fn start(name: &str, own: &str, peer: &str) -> Self {
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["--exact", name, "--ignored", "--nocapture"])
            .env("LD_PRELOAD", libraries().join("libgdr-verbs.so"))
            .env("GDR_ONLY_SOFT", "1")
            .env(OWN, own)
            .env(PEER, peer)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Self {
            to: child.stdin.take().unwrap(),
            from: BufReader::new(child.stdout.take().unwrap()).lines(),
            child,
        }
    }

    /// Waits for a line of the program's output.
    #[track_caller]
    fn expect(&mut self, expected: &str) {
        self.expect_any(|line| line == expected);
    }

    #[track_caller]
    fn expect_any(&mut self, is_expected: impl Fn(&str) -> bool) {
        let found = self.from.find(|line| is_expected(line.as_deref().unwrap()));
        assert!(found.is_some(), "the program ended before");
    }

    fn go_on(&mut self) {
        self.to.write_all(b"\n").unwrap();
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

fn variable(name: &str) -> SocketAddrV4 {
    SocketAddrV4::new(env::var(name).unwrap().parse().unwrap(), PORT)
}

/// Waits for a line from the test.
fn wait() {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
}

/// Ends a program that hangs.
fn limit() {
    // SAFETY: has no preconditions.
    unsafe { libc::alarm(LIMIT.as_secs() as u32) };
}

/// Accepts connections; prints their total number whenever none is left.
#[test]
#[ignore = "a program of the tests"]
fn server() {
    limit();
    let cm = Cm::open();
    let listener = cm.create();
    assert_eq!(cm.bind(listener, variable(OWN)), 0);
    assert_eq!(cm.listen(listener), 0);
    println!("listening");
    let (mut began, mut ended) = (0_u32, 0_u32);
    loop {
        let event = cm.event();
        let is_over = match event.kind {
            CONNECT_REQUEST => {
                began += 1;
                // This fails if the peer has ended: that generates no event before the program has accepted.
                cm.accept(event.id, 0x2_0000 + began) != 0
            }
            ESTABLISHED => false,
            REJECTED | DISCONNECTED => true,
            _ => panic!("{event:?}"),
        };
        if is_over {
            ended += 1;
            cm.destroy(event.id);
            if began == ended {
                println!("{began}");
            }
        }
    }
}

/// Connects a queue pair whose number no other process at its address uses.
fn connect(cm: &Cm, number: u32) -> u32 {
    const NUMBERS: u32 = 1 << 12;
    let of_process = std::process::id() % NUMBERS * NUMBERS;
    cm.connect(variable(PEER), of_process + number % NUMBERS)
}

fn connect_and_disconnect(cm: &Cm, number: u32) {
    let id = connect(cm, number);
    cm.disconnect(id);
    cm.expect(id, DISCONNECTED);
    cm.destroy(id);
}

/// Connects and disconnects a hundred times; then connects once more and waits for the end.
#[test]
#[ignore = "a program of the tests"]
fn client() {
    limit();
    let cm = Cm::open();
    for number in 1..=100 {
        connect_and_disconnect(&cm, number);
    }
    let id = connect(&cm, 101);
    println!("connected");
    cm.expect(id, DISCONNECTED);
    println!("disconnected");
}

/// Connects and disconnects.
#[test]
#[ignore = "a program of the tests"]
fn busy_client() {
    limit();
    let cm = Cm::open();
    for number in 1.. {
        connect_and_disconnect(&cm, number);
        println!("{number}");
    }
}

/// Connects, waits for a line, and exits without closing the connection.
#[test]
#[ignore = "a program of the tests"]
fn leaver() {
    limit();
    let cm = Cm::open();
    connect(&cm, 1);
    println!("connected");
    wait();
    std::process::exit(0);
}

/// Joins multicast groups and leaves them.
#[test]
#[ignore = "a program of the tests"]
fn member() {
    limit();
    let group = SocketAddrV4::new([239, 4, 4, 4].into(), 0);
    let cm = Cm::open();
    let id = cm.create_in(UDP);
    assert_eq!(cm.join(id, group), None, "without a device");
    cm.bind(id, variable(OWN));
    assert_eq!(cm.join(id, variable(OWN)), None, "the address of a host");
    let membership = cm.join(id, group).unwrap();
    let event = cm.event();
    assert_eq!((event.id, event.kind), (membership, MULTICAST_JOIN));
    // The event has the name of the membership, not of the identifier.
    assert_eq!(event.uid, 8);
    let (qpn, qkey, gid) = event.datagrams;
    assert_eq!((qpn, qkey), (0xff_ffff, 0x0123_4567));
    assert_eq!(gid, group.ip().to_ipv6_mapped().octets());
    assert_eq!(cm.leave(id), None, "the number of the identifier");
    assert_eq!(cm.leave(membership), Some(1));
    assert_eq!(cm.leave(membership), None);
    // Events that were not fetched are discarded with the membership, and memberships with the identifier.
    let unseen = cm.join(id, group).unwrap();
    assert_eq!(cm.leave(unseen), Some(0));
    let last = cm.join(id, group).unwrap();
    let of_connections = cm.create();
    cm.bind(of_connections, variable(OWN));
    assert_eq!(cm.join(of_connections, group), None, "without datagrams");
    cm.destroy(id);
    assert_eq!(cm.leave(last), None);
    let next = cm.create_in(UDP);
    cm.bind(next, variable(OWN));
    let joined = cm.join(next, group).unwrap();
    assert_eq!(
        cm.event().id,
        joined,
        "not the event of a membership that is gone"
    );
    println!("left");
}

#[test]
fn an_identifier_for_datagrams_joins_and_leaves_groups() {
    Program::start("member", "127.0.57.6", "").expect("left");
}

#[test]
fn a_killed_process_ends_its_connections_and_those_of_others_go_on() {
    let (one, other) = ("127.0.57.1", "127.0.57.2");
    let mut server = Program::start("server", one, "");
    server.expect("listening");
    // Two clients at the address of the server, and one at another address.
    let mut clients = [one, one, other].map(|own| Program::start("client", own, one));
    for client in &mut clients {
        client.expect("connected");
    }
    // The client may be killed during any call.
    for own in [one, other] {
        let mut busy = Program::start("busy_client", own, one);
        busy.expect("20");
    }
    drop(clients);
    server.expect_any(|line| line.parse().is_ok_and(|ended: u32| ended >= 343));
    // The server may also be the process that ends.
    let mut clients = [one, other].map(|own| Program::start("client", own, one));
    for client in &mut clients {
        client.expect("connected");
    }
    drop(server);
    for client in &mut clients {
        client.expect("disconnected");
    }
}

/// Connects identifiers of the port space that supports all types of queue pairs.
#[test]
#[ignore = "a program of the tests"]
fn extender() {
    limit();
    let [server, client] = [(); 2].map(|()| Cm::open());
    let listener = server.create_in(XRC_RECV);
    assert_eq!(server.bind(listener, variable(OWN)), 0);
    assert_eq!(server.listen(listener), 0);
    let asking = client.ask(XRC_SEND, variable(OWN), 21);
    let request = server.event();
    assert_eq!((request.kind, request.datagrams.0), (CONNECT_REQUEST, 21));
    assert_eq!(server.accept(request.id, 22), 0);
    let response = client.event();
    assert_eq!((response.id, response.kind), (asking, CONNECT_RESPONSE));
    assert_eq!(response.datagrams.0, 22);
    // The identifier listens for one type only.
    let other = client.ask(RC_OF_ANY, variable(OWN), 23);
    client.expect(other, REJECTED);
    println!("right");
}

#[test]
fn an_extended_connection_is_asked_for_and_accepted() {
    Program::start("extender", "127.0.57.10", "").expect("right");
}

/// Binds its identifiers in all combinations that affect each other.
#[test]
#[ignore = "a program of the tests"]
fn binder_of_several() {
    limit();
    let cm = Cm::open();
    // All addresses of the host use this port for a while, so the other programs must use another one.
    let port = PORT + 1;
    let [own, other, any] =
        [[127, 0, 57, 6], [127, 0, 57, 7], [0; 4]].map(|ip| SocketAddrV4::new(ip.into(), port));
    let first = cm.create();
    assert_eq!(cm.bind(first, own), 0);
    assert_eq!(cm.bind(cm.create(), own), libc::EADDRINUSE);
    assert_eq!(cm.bind(cm.create(), any), libc::EADDRNOTAVAIL);
    let with_another_address = cm.create();
    assert_eq!(cm.bind(with_another_address, other), 0);
    assert_eq!(cm.bind(cm.create_in(UDP), own), 0);
    cm.destroy(first);
    cm.destroy(with_another_address);
    let shared = [cm.create(), cm.create()];
    for id in shared {
        cm.share(id);
        assert_eq!(cm.bind(id, any), 0);
    }
    assert_eq!(cm.bind(cm.create(), own), libc::EADDRNOTAVAIL);
    // A listening identifier does not share its port.
    assert_eq!(cm.listen(shared[0]), libc::EADDRNOTAVAIL);
    cm.destroy(shared[1]);
    assert_eq!(cm.listen(shared[0]), 0);
    let late = cm.create();
    cm.share(late);
    assert_eq!(cm.bind(late, own), libc::EADDRNOTAVAIL);
    println!("right");
}

/// Binds an identifier for each line; prints the result.
#[test]
#[ignore = "a program of the tests"]
fn binder() {
    limit();
    let cm = Cm::open();
    loop {
        wait();
        println!("{}", cm.bind(cm.create(), variable(OWN)));
    }
}

#[test]
fn a_port_is_of_one_identifier_unless_all_share_it() {
    let mut program = Program::start("binder_of_several", "127.0.57.6,127.0.57.7", "");
    program.expect("right");
}

#[test]
fn a_port_is_of_one_process_until_that_ends() {
    const IN_USE: &str = "98";
    let (address, other) = ("127.0.57.8", "127.0.57.9");
    let [mut first, mut second] = [0, 1].map(|_| Program::start("binder", address, ""));
    let mut with_another_address = Program::start("binder", other, "");
    first.go_on();
    first.expect("0");
    second.go_on();
    second.expect(IN_USE);
    with_another_address.go_on();
    with_another_address.expect("0");
    // Dropping the program kills it.
    drop(first);
    second.go_on();
    second.expect("0");
}

#[test]
fn a_process_that_exits_ends_its_connections_for_other_hosts_too() {
    let address = IpAddr::from([127, 0, 57, 4]);
    let options = SoftOptions::new(address)
        .port_use(PortUse::Shared)
        .shards(1);
    let management = Management::open(&Device::open(&options, None).unwrap()).unwrap();
    // The manager watches no process, as for another host, so only messages inform it.
    let mut manager = Manager::new(management.prefix(), 0);
    let service = ServiceId::of_port(0x0106, PORT);
    assert!(management.listen(service).unwrap());
    manager.listen(service);
    let mut client = Program::start("leaver", "127.0.57.5", &address.to_string());
    let start = Instant::now();
    let deadline = Deadline::after(LIMIT);
    while !deadline.has_passed() {
        let received = management.receive(Some(Deadline::after(Duration::from_millis(100))));
        let now = Time::since_epoch(start.elapsed());
        manager.poll(now);
        if let Some(Arrival::Mad(ReceivedMad { from, mad })) = received {
            manager.receive(now, from, &mad);
            assert!(!matches!(Message::parse(&mad), Ok(Message::Rej(_))));
        }
        match manager.poll_event() {
            Some(CmEvent::Requested { id, .. }) => manager.accept(now, id, &rep()).unwrap(),
            Some(CmEvent::Established { .. }) => {
                client.expect("connected");
                client.go_on();
            }
            Some(CmEvent::Disconnected { .. }) => return,
            _ => {}
        }
        while let Some((to, mad)) = manager.poll_transmit() {
            management.send(to, &mad);
        }
    }
    panic!("the connection did not end");
}

fn rep() -> Rep {
    Rep {
        ids: IdPair::default(),
        qkey: Qkey::default(),
        qpn: Qpn::new(99),
        target_qpn: Qpn::default(),
        starting_psn: Psn::new(3),
        responder_resources: 1,
        initiator_depth: 1,
        target_ack_delay: 0,
        has_flow_control: false,
        rnr_retry_count: 7,
        has_shared_receives: false,
        ca_guid: 5,
        private_data: [0; Rep::PRIVATE],
    }
}
