//! `gdr loopback`: transfers into GPU memory by RDMA, with proof.

mod all;
mod table;
mod text;

use std::ops::ControlFlow;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::Result;
use clap::ValueEnum;
use gdr_perf::loopback::{
    self, Chosen, Destination, DeviceName, DevicePair, Event, HostPort, ListeningEnd, Report,
    Settings, Step, SweepEvent, SweepSettings, Timeouts, TransferPreference, Verdict,
};
use gdr_perf::transfer::TransferMemory;
use gdr_perf::{BenchTarget, ChosenPart};
use gdr_rdma::Listener;

use super::say_simulated;
use crate::command::{CommandSpec, Group, Run};
use crate::exit::{Exit, Statuses, UsageError};
use crate::figures::FigureOptions;
use crate::given_options::GivenOptions;
use crate::global::Global;
use crate::gpu::{Allocator, GpuName, GpuOptions};
use crate::gpu_context::GpuContext;
use crate::host_source;
use crate::interrupt::{self, FirstSignal};
use crate::output::{Output, flow};
use crate::progress::Progress;
use crate::rdma_peer::{
    Addresses, Provider, ROCE_PORT, SecurityOptions, Side, check_listener, device_name,
    nearest_nics, provider_in_words, shards, without_gpu,
};
use crate::remedy;
use crate::units::{count, size};
use table::Table;
use text::Lines;

/// Transfer bytes by RDMA into GPU memory, and prove that they arrived
///
/// In each iteration a kernel fills GPU memory with one pattern, RDMA overwrites it with another, and
/// both ends wait for their completions. The memory is then compared three ways (by a kernel, by a
/// copy to the host, and through a CPU mapping) and read back by RDMA. PASS means that every
/// comparison matched; FAIL names the likely cause.
///
/// A device is either a kernel device (mlx5_0, or mlx5_0:2 for its second port) or an address of this
/// machine (an interface or host name works too), at which gdr itself speaks RoCEv2 over UDP.
/// `gdr devices` lists both kinds.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    // Must come first, because each field takes its value out of what was parsed.
    #[command(flatten)]
    given: GivenOptions,

    /// RDMA device that both sends and receives; use --from and --to for two devices
    #[arg(
        long,
        value_name = "DEV",
        value_parser = device_name,
        conflicts_with_all = ["from", "to", "all"]
    )]
    device: Option<DeviceName>,

    /// Sending device [default: the same as --to, or 127.0.0.2]
    #[arg(long, value_name = "DEV", value_parser = device_name, conflicts_with = "listen")]
    from: Option<DeviceName>,

    /// Device that receives into GPU memory [default: the active device nearest to the GPU, or
    /// 127.0.0.1]
    #[arg(long, value_name = "DEV", value_parser = device_name, conflicts_with = "connect")]
    to: Option<DeviceName>,

    /// Send from the memory of this GPU instead of host memory, and read back into it; named as for
    /// --gpu
    #[arg(
        long,
        value_name = "GPU",
        value_parser = GpuName::parse,
        conflicts_with_all = ["listen", "sweep"]
    )]
    from_gpu: Option<GpuName>,

    /// UDP port of soft devices; only peers that run gdr accept ports other than 4791
    #[arg(long = "udp-port", value_name = "PORT", default_value_t = ROCE_PORT)]
    port: u16,

    /// Shards per soft device (1 to 8), each with its own socket and thread [default: GDR_SHARDS; else
    /// one per two processors at loopback addresses, and one at other addresses]
    #[arg(long, value_name = "N", value_parser = shards())]
    shards: Option<u8>,

    /// RDMA provider
    #[arg(long, value_enum, value_name = "NAME", default_value_t = Provider::Auto)]
    provider: Provider,

    /// Bytes per iteration, a multiple of 4 up to 1G [default: 1M]; with --sweep, the largest size
    /// [default: 64M]
    #[arg(short, long, value_name = "SIZE", value_parser = size)]
    size: Option<u64>,

    /// Number of iterations, each with new patterns [default: 10]; with --sweep, the most rounds per
    /// latency [default: 2000]
    #[arg(short, long, value_name = "N", value_parser = count)]
    iterations: Option<u32>,

    /// Measure instead: the latency and bandwidth of WRITE and READ at each size, into host memory,
    /// directly into GPU memory, and staged
    #[arg(long, conflicts_with_all = ["listen", "connect", "pattern"])]
    sweep: bool,

    /// Prove the transfer into every GPU in turn, each through its nearest NIC
    #[arg(long, conflicts_with_all = ["from", "to", "sweep", "listen", "connect", "gpu"])]
    all: bool,

    /// Seed of the patterns
    #[arg(long, value_name = "SEED", value_parser = count, default_value = "1")]
    pattern: u32,

    /// Transfer directly, through a CPU mapping (soft) or a registration (verbs) of GPU memory, or fail
    #[arg(long, conflicts_with = "staged")]
    direct: bool,

    /// Transfer through host memory and the GPU's copy engine
    #[arg(long)]
    staged: bool,

    /// CUDA function that allocates the GPU memory [default: cuMemAlloc]
    #[arg(long, value_enum, value_name = "FN")]
    memory: Option<Allocator>,

    /// Seconds that each step may take, plus one for every 64 MiB
    #[arg(long, value_name = "SECONDS", value_parser = count, default_value = "10")]
    timeout: u32,

    /// Provide the GPU memory, and accept one peer over TCP at this address; if --size, --iterations or
    /// --pattern is given, the peer has to use the same value
    #[arg(long, value_name = "HOST[:PORT]", conflicts_with = "connect")]
    listen: Option<HostPort>,

    /// Write into the GPU memory of the peer that listens at this address
    #[arg(
        long,
        value_name = "HOST[:PORT]",
        conflicts_with_all = ["gpu", "require_gpu"]
    )]
    connect: Option<HostPort>,

    /// Seconds to wait for a peer to connect
    #[arg(long, value_name = "SECONDS", value_parser = count, default_value = "60", requires = "listen")]
    wait: u32,

    /// Simulate a failure, to see what gdr reports; the verdict says nothing about hardware
    #[arg(
        long,
        value_enum,
        value_name = "FAULT",
        conflicts_with_all = ["listen", "connect", "sweep", "all"]
    )]
    inject: Option<Fault>,

    #[command(flatten)]
    security: SecurityOptions,

    #[command(flatten)]
    figures: FigureOptions,

    #[command(flatten)]
    gpu: GpuOptions,
}

/// A fault, by name.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Fault {
    /// No bytes arrive
    Lost,
    /// The second half does not arrive
    Part,
    /// One word arrives changed
    Damaged,
    /// A kernel sees the new bytes, but a copy and the mapping see the old ones
    Stale,
}

impl From<Fault> for loopback::Fault {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Lost => Self::Lost,
            Fault::Part => Self::Part,
            Fault::Damaged => Self::Damaged,
            Fault::Stale => Self::Stale,
        }
    }
}

impl Options {
    fn pair(&self) -> DevicePair {
        DevicePair {
            from: self.from.as_ref().or(self.device.as_ref()).cloned(),
            to: self.to.as_ref().or(self.device.as_ref()).cloned(),
            port: self.port,
            shards: self.shards.map(usize::from),
            preference: self.provider.into(),
            nearest: Vec::new(),
            gid_index: None,
        }
    }

    fn settings(&self) -> Settings {
        let default = Settings::default();
        Settings {
            size: self.size.unwrap_or(default.size),
            iterations: self.iterations.unwrap_or(default.iterations),
            seed: self.pattern,
            timeout: self.timeout(),
            injected: self.inject.map(Into::into),
        }
    }

    fn sweep_settings(&self) -> SweepSettings {
        let default = SweepSettings::default();
        SweepSettings {
            largest: self.size.unwrap_or(default.largest),
            rounds: self.iterations.unwrap_or(default.rounds),
            destination: self.destination(),
            timeout: self.timeout(),
        }
    }

    fn destination(&self) -> Destination {
        Destination {
            memory: self.memory.unwrap_or(Allocator::Plain).into(),
            transfer: match (self.direct, self.staged) {
                (true, _) => TransferPreference::Direct,
                (_, true) => TransferPreference::Staged,
                _ => TransferPreference::Auto,
            },
        }
    }

    fn timeout(&self) -> Duration {
        Duration::from_secs(self.timeout.into())
    }

    /// Refuses options about GPU memory if this end has none.
    fn check(&self) -> Result<(), UsageError> {
        let given = [
            (self.direct, "--direct"),
            (self.staged, "--staged"),
            (self.memory.is_some(), "--memory"),
        ];
        let is_host_only = self.connect.is_some() && self.from_gpu.is_none();
        match given.iter().find(|(given, _)| *given && is_host_only) {
            Some((_, option)) => Err(UsageError(format!(
                "{option} applies to GPU memory, but --connect sends host memory: choose a GPU with \
                 --from-gpu, or pass {option} to the listening end"
            ))),
            None => Ok(()),
        }
    }

    /// Opens the GPUs of this process; returns `None` for an end with host memory only.
    fn open_gpus(&self) -> Result<Option<GpuContext>> {
        let gpu = match (&self.connect, &self.from_gpu) {
            (None, source) => self.gpu.beside(source.as_ref()),
            (Some(_), Some(source)) => self.gpu.with_gpu(source),
            (Some(_), None) => return Ok(None),
        };
        let without = without_gpu(self.provider, [&self.from, &self.to]);
        let transfer = self.destination().transfer;
        GpuContext::open_for_transfer(&gpu, without, transfer).map(Some)
    }

    /// Returns the addresses of a run in two processes.
    fn addresses(&self) -> Result<Option<Addresses>> {
        let (host, side) = match (&self.listen, &self.connect) {
            (Some(host), _) => (host, Side::Listens),
            (None, Some(host)) => (host, Side::Connects),
            (None, None) => return Ok(None),
        };
        let security = self.security.security()?;
        Addresses::resolve(host, side, security, self.timeout()).map(Some)
    }
}

impl CommandSpec for Options {
    const GROUP: Group = Group::Prove;
    const STATUSES: Statuses = &[
        (Exit::Fine, "PASS, or the measurement completed"),
        (Exit::Failure, "FAIL, or the run could not start"),
        (
            Exit::Undecided,
            "UNDECIDED: no GPU was found, or the run was interrupted (Ctrl-C, SIGTERM, closed output)",
        ),
    ];
    const EXAMPLES: &'static str = "\
Examples:
  gdr loopback                              prove RDMA into GPU memory on this machine
  gdr loopback --size 64M --staged          go through host memory and the copy engine
  gdr loopback --from mlx5_0 --to mlx5_1    from one NIC to another (--device: a single NIC)
  gdr loopback --gpu 1 --from-gpu 0         from one GPU's memory to another's
  gdr loopback --all                        test every GPU with its nearest NIC
  gdr loopback --sweep --size 1G            measure direct and staged, 4 bytes to 1 GiB
  gdr loopback --listen 10.0.0.1 --key-file key     run this on the machine with the GPU
  gdr loopback --connect 10.0.0.1 --key-file key    and this on the other machine
  gdr loopback --inject lost --simulate     see the report of a transfer that fails
  gdr loopback --simulate --json            run without a GPU, and print JSON";
    const RUN: Run<Self> = run;
}

/// Settings that the connecting end chooses, each with the argument that sets it.
const CHOSEN_BY_THE_PEER: [(&str, ChosenPart<Settings>); 3] = [
    (
        "size",
        ChosenPart {
            name: "--size",
            value: |it| it.size.to_string(),
        },
    ),
    (
        "iterations",
        ChosenPart {
            name: "--iterations",
            value: |it| it.iterations.to_string(),
        },
    ),
    (
        "pattern",
        ChosenPart {
            name: "--pattern",
            value: |it| it.seed.to_string(),
        },
    ),
];

fn run(global: &Global, options: &Options, output: &mut Output) -> Result<Exit> {
    options.check()?;
    let alone = options.listen.is_none() && options.connect.is_none();
    if alone && options.security.is_given() {
        let what = "--key-file and --insecure apply only with a peer: use --listen or --connect";
        return Err(UsageError(what.into()).into());
    }
    if options.figures.is_given() && !options.sweep {
        return Err(UsageError("--wide and --csv apply only with --sweep".into()).into());
    }
    if !matches!(options.provider, Provider::Soft) {
        // No threads have been started yet.
        gdr_rdma::disable_scatter_to_cqe();
    }
    let peer = options.addresses()?;
    let mut pair = options.pair().settle()?;
    pair.choose()?;
    let gpu = options.open_gpus()?;
    let source = match &gpu {
        Some(gpu) => gpu.second(options.from_gpu.as_ref())?,
        None => None,
    };
    if let (Some(gpu), true) = (&gpu, options.all) {
        return all::run(global, options, gpu, &pair, output);
    }
    if let Some(gpu) = &gpu
        && gpu.simulated.is_none()
    {
        pair.nearest = nearest_nics(gpu.target.gpu(), &host_source::this_node());
    }
    let chosen = pair.choose()?;
    let devices = Devices { pair, chosen };
    if let (Some(gpu), true) = (&gpu, options.sweep) {
        return sweep(global, gpu, options, &devices, output);
    }
    let setup = Setup {
        devices,
        source,
        settings: options.settings(),
        destination: options.destination(),
    };
    let mut lines = Lines::new(global, setup.settings.iterations);
    if let (Some(gpu), false) = (&gpu, global.json) {
        say_simulated(gpu, output)?;
        lines.simulation_is_known();
    }
    if !global.json {
        let words = provider_in_words(&setup.devices.chosen, global);
        output.paragraph("provider  ", "          ", &words)?;
    }
    // A wait for the peer cannot be interrupted, so with a peer a signal ends the process.
    let stop = interrupt::flag(if alone {
        FirstSignal::RequestsStop
    } else {
        FirstSignal::Terminates
    })?;
    let progress = Progress::on_stderr();
    let mut observe = |event: Event<'_>| {
        if alone && stop.load(Ordering::Relaxed) {
            return ControlFlow::Break(());
        }
        if let Event::Step { number, step } = event {
            progress.at(number as usize - 1, lines.iterations(), name(step));
        }
        flow(lines.event(&event, output))
    };
    let mut report = match (&options.connect, gpu, peer) {
        (Some(_), _, Some(addresses)) => connect(&setup, &addresses, &mut observe)?,
        (None, Some(gpu), Some(addresses)) => {
            let wait = Duration::from_secs(options.wait.into());
            let timeouts = Timeouts {
                peer: wait,
                step: setup.settings.timeout,
            };
            let own = ListeningEnd {
                expected: options.given.expected(setup.settings, &CHOSEN_BY_THE_PEER),
                ..ListeningEnd::new(setup.destination, timeouts)
            };
            listen(&gpu.target, &setup, &own, &addresses, &mut observe)?
        }
        (None, Some(gpu), None) => within(&gpu.target, &setup, &mut observe)?,
        _ => return Err(UsageError("there is nothing to transfer".into()).into()),
    };
    drop(progress);
    spell_remedies(&mut report);
    if global.json {
        output.json(&report)?;
    } else {
        lines.verdict(&report, output)?;
    }
    Ok(match report.verdict {
        Verdict::Pass => Exit::Fine,
        Verdict::Fail => Exit::Failure,
        Verdict::Undecided => Exit::Undecided,
    })
}

/// Adds the options and commands that help with a failure to its cause.
fn spell_remedies(report: &mut Report) {
    if let Some(cause) = &mut report.cause {
        let text = std::mem::take(&mut cause.remedy);
        let remedies = cause.kind.remedies().iter().copied();
        cause.remedy = remedy::with_remedies(text, remedies.filter_map(remedy::spelled));
    }
}

/// Measures with both ends in this process.
fn sweep(
    global: &Global,
    gpu: &GpuContext,
    options: &Options,
    devices: &Devices,
    output: &mut Output,
) -> Result<Exit> {
    let settings = options.sweep_settings();
    let (from, to) = devices.pair.both(&devices.chosen)?;
    match &gpu.simulated {
        Some(reason) if options.figures.csv => Output::simulated_aside(reason),
        _ if global.json => {}
        _ => say_simulated(gpu, output)?,
    }
    let stop = interrupt::flag(FirstSignal::RequestsStop)?;
    let progress = Progress::on_stderr();
    let (mut done, total) = (0, 2 * settings.sizes().count());
    let mut table = Table::new(options.figures);
    let measured = loopback::sweep(&gpu.target, &from, &to, &settings, &mut |event| {
        if stop.load(Ordering::Relaxed) {
            return ControlFlow::Break(());
        }
        if let SweepEvent::Measured(_) = event {
            done += 1;
            progress.at(done, total, "measurements");
        }
        match global.json {
            true => ControlFlow::Continue(()),
            false => flow(table.event(&event, output)),
        }
    });
    drop(progress);
    let sweep = measured?;
    if global.json {
        output.json(&sweep)?;
    } else {
        table.end(&sweep, output)?;
    }
    Ok(Exit::Fine)
}

type Observe<'a> = &'a mut dyn FnMut(Event<'_>) -> ControlFlow<()>;

/// The named devices and the chosen provider.
struct Devices {
    pair: DevicePair,
    chosen: Chosen,
}

/// A run with one or both ends in this process.
struct Setup {
    devices: Devices,
    /// The GPU whose memory is sent; `None` for host memory.
    source: Option<BenchTarget>,
    settings: Settings,
    /// How to allocate and access the memory of either GPU.
    destination: Destination,
}

impl Setup {
    fn source(&self) -> TransferMemory<'_> {
        match &self.source {
            Some(source) => TransferMemory::Gpu(source, self.destination),
            None => TransferMemory::Host,
        }
    }
}

/// Runs both ends in this process.
fn within(target: &BenchTarget, setup: &Setup, observe: Observe<'_>) -> Result<Report> {
    let Devices { pair, chosen } = &setup.devices;
    let (from, to) = pair.both(chosen)?;
    Ok(loopback::run(
        target,
        &from,
        &to,
        setup.source(),
        setup.destination,
        &setup.settings,
        observe,
    )?)
}

fn listen(
    target: &BenchTarget,
    setup: &Setup,
    own: &ListeningEnd,
    addresses: &Addresses,
    observe: Observe<'_>,
) -> Result<Report> {
    let Devices { pair, chosen } = &setup.devices;
    let (device, listener) = addresses.first(|address| {
        let device = pair.listener(chosen, address.ip())?;
        let listener = Listener::bind(address)?;
        check_listener(&device, address, &addresses.security)?;
        Ok((device, listener))
    })?;
    Ok(loopback::listen(
        target,
        &device,
        &listener,
        &addresses.security,
        own,
        observe,
    )?)
}

fn connect(setup: &Setup, addresses: &Addresses, observe: Observe<'_>) -> Result<Report> {
    let Devices { pair, chosen } = &setup.devices;
    addresses.first(|address| {
        let device = pair.connector(chosen, address.ip())?;
        Ok(loopback::connect(
            &device,
            address,
            &addresses.security,
            setup.source(),
            &setup.settings,
            observe,
        )?)
    })
}

fn name(step: Step) -> &'static str {
    match step {
        Step::Fill => "filling GPU memory",
        Step::Write => "RDMA WRITE",
        Step::Verify => "comparing GPU memory",
        Step::Read => "RDMA READ",
    }
}
