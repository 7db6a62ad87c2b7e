//! `gdr compare`: receives frames staged and direct, up to a kernel's result.

mod picture;
mod table;

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use gdr_cuda::MemoryKind;
use gdr_perf::BenchTarget;
use gdr_perf::loopback::pipeline::{self, PipelineEvent, PipelineReport, PipelineSettings};
use gdr_perf::loopback::{
    Destination, DeviceName, DevicePair, HostPort, SETUP_PORT, Timeouts, TransferPreference,
};
use gdr_perf::transfer::TransferMemory;

use super::measurement::Measurement;
use super::say_simulated;
use crate::chart;
use crate::command::{CommandSpec, Group, Run};
use crate::exit::{Exit, NO_GPU_OR_STOPPED, Statuses, UsageError};
use crate::figures::FigureOptions;
use crate::global::Global;
use crate::gpu::{Allocator, GpuName, GpuOptions};
use crate::gpu_context::{GpuContext, WithoutGpu};
use crate::host_source;
use crate::interrupt::{self, FirstSignal};
use crate::output::{Output, flow};
use crate::rdma_peer::{
    Addresses, Provider, ROCE_PORT, SecurityOptions, Side, device_name, listening_address,
    nearest_nics, without_gpu,
};
use crate::units::{count, size};
use table::Table;

/// Compare frames received into GPU memory with frames received into host memory
///
/// Each frame is read by RDMA from host memory (or from another GPU's memory), a kernel doubles its
/// 32-bit words, and the result is copied to host memory. In staged mode the frame arrives in
/// page-locked host memory and is copied to the GPU; in direct mode it arrives in GPU memory. The
/// modes alternate, every word of the results is compared, and a cost per frame and per byte is fitted
/// to the medians.
///
/// Both ends run in this process, or in two: start one with --server to offer frames, and the other,
/// which has the GPU, with the server's host name. Both print the result.
///
/// A device is either a kernel device (mlx5_0, or mlx5_0:2 for its second port) or an address of this
/// machine, at which gdr itself speaks RoCEv2 over UDP. `gdr devices` lists both kinds.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Host name or address of the server that offers frames
    #[arg(value_name = "HOST[:PORT]")]
    host: Option<HostPort>,

    /// Offer frames to one client
    #[arg(
        long,
        conflicts_with_all = [
            "host", "to", "smallest", "size", "kiro", "iterations", "pattern", "gpu", "require_gpu",
        ]
    )]
    server: bool,

    /// Address at which the server listens [default: the soft device's address, if one is named;
    /// otherwise all addresses with a key, or 127.0.0.1 without]
    #[arg(long, value_name = "HOST[:PORT]", requires = "server")]
    bind: Option<HostPort>,

    /// RDMA device of this process, for each end that it runs; use --from and --to for two devices
    #[arg(long, value_name = "DEV", value_parser = device_name, conflicts_with_all = ["from", "to"])]
    device: Option<DeviceName>,

    /// Device that sends the frames [default: the same as --to, or 127.0.0.2]
    #[arg(long, value_name = "DEV", value_parser = device_name, conflicts_with = "host")]
    from: Option<DeviceName>,

    /// GPU whose memory holds the frames, instead of host memory; named as for --gpu. With --server, a
    /// GPU of the server
    #[arg(long, value_name = "GPU", value_parser = GpuName::parse, conflicts_with = "host")]
    from_gpu: Option<GpuName>,

    /// Device that receives the frames [default: the active device nearest to the GPU, or 127.0.0.1]
    #[arg(long, value_name = "DEV", value_parser = device_name)]
    to: Option<DeviceName>,

    /// UDP port of soft devices
    #[arg(long = "udp-port", value_name = "PORT", default_value_t = ROCE_PORT)]
    port: u16,

    /// RDMA provider
    #[arg(long, value_enum, value_name = "NAME", default_value_t = Provider::Auto)]
    provider: Provider,

    /// Bytes in the smallest frame, a multiple of 4; each next size is four times larger
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "4")]
    smallest: u64,

    /// Bytes in the largest frame, up to 1G
    #[arg(short, long, value_name = "SIZE", value_parser = size, default_value = "64M")]
    size: u64,

    /// Use 512 MiB frames and show the same figures as the benchmark of KIRO's GPUDirect extension
    #[arg(long, conflicts_with_all = ["smallest", "size"])]
    kiro: bool,

    /// Maximum number of frames for each size and mode [default: 1000; 20 with --kiro]
    #[arg(short, long, value_name = "N", value_parser = count)]
    iterations: Option<u32>,

    /// Seed for the content of the frames
    #[arg(long, value_name = "SEED", value_parser = count, default_value = "1")]
    pattern: u32,

    /// CUDA function that allocates the GPU memory [default: cuMemAlloc]
    #[arg(long, value_enum, value_name = "FN")]
    memory: Option<Allocator>,

    /// Seconds that each frame may take, plus one for every 64 MiB
    #[arg(long, value_name = "SECONDS", value_parser = count, default_value = "10")]
    timeout: u32,

    /// Seconds that the server waits for a client
    #[arg(long, value_name = "SECONDS", value_parser = count, default_value = "60", requires = "server")]
    wait: u32,

    /// Write a plot to this file: the times of both modes and their ratio by size
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,

    #[command(flatten)]
    security: SecurityOptions,

    #[command(flatten)]
    figures: FigureOptions,

    #[command(flatten)]
    gpu: GpuOptions,
}

impl Options {
    /// Returns the devices: of one process the device of its end twice.
    fn pair(&self) -> DevicePair {
        let (from, to) = match (&self.host, self.server) {
            (Some(_), _) => (&self.to, &self.to),
            (None, true) => (&self.from, &self.from),
            (None, false) => (&self.from, &self.to),
        };
        let named = |end: &Option<DeviceName>| end.as_ref().or(self.device.as_ref()).cloned();
        DevicePair {
            from: named(from),
            to: named(to),
            port: self.port,
            shards: None,
            preference: self.provider.into(),
            nearest: Vec::new(),
            gid_index: None,
        }
    }

    fn memory_kind(&self) -> MemoryKind {
        self.memory.unwrap_or(Allocator::Plain).into()
    }

    /// Returns the memory of the frames, if it is this GPU's.
    fn source<'a>(&self, gpu: Option<&'a BenchTarget>) -> TransferMemory<'a> {
        match gpu {
            Some(gpu) => {
                let destination = Destination {
                    memory: self.memory_kind(),
                    transfer: TransferPreference::Auto,
                };
                TransferMemory::Gpu(gpu, destination)
            }
            None => TransferMemory::Host,
        }
    }

    fn timeout(&self) -> Duration {
        Duration::from_secs(self.timeout.into())
    }

    fn settings(&self) -> Result<PipelineSettings, UsageError> {
        let preset = match self.kiro {
            true => PipelineSettings::kiro(),
            false => PipelineSettings {
                sizes: PipelineSettings::sizes(self.smallest, self.size),
                ..PipelineSettings::default()
            },
        };
        if preset.sizes.is_empty() {
            return Err(UsageError(format!(
                "no frame size lies between {} and {} bytes: set --smallest to a value from 4 to --size",
                self.smallest, self.size
            )));
        }
        Ok(PipelineSettings {
            rounds: self.iterations.unwrap_or(preset.rounds),
            memory: self.memory_kind(),
            seed: self.pattern,
            timeout: self.timeout(),
            ..preset
        })
    }
}

impl CommandSpec for Options {
    const GROUP: Group = Group::Measure;
    const STATUSES: Statuses = &[
        (Exit::Fine, "measured"),
        (
            Exit::Failure,
            "a transfer failed, a result was wrong, or the run could not start",
        ),
        (Exit::Undecided, NO_GPU_OR_STOPPED),
    ];
    const EXAMPLES: &'static str = "\
Examples:
  gdr compare                                4 bytes to 64 MiB, within this machine
  gdr compare --smallest 1M --size 1G        larger frames
  gdr compare --kiro                         512 MiB frames, as in KIRO's benchmark
  gdr compare --from mlx5_0 --to mlx5_1      from one NIC to another
  gdr compare --gpu 1 --from-gpu 0           from one GPU's memory to another's
  gdr compare --server --key-file k          offer frames to another machine
  gdr compare node1 --key-file k             receive them there, on the machine with the GPU
  gdr compare --csv > frames.csv             write the figures as CSV
  gdr compare --svg frames.svg               draw the times of both modes";
    const RUN: Run<Self> = run;
}

fn run(global: &Global, options: &Options, output: &mut Output) -> Result<Exit> {
    let is_alone = options.host.is_none() && !options.server;
    if is_alone && options.security.is_given() {
        let what = "--key-file and --insecure apply only with a peer: use --server, or name the server's host";
        return Err(UsageError(what.to_owned()).into());
    }
    if options.server && options.memory.is_some() && options.from_gpu.is_none() {
        let what = "--memory applies to GPU memory, but this server's frames are in host memory: choose a \
                    GPU with --from-gpu, or pass --memory to the client";
        return Err(UsageError(what.to_owned()).into());
    }
    let settings = options.settings()?;
    if !matches!(options.provider, Provider::Soft) {
        // No threads have been started yet.
        gdr_rdma::disable_scatter_to_cqe();
    }
    let mut table = Table::new(options.figures);
    let report = match options.server {
        true => serve(global, options, &mut table, output)?,
        false => measure(global, options, &settings, &mut table, output)?,
    };
    if let Some(path) = &options.svg {
        chart::write(path, &picture::svg(&report))?;
    }
    if global.json {
        output.json(&report)?;
    } else {
        table.end(&report, output)?;
    }
    Ok(Exit::Fine)
}

/// Offers frames to one client.
fn serve(
    global: &Global,
    options: &Options,
    table: &mut Table,
    output: &mut Output,
) -> Result<PipelineReport> {
    let mut pair = options.pair().settle()?;
    pair.choose()?;
    let gpu = match &options.from_gpu {
        Some(name) => Some(GpuContext::open_for_transfer(
            &options.gpu.with_gpu(name),
            WithoutGpu::Fails,
            TransferPreference::Auto,
        )?),
        None => None,
    };
    if let Some(gpu) = &gpu {
        if gpu.simulated.is_none() {
            pair.nearest = nearest_nics(gpu.target.gpu(), &host_source::this_node());
        }
        announce(global, options, gpu, output)?;
        table.simulation_is_known();
    }
    let chosen = pair.choose()?;
    let host = match &options.bind {
        Some(host) => host.clone(),
        None => listening_address(&pair, &options.security, SETUP_PORT),
    };
    let security = options.security.security()?;
    let addresses = Addresses::resolve(&host, Side::Listens, security, options.timeout())?;
    // A wait for the peer cannot be interrupted, so a signal ends the process.
    interrupt::flag(FirstSignal::Terminates)?;
    let (device, listener) = addresses.listen(&pair, &chosen, "--from")?;
    let timeouts = Timeouts {
        peer: Duration::from_secs(options.wait.into()),
        step: options.timeout(),
    };
    let security = &addresses.security;
    let source = options.source(gpu.as_ref().map(|gpu| &gpu.target));
    Ok(pipeline::serve(
        &device,
        &listener,
        security,
        source,
        timeouts,
        &mut |event| match global.json {
            true => ControlFlow::Continue(()),
            false => flow(table.event(&event, output)),
        },
    )?)
}

/// Writes that the GPU is simulated, if it is.
fn announce(
    global: &Global,
    options: &Options,
    gpu: &GpuContext,
    output: &mut Output,
) -> gdr_perf::Result<()> {
    match &gpu.simulated {
        Some(reason) if options.figures.csv => Output::simulated_aside(reason),
        _ if global.json => {}
        _ => say_simulated(gpu, output)?,
    }
    Ok(())
}

/// Measures frames of this process or of a server.
fn measure(
    global: &Global,
    options: &Options,
    settings: &PipelineSettings,
    table: &mut Table,
    output: &mut Output,
) -> Result<PipelineReport> {
    let mut pair = options.pair().settle()?;
    pair.choose()?;
    let addresses = match &options.host {
        Some(host) => {
            let security = options.security.security()?;
            let limit = options.timeout();
            Some(Addresses::resolve(host, Side::Connects, security, limit)?)
        }
        None => None,
    };
    let without_gpu = without_gpu(options.provider, [&options.from, &options.to]);
    let source = options.from_gpu.as_ref();
    let gpu = GpuContext::open(&options.gpu.beside(source), without_gpu)?;
    let source = gpu.second(source)?;
    if gpu.simulated.is_none() {
        pair.nearest = nearest_nics(gpu.target.gpu(), &host_source::this_node());
    }
    let chosen = pair.choose()?;
    announce(global, options, &gpu, output)?;
    let mut measurement = Measurement::start(global, settings.sizes.len())?;
    let mut observe = |event: PipelineEvent<'_>| {
        if let PipelineEvent::Measured(row) = &event {
            measurement.end(row);
            measurement.begin("sizes");
        }
        measurement.flow(match global.json {
            true => Ok(()),
            false => table.event(&event, output),
        })
    };
    let result = match &addresses {
        None => pair
            .both(&chosen)
            .and_then(|(from, to)| {
                let source = options.source(source.as_ref());
                pipeline::compare(&gpu.target, &from, &to, source, settings, &mut observe)
            })
            .map_err(Into::into),
        Some(addresses) => addresses.first(|address| {
            let device = pair.connector(&chosen, address.ip())?;
            let (target, security) = (&gpu.target, &addresses.security);
            Ok(pipeline::compare_with(
                target,
                &device,
                address,
                security,
                settings,
                &mut observe,
            )?)
        }),
    };
    measurement.finish(result)
}
