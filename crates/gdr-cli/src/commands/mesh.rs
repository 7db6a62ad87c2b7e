//! `gdr mesh`: has all pairs of ranks write into each other's memory.

mod causes;
mod heat_map;
mod outliers;
mod place;
mod table;

use std::fmt;
use std::fs;
use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use anyhow::{Result, anyhow};
use gdr_perf::loopback::{Destination, DeviceName, DevicePair, HostPort, TransferPreference};
use gdr_perf::mesh::{
    self, Member, MeshEvent, MeshReport, MeshSettings, PROTOCOL_VERSION, RankCpus, RankSetup,
};
use gdr_perf::transfer::TransferMemory;
use gdr_rdma::{Device, Listener, Security};

use crate::chart;
use crate::command::{CommandSpec, Group, Run};
use crate::exit::{Exit, NO_GPU_OR_CLOSED, Statuses};
use crate::global::Global;
use crate::gpu::{Allocator, GpuOptions};
use crate::gpu_context::{GpuContext, WithoutGpu};
use crate::host_source;
use crate::interrupt::{self, FirstSignal};
use crate::output::Output;
use crate::progress::Progress;
use crate::rdma_peer::{
    Addresses, Provider, ROCE_PORT, SecurityOptions, Side, device_name, nearest_nics,
};
use crate::units::{count, size};

use self::place::Place;

/// Default percentage of the expected rate that is required to pass.
const USUAL_LEAST: u32 = 70;

/// Measure RDMA between all pairs of GPUs in a job, and name the slow and the dead ranks
///
/// A launcher starts one process per GPU, and sets the rank, the number of ranks and, usually, the host
/// of rank 0 in its environment. The ranks meet at rank 0. Pairs that have no GPU in common measure at
/// the same time, in both directions, and compare the last messages. The expected rate of a direction
/// is the median over all directions of its kind (on one host, or between two hosts).
///
/// Rank 0 prints the matrix; all ranks exit with its status.
#[derive(Debug, clap::Args)]
#[command(
    mut_arg("gpu", |arg| arg.short(None))
)]
pub(crate) struct Options {
    /// Number of this rank, from 0 [default: set by the launcher]
    #[arg(long, value_name = "N")]
    rank: Option<usize>,

    /// Number of ranks [default: set by the launcher]
    #[arg(long, value_name = "N")]
    ranks: Option<usize>,

    /// Number of this rank on its host, from 0, which selects the GPU [default: set by the launcher]
    #[arg(long, value_name = "N")]
    local_rank: Option<usize>,

    /// File with the hosts in rank order, one per line, with `slots=N` for N ranks; replaces a launcher
    #[arg(long, value_name = "FILE", conflicts_with = "ranks")]
    host_file: Option<PathBuf>,

    /// Host of rank 0, where the ranks meet [default: set by the launcher, else this machine]
    #[arg(long, value_name = "HOST[:PORT]")]
    meet: Option<HostPort>,

    /// RDMA device of this rank [default: the active device nearest to the GPU, or the address that
    /// routes to rank 0]
    #[arg(short, long, value_name = "DEV", value_parser = device_name)]
    device: Option<DeviceName>,

    /// RDMA provider
    #[arg(long, value_enum, value_name = "NAME", default_value_t = Provider::Auto)]
    provider: Provider,

    /// UDP port of soft devices
    #[arg(long, value_name = "PORT", default_value_t = ROCE_PORT)]
    udp_port: u16,

    /// Use host memory instead of GPU memory
    #[arg(long, conflicts_with_all = ["gpu", "memory"])]
    host_memory: bool,

    /// CUDA function that allocates the GPU memory
    #[arg(long, value_enum, value_name = "FN", default_value_t = Allocator::Plain)]
    memory: Allocator,

    /// Message size in bytes
    #[arg(short, long, value_name = "SIZE", value_parser = size, default_value = "1M")]
    size: u64,

    /// Milliseconds per direction [default: 1000; 50 with --quick]
    #[arg(long, value_name = "MS", value_parser = count)]
    duration: Option<u32>,

    /// Measure each direction briefly
    #[arg(long)]
    quick: bool,

    /// Least percentage of the expected rate that every direction must reach; 0 accepts any rate
    /// [default: 70; but if the ranks share the CPUs of one machine, it is enough that each rank has one
    /// direction with half the rate of the others]
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    least: Option<u32>,

    /// Seconds to wait until all ranks have joined
    #[arg(long, value_name = "SECONDS", value_parser = count, default_value = "60")]
    wait: u32,

    /// Seconds that each request may take
    #[arg(long, value_name = "SECONDS", value_parser = count, default_value = "5")]
    timeout: u32,

    /// Print only the figures for each direction, as CSV
    #[arg(long, conflicts_with = "json")]
    csv: bool,

    /// Write the matrix as a heat map to this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,

    #[command(flatten)]
    security: SecurityOptions,

    #[command(flatten)]
    gpu: GpuOptions,
}

impl Options {
    fn settings(&self, crowd: Option<Crowd>) -> MeshSettings {
        let least = match (self.least, crowd) {
            (Some(least), _) => least,
            (None, Some(_)) => 0,
            (None, None) => USUAL_LEAST,
        };
        let usual = match self.quick {
            true => 50,
            false => 1000,
        };
        MeshSettings {
            size: self.size,
            duration: Duration::from_millis(self.duration.unwrap_or(usual).into()),
            least: f64::from(least) / 100.0,
            cpus: match (self.least, crowd) {
                (None, Some(_)) => RankCpus::Shared,
                _ => RankCpus::Own,
            },
            meet_within: Duration::from_secs(self.wait.into()),
            timeout: self.timeout(),
        }
    }

    fn timeout(&self) -> Duration {
        Duration::from_secs(self.timeout.into())
    }

    fn pair(&self) -> Result<DevicePair> {
        let pair = DevicePair {
            from: self.device.clone(),
            to: self.device.clone(),
            port: self.udp_port,
            shards: None,
            preference: self.provider.into(),
            nearest: Vec::new(),
            gid_index: None,
        };
        Ok(pair.settle()?)
    }

    /// Returns the GPU whose memory this rank uses: by default, the GPU with the rank's number on this host.
    fn open_gpu(&self, place: &Place) -> Result<Option<GpuContext>> {
        if self.host_memory {
            return Ok(None);
        }
        let mut gpu = self.gpu.clone();
        gpu.local_rank = place.local_rank;
        let transfer = TransferPreference::Auto;
        GpuContext::open_for_transfer(&gpu, WithoutGpu::Simulates, transfer).map(Some)
    }
}

impl CommandSpec for Options {
    const GROUP: Group = Group::Measure;
    const STATUSES: Statuses = &[
        (Exit::Fine, "every direction reaches the expected rate"),
        (
            Exit::Failure,
            "a rank is slow, absent or dead, bytes are wrong, or the run failed",
        ),
        (Exit::Undecided, NO_GPU_OR_CLOSED),
    ];
    const EXAMPLES: &'static str = "\
Examples:
  srun --ntasks-per-node 8 gdr mesh --key-file key       every GPU of an allocation
  mpirun -n 8 gdr mesh                                   8 ranks on this machine
  torchrun --no-python --nproc-per-node 8 gdr mesh       the same
  gdr mesh --rank 0 --ranks 2 --meet node1 --key-file key     without a launcher, on each node
  gdr mesh --host-file hosts --key-file key              the same, started by pdsh or kubectl exec
  srun gdr mesh --quick --json --key-file key            in a job prolog, which tests the exit status";
    const RUN: Run<Self> = run;
}

fn run(global: &Global, options: &Options, output: &mut Output) -> Result<Exit> {
    let place = Place::of(options)?;
    if !matches!(options.provider, Provider::Soft) {
        // No threads have been started yet.
        gdr_rdma::disable_scatter_to_cqe();
    }
    let mut pair = options.pair()?;
    let gpu = options.open_gpu(&place)?;
    if let Some(gpu) = gpu.as_ref().filter(|gpu| gpu.simulated.is_none()) {
        pair.nearest = nearest_nics(gpu.target.gpu(), &host_source::this_node());
    }
    let chosen = pair.choose()?;
    let side = match place.rank {
        0 => Side::Listens,
        _ => Side::Connects,
    };
    let security = options.security.security()?;
    let addresses = Addresses::resolve(&place.meet, side, security, options.timeout())?;
    let (device, coordinator, listener) = addresses.first(|address| {
        // Rank 0 listens before it opens a device, so that the others find it early.
        let listener = match side {
            Side::Listens => Some(Listener::bind(address)?),
            Side::Connects => None,
        };
        Ok((pair.connector(&chosen, address.ip())?, address, listener))
    })?;
    // A wait for the others cannot be interrupted, so a signal ends the process.
    interrupt::flag(FirstSignal::Terminates)?;
    let crowd = Crowd::of(&place, &device);
    let settings = options.settings(crowd);
    let partners = Listener::bind(SocketAddr::new(device.address().ip(), 0))?;
    let destination = Destination {
        memory: options.memory.into(),
        transfer: TransferPreference::Auto,
    };
    let doctor = || causes::of_this_rank(gpu.as_ref(), &device);
    let setup = RankSetup {
        device: &device,
        memory: match &gpu {
            Some(gpu) => TransferMemory::Gpu(&gpu.target, destination),
            None => TransferMemory::Host,
        },
        listener: &partners,
        security: &addresses.security,
        doctor: &doctor,
    };
    let member = member(&place, &device, gpu.as_ref(), &partners)?;
    let join = || mesh::join(setup, coordinator, &member, &settings);
    let Some(listener) = listener else {
        return Ok(status(join()?));
    };
    let report = thread::scope(|scope| {
        let own = scope.spawn(join);
        let report = coordinate(&listener, &addresses.security, &place, &settings);
        let own = own.join().map_err(|_| anyhow!("rank 0 panicked"))?;
        let report = report?;
        own?;
        anyhow::Ok(report)
    })?;
    if let Some(path) = &options.svg {
        chart::write(path, &heat_map::svg(&report))?;
    }
    if global.json {
        output.json(&report)?;
    } else if options.csv {
        output.bytes(format!("{}\n", report.csv().trim_end()).as_bytes())?;
    } else {
        if let Some(reason) = gpu.as_ref().and_then(|gpu| gpu.simulated.as_ref()) {
            output.simulated(reason)?;
        }
        let crowd = crowd.filter(|_| options.least.is_none());
        table::write(&report, crowd, output)?;
    }
    Ok(status(report.passed))
}

/// Ranks of one machine whose soft devices need more CPUs than there are: a rate is then what the other ranks leave,
/// and says nothing about a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Crowd {
    ranks: usize,
    cpus: usize,
}

impl Crowd {
    /// CPUs that a rank uses: for its program, and for the engine of its device.
    const EACH: usize = 2;

    fn of(place: &Place, device: &Device) -> Option<Self> {
        let cpus = thread::available_parallelism().map_or(1, usize::from);
        let ranks = place.ranks;
        // At a loopback address, all other ranks are on this machine.
        let is_alone =
            device.provider() == gdr_rdma::Provider::Soft && device.address().ip().is_loopback();
        (is_alone && Self::EACH * ranks > cpus).then_some(Self { ranks, cpus })
    }
}

impl fmt::Display for Crowd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cpus = match self.cpus {
            1 => "one CPU".to_owned(),
            cpus => format!("{cpus} CPUs"),
        };
        write!(
            f,
            "only whole ranks were judged, not directions: the {} ranks share {cpus}, so each rate depends on \
             the other ranks; use --least {USUAL_LEAST} to judge every direction anyway",
            self.ranks
        )
    }
}

fn status(passed: bool) -> Exit {
    match passed {
        true => Exit::Fine,
        false => Exit::Failure,
    }
}

/// Parses a percentage.
fn percent(text: &str) -> Result<u32, String> {
    let percent = text.strip_suffix('%').unwrap_or(text).parse();
    let percent = percent.ok().filter(|percent| *percent <= 100);
    percent.ok_or_else(|| format!("`{text}` is not a percentage; use a number from 0 to 100"))
}

/// Returns what this rank says about itself.
fn member(
    place: &Place,
    device: &Device,
    gpu: Option<&GpuContext>,
    partners: &Listener,
) -> Result<Member> {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let described = |gpu: &GpuContext| {
        let info = gpu.target.gpu().info();
        format!("{} ({})", info.name, info.bdf)
    };
    Ok(Member {
        version: PROTOCOL_VERSION,
        rank: place.rank,
        ranks: place.ranks,
        host: host.trim().to_owned(),
        device: device.name().to_owned(),
        gpu: gpu.map(described),
        simulated: gpu.is_some_and(|gpu| gpu.simulated.is_some()),
        listens: partners.address()?,
    })
}

fn coordinate(
    listener: &Listener,
    security: &Security,
    place: &Place,
    settings: &MeshSettings,
) -> gdr_perf::Result<MeshReport> {
    let progress = Progress::on_stderr();
    mesh::coordinate(listener, security, place.ranks, settings, &mut |event| {
        match event {
            MeshEvent::Joined(member, joined, of) => {
                tracing::info!(
                    "rank {} on {} joined, {joined} of {of}",
                    member.rank,
                    member.host
                );
                progress.at(joined, of, "ranks joined");
            }
            MeshEvent::Round(done, of) => {
                tracing::info!("half round {done} of {of} is measured");
                progress.at(done, of, "half rounds");
            }
            _ => {}
        }
        ControlFlow::Continue(())
    })
}
