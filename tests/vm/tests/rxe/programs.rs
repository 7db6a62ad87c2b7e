//! Debian's programs of libibverbs, unmodified: on one host in the environment of `gdr run`, on the
//! other with rxe.

use std::fs;
use std::net::{IpAddr, Ipv6Addr};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU16, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use gdr_vm_tests::near::{self, in_near};
use gdr_vm_tests::rxe_endpoint;

/// After so many seconds a program did not end. Each takes about one under TCG on an idle host, and was seen to
/// take 12 on a busy one; a packet that is lost costs it two.
const LIMIT: u64 = 60;
/// How often it is looked whether a server listens.
const LISTEN_INTERVAL: Duration = Duration::from_millis(5);

/// The host that a program runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Host {
    /// With the soft provider.
    Soft,
    Rxe,
}

impl Host {
    fn address(self) -> IpAddr {
        match self {
            Self::Soft => near::V4,
            Self::Rxe => rxe_endpoint::V4,
        }
    }

    /// Calls `work` in the network of this host.
    fn enter<T: Send>(self, work: impl FnOnce() -> anyhow::Result<T> + Send) -> anyhow::Result<T> {
        match self {
            Self::Soft => in_near(work),
            Self::Rxe => work(),
        }
    }

    /// The program of a command line, with the options for this host's device. It is ended after
    /// [`LIMIT`].
    fn program(self, line: &str, port: u16) -> anyhow::Result<Command> {
        // Of completion events rxe loses some (docs/vm.md): its end polls.
        let mut words = line
            .split(' ')
            .filter(|word| *word != "-e" || self == Self::Soft);
        let program = words.next().unwrap_or_default();
        let mut command = Command::new("/usr/bin/busybox");
        command.args(["timeout", &LIMIT.to_string(), "/usr/bin/busybox", "env"]);
        let (device, gid_index) = match self {
            Self::Soft => {
                // For the program only, not for busybox.
                command.args(environment()?);
                ("gdr0", 0)
            }
            Self::Rxe => ("rxe0", rxe_gid_index()?),
        };
        command.arg(format!("/usr/bin/{program}")).args(words);
        // Programs see kernel devices beside those of gdr.
        command.args(["-d", device]);
        let gid_index = gid_index.to_string();
        if program.starts_with("ibv") {
            command.args(["-g", &gid_index]);
        } else {
            // A local ACK timeout of two seconds. Under TCG the packets that perftest has
            // outstanding take longer than its 67 ms, and both ends would repeat all of them.
            command.args(["-x", &gid_index, "-u", "19"]);
        }
        command.args(["-p", &port.to_string()]);
        Ok(command)
    }

    /// Waits until a socket of this host listens at a TCP port; returns whether one does before the
    /// deadline. Connecting would take the place of the client.
    fn listens(self, port: u16, deadline: Instant) -> anyhow::Result<bool> {
        self.enter(|| {
            while !is_listening(port) {
                if Instant::now() > deadline {
                    return Ok(false);
                }
                // Nothing announces it, and the server needs the CPU.
                thread::sleep(LISTEN_INTERVAL);
            }
            Ok(true)
        })
    }
}

/// Whether a socket listens at a TCP port in the network of this thread.
fn is_listening(port: u16) -> bool {
    // The local address, the remote one, and the state LISTEN.
    let (local, state) = (format!(":{port:04X} "), ":0000 0A ");
    ["tcp", "tcp6"].iter().any(|name| {
        let table = fs::read_to_string(format!("/proc/thread-self/net/{name}"));
        let table = table.unwrap_or_default();
        let mut lines = table.lines();
        lines.any(|line| line.contains(&local) && line.contains(state))
    })
}

/// The environment that `gdr run` gives to programs, as words `NAME=value`. Its start takes half a
/// second under TCG, so it is asked once.
fn environment() -> anyhow::Result<&'static [String]> {
    static WORDS: OnceLock<Vec<String>> = OnceLock::new();
    if let Some(words) = WORDS.get() {
        return Ok(words);
    }
    let output = in_near(|| {
        let mut command = Command::new("/gdr/gdr");
        let nic = near::V4.to_string();
        command.args(["run", "--nic", &nic, "--print-env"]);
        command.env("GDR_VERBS_LIBRARY", "/gdr");
        Ok(command.stderr(Stdio::inherit()).output()?)
    })?;
    // `export NAME='value'`
    let text = String::from_utf8_lossy(&output.stdout).replace('\'', "");
    let words: Vec<_> = text
        .lines()
        .filter_map(|line| Some(line.strip_prefix("export ")?.to_owned()))
        .collect();
    let preloads = words.iter().any(|word| word.starts_with("LD_PRELOAD="));
    if !output.status.success() || !preloads {
        bail!("gdr run --print-env: {}: {text}", output.status);
    }
    Ok(WORDS.get_or_init(|| words))
}

/// The index of the GID that is rxe's IPv4 address.
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

/// A program that has started. It is killed when this is dropped.
struct Running(Option<Child>);

impl Running {
    fn start(host: Host, mut command: Command) -> anyhow::Result<Self> {
        host.enter(|| {
            let child = command
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .with_context(|| format!("{command:?}"))?;
            Ok(Self(Some(child)))
        })
    }

    /// Waits for its end, which comes by the limit. Fails unless it succeeds.
    fn end(mut self, role: &str) -> anyhow::Result<()> {
        let child = self.0.take().context("it has ended")?;
        let output = child.wait_with_output()?;
        if !output.status.success() {
            let printed = [output.stdout, output.stderr].concat();
            let printed = String::from_utf8_lossy(&printed).into_owned();
            bail!("the {role} failed ({}):\n{printed}", output.status);
        }
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            // An error means that it has ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Runs a command line with the client on one host, and the server on the other.
fn run(line: &str, client: Host, server: Host) -> anyhow::Result<()> {
    /// Each run has a port of its own: those before it are closing.
    static NEXT: AtomicU16 = AtomicU16::new(20_000);
    let port = NEXT.fetch_add(1, Ordering::Relaxed);
    let serving = Running::start(server, server.program(line, port)?)?;
    let deadline = Instant::now() + Duration::from_secs(LIMIT);
    if !server.listens(port, deadline)? {
        serving.end("server")?;
        bail!("the server did not listen");
    }
    let mut command = client.program(line, port)?;
    command.arg(server.address().to_string());
    let asked = Running::start(client, command)?.end("client");
    let served = serving.end("server");
    asked.and(served)
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
        // Messages of few packets: the timeout of these programs is fixed.
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
        latency_events: "ib_send_lat -F -n 20 -e -I 64 -s 64",
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
