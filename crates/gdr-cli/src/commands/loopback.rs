//! `gdr loopback`: RDMA into GPU memory, proved.

mod lines;
mod table;

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::ValueEnum;
use gdr_cuda::{Cuda, Gpu, MemoryKind, Ordinal};
use gdr_perf::loopback::{
    self, Chosen, Destination, DeviceName, Ends, Event, Patience, Place, Reach, Report, Settings,
    Step, SweepEvent, SweepSettings, Verdict, Wish,
};
use gdr_rdma::{Listener, Security, SharedKey};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use crate::args::Global;
use crate::exit::{EXIT_STATUS, Exit, UsageError};
use crate::machine::Machine;
use crate::numbers::{count, size};
use crate::output::{Output, flow};
use crate::progress::Progress;
use lines::Lines;
use table::Table;

/// RoCE's UDP port, and the TCP port of the set-up unless said otherwise.
const PORT: u16 = 4791;

const EXAMPLES: &str = "\
Examples:
  gdr loopback                              prove RDMA into GPU memory, within this machine
  gdr loopback --size 64M --staged          through host memory and the copy engine instead
  gdr loopback --from mlx5_0 --to mlx5_1    from one NIC to another; the same twice: in itself
  gdr loopback --sweep --size 1G            measure direct against staged, 4 bytes to 1 GiB
  gdr loopback --listen 10.0.0.1 --key-file key     on the machine with the GPU
  gdr loopback --connect 10.0.0.1 --key-file key    on the other one
  gdr loopback --backend sim --json         without a GPU, for a program";

/// Move bytes by RDMA from one device into GPU memory, and prove that they arrived
///
/// Each iteration fills GPU memory with one pattern by a kernel, writes another by RDMA, waits for
/// the completions of both ends, and looks at the memory by a kernel, by a copy to the host and
/// through a CPU mapping; then it reads it back by RDMA. PASS means that all of them found the
/// bytes that were sent; FAIL comes with the likely cause.
///
/// A device is one of the kernel's (mlx5_0, or with its port mlx5_0:2), or an address of this
/// machine: gdr speaks RoCEv2 over UDP itself. `gdr devices` lists both.
#[derive(Debug, clap::Args)]
#[command(after_help = format!("{EXAMPLES}\n\n{EXIT_STATUS}"))]
pub(crate) struct Options {
    /// Device whose host memory the bytes come from [default: the same as --to, or 127.0.0.2]
    #[arg(long, value_name = "DEV", conflicts_with = "listen")]
    from: Option<DeviceName>,

    /// Device that puts them into GPU memory [default: the first that is active, or 127.0.0.1]
    #[arg(long, value_name = "DEV", conflicts_with = "connect")]
    to: Option<DeviceName>,

    /// UDP port of soft devices; other than 4791 for gdr's own peers only
    #[arg(long, value_name = "PORT", default_value_t = PORT)]
    port: u16,

    /// What moves the bytes
    #[arg(long, value_enum, value_name = "NAME", default_value_t = Provider::Auto)]
    provider: Provider,

    /// Bytes an iteration, a multiple of 4 up to 1G [default: 1M]; the largest with --sweep
    /// [default: 64M]
    #[arg(short, long, value_name = "SIZE", value_parser = size)]
    size: Option<u64>,

    /// Iterations, each with patterns of its own [default: 10]; the most rounds a latency is taken
    /// from with --sweep [default: 2000]
    #[arg(short, long, value_name = "N", value_parser = count)]
    iterations: Option<u32>,

    /// Measure instead of proving: latency and bandwidth of WRITE and READ by size, into host
    /// memory, into GPU memory directly, and staged
    #[arg(long, conflicts_with_all = ["listen", "connect", "pattern"])]
    sweep: bool,

    /// What the patterns are made from
    #[arg(long, value_name = "SEED", value_parser = count, default_value = "1")]
    pattern: u32,

    /// Reach GPU memory through a CPU mapping (soft) or by its registration (verbs), or fail
    #[arg(long, conflicts_with_all = ["staged", "connect"])]
    direct: bool,

    /// Reach GPU memory through host memory and the GPU's copy engine
    #[arg(long, conflicts_with = "connect")]
    staged: bool,

    /// CUDA function that allocates the GPU memory
    #[arg(
        long,
        value_enum,
        value_name = "FN",
        default_value_t = Allocator::Plain,
        conflicts_with = "connect"
    )]
    memory: Allocator,

    /// Seconds that a step may take; a second more for each 64 MiB
    #[arg(long, value_name = "SECONDS", value_parser = count, default_value = "10")]
    timeout: u32,

    /// Own the GPU memory, and let one peer connect here by TCP
    #[arg(long, value_name = "ADDR[:PORT]", value_parser = address, conflicts_with = "connect")]
    listen: Option<SocketAddr>,

    /// Write into the GPU memory of the peer that listens there
    #[arg(long, value_name = "ADDR[:PORT]", value_parser = address)]
    connect: Option<SocketAddr>,

    /// Seconds to wait for a peer to connect
    #[arg(long, value_name = "SECONDS", value_parser = count, default_value = "60", requires = "listen")]
    wait: u32,

    /// File with a key that both ends know, 16 bytes or more; needed off this machine
    #[arg(long, value_name = "FILE", conflicts_with = "insecure")]
    key_file: Option<PathBuf>,

    /// Take any peer: for networks that keep strangers out themselves
    #[arg(long)]
    insecure: bool,
}

/// What moves the bytes.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Provider {
    /// The kernel's devices where one can be used, else soft
    Auto,
    /// RoCEv2 in user space, over UDP
    Soft,
    /// Devices of the kernel, through libibverbs
    Verbs,
}

/// A CUDA function that allocates.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Allocator {
    #[value(name = "cuMemAlloc")]
    Plain,
    /// With a POSIX file descriptor as handle type
    #[value(name = "cuMemCreate")]
    VmmPosixFd,
    /// Without a handle type
    #[value(name = "cuMemCreate-no-handle")]
    Vmm,
    /// From the stream-ordered pool
    #[value(name = "cuMemAllocAsync")]
    Pool,
}

impl Options {
    fn ends(&self) -> Ends {
        Ends {
            from: self.from.clone(),
            to: self.to.clone(),
            port: self.port,
            wish: match self.provider {
                Provider::Auto => Wish::Auto,
                Provider::Soft => Wish::Soft,
                Provider::Verbs => Wish::Verbs,
            },
        }
    }

    fn settings(&self) -> Settings {
        let default = Settings::default();
        Settings {
            size: self.size.unwrap_or(default.size),
            iterations: self.iterations.unwrap_or(default.iterations),
            seed: self.pattern,
            timeout: seconds(self.timeout),
        }
    }

    fn sweep_settings(&self) -> SweepSettings {
        let default = SweepSettings::default();
        let Destination { memory, reach } = self.destination();
        SweepSettings {
            largest: self.size.unwrap_or(default.largest),
            rounds: self.iterations.unwrap_or(default.rounds),
            memory,
            reach,
            timeout: seconds(self.timeout),
        }
    }

    fn destination(&self) -> Destination {
        Destination {
            memory: match self.memory {
                Allocator::Plain => MemoryKind::Plain,
                Allocator::VmmPosixFd => MemoryKind::VmmPosixFd,
                Allocator::Vmm => MemoryKind::Vmm,
                Allocator::Pool => MemoryKind::Pool,
            },
            reach: match (self.direct, self.staged) {
                (true, _) => Reach::Direct,
                (_, true) => Reach::Staged,
                _ => Reach::Auto,
            },
        }
    }

    fn security(&self) -> Result<Security> {
        match &self.key_file {
            Some(path) => Ok(Security::Key(key(path)?)),
            None if self.insecure => Ok(Security::Insecure),
            None => Ok(Security::Loopback),
        }
    }
}

/// The GPU that the bytes go to.
struct Where {
    place: Place,
    /// Why no hardware is involved, where that is so.
    simulated: Option<String>,
}

impl Where {
    /// As [`Machine::open`]. A GPU that no backend maps will do, where none was asked for by name:
    /// staged, the bytes reach it all the same.
    fn open(global: &Global, options: &Options) -> Result<Self> {
        let error = match Machine::open(global) {
            Ok(machine) => {
                return Ok(Self {
                    place: machine.site.into(),
                    simulated: machine.simulated,
                });
            }
            Err(error) if options.direct => return Err(error),
            Err(error) => error,
        };
        match error.downcast_ref::<gdr_copy::Error>() {
            Some(none @ gdr_copy::Error::NoBackend { .. }) => {
                let gpu = Gpu::open(Cuda::load()?, Ordinal(global.gpu))?;
                Ok(Self {
                    place: Place::without_mappings(gpu, none),
                    simulated: None,
                })
            }
            _ => Err(error),
        }
    }

    fn say_simulated(&self, output: &mut Output) -> gdr_perf::Result<()> {
        match &self.simulated {
            Some(reason) => output.line(format_args!("simulated: {reason}")),
            None => Ok(()),
        }
    }
}

pub(crate) fn run(global: &Global, options: &Options, output: &mut Output) -> Result<Exit> {
    let alone = options.listen.is_none() && options.connect.is_none();
    if alone && (options.key_file.is_some() || options.insecure) {
        let what = "--key-file and --insecure are about a peer: use --listen or --connect";
        return Err(UsageError(what.into()).into());
    }
    if !matches!(options.provider, Provider::Soft) {
        keep_the_library_from_gpu_memory();
    }
    let ends = options.ends();
    let chosen = ends.choose()?;
    let site = match options.connect {
        None => Some(Where::open(global, options)?),
        Some(_) => None,
    };
    if let (Some(site), true) = (&site, options.sweep) {
        return sweep(global, site, options, &chosen, output);
    }
    let mut lines = Lines::new(global, options.settings().iterations);
    if let (Some(site), false) = (&site, global.json) {
        site.say_simulated(output)?;
        lines.simulation_is_known();
    }
    if !global.json {
        let Chosen { provider, why } = &chosen;
        output.line(format_args!("provider  {provider}: {why}"))?;
    }
    // A wait for the peer cannot be given up in order: a signal ends the process then.
    let stop = on_signals(!alone)?;
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
    let report = match (site, options.connect) {
        (Some(site), _) => match options.listen {
            Some(address) => listen(&site.place, options, &chosen, address, &mut observe)?,
            None => within(&site.place, options, &chosen, &mut observe)?,
        },
        (None, Some(address)) => connect(options, &chosen, address, &mut observe)?,
        (None, None) => return Err(UsageError("there is nothing to do".into()).into()),
    };
    drop(progress);
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

/// Measures, both ends in this process.
fn sweep(
    global: &Global,
    site: &Where,
    options: &Options,
    chosen: &Chosen,
    output: &mut Output,
) -> Result<Exit> {
    let settings = options.sweep_settings();
    let (from, to) = options.ends().both(chosen)?;
    if !global.json {
        site.say_simulated(output)?;
    }
    let stop = on_signals(false)?;
    let progress = Progress::on_stderr();
    let (mut done, total) = (0, 2 * settings.sizes().count());
    let mut table = Table::default();
    let measured = loopback::sweep(&site.place, &from, &to, &settings, &mut |event| {
        if stop.load(Ordering::Relaxed) {
            return ControlFlow::Break(());
        }
        if let SweepEvent::Measured(_) = event {
            done += 1;
            progress.at(done, total, "measuring");
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

/// Both ends in this process.
fn within(
    place: &Place,
    options: &Options,
    chosen: &Chosen,
    observe: Observe<'_>,
) -> Result<Report> {
    let (from, to) = options.ends().both(chosen)?;
    let destination = options.destination();
    let settings = options.settings();
    Ok(loopback::run(
        place,
        &from,
        &to,
        destination,
        &settings,
        observe,
    )?)
}

fn listen(
    place: &Place,
    options: &Options,
    chosen: &Chosen,
    address: SocketAddr,
    observe: Observe<'_>,
) -> Result<Report> {
    let security = options.security()?;
    let device = options.ends().listener(chosen, address.ip())?;
    let listener = Listener::bind(address)?;
    let patience = Patience {
        peer: seconds(options.wait),
        step: seconds(options.timeout),
    };
    Ok(loopback::listen(
        place,
        &device,
        &listener,
        &security,
        options.destination(),
        patience,
        observe,
    )?)
}

fn connect(
    options: &Options,
    chosen: &Chosen,
    address: SocketAddr,
    observe: Observe<'_>,
) -> Result<Report> {
    let security = options.security()?;
    let device = options.ends().connector(chosen, address.ip())?;
    let settings = options.settings();
    Ok(loopback::connect(
        &device, address, &security, &settings, observe,
    )?)
}

/// Switches mlx5's "scatter to CQE" off for this process: payloads of up to 64 bytes would come
/// inside a completion, and the library would copy them by CPU to where they belong, which crashes
/// for GPU memory (rdma-core, providers/mlx5/qp.c). Who has set the variable keeps the choice.
fn keep_the_library_from_gpu_memory() {
    const VARIABLE: &str = "MLX5_SCATTER_TO_CQE";
    if std::env::var_os(VARIABLE).is_none() {
        // SAFETY: this runs before CUDA, libibverbs or gdr have started any thread, so that nobody
        // reads the environment at the same time.
        unsafe { std::env::set_var(VARIABLE, "0") };
    }
}

/// A flag that the first SIGINT or SIGTERM sets and the second ends the process by; the first
/// already where `at_once`.
fn on_signals(at_once: bool) -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(at_once));
    for signal in [SIGINT, SIGTERM] {
        let status = i32::from(Exit::Undecided.code());
        // In this order: a signal sees the flag as those before it left it.
        flag::register_conditional_shutdown(signal, status, Arc::clone(&stop))
            .and_then(|_| flag::register(signal, Arc::clone(&stop)))
            .context("signals cannot be handled")?;
    }
    Ok(stop)
}

const fn seconds(count: u32) -> Duration {
    Duration::from_secs(count as u64)
}

fn name(step: Step) -> &'static str {
    match step {
        Step::Fill => "filling GPU memory",
        Step::Write => "RDMA WRITE",
        Step::Verify => "looking at GPU memory",
        Step::Read => "RDMA READ",
    }
}

/// The key in a file, without the end of its last line.
fn key(path: &Path) -> Result<SharedKey> {
    let what = || format!("the key file {}", path.display());
    let bytes = fs::read(path).with_context(what)?;
    SharedKey::new(bytes.trim_ascii_end()).with_context(what)
}

fn address(text: &str) -> Result<SocketAddr, String> {
    let with_port = text.parse::<SocketAddr>();
    with_port
        .or_else(|_| text.parse::<IpAddr>().map(|ip| SocketAddr::new(ip, PORT)))
        .map_err(|_| {
            format!("`{text}` is no address: give it as 10.0.0.1, 10.0.0.1:4791 or [fe80::1]:4791")
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_port_or_the_usual_one() {
        assert_eq!(address("10.0.0.1"), Ok(([10, 0, 0, 1], PORT).into()));
        assert_eq!(address("10.0.0.1:5"), Ok(([10, 0, 0, 1], 5).into()));
        assert_eq!(address("[::1]:5").unwrap().port(), 5);
        assert_eq!(address("::1").unwrap().port(), PORT);
        address("gpu-node").unwrap_err();
    }
}
