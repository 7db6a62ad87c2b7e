//! `gdr perf`: measures bandwidth and latency of RDMA operations between two processes.

mod client_choice;
pub(crate) mod perftest;
mod picture;
mod table;
mod waiting;

use std::cell::Cell;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::ValueEnum;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use gdr_node::{Inventory, LiveRoot};
use gdr_perf::loopback::{
    Chosen, Destination, DeviceName, DevicePair, HostPort, SETUP_PORT, Timeouts, TransferPreference,
};
use gdr_perf::report::CpuPlacement;
use gdr_perf::transfer::{
    self, Amount, AtomicKind, Direction, InvalidThreshold, LocalEnd, MaximumLatency, MinimumRate,
    Plan, Reach, Repetition, Request, Striping, Thresholds, TransferEvent, TransferMemory, Verb,
    Verification,
};

use gdr_rdma::{Device, Provider as ChosenProvider};

use super::say_simulated;
use crate::chart;
use crate::command::{CommandSpec, Group, Run};
use crate::cpu_placement::{CpuOptions, PlacedEnd};
use crate::document;
use crate::exit::{Exit, NO_GPU_OR_CLOSED, Statuses, UsageError};
use crate::figures::FigureOptions;
use crate::given_options::GivenOptions;
use crate::global::Global;
use crate::gpu::{Allocator, GpuOptions};
use crate::gpu_context::{GpuContext, WithoutGpu};
use crate::host_source;
use crate::interrupt::{self, FirstSignal};
use crate::output::{Output, flow};
use crate::rdma_peer::{
    Addresses, Provider, ROCE_PORT, SecurityOptions, Side, device_name, listening_address,
    nearest_nics, provider_in_words, shards,
};
use crate::units::{count, size};
use perftest::PerftestOptions;
use table::Table;
use waiting::Waiting;

/// Measure bandwidth or latency of RDMA operations between two processes, as perftest does
///
/// Without a host, gdr perf is the server and waits for one client. The client chooses what to
/// measure; each end chooses its own device and memory (--gpu). If the server is given a verb, sizes
/// or other measurement options, it refuses a client that chose differently, and both ends report the
/// difference. Both ends print the result. With --verify the receiving end compares every byte of
/// every message, including the warm-up.
#[derive(Debug, clap::Args)]
#[command(
    mut_arg("gpu", |arg| {
        arg.short(None)
            .visible_aliases(["use_cuda", "use_cuda_bus_id"])
            .num_args(0..=1)
            .default_missing_value("0")
    }),
    mut_arg("cpus", |arg| arg.visible_alias("pin_cores"))
)]
pub(crate) struct Options {
    // Must come first, because each field takes its value out of what was parsed.
    #[command(flatten)]
    given: GivenOptions,

    /// What to measure; a server without it accepts any
    #[arg(value_name = "VERB", value_parser = verb())]
    verb: Option<Verb>,

    /// Host name or address of the server; without it, this end is the server
    #[arg(value_name = "HOST[:PORT]")]
    host: Option<HostPort>,

    /// RDMA device of this end: a kernel device, or an address or interface of this machine
    /// [default: the active device nearest to the GPU, or the address that routes to the peer]
    #[arg(short, long, visible_alias = "ib-dev", value_name = "DEV", value_parser = device_name)]
    device: Option<DeviceName>,

    /// Port of the kernel device
    #[arg(short = 'i', long, value_name = "N", value_parser = count)]
    ib_port: Option<u32>,

    /// GID index of the kernel device [default: a routable GID, preferably RoCE v2]
    #[arg(short = 'x', long, value_name = "N")]
    gid_index: Option<u32>,

    /// RDMA provider
    #[arg(long, value_enum, value_name = "NAME", default_value_t = Provider::Auto)]
    provider: Provider,

    /// TCP port for connection setup
    #[arg(short, long, value_name = "PORT")]
    port: Option<u16>,

    /// UDP port of soft devices; only peers that run gdr accept ports other than 4791
    #[arg(long, value_name = "PORT", default_value_t = ROCE_PORT)]
    udp_port: u16,

    /// Shards of this end's soft device (1 to 8), each with its own socket and thread [default:
    /// GDR_SHARDS; else one per two processors at loopback addresses, and one at other addresses]
    #[arg(long, value_name = "N", value_parser = shards())]
    shards: Option<u8>,

    /// Address to listen at (server) [default: the soft device's address, if one is named; otherwise all
    /// addresses with a key, or 127.0.0.1 without], or to connect from (client) [default: the device's
    /// address]
    #[arg(long, visible_alias = "bind_source_ip", value_name = "HOST[:PORT]")]
    bind: Option<HostPort>,

    /// Message size in bytes [default: 64K for bandwidth, 2 for latency, 8 for atomics]
    #[arg(short, long, value_name = "SIZE", value_parser = size, value_delimiter = ',', conflicts_with = "all_sizes")]
    size: Vec<u64>,

    /// Measure every power of two from 2 bytes to 8 MiB
    #[arg(short, long, visible_alias = "all")]
    all_sizes: bool,

    /// Messages per queue pair and size [default: 5000 for bandwidth, 1000 for latency]
    #[arg(short = 'n', long, value_name = "N", value_parser = count, conflicts_with = "duration")]
    iters: Option<u32>,

    /// Seconds per size, instead of a number of messages
    #[arg(short = 'D', long, value_name = "SECONDS")]
    duration: Option<f64>,

    /// Warm-up messages before each measurement, for at least 0.1 s before a latency; 0 disables the
    /// warm-up
    #[arg(long, value_name = "N", default_value_t = 100)]
    warm_up: u64,

    /// Requests in flight per queue pair [default: 128; 16 for READ and atomics]
    #[arg(short, long, value_name = "N", value_parser = count)]
    tx_depth: Option<u32>,

    /// Receives posted per queue pair
    #[arg(short, long, value_name = "N", value_parser = count, default_value = "512")]
    rx_depth: u32,

    /// Number of queue pairs
    #[arg(short, long, visible_alias = "qp", value_name = "N", value_parser = count, default_value = "1")]
    queue_pairs: u32,

    /// Stripe each message of write-bw or read-bw over all queue pairs
    #[arg(long)]
    stripe: bool,

    /// Send in both directions at the same time
    #[arg(short, long)]
    bidirectional: bool,

    /// Path MTU in bytes [default: the largest that the path supports]
    #[arg(short, long, value_name = "BYTES", value_parser = count)]
    mtu: Option<u32>,

    /// Request a completion for one request in N
    #[arg(short = 'Q', long, value_name = "N", value_parser = count, default_value = "1")]
    cq_mod: u32,

    /// Maximum number of requests to post in one call
    #[arg(short = 'l', long, visible_alias = "post_list", value_name = "N", value_parser = count, default_value = "64")]
    post_list: u32,

    /// Send messages in host memory up to this size inline
    #[arg(
        short = 'I',
        long,
        visible_alias = "inline_size",
        value_name = "BYTES",
        default_value_t = 0
    )]
    inline: u32,

    /// Atomic operation
    #[arg(short = 'A', long, visible_alias = "atomic_type", value_enum, value_name = "NAME", default_value_t = Atomic::FetchAndAdd)]
    atomic: Atomic,

    /// Compare every byte of every message at the receiving end
    #[arg(long, visible_alias = "data_validation")]
    verify: bool,

    /// Fail if a size is slower than this: 80Gbps, 10GB/s
    #[arg(long, value_name = "RATE", value_parser = minimum)]
    min: Option<MinimumRate>,

    /// Fail if a size has a higher latency than this: 10us limits the median; also p99=25us, max=1ms
    #[arg(long, value_name = "TIME", value_parser = maximum, value_delimiter = ',')]
    max_lat: Vec<MaximumLatency>,

    /// Write a plot of the results by size to this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,

    /// Access GPU memory directly (soft), or fail
    #[arg(long, conflicts_with = "staged")]
    direct: bool,

    /// Access GPU memory through host memory and the GPU's copy engine (soft)
    #[arg(long)]
    staged: bool,

    /// CUDA function that allocates the GPU memory
    #[arg(long, value_enum, value_name = "FN", default_value_t = Allocator::Plain)]
    memory: Allocator,

    /// Seconds that each request may take, plus one for every 64 MiB
    #[arg(long, value_name = "SECONDS", value_parser = count, default_value = "10")]
    timeout: u32,

    /// Seconds that the server waits for a client
    #[arg(
        long,
        value_name = "SECONDS",
        value_parser = count,
        default_value = "60",
        conflicts_with = "host"
    )]
    wait: u32,

    #[command(flatten)]
    cpus: CpuOptions,

    #[command(flatten)]
    security: SecurityOptions,

    #[command(flatten)]
    figures: FigureOptions,

    #[command(flatten)]
    gpu: GpuOptions,

    // Must come last, because its heading applies to all options that follow.
    #[command(flatten)]
    perftest: PerftestOptions,
}

/// An atomic operation, by perftest's names.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Atomic {
    #[value(name = "FETCH_AND_ADD")]
    FetchAndAdd,
    #[value(name = "CMP_AND_SWAP")]
    CompareAndSwap,
}

/// Returns a parser of verb names. It answers a misspelled name with the nearest one.
fn verb() -> impl TypedValueParser<Value = Verb> {
    PossibleValuesParser::new(Verb::ALL.map(Verb::name)).try_map(|name| name.parse::<Verb>())
}

fn minimum(text: &str) -> Result<MinimumRate, InvalidThreshold> {
    text.parse()
}

fn maximum(text: &str) -> Result<MaximumLatency, InvalidThreshold> {
    text.parse()
}

impl Options {
    /// Returns the verb; where a server was given none, any stands for the client's.
    fn verb(&self) -> Verb {
        self.verb.unwrap_or(Verb::WriteBw)
    }

    fn request(&self) -> Request {
        Request {
            plan: self.plan(),
            thresholds: Thresholds {
                minimum_rate: self.min.or(self.perftest.minimum_rate()),
                minimum_mpps: self.perftest.limit_msgrate,
                maximum_latencies: self.max_lat.clone(),
            },
        }
    }

    fn plan(&self) -> Plan {
        let usual = Plan::new(self.verb());
        let perftest = &self.perftest;
        let amount = match (self.iters, self.duration) {
            (_, Some(seconds)) => Amount::Seconds(seconds),
            (Some(iterations), None) => Amount::Iterations(iterations.into()),
            (None, None) if perftest.endless => Amount::Seconds(5.0),
            (None, None) => usual.amount,
        };
        let tx_depth = self.tx_depth.unwrap_or(usual.tx_depth);
        Plan {
            sizes: match (self.all_sizes, &self.size[..]) {
                (true, _) => Plan::all_sizes(self.verb()),
                (false, []) => usual.sizes,
                (false, sizes) => sizes.to_vec(),
            },
            amount,
            warm_up: self.warm_up,
            queue_pairs: self.queue_pairs,
            striping: match self.stripe {
                true => Striping::On,
                false => Striping::Off,
            },
            tx_depth: tx_depth.min(perftest.outs.unwrap_or(tx_depth)),
            rx_depth: self.rx_depth,
            signal_every: self.cq_mod,
            post_list: self.post_list,
            inline: self.inline,
            direction: match self.bidirectional {
                true => Direction::BothWays,
                false => Direction::OneWay,
            },
            atomic: match self.atomic {
                Atomic::FetchAndAdd => AtomicKind::FetchAdd,
                Atomic::CompareAndSwap => AtomicKind::CompareSwap,
            },
            mtu: self.mtu,
            verify: match self.verify {
                true => Verification::On,
                false => Verification::Off,
            },
            timeout_ms: u64::from(self.timeout) * 1000,
            repetition: match perftest.endless {
                true => Repetition::Endless,
                false => Repetition::Once,
            },
            ack_timeout: perftest.qp_timeout,
            service_level: perftest.service_level,
            traffic_class: perftest.traffic_class,
            ..usual
        }
    }

    /// Refuses perftest options that belong to another verb or to a GPU.
    fn check(&self) -> Result<(), UsageError> {
        let refused = |what: &str| Err(UsageError(what.to_owned()));
        let reads = matches!(
            self.verb(),
            Verb::ReadBw | Verb::ReadLat | Verb::AtomicBw | Verb::AtomicLat
        );
        if self.perftest.outs.is_some() && !reads {
            return refused(
                "--outs limits only READs and atomics: use --tx-depth for other requests",
            );
        }
        if self.perftest.dma_buf && !self.uses_gpu() {
            return refused(
                "--use_cuda_dmabuf applies only to GPU memory: choose a GPU with --gpu",
            );
        }
        Ok(())
    }

    fn timeout(&self) -> Duration {
        Duration::from_secs(self.timeout.into())
    }

    fn destination(&self) -> Destination {
        Destination {
            memory: self.memory.into(),
            transfer: match (self.direct, self.staged) {
                (true, _) => TransferPreference::Direct,
                (_, true) => TransferPreference::Staged,
                _ => TransferPreference::Auto,
            },
        }
    }

    /// Returns the device of this end, with its port.
    fn pair(&self) -> Result<DevicePair> {
        let device = match (&self.device, self.ib_port) {
            (Some(DeviceName::Verbs(name)), Some(port)) if !name.contains(':') => {
                Some(DeviceName::Verbs(format!("{name}:{port}")))
            }
            (device, None) => device.clone(),
            (_, Some(_)) => {
                let what = "--ib-port needs a kernel device in --device, named without a port";
                return Err(UsageError(what.to_owned()).into());
            }
        };
        let pair = DevicePair {
            from: device.clone(),
            to: device,
            port: self.udp_port,
            shards: self.shards.map(usize::from),
            preference: self.provider.into(),
            nearest: Vec::new(),
            gid_index: self.gid_index,
        };
        Ok(pair.settle()?)
    }

    /// Returns where the server listens, or the client connects to.
    fn endpoint(&self, pair: &DevicePair) -> Result<(HostPort, Side)> {
        let port = self.port.unwrap_or(SETUP_PORT);
        let with_port = |host: &HostPort| match self.port {
            Some(port) => host.clone().with_port(port),
            None => host.clone(),
        };
        if let Some(host) = &self.host {
            return Ok((with_port(host), Side::Connects));
        }
        if let Some(host) = &self.bind {
            return Ok((with_port(host), Side::Listens));
        }
        Ok((listening_address(pair, &self.security, port), Side::Listens))
    }

    fn uses_gpu(&self) -> bool {
        self.gpu.is_given() || self.direct || self.staged
    }
}

/// Opens the GPU whose memory this end uses.
fn open_gpu(options: &Options) -> Result<Option<GpuContext>> {
    if !options.uses_gpu() {
        return Ok(None);
    }
    let transfer = options.destination().transfer;
    GpuContext::open_for_transfer(&options.gpu, WithoutGpu::Fails, transfer).map(Some)
}

impl CommandSpec for Options {
    const GROUP: Group = Group::Measure;
    const STATUSES: Statuses = &[
        (Exit::Fine, "measured, and every size meets its thresholds"),
        (
            Exit::Failure,
            "a size misses a threshold, bytes are wrong, or the run failed",
        ),
        (Exit::Undecided, NO_GPU_OR_CLOSED),
    ];
    const EXAMPLES: &'static str = "\
Examples:
  gdr perf                                       start a server, which waits for a client
  gdr perf write-bw 127.0.0.1 -a --verify        connect to it, and measure and verify all sizes
  gdr perf read-lat node2 -d mlx5_0 --key-file k       use a NIC, and a server on another host
  gdr perf send-bw node2 -q 4 -b -D 10 --key-file k    4 queue pairs, both directions, 10 seconds
  gdr perf write-bw node2 -q 8 --stripe -s 64M --key-file k    stripe messages over 8 queue pairs
  gdr perf write-bw node2 --gpu 0 --min 80Gbps --max-lat p99=50us --key-file k
  gdr perf write-bw 127.0.0.1 --use_cuda=0 -F -c RC -D 5 --run_infinitely     perftest's options
  gdr perf write-lat node2 --cpus 4 --bind 10.0.0.1 --key-file k     on CPU 4, from this address
  gdr perf write-lat 127.0.0.1 -a --json --svg latency.svg";
    const INSTEAD: fn(&clap::Error) -> Option<String> = perftest::instead;
    const RUN: Run<Self> = run;
}

fn run(global: &Global, options: &Options, output: &mut Output) -> Result<Exit> {
    if !matches!(options.provider, Provider::Soft) {
        // No threads have been started yet.
        gdr_rdma::disable_scatter_to_cqe();
    }
    options.check()?;
    let request = options.request();
    let checked = request.plan.check();
    checked.map_err(|error| UsageError(error.to_string()))?;
    let mut pair = options.pair()?;
    pair.choose()?;
    let gpu = open_gpu(options)?;
    if let Some(gpu) = gpu.as_ref().filter(|gpu| gpu.simulated.is_none()) {
        pair.nearest = nearest_nics(gpu.target.gpu(), &host_source::this_node());
    }
    let chosen = pair.choose()?;
    let (host, side) = options.endpoint(&pair)?;
    let security = options.security.security()?;
    let addresses = Addresses::resolve(&host, side, security, options.timeout())?;
    match &gpu {
        Some(gpu) if options.figures.csv => {
            gpu.simulated.iter().for_each(Output::simulated_aside);
        }
        Some(gpu) if !global.json => say_simulated(gpu, output)?,
        _ => {}
    }
    if let Some(DeviceName::Verbs(_)) = &pair.from {
        // Report a missing device before anything else about it.
        pair.connector(&chosen, IpAddr::V4(Ipv4Addr::LOCALHOST))?;
    }
    if !global.json && !options.figures.csv {
        output.paragraph(
            "provider  ",
            "          ",
            &provider_in_words(&chosen, global),
        )?;
    }
    let sources = match (side, &options.bind) {
        (Side::Connects, Some(bind)) => bind.resolve(options.timeout())?,
        _ => Vec::new(),
    };
    // A wait for the peer cannot be interrupted, so a signal ends the process.
    interrupt::flag(FirstSignal::Terminates)?;
    let memory = match &gpu {
        Some(gpu) => TransferMemory::Gpu(&gpu.target, options.destination()),
        None => TransferMemory::Host,
    };
    let figures = options.figures.or_wide(options.perftest.cpu_util);
    let mut table = Table::new(options.verb(), figures);
    let mut waiting = Waiting::new();
    let placed: Cell<Option<PlacedEnd>> = Cell::new(None);
    let mut observe = |event: TransferEvent<'_>| {
        waiting.event(&event);
        if let (TransferEvent::Ready(_), Some(end)) = (&event, placed.take()) {
            end.begin();
        }
        match global.json {
            true => ControlFlow::Continue(()),
            false => flow(table.event(&event, output)),
        }
    };
    let inventory = Inventory::read(&LiveRoot::new());
    let bdf = gpu.as_ref().filter(|gpu| gpu.simulated.is_none());
    let bdf = bdf.map(|gpu| gpu.target.gpu().info().bdf);
    let cpus = options.cpus.or_any(options.perftest.disable_numa);
    let place = |device: &Device| -> Result<CpuPlacement> {
        // It was used for an address that turned out to be unusable.
        if let Some(end) = placed.take() {
            end.free()?;
        }
        let end = cpus.place(device, bdf, &inventory, side)?;
        let facts = end.facts.clone();
        placed.set(Some(end));
        Ok(facts)
    };
    let own = |device: &Device, connect_from| -> Result<LocalEnd<'_>> {
        Ok(LocalEnd {
            memory,
            connect_from,
            cpus: Some(place(device)?),
            reach: match options.perftest.dma_buf {
                true => Reach::DmaBuf,
                false => Reach::Any,
            },
            expected: options
                .given
                .expected(request.clone(), &client_choice::parts()),
        })
    };
    let security = &addresses.security;
    let report = match side {
        Side::Listens => {
            let (device, listener) = addresses.listen(&pair, &chosen, "--device")?;
            let timeouts = Timeouts {
                peer: Duration::from_secs(options.wait.into()),
                step: options.timeout(),
            };
            let own = own(&device, None)?;
            transfer::serve(&device, &listener, security, own, timeouts, &mut observe)?
        }
        Side::Connects => addresses.first(|peer| {
            let source = source_towards(&sources, peer)?;
            let mut pair = pair.clone();
            if let (None, Some(source)) = (&pair.from, source) {
                pair.from = soft_device(&chosen, source);
            }
            let device = pair.connector(&chosen, peer.ip())?;
            let own = own(&device, source)?;
            Ok(transfer::measure(
                &device,
                peer,
                security,
                own,
                &request.plan,
                &request.thresholds,
                &mut observe,
            )?)
        })?,
    };
    drop(waiting);
    if let Some(path) = &options.svg {
        chart::write(path, &picture::svg(&report))?;
    }
    if let Some(path) = options.perftest.document() {
        document::write(path, &report)?;
    }
    if global.json {
        output.json(&report)?;
    } else {
        table.end(&report, output)?;
    }
    Ok(match report.passed {
        true => Exit::Fine,
        false => Exit::Failure,
    })
}

/// Returns the address of this host, among those that --bind names, from which the client connects to `peer`.
fn source_towards(sources: &[SocketAddr], peer: SocketAddr) -> Result<Option<IpAddr>> {
    if sources.is_empty() {
        return Ok(None);
    }
    let same_family = |source: &&SocketAddr| source.is_ipv4() == peer.is_ipv4();
    match sources.iter().find(same_family) {
        Some(source) => Ok(Some(source.ip())),
        None => {
            let version = if peer.is_ipv4() { "IPv4" } else { "IPv6" };
            let what = format!(
                "the server is at {}, but --bind has no {version} address: add one",
                peer.ip()
            );
            Err(UsageError(what).into())
        }
    }
}

/// Returns the soft device at the address from which the client connects, unless a kernel device was chosen.
fn soft_device(chosen: &Chosen, source: IpAddr) -> Option<DeviceName> {
    (chosen.provider == ChosenProvider::Soft).then_some(DeviceName::Soft(source))
}

#[cfg(test)]
mod tests {
    use clap::FromArgMatches;

    use super::*;
    use crate::cli;

    /// Options that each end sets for itself, and options that state what gdr does anyway.
    const OF_ONE_END: [&str; 37] = [
        "device",
        "ib_port",
        "gid_index",
        "provider",
        "port",
        "udp_port",
        "shards",
        "bind",
        "svg",
        "direct",
        "staged",
        "memory",
        "timeout",
        "wait",
        "cpus",
        "key_file",
        "insecure",
        "wide",
        "csv",
        "gpu",
        "backend",
        "simulate",
        "require_gpu",
        "dma_buf",
        "cpu_util",
        "disable_numa",
        "report_gbits",
        "out_json",
        "out_json_file",
        "_connection",
        "_cuda_mem_type",
        "_cpu_freq",
        "_no_peak",
        "_perform_warm_up",
        "_disable_pcie_relaxed",
        "help",
        "version",
    ];

    fn options(line: &str) -> Options {
        let matches = cli::command().get_matches_from(line.split_whitespace());
        let (_, perf) = matches.subcommand().unwrap();
        Options::from_arg_matches(perf).unwrap()
    }

    fn expected(line: &str) -> Option<gdr_perf::Expected<Request>> {
        let options = options(line);
        let ours = options.request();
        options.given.expected(ours, &client_choice::parts())
    }

    #[test]
    fn a_server_compares_every_option_that_it_was_given_and_the_client_chooses() {
        let usual = options("gdr perf write-bw node2").request();
        let other = options("gdr perf read-bw node2").request();
        assert!(expected("gdr perf").is_none());
        assert!(expected("gdr perf --udp-port 4792 --wait 8").is_none());
        assert!(
            expected("gdr perf write-bw")
                .unwrap()
                .check(&other)
                .is_err()
        );
        let mut gdr = cli::command();
        gdr.build();
        let perf = gdr.find_subcommand("perf").unwrap();
        let is_own = |arg: &&clap::Arg| arg.get_long().is_some() && !arg.is_global_set();
        for option in perf.get_arguments().filter(is_own) {
            let (id, long) = (option.get_id().as_str(), option.get_long().unwrap());
            let is_compared = client_choice::parts().iter().any(|(of, _)| *of == id);
            assert_ne!(
                is_compared,
                OF_ONE_END.contains(&id),
                "which end has {id:?}?"
            );
            if !is_compared {
                continue;
            }
            // For an enumeration, the last value, which is not the default; for most others, a number.
            let possible = option.get_possible_values();
            let value = match (possible.last(), id) {
                (Some(value), _) => value.get_name(),
                (None, "min") => "1GB/s",
                (None, "max_lat") => "1us",
                (None, _) => "8",
            };
            let given = match option.get_action().takes_values() {
                true => format!("--{long}={value}"),
                false => format!("--{long}"),
            };
            let expected = expected(&format!("gdr perf write-bw {given}")).unwrap();
            let refused = expected.check(&usual).unwrap_err().to_string();
            assert!(
                refused.contains(&format!("requests --{long} ")),
                "{refused}"
            );
            let same = options(&format!("gdr perf write-bw node2 {given}")).request();
            expected.check(&same).unwrap();
        }
    }
}
