//! `gdr net`: runs a program on hosts in network namespaces.

mod host;
mod job;
mod route_socket;

use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::io::{self, Write as _};
use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::Result;
use gdr_perf::report::Schema;
use gdr_process::NewNamespaces;
use gdr_trace::Ended;
use rustix::io::Errno;
use serde::Serialize;
use tempfile::NamedTempFile;

use self::host::{Host, Plan, Program, address, bridge, interface};
use self::job::{Ending, Job, Stream};
use self::route_socket::{Impairment, RouteSocket};
use super::run::{DeviceOptions, environment};
use crate::command::{CommandSpec, Group, Run};
use crate::exit::{CANNOT_RUN, Exit, NO_PROGRAM, Statuses};
use crate::global::Global;
use crate::launch::{LaunchError, examine, found};
use crate::output::Output;
use crate::units;

/// Run a program on several simulated hosts, which are network namespaces of this machine
///
/// Each host has its own network, host name, process ids, /dev/shm and System V objects, an address on each rail
/// (10.77.RAIL.HOST; host0 is 10.77.0.1), and gdr's RDMA devices at these addresses, as with `gdr run`. The hosts can
/// reach only each other, by address or name. No privileges are needed if user namespaces are permitted.
///
/// Each rank gets torchrun's variables: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK, MASTER_ADDR and
/// MASTER_PORT. It gets no input, and its output is prefixed with the host. When a rank fails, the others are sent
/// SIGTERM and, later, SIGKILL. When gdr exits, all processes on the hosts are killed.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Number of hosts
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=250))]
    hosts: u8,

    /// Number of ranks (processes of the program) per host
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=128))]
    ranks_per_host: u8,

    /// Number of rails per host: interfaces eth0, eth1 and so on, with devices gdr0, gdr1 and so on
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=16))]
    nics: u8,

    /// One-way latency between two hosts (200us, 1ms); like --rate and --loss, this uses netem
    #[arg(long, value_name = "TIME", value_parser = units::time)]
    latency: Option<Duration>,

    /// Rate of each interface in bits per second (100M, 10G)
    #[arg(long, value_name = "BITS", value_parser = units::bit_rate)]
    rate: Option<u64>,

    /// Share of packets that each interface drops (0.1%)
    #[arg(long, value_name = "PERCENT", value_parser = units::share)]
    loss: Option<f64>,

    /// Seconds between SIGTERM and SIGKILL
    #[arg(long, value_name = "SECONDS", default_value_t = 5)]
    kill_after: u16,

    /// Hold the namespaces of a host: gdr starts itself with it
    #[arg(long, hide = true)]
    init: bool,

    /// The program and its arguments
    #[arg(
        value_name = "PROGRAM",
        trailing_var_arg = true,
        allow_hyphen_values = true,
        required_unless_present = "init"
    )]
    program: Vec<OsString>,
}

impl CommandSpec for Options {
    const GROUP: Group = Group::RunPrograms;
    const STATUSES: Statuses = &[
        (
            Exit::Fine,
            "success; otherwise the greatest status of the ranks that failed by themselves (128 + N for a signal \
             N)",
        ),
        (
            Exit::Launcher,
            "the hosts cannot be created, or gdr's verbs library is missing or has a different version",
        ),
        (Exit::NotStarted, CANNOT_RUN),
        (Exit::NotFound, NO_PROGRAM),
    ];
    const EXAMPLES: &'static str = "\
Examples:
  gdr net --hosts 4 -- ./job                        run one rank on each of four hosts
  gdr net --hosts 4 --ranks-per-host 4 -- python train.py
  gdr net --hosts 2 --nics 8 -- ibv_devinfo         give each host eight rails
  gdr net --hosts 2 --latency 1ms --rate 10G --loss 0.1% -- ./job
  gdr net --hosts 2 -- gdr run --require-rdma -- ./job";
    const RUN: Run<Self> = run;
}

/// The port at which rank 0 may listen: torchrun's default.
const MASTER_PORT: u16 = 29500;

/// Hosts cannot be created on this machine.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NetworkError {
    /// No namespaces.
    #[error(
        "the hosts need network namespaces, which are not permitted here (unshare(2): {0}); run gdr as root, or on \
         Ubuntu permit them with `sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0`; start a Docker \
         container with `--cap-add SYS_ADMIN --cap-add NET_ADMIN --security-opt apparmor=unconfined --security-opt \
         systempaths=unconfined`; or use `gdr run --nics N` for several devices on one host without namespaces"
    )]
    NotPermitted(#[source] io::Error),
    /// A part of a host.
    #[error("the kernel refuses {what} to a host: {source}")]
    Refused {
        what: &'static str,
        source: io::Error,
    },
    /// No netem.
    #[error(
        "--latency, --rate and --loss need the kernel's netem, which failed: {0}; load it with `sudo modprobe \
         sch_netem`, or have only gdr's devices delay and drop packets: `gdr net ... -- gdr run --chaos 'late by=1ms; \
         drop p=0.1%' -- PROGRAM`"
    )]
    Netem(#[source] Errno),
    /// The first process of a host did not start.
    #[error(
        "the first process of a host failed: {0}; a Docker container needs `--security-opt systempaths=unconfined`"
    )]
    Init(#[source] io::Error),
}

impl NetworkError {
    fn of<E: Into<io::Error>>(what: &'static str) -> impl Fn(E) -> Self {
        move |error| Self::Refused {
            what,
            source: error.into(),
        }
    }
}

/// The report with `--json`.
#[derive(Debug, Serialize)]
struct Report<'a> {
    #[serde(flatten)]
    schema: Schema,
    hosts: u8,
    rails: u8,
    ranks: &'a [RankReport],
    exit: u8,
}

#[derive(Debug, Serialize)]
struct RankReport {
    rank: usize,
    local_rank: usize,
    host: String,
    addresses: Vec<Ipv4Addr>,
    /// What it ended with.
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<i32>,
    /// The signal that ended it.
    #[serde(skip_serializing_if = "Option::is_none")]
    signal: Option<i32>,
    /// Whether it was asked to end.
    stopped: bool,
    seconds: f64,
}

fn run(global: &Global, options: &Options, output: &mut Output) -> Result<Exit> {
    let Some((program, arguments)) = options.program.split_first().filter(|_| !options.init) else {
        return Ok(host::init());
    };
    let path = found(program)?;
    examine(&path)?;
    let environment = environment(&DeviceOptions::default())?;
    let names = names(options).map_err(NetworkError::of("names"))?;
    let hosts = hosts(options, &names)?;
    let grace = Duration::from_secs(options.kill_after.into());
    let stream = match global.json {
        true => Stream::Error,
        false => Stream::Output,
    };
    let mut job = Job::new(stream, grace)?;
    for rank in options.ranks() {
        let mut environment = environment.clone();
        environment.extend(rank.variables(options));
        let program = Program {
            path: path.clone(),
            name: program.clone(),
            arguments: arguments.to_vec(),
            environment,
        };
        job.add(rank.label(options), hosts[rank.host].start(program)?)?;
    }
    let endings = job.finish(hosts, output)?;
    let exit = worst(&endings);
    if global.json {
        let ranks: Vec<_> = options
            .ranks()
            .zip(&endings)
            .map(|(rank, ending)| rank.report(options, ending))
            .collect();
        output.json(&Report {
            schema: Schema::first("gdr.net"),
            hosts: options.hosts,
            rails: options.nics,
            ranks: &ranks,
            exit: exit.code(),
        })?;
    }
    Ok(exit)
}

/// Returns the greatest status of the ranks that ended by themselves. If those are all 0, considers the ranks that were
/// asked to end.
fn worst(endings: &[Ending]) -> Exit {
    let of = |was_asked| {
        let some = endings
            .iter()
            .filter(move |ending| ending.was_asked == was_asked);
        let statuses = some.map(|ending| Exit::of_program(ending.ended).code());
        statuses.max().unwrap_or_default()
    };
    match of(false) {
        0 => Exit::Program(of(true)),
        status => Exit::Program(status),
    }
}

/// Makes the network between the hosts, and these.
fn hosts(options: &Options, names: &NamedTempFile) -> Result<Vec<Host>, LaunchError> {
    // Root needs no user namespace, and a container may permit one or the other.
    NewNamespaces::Network
        .enter()
        .or_else(|_| {
            NewNamespaces::User.enter()?;
            NewNamespaces::Network.enter()
        })
        .map_err(NetworkError::NotPermitted)?;
    let between = RouteSocket::open().map_err(NetworkError::of("a netlink socket"))?;
    for rail in 0..options.nics {
        between
            .add_bridge(bridge(rail), &format!("rail{rail}"))
            .map_err(NetworkError::of("a bridge"))?;
    }
    let plan = |host| Plan {
        host,
        rails: options.nics,
        impairment: Impairment {
            latency: options.latency,
            rate: options.rate,
            loss: options.loss,
        },
        names: names.path().to_owned(),
    };
    let hosts = (0..options.hosts.into()).map(|host| Host::begin(plan(host)));
    let hosts = hosts.collect::<Result<Vec<_>, _>>()?;
    hosts.iter().try_for_each(Host::ready)?;
    Ok(hosts)
}

/// Returns the names of the hosts, after the names in this host's file.
fn names(options: &Options) -> io::Result<NamedTempFile> {
    let mut text = fs::read_to_string("/etc/hosts").unwrap_or_default();
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    for host in 0..options.hosts.into() {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{} host{host}", address(host, 0));
    }
    let mut file = NamedTempFile::new()?;
    file.write_all(text.as_bytes())?;
    // World-readable, like the host's own file.
    use std::os::unix::fs::PermissionsExt as _;
    file.as_file()
        .set_permissions(fs::Permissions::from_mode(0o644))?;
    Ok(file)
}

impl Options {
    fn ranks(&self) -> impl Iterator<Item = Rank> {
        let each = usize::from(self.ranks_per_host);
        (0..usize::from(self.hosts) * each).map(move |rank| Rank {
            rank,
            host: rank / each,
            local: rank % each,
        })
    }

    fn addresses(&self, host: usize) -> Vec<Ipv4Addr> {
        let rails = 0..self.nics;
        rails.map(|rail| address(host, rail)).collect()
    }
}

/// A rank of the job.
#[derive(Clone, Copy, Debug)]
struct Rank {
    rank: usize,
    host: usize,
    local: usize,
}

impl Rank {
    /// Returns the label that marks its lines.
    fn label(self, options: &Options) -> String {
        match options.ranks_per_host {
            1 => format!("host{}", self.host),
            _ => format!("host{} rank {}", self.host, self.rank),
        }
    }

    fn variables(self, options: &Options) -> Vec<(&'static str, OsString)> {
        // Use the names, which are the same on all hosts, because launchers pass their environment on.
        let nics: Vec<_> = (0..options.nics).map(interface).collect();
        let (hosts, each) = (
            usize::from(options.hosts),
            usize::from(options.ranks_per_host),
        );
        let mut variables = vec![
            ("GDR_NICS", nics.join(",").into()),
            ("MASTER_ADDR", address(0, 0).to_string().into()),
        ];
        let numbers = [
            ("RANK", self.rank),
            ("WORLD_SIZE", hosts * each),
            ("LOCAL_RANK", self.local),
            ("LOCAL_WORLD_SIZE", each),
            ("GROUP_RANK", self.host),
            ("MASTER_PORT", MASTER_PORT.into()),
        ];
        variables.extend(numbers.map(|(name, value)| (name, value.to_string().into())));
        variables
    }

    fn report(self, options: &Options, ending: &Ending) -> RankReport {
        let (status, signal) = match ending.ended {
            Ended::Status(status) => (Some(status), None),
            Ended::Signal(signal) => (None, Some(signal)),
        };
        RankReport {
            rank: self.rank,
            local_rank: self.local,
            host: format!("host{}", self.host),
            addresses: options.addresses(self.host),
            status,
            signal,
            stopped: ending.was_asked,
            seconds: ending.after.as_secs_f64(),
        }
    }
}
