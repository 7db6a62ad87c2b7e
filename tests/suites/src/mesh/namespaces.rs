//! Hosts in network namespaces of this process, connected by a bridge.
//!
//! A user namespace grants the necessary rights, so no privileges are needed. Each namespace lives as long as a process
//! that waits in it.

use std::io::{BufRead, BufReader};
use std::net::Ipv4Addr;
use std::process::{Command, Stdio};

use anyhow::Context;

use crate::running::Running;
use xtask_build::results::Unavailable;

/// How long the processes wait if nothing ends them.
const LIFETIME: &str = "exec sleep 900";
/// The bridge.
const BRIDGE: &str = "mesh";

/// The hosts and their network.
pub(super) struct Namespaces {
    /// Dropped before the bridge.
    hosts: Vec<Running>,
    bridge: Running,
}

impl Namespaces {
    /// Makes this many hosts; those that this machine does not permit are [`Unavailable`].
    pub(super) fn new(hosts: usize) -> anyhow::Result<Self> {
        let mut own = Command::new("unshare");
        own.args(["--user", "--map-root-user", "--net", "--"]);
        let mut namespaces = Self {
            hosts: Vec::new(),
            bridge: holder(own)?,
        };
        namespaces.on_bridge(&["ip", "link", "add", BRIDGE, "type", "bridge"])?;
        namespaces.on_bridge(&["ip", "link", "set", BRIDGE, "up"])?;
        for host in 0..hosts {
            namespaces.add(host)?;
        }
        Ok(namespaces)
    }

    fn add(&mut self, host: usize) -> anyhow::Result<()> {
        let mut inner = entered(&self.bridge);
        inner.args(["unshare", "--net", "--"]);
        self.hosts.push(holder(inner)?);
        let (port, process) = (format!("port{host}"), self.hosts[host].id().to_string());
        self.on_bridge(&[
            "ip", "link", "add", &port, "type", "veth", "peer", "name", "near",
        ])?;
        self.on_bridge(&["ip", "link", "set", "near", "netns", &process])?;
        self.on_bridge(&["ip", "link", "set", &port, "master", BRIDGE, "up"])?;
        let address = format!("{}/24", self.address(host));
        for command in [
            ["ip", "address", "add", &address, "dev", "near"].as_slice(),
            &["ip", "link", "set", "near", "up"],
            &["ip", "link", "set", "lo", "up"],
        ] {
            self.on(host, command)?;
        }
        Ok(())
    }

    /// Returns the address of a host.
    pub(super) fn address(&self, host: usize) -> Ipv4Addr {
        Ipv4Addr::from_bits(Ipv4Addr::new(10, 77, 0, 1).to_bits() + host as u32)
    }

    /// Limits a host's sending rate, in the syntax of tc(8): `400kbit`.
    pub(super) fn throttle(&self, host: usize, rate: &str) -> anyhow::Result<()> {
        self.on(
            host,
            &[
                "tc", "qdisc", "add", "dev", "near", "root", "tbf", "rate", rate, "burst", "10kb",
                "latency", "4s",
            ],
        )
    }

    /// Returns a command that runs on a host; the program must still be added.
    pub(super) fn command(&self, host: usize) -> Command {
        entered(&self.hosts[host])
    }

    fn on_bridge(&self, words: &[&str]) -> anyhow::Result<()> {
        run(entered(&self.bridge), words)
    }

    fn on(&self, host: usize, words: &[&str]) -> anyhow::Result<()> {
        run(self.command(host), words)
    }
}

/// Starts a process in the namespaces that `command` makes. They exist once it has printed a line.
fn holder(mut command: Command) -> anyhow::Result<Running> {
    command.args(["sh", "-c"]);
    command.arg(format!("echo ready; {LIFETIME}"));
    let mut holder = Running::start_with(command, Stdio::piped(), Stdio::null())
        .map_err(|error| Unavailable::new(format!("no namespaces: {error:#}")))?;
    let output = holder.take_output().context("a process has no output")?;
    let mut line = String::new();
    // If the process fails it ends, and so does this read.
    BufReader::new(output).read_line(&mut line)?;
    if line.trim() != "ready" {
        let reason = "this machine permits no user and network namespaces (unshare -rn)";
        return Err(Unavailable::new(reason).into());
    }
    Ok(holder)
}

/// Returns a command in the namespaces of a process.
fn entered(holder: &Running) -> Command {
    let mut command = Command::new("nsenter");
    command.args(["--target", &holder.id().to_string()]);
    command.args(["--user", "--net", "--"]);
    command
}

/// Runs a program that configures the network. Features missing from the kernel or the machine give [`Unavailable`].
fn run(mut command: Command, words: &[&str]) -> anyhow::Result<()> {
    let output = command
        .args(words)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| Unavailable::new(format!("nsenter cannot be started: {error}")))?;
    if output.status.success() {
        return Ok(());
    }
    let messages = String::from_utf8_lossy(&output.stderr);
    let (line, why) = (words.join(" "), messages.trim());
    Err(Unavailable::new(format!("`{line}` fails in a namespace: {why}")).into())
}
