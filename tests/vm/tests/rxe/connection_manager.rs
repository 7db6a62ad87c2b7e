//! Debian's librdmacm programs, and perftest with librdmacm: the kernel's connection manager with rxe on one host,
//! gdr's on the other.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::process::Command;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use conformance::soon;
use gdr_vm_tests::netem::Netem;
use gdr_vm_tests::rxe_endpoint::{self, RxeDatagrams};

use crate::fixture::{Family, Host};
use crate::process::{LIMIT, Running};

/// Port of udaddy, which has no option for it.
const UDADDY: u16 = 7174;
/// How long programs may take in a network that loses messages. The kernel waits 8.6 seconds for each answer.
const LOSSY_LIMIT: Duration = Duration::from_secs(240);

/// How often a hundred connections are made in each role.
const ROUNDS: usize = 5;

/// A program, its arguments for both sides, and its port.
struct Line {
    program: &'static str,
    arguments: Vec<&'static str>,
    port: u16,
}

impl Line {
    fn new(line: &'static str) -> Self {
        /// Each run has its own port, because earlier ones are still closing.
        static NEXT: AtomicU16 = AtomicU16::new(21_000);
        let mut words = line.split(' ');
        let program = words.next().unwrap_or_default();
        let port = match program {
            "udaddy" => UDADDY,
            _ => NEXT.fetch_add(1, Ordering::Relaxed),
        };
        Self {
            program,
            arguments: words.collect(),
            port,
        }
    }

    /// Returns the arguments of another side, with the same port.
    fn against(&self, line: &'static str) -> Self {
        Self {
            port: self.port,
            ..Self::new(line)
        }
    }

    fn start(&self, host: Host, limit: Duration, place: &[&str]) -> anyhow::Result<Running> {
        let port = self.port.to_string();
        let mut arguments = self.arguments.clone();
        if self.port != UDADDY {
            arguments.extend(["-p", &port]);
        }
        arguments.extend(place);
        Running::start(host, host.command(limit, self.program, arguments)?)
    }

    /// Starts a server at an address, and waits until it listens.
    fn serve(&self, host: Host, at: IpAddr, limit: Duration) -> anyhow::Result<Running> {
        let at = at.to_string();
        let serving = match self.program {
            "rping" => self.start(host, limit, &["-s", "-a", &at]),
            perftest if perftest.starts_with("ib_") => self.start(host, limit, &[]),
            _ => self.start(host, limit, &["-b", &at]),
        }?;
        if !host.waits(Instant::now() + LIMIT, || is_listening(host, self.port))? {
            let printed = serving.end("server")?;
            bail!("the server did not listen: {printed}");
        }
        Ok(serving)
    }

    /// Starts a client of the server at an address.
    fn ask(&self, host: Host, at: IpAddr, limit: Duration) -> anyhow::Result<Running> {
        let at = at.to_string();
        match self.program {
            "rping" => self.start(host, limit, &["-c", "-a", &at]),
            perftest if perftest.starts_with("ib_") => self.start(host, limit, &[&at]),
            _ => self.start(host, limit, &["-s", &at]),
        }
    }
}

/// Returns the kernel's identifiers, a line for each.
fn kernel_ids() -> anyhow::Result<String> {
    let mut command = Command::new("/usr/bin/rdma");
    let listing = command.args(["resource", "show", "cm_id"]).output()?;
    Ok(String::from_utf8_lossy(&listing.stdout).into_owned())
}

/// Returns whether a program of a host listens at a port of the connection manager.
fn is_listening(host: Host, port: u16) -> anyhow::Result<bool> {
    match host {
        Host::Soft => {
            // Processes at one address find each other by names of Unix sockets.
            let names = fs::read_to_string("/proc/thread-self/net/unix")?;
            let service = format!("{port:04x}");
            let mut names = names.lines();
            Ok(names.any(|name| name.contains("/cm/service/") && name.ends_with(&service)))
        }
        Host::Rxe => {
            let port = format!(":{port} ");
            let ids = kernel_ids()?;
            let mut ids = ids.lines();
            Ok(ids.any(|id| id.contains(" LISTEN ") && id.contains(&port)))
        }
    }
}

/// Runs a command line with the client on one host, and the server on the other.
fn run(line: &'static str, family: Family, client: Host, server: Host) -> anyhow::Result<()> {
    let line = Line::new(line);
    let at = server.address(family);
    let serving = line.serve(server, at, LIMIT)?;
    let asked = line.ask(client, at, LIMIT)?.end("client");
    let served = serving.end("server");
    asked.and(served).map(drop)
}

/// Makes tests of command lines: each in both roles.
macro_rules! programs {
    ($($name:ident: $family:ident $line:literal,)*) => { $(
        mod $name {
            use super::{Family, Host, run};

            #[test]
            #[ignore = "runs in the VM"]
            fn passes_from_soft_to_rxe() {
                run($line, Family::$family, Host::Soft, Host::Rxe).unwrap();
            }

            #[test]
            #[ignore = "runs in the VM"]
            fn passes_from_rxe_to_soft() {
                run($line, Family::$family, Host::Rxe, Host::Soft).unwrap();
            }
        }
    )* };
}

programs! {
    rping: V4 "rping -V -C 20 -S 4096",
    rping_ipv6: V6 "rping -V -C 20 -S 4096",
    rping_own_queue_pair: V4 "rping -q -V -C 20",
    connections: V4 "ucmatose -c 10 -C 10 -S 5000",
    connections_ipv6: V6 "ucmatose -c 10 -C 10 -S 1000",
    connections_with_a_service_type: V4 "ucmatose -t 104 -a 14 -c 3 -C 10",
    moved_channels: V4 "ucmatose -m -c 3 -C 10",
    datagrams: V4 "udaddy -c 5 -C 10 -S 1000",
    datagrams_ipv6: V6 "udaddy -c 5 -C 10 -S 500",
    sockets: V4 "rstream -I 5 -C 20 -S 10000 -T v",
    sockets_ipv6: V6 "rstream -I 5 -C 20 -S 1000 -T v",
    sockets_nonblocking: V4 "rstream -I 5 -C 20 -S 1000 -T n",
    sockets_resolved: V4 "rstream -I 5 -C 20 -S 1000 -T r",
    send_rate: V4 "ib_send_bw -R -F -n 20",
    send_latency_datagrams: V4 "ib_send_lat -R -F -n 20 -c UD -s 64",
    write_rate: V4 "ib_write_bw -R -F -n 20 -b -q 2",
    read_latency: V4 "ib_read_lat -R -F -n 20 -s 4096",
}

/// Returns what a client of cmtime printed, which is the only place where a failed connection shows.
fn times(printed: &str) -> anyhow::Result<&str> {
    if ["event:", "RDMA_CM_EVENT", "fail"]
        .iter()
        .any(|bad| printed.contains(bad))
    {
        bail!("a connection failed:\n{printed}");
    }
    Ok(printed)
}

/// Waits until the kernel connects with this port, or is connected.
fn await_connection(port: u16) -> anyhow::Result<()> {
    let port = format!(":{port} ");
    let is_there = || {
        let ids = kernel_ids()?;
        let mut ids = ids.lines();
        Ok(ids.any(|id| id.contains(" CONNECT ") && id.contains(&port)))
    };
    if Host::Rxe.waits(Instant::now() + LIMIT, is_there)? {
        Ok(())
    } else {
        bail!("no connection: {}", kernel_ids()?)
    }
}

/// Makes a hundred connections at a time to one server, a thousand in both roles together. Each time, the processes of
/// another pair are killed meanwhile, the first of which receives the messages for all processes of gdr's address.
fn connect_beside_killed_processes(client: Host, server: Host) -> anyhow::Result<()> {
    let start_other = || {
        let other = Line::new("ucmatose -c 30 -C 10");
        let at = server.address(Family::V4);
        let serving = other.serve(server, at, LIMIT)?;
        let asking = other.ask(client, at, LIMIT)?;
        await_connection(other.port)?;
        anyhow::Ok([serving, asking])
    };
    let mut killed = start_other()?;
    let line = Line::new("cmtime -c 100");
    let at = server.address(Family::V4);
    let serving = line.serve(server, at, LOSSY_LIMIT)?;
    for round in 0..ROUNDS {
        let asking = line.ask(client, at, LIMIT)?;
        await_connection(line.port)?;
        drop(killed);
        let timed = asking
            .end("client")
            .and_then(|printed| times(&printed).map(str::to_owned));
        match timed {
            Ok(printed) if round == ROUNDS - 1 => println!("{printed}"),
            Ok(_) => {}
            Err(error) => bail!("{error:#}; the server:\n{}", serving.kill()?),
        }
        killed = start_other()?;
    }
    Ok(())
}

/// Defines tests with the client on one host and the server on the other, in both roles.
macro_rules! in_both_roles {
    ($($name:ident: $test:path,)*) => { $(
        mod $name {
            use super::*;

            #[test]
            #[ignore = "runs in the VM"]
            fn from_soft_to_rxe() {
                $test(Host::Soft, Host::Rxe).unwrap();
            }

            #[test]
            #[ignore = "runs in the VM"]
            fn from_rxe_to_soft() {
                $test(Host::Rxe, Host::Soft).unwrap();
            }
        }
    )* };
}

in_both_roles! {
    connections_succeed_beside_killed_processes: connect_beside_killed_processes,
    connections_succeed_where_messages_are_lost: connect_with_losses,
    a_port_without_a_listener_is_refused: be_refused,
    a_datagram_port_without_a_listener_is_refused: be_refused_datagrams,
    a_program_refuses_a_connection: be_refused_by_program,
    a_program_refuses_datagrams: be_refused_datagrams_by_program,
    a_process_of_soft_notices_that_its_peer_on_rxe_was_killed: notice_killed_peer,
}

/// Makes twenty-five connections while a tenth of the messages is lost.
fn connect_with_losses(client: Host, server: Host) -> anyhow::Result<()> {
    let line = Line::new("cmtime -c 25");
    let at = server.address(Family::V4);
    let _serving = line.serve(server, at, LOSSY_LIMIT)?;
    let netem = Netem::enable_for_management("loss 10%")?;
    let printed = line.ask(client, at, LOSSY_LIMIT)?.end("client")?;
    println!("{}", times(&printed)?);
    let lost = netem.lost()?;
    println!("{lost} messages lost");
    (lost > 0).then_some(()).context("no message was lost")
}

/// Finds twenty datagram services while a tenth of the messages is lost. Only with a server of gdr: if the answer to a
/// request was lost, the kernel takes its repetition for a new request, and udaddy expects no more than twenty.
#[test]
#[ignore = "runs in the VM"]
fn datagram_services_of_soft_are_found_where_messages_are_lost() {
    let (client, server) = (Host::Rxe, Host::Soft);
    // The server ends after the data, which are not lost.
    let line = Line::new("udaddy -c 20 -C 5");
    let at = server.address(Family::V4);
    let serving = line.serve(server, at, LOSSY_LIMIT).unwrap();
    let netem = Netem::enable_for_management("loss 10%").unwrap();
    line.ask(client, at, LOSSY_LIMIT)
        .unwrap()
        .end("client")
        .unwrap();
    assert_ne!(netem.lost().unwrap(), 0);
    serving.end("server").unwrap();
}

fn expect_in(printed: &str, expected: &str) -> anyhow::Result<()> {
    printed
        .contains(expected)
        .then_some(())
        .with_context(|| format!("{expected} is not in:\n{printed}"))
}

/// Returns what a client printed if no server listens at its port, although one listens at another.
fn printed_without_listener(
    line: &'static str,
    client: Host,
    server: Host,
) -> anyhow::Result<String> {
    let at = server.address(Family::V4);
    let _other = Line::new("rping").serve(server, at, LIMIT)?;
    Line::new(line)
        .ask(client, at, LIMIT)?
        .end_somehow("client")
}

fn be_refused(client: Host, server: Host) -> anyhow::Result<()> {
    let printed = printed_without_listener("rping", client, server)?;
    // IB_CM_REJ_INVALID_SERVICE_ID
    expect_in(&printed, "RDMA_CM_EVENT_REJECTED, error 8")
}

fn be_refused_datagrams(client: Host, server: Host) -> anyhow::Result<()> {
    let printed = printed_without_listener("udaddy -c 1", client, server)?;
    // IB_SIDR_UNSUPPORTED
    expect_in(&printed, "RDMA_CM_EVENT_UNREACHABLE, error: 1")
}

/// Checks that a server that has no room for that many messages refuses.
fn be_refused_by_program(client: Host, server: Host) -> anyhow::Result<()> {
    let at = server.address(Family::V4);
    let line = Line::new("ucmatose -C 2000000000");
    let _serving = line.serve(server, at, LIMIT)?;
    let line = line.against("ucmatose -C 1");
    let printed = line.ask(client, at, LIMIT)?.end_somehow("client")?;
    // IB_CM_REJ_CONSUMER_DEFINED
    expect_in(&printed, "RDMA_CM_EVENT_REJECTED, error: 28")
}

/// Checks that a server whose messages are longer than the MTU refuses.
fn be_refused_datagrams_by_program(client: Host, server: Host) -> anyhow::Result<()> {
    let at = server.address(Family::V4);
    let line = Line::new("udaddy -c 1 -S 5000");
    let _serving = line.serve(server, at, LIMIT)?;
    let line = line.against("udaddy -c 1");
    let printed = line.ask(client, at, LIMIT)?.end_somehow("client")?;
    // IB_SIDR_REJECT
    expect_in(&printed, "RDMA_CM_EVENT_UNREACHABLE, error: 2")
}

/// A group, and the number and size of the messages sent to it.
const GROUP: Ipv4Addr = Ipv4Addr::new(239, 5, 6, 7);
const MESSAGES: u64 = 20;
const MESSAGE: u32 = 1000;

/// Starts a program that joins the group.
fn join(host: Host, role: &[&str]) -> anyhow::Result<Running> {
    let (at, group) = (host.address(Family::V4).to_string(), GROUP.to_string());
    let (count, len) = (MESSAGES.to_string(), MESSAGE.to_string());
    let arguments = ["-m", &group, "-b", &at, "-C", &count, "-S", &len];
    let arguments = arguments.into_iter().chain(role.iter().copied());
    Running::start(host, host.command(LIMIT, "mckey", arguments)?)
}

/// Checks that a program that has joined the group receives what `send` sends to it from the other host.
fn reach_a_group(receiver: Host, send: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<()> {
    let receiving = join(receiver, &[])?;
    if !receiver.waits(Instant::now() + LIMIT, || has_joined(receiver, GROUP))? {
        bail!("the receiver did not join: {}", receiving.kill()?);
    }
    let sent = send();
    let received = receiving.end("receiver");
    sent.and(received).map(drop)
}

#[test]
#[ignore = "runs in the VM"]
fn messages_of_soft_to_a_group_arrive_at_rxe() {
    let send = || join(Host::Soft, &["-s"])?.end("sender").map(drop);
    reach_a_group(Host::Rxe, send).unwrap();
}

/// Otherwise the program would destroy its queue pair before rxe has sent what was posted.
#[test]
#[ignore = "runs in the VM"]
fn messages_of_rxe_to_a_group_arrive_at_soft() {
    /// `RDMA_UDP_QKEY` of Linux.
    const QKEY: u32 = 0x0123_4567;
    const EVERY_MEMBER: u32 = 0xff_ffff;
    let send = || {
        let device = rxe_endpoint::Device::open("rxe0")?;
        let rxe = RxeDatagrams::new(&device, rxe_endpoint::V4, QKEY, MESSAGE as usize)?;
        let group = rxe.address_handle(GROUP.into())?;
        for id in 0..MESSAGES {
            rxe.send_datagram(id, (0, MESSAGE), (&group, EVERY_MEMBER, QKEY), None)?;
            assert_eq!(rxe.done(soon()).id, id);
        }
        Ok(())
    };
    reach_a_group(Host::Soft, send).unwrap();
}

/// Returns whether a queue pair of a host receives from a group.
fn has_joined(host: Host, group: Ipv4Addr) -> anyhow::Result<bool> {
    let [a, b, c, d] = group.octets();
    let (table, group) = match host {
        // Joined by a socket.
        Host::Soft => ("igmp", format!("{:08X}", u32::from_le_bytes([a, b, c, d]))),
        // For either family, rxe receives what IPv6 would send to the group.
        Host::Rxe => ("dev_mcast", format!("3333{a:02x}{b:02x}{c:02x}{d:02x}")),
    };
    let table = fs::read_to_string(format!("/proc/thread-self/net/{table}"))?;
    Ok(table.contains(&group))
}

/// Checks that the kernel ends the connections of a killed process, even one that was not answered yet. Nothing does
/// that for a process of gdr.
fn notice_killed_peer(client: Host, server: Host) -> anyhow::Result<()> {
    /// A request or answer that is repeated without success takes 52 seconds.
    const SOON: Duration = Duration::from_secs(30);
    let at = server.address(Family::V4);
    for connects in [Progress::Begun, Progress::Established] {
        let line = Line::new("rping");
        let serving = line.serve(server, at, SOON)?;
        let before = packets()?;
        let asking = line.ask(client, at, SOON)?;
        await_connection(line.port)?;
        if connects == Progress::Established {
            let exchanges = || Ok(packets()? - before > 100);
            if !client.waits(Instant::now() + SOON, exchanges)? {
                bail!("no packets: {}", asking.kill()?);
            }
        }
        let (killed, left) = match client {
            Host::Rxe => (asking, serving),
            Host::Soft => (serving, asking),
        };
        killed.kill()?;
        let printed = left.end_somehow("other side")?;
        if connects == Progress::Established {
            expect_in(&printed, "DISCONNECT EVENT")?;
        }
    }
    Ok(())
}

/// How far a connection has come when one of its sides is killed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Progress {
    Begun,
    Established,
}

/// Returns how many packets rxe has received.
fn packets() -> anyhow::Result<u64> {
    const COUNTER: &str = "/sys/class/infiniband/rxe0/ports/1/hw_counters/rcvd_pkts";
    let text = fs::read_to_string(COUNTER)?;
    text.trim().parse().with_context(|| text.clone())
}
