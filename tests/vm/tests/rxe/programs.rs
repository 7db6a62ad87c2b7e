//! Debian's libibverbs programs, which exchange their queue pair numbers over TCP.

use std::fs;
use std::net::{IpAddr, Ipv6Addr};
use std::process::Command;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Instant;

use anyhow::{Context, bail};
use gdr_vm_tests::rxe_endpoint;

use crate::fixture::{Family, Host};
use crate::process::{LIMIT, Running};

/// Returns the program of a command line, with the options for the device of a host.
fn program(host: Host, line: &str, port: u16) -> anyhow::Result<Command> {
    let mut words = line.split(' ');
    let program = words.next().unwrap_or_default();
    let mut command = host.command(LIMIT, program, words)?;
    let (device, gid_index) = match host {
        Host::Soft => ("gdr0", 0),
        Host::Rxe => ("rxe0", rxe_gid_index()?),
    };
    // Programs see kernel devices in addition to gdr's.
    command.args(["-d", device]);
    let gid_index = gid_index.to_string();
    if program.starts_with("ibv") {
        command.args(["-g", &gid_index]);
    } else {
        // A local ACK timeout of two seconds. Under TCG, the packets that perftest has outstanding take longer than its
        // default of 67 ms, and both ends would repeat all of them.
        command.args(["-x", &gid_index, "-u", "19"]);
    }
    command.args(["-p", &port.to_string()]);
    Ok(command)
}

/// Returns whether a socket listens at a TCP port in the network of this thread.
fn is_listening(port: u16) -> bool {
    // Local address, remote address, and the state LISTEN.
    let (local, state) = (format!(":{port:04X} "), ":0000 0A ");
    ["tcp", "tcp6"].iter().any(|name| {
        let table = fs::read_to_string(format!("/proc/thread-self/net/{name}"));
        let table = table.unwrap_or_default();
        let mut lines = table.lines();
        lines.any(|line| line.contains(&local) && line.contains(state))
    })
}

/// Returns the index of the GID that is rxe's IPv4 address.
fn rxe_gid_index() -> anyhow::Result<u32> {
    const GIDS: &str = "/sys/class/infiniband/rxe0/ports/1/gids";
    let IpAddr::V4(wanted) = rxe_endpoint::V4 else {
        bail!("an address of IPv4 is expected");
    };
    (0..8)
        .find(|index| {
            let text = fs::read_to_string(format!("{GIDS}/{index}")).unwrap_or_default();
            text.trim().parse() == Ok::<Ipv6Addr, _>(wanted.to_ipv6_mapped())
        })
        .with_context(|| format!("{GIDS}: no GID of {wanted}"))
}

/// Runs a command line with the client on one host, and the server on the other.
fn run(line: &str, client: Host, server: Host) -> anyhow::Result<()> {
    /// Each run has its own port, because earlier ones are still closing.
    static NEXT: AtomicU16 = AtomicU16::new(20_000);
    let port = NEXT.fetch_add(1, Ordering::Relaxed);
    let serving = Running::start(server, program(server, line, port)?)?;
    if !server.waits(Instant::now() + LIMIT, || Ok(is_listening(port)))? {
        serving.end("server")?;
        bail!("the server did not listen");
    }
    let mut command = program(client, line, port)?;
    command.arg(server.address(Family::V4).to_string());
    let asked = Running::start(client, command)?.end("client");
    let served = serving.end("server");
    match (asked, served) {
        (Err(asked), Err(served)) => bail!("{asked}\n{served}"),
        (asked, served) => asked.and(served).map(drop),
    }
}

/// Makes tests of command lines: each in both roles.
macro_rules! programs {
    ($($group:ident { $($name:ident: $line:literal,)* })*) => { $(
        mod $group { $(
            mod $name {
                use super::super::{Host, run};

                #[test]
                #[ignore = "runs in the VM"]
                fn passes_from_soft_to_rxe() {
                    run($line, Host::Soft, Host::Rxe).unwrap();
                }

                #[test]
                #[ignore = "runs in the VM"]
                fn passes_from_rxe_to_soft() {
                    run($line, Host::Rxe, Host::Soft).unwrap();
                }
            }
        )* }
    )* };
}

programs! {
    ping_pongs {
        // Messages of few packets, because the timeout of these programs is fixed.
        connection: "ibv_rc_pingpong -n 20 -c -m 1024 -s 1024",
        connection_mtu_4096: "ibv_rc_pingpong -n 20 -c -m 4096",
        connection_events: "ibv_rc_pingpong -n 20 -c -m 4096 -e",
        shared_queue: "ibv_srq_pingpong -n 20 -q 4 -m 4096",
        unreliable: "ibv_uc_pingpong -n 20 -c",
        datagrams: "ibv_ud_pingpong -n 20 -s 1024",
        datagrams_events: "ibv_ud_pingpong -n 20 -s 1024 -e",
    }
    writes {
        rate: "ib_write_bw -F -n 20",
        rate_both_ways: "ib_write_bw -F -n 20 -b -s 100000",
        rate_queue_pairs: "ib_write_bw -F -n 20 -q 4 -m 1024",
        rate_unreliable: "ib_write_bw -F -n 20 -c UC -s 4096",
        latency: "ib_write_lat -F -n 20 -s 4096",
        latency_inline: "ib_write_lat -F -n 20 -I 64 -s 64",
    }
    reads {
        rate: "ib_read_bw -F -n 20",
        rate_both_ways: "ib_read_bw -F -n 20 -b -q 2",
        rate_events: "ib_read_bw -F -n 20 -e -m 1024",
        latency: "ib_read_lat -F -n 20 -s 4096",
    }
    sends {
        rate: "ib_send_bw -F -n 20",
        rate_both_ways: "ib_send_bw -F -n 20 -b -q 2",
        rate_shared_queue: "ib_send_bw -F -n 20 --use-srq -q 2",
        rate_datagrams: "ib_send_bw -F -n 20 -c UD -s 1024",
        rate_unreliable: "ib_send_bw -F -n 20 -c UC -s 4096",
        latency: "ib_send_lat -F -n 20 -s 4096",
        // Without `-t 2` it hangs on any device: before 23.07 a message that arrives before the completion of the send
        // takes its event (docs/chaos.md), the completion stays in a queue for one, and the next does not fit.
        latency_events: "ib_send_lat -F -n 20 -e -Q 1 -t 2 -I 64 -s 64",
        latency_shared_queue: "ib_send_lat -F -n 20 --use-srq",
        latency_datagrams: "ib_send_lat -F -n 20 -c UD -s 64",
    }
    atomics {
        rate: "ib_atomic_bw -F -n 20",
        rate_swaps: "ib_atomic_bw -F -n 20 -A CMP_AND_SWAP -q 2",
        rate_both_ways: "ib_atomic_bw -F -n 20 -b",
        latency_events: "ib_atomic_lat -F -n 20 -e",
    }
}

/// Returns what `rdma` of iproute2 prints with the verbs library.
fn rdma(words: &[&str]) -> String {
    let words = words.iter().copied();
    let command = Host::Soft.command(LIMIT, "rdma", words).unwrap();
    Running::start(Host::Soft, command)
        .unwrap()
        .end("rdma")
        .unwrap()
}

#[test]
#[ignore = "runs in the VM"]
fn netlink_has_the_devices_of_the_kernel_and_of_the_library() {
    let links = rdma(&["link"]);
    let has = |link: &str| {
        links
            .lines()
            .any(|line| line.starts_with(&format!("link {link} state ACTIVE")))
    };
    assert!(has("rxe0/1") && has("gdr0/1"), "{links}");
    for device in ["rxe0", "gdr0"] {
        let shown = rdma(&["dev", "show", device]);
        assert!(
            shown.contains(&format!(": {device}: node_type ca")),
            "{shown}"
        );
    }
    // Only the kernel counts objects.
    let objects = rdma(&["res", "show", "rxe0"]);
    assert!(objects.contains("rxe0: "), "{objects}");
}
