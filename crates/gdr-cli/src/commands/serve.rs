//! `gdr serve`: offers objects.

mod checkpoint;
mod http;
mod metrics;
mod plan;
mod publisher;

use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use gdr_object::{
    Deadline, Epoch, Grantee, Object, ObjectInfo, ObjectName, ObjectOptions, ObjectServer, Place,
    Relay, Rights, ServerOptions, Shape,
};
use gdr_perf::loopback::{HostPort, TransferPreference};
use gdr_perf::report::Schema;
use gdr_perf::transfer::{InvalidThreshold, MinimumRate};
use serde::Serialize;

use super::layout::Layout;
use super::say_simulated;
use crate::command::{CommandSpec, Group, Run};
use crate::document::Document;
use crate::exit::{Exit, NO_GPU_OR_CLOSED, Statuses};
use crate::global::Global;
use crate::gpu::GpuOptions;
use crate::gpu_context::{GpuContext, WithoutGpu};
use crate::host_source;
use crate::interrupt::{self, FirstSignal};
use crate::object_link::{DeviceOptions, ObjectAddress};
use crate::object_report::{ObjectRow, table};
use crate::object_spec::{ContentSpec, GpuReach, ObjectSpec, SpecLocation};
use crate::output::Output;
use crate::rdma_peer::{Addresses, Side, check_listener, nearest_nics};
use crate::units::figure;
use checkpoint::CheckpointSpec;
use plan::Plan;
use publisher::Publisher;

/// Offer named memory on this host or its GPUs, which others can get, watch and put by RDMA
///
/// Runs until Ctrl-C or SIGTERM. Peers on this host connect through loopback addresses. For peers on
/// other hosts, listen at an address that they can reach, and pass a key. RDMA packets are neither
/// encrypted nor authenticated: use networks whose hosts you trust.
///
/// The content is put by peers, or read from a file or standard input. Each run of as many bytes as
/// the object has is one epoch.
#[derive(Debug, clap::Args)]
#[command(
    mut_arg("gpu", |arg| arg.short(None))
)]
pub(crate) struct Options {
    /// An object to offer, as comma-separated KEY=VALUE pairs (see below); can be repeated
    #[arg(
        long = "object",
        value_name = "KEYS",
        required_unless_present_any = ["checkpoints", "relays"]
    )]
    objects: Vec<ObjectSpec>,

    /// Offer the tensors in a safetensors file as an object with checksums, in the memory of --gpu if
    /// given; the object is named after the file by default
    #[arg(long = "safetensors", value_name = "[NAME=]FILE")]
    checkpoints: Vec<CheckpointSpec>,

    /// Relay an object of another owner, to take load off that owner: get each epoch once, and offer it
    /// from host memory under the same name. Ends when the owner is gone
    #[arg(long = "relay", value_name = "HOST[:PORT]/NAME")]
    relays: Vec<ObjectAddress>,

    /// Publish this file to the named object, or to the only one; - is standard input
    #[arg(long = "publish-from", value_name = "[NAME=]FILE")]
    contents: Vec<ContentSpec>,

    /// TCP address to listen at [default port: 4791; 0 picks a free one]
    #[arg(long, value_name = "HOST[:PORT]", default_value = "127.0.0.1")]
    listen: HostPort,

    /// Limit the total rate to all readers: 2GB/s, 10Gbps. Soft devices only
    #[arg(long, value_name = "RATE", value_parser = bytes_per_second)]
    limit: Option<NonZeroU64>,

    /// Serve Prometheus metrics at http://ADDR/metrics, without a key
    #[arg(long, value_name = "ADDR:PORT")]
    metrics: Option<SocketAddr>,

    #[command(flatten)]
    device: DeviceOptions,

    #[command(flatten)]
    gpu: GpuOptions,
}

impl Options {
    /// Opens the GPUs, if an object is in memory of one.
    fn open_gpu(&self, objects: &[ObjectSpec]) -> Result<Option<GpuContext>> {
        let is_of_gpu = |it: &ObjectSpec| matches!(it.location, SpecLocation::Gpu(..));
        if !objects.iter().any(is_of_gpu) {
            return Ok(None);
        }
        let transfer = TransferPreference::Auto;
        GpuContext::open_for_transfer(&self.gpu, WithoutGpu::Fails, transfer).map(Some)
    }
}

/// Parses a rate into bytes per second, at least one.
fn bytes_per_second(text: &str) -> Result<NonZeroU64, String> {
    let MinimumRate { gb_per_s } = text
        .parse()
        .map_err(|error: InvalidThreshold| error.to_string())?;
    NonZeroU64::new((gb_per_s * 1e9) as u64)
        .ok_or_else(|| format!("`{text}` is less than a byte per second"))
}

/// Returns where an object goes.
fn place(spec: &ObjectSpec, context: Option<&GpuContext>) -> Result<Place> {
    let (SpecLocation::Gpu(name, reach), Some(context)) = (&spec.location, context) else {
        return Ok(Place::host());
    };
    let gpu = context.gpu(name.as_ref())?;
    Ok(match reach {
        GpuReach::Best => Place::gpu(&gpu),
        GpuReach::Staged => Place::gpu_staged(&gpu),
    })
}

/// An owner with its objects.
struct Served {
    // Fields drop in order: peers lose the connection before the objects.
    server: ObjectServer,
    objects: Vec<Offered>,
    relays: Vec<Relay>,
}

/// An object, with the rights of every peer.
struct Offered {
    object: Arc<Object>,
    rights: Rights,
}

impl Served {
    /// Returns the objects, as peers see them.
    fn objects(&self) -> Vec<ObjectInfo> {
        let mut objects = self.server.objects();
        for info in &mut objects {
            let mut offered = self.objects.iter();
            if let Some(offered) = offered.find(|it| *it.object.name() == info.name) {
                info.rights = offered.rights;
            }
            if self.relays.iter().any(|relay| *relay.name() == info.name) {
                info.rights = Rights::Read;
            }
        }
        objects
    }

    /// Returns how many links have an object open.
    fn readers(&self, name: &ObjectName) -> usize {
        let object = self.objects.iter().find(|it| it.object.name() == name);
        let relay = self.relays.iter().find(|it| it.name() == name);
        object
            .map(|it| it.object.readers())
            .or(relay.map(Relay::readers))
            .unwrap_or(0)
    }

    fn rows(&self) -> Vec<ObjectRow> {
        self.objects().iter().map(ObjectRow::from).collect()
    }
}

/// A line of `gdr.serve`.
#[derive(Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
enum Event<'a> {
    /// Peers can connect.
    Serving {
        address: SocketAddr,
        generation: String,
        device: &'a str,
        rdma_address: SocketAddr,
        /// Which peers are accepted: `loopback`, `key` or `any`.
        peers: &'static str,
        metrics: Option<SocketAddr>,
        /// Maximum rate to all readers together.
        limit_bytes_per_s: Option<NonZeroU64>,
        simulated: bool,
        objects: Vec<ObjectRow>,
    },
    /// The whole content of a file has been published.
    Published { object: &'a str, epoch: Option<u64> },
    /// A signal came.
    End {
        seconds: f64,
        links_accepted: u64,
        connections_failed: u64,
        requests: u64,
        requests_refused: u64,
        objects: Vec<ObjectRow>,
    },
}

impl CommandSpec for Options {
    const GROUP: Group = Group::ShareMemory;
    const STATUSES: Statuses = &[
        (Exit::Fine, "served until a signal (Ctrl-C, SIGTERM)"),
        (
            Exit::Failure,
            "the server could not start, content could not be read or published, or the owner of \
                 a relayed object is gone",
        ),
        (Exit::Undecided, NO_GPU_OR_CLOSED),
    ];
    const EXAMPLES: &'static str = "\
Keys of --object:
  name=NAME        1 to 200 letters, digits and -_.:/
  gpu=GPU          place the object on this GPU (index, UUID or PCI address; `gpu` alone means the
                   GPU of --gpu) [default: host memory]
  reach=HOW        how a soft device accesses GPU memory: best (mapped, if possible) or staged
                   [default: best]
  size=SIZE        bytes per epoch [default: from shape, else the size of --publish-from]
  shape=AxBxC      elements along each dimension
  element=TYPE     u8 i8 u16 i16 u32 i32 u64 i64 f8e4m3 f8e5m2 f16 bf16 f32 f64 [default: u8]
  mode=MODE        latest (whole epochs), live (one copy, may be torn), or ring:SLOTS
                   [default: latest]
  when-full=WHAT   if a ring is full because a reader lags: drop-oldest or block
                   [default: drop-oldest]
  checksum=SUM     checksum for each epoch: none or sum64 [default: none]
  access=RIGHTS    what peers may do: read or read-write [default: read]

Examples:
  gdr serve --object name=weights,gpu=0,size=1G --publish-from weights.bin
  gdr serve --object name=kv,shape=32x4096,element=bf16,access=read-write    let peers put it
  ./camera | gdr serve --object name=frame,size=8M,mode=ring:16 --publish-from -
  gdr serve --listen 10.0.0.1 --key-file key --object name=a,size=4K --object name=b,size=4K
  gdr serve --safetensors model.safetensors    list the tensors with: gdr ls 127.0.0.1/model
  gdr serve --relay node1/model --listen 10.0.0.7 --key-file key    take load off node1
  gdr serve --safetensors model.safetensors --limit 2GB/s    leave bandwidth to other programs
  gdr serve --object name=w,size=1M --metrics 127.0.0.1:9400    export metrics to Prometheus";
    const RUN: Run<Self> = run;
}

fn run(global: &Global, options: &Options, output: &mut Output) -> Result<Exit> {
    let (mut objects, mut contents) = (options.objects.clone(), options.contents.clone());
    let mut checkpoints = Vec::new();
    for checkpoint in &options.checkpoints {
        let location = match options.gpu.is_named() {
            true => SpecLocation::Gpu(None, GpuReach::Best),
            false => SpecLocation::Host,
        };
        let checkpoint = checkpoint.open(location)?;
        objects.push(checkpoint.object.clone());
        contents.push(checkpoint.content.clone());
        checkpoints.push(checkpoint);
    }
    let plans = Plan::make(&objects, &contents)?;
    options.device.prepare();
    let stop = interrupt::flag(FirstSignal::RequestsStop)?;
    if global.json {
        output.documents_in_lines();
    }
    let context = options.open_gpu(&objects)?;
    // Detect errors in the objects before peers can connect.
    let mut ready = Vec::new();
    for plan in plans {
        let place = place(plan.spec, context.as_ref())?;
        let (shape, content) = plan.open()?;
        ready.push((plan.spec, place, shape, content));
    }
    let server = bind(options, context.as_ref())?;
    let mut objects = Vec::new();
    let mut publishers = Vec::new();
    for (spec, place, shape, content) in ready {
        let object = Arc::new(create(&server, spec, shape, &place)?);
        if let Some(content) = content {
            publishers.push(Publisher::new(Arc::clone(&object), content));
        }
        let rights = spec.rights;
        objects.push(Offered { object, rights });
    }
    for checkpoint in &checkpoints {
        let object = Arc::new(checkpoint.offer_sums(&server)?);
        let rights = Rights::Read;
        objects.push(Offered { object, rights });
    }
    let relays = options
        .relays
        .iter()
        .map(|from| relay(&server, options, from));
    let relays = relays.collect::<Result<_>>()?;
    server.open();
    let served = Arc::new(Served {
        server,
        objects,
        relays,
    });
    let metrics = options
        .metrics
        .map(|address| metrics::serve(address, Arc::downgrade(&served)))
        .transpose()?;
    announce(global, options, &served, context.as_ref(), metrics, output)?;
    let (report, reports) = mpsc::channel();
    for publisher in publishers {
        publisher.start(report.clone(), Arc::clone(&stop))?;
    }
    drop(report);
    let began = Instant::now();
    wait(global, &stop, &reports, &served.relays, output)?;
    if global.json {
        let stats = served.server.stats();
        let event = Event::End {
            seconds: began.elapsed().as_secs_f64(),
            links_accepted: stats.links_accepted,
            connections_failed: stats.connections_failed,
            requests: stats.requests,
            requests_refused: stats.requests_refused,
            objects: served.rows(),
        };
        document(event, output)?;
    }
    Ok(Exit::Fine)
}

/// Listens, with a device that is near the GPU.
fn bind(options: &Options, context: Option<&GpuContext>) -> Result<ObjectServer> {
    let nearest = match context {
        Some(gpu) if gpu.simulated.is_none() => {
            nearest_nics(gpu.target.gpu(), &host_source::this_node())
        }
        _ => Vec::new(),
    };
    let (pair, chosen) = options.device.choose(nearest)?;
    tracing::info!("provider {}: {}", chosen.provider, chosen.why);
    /// How long name resolution may take.
    const RESOLVER: Duration = Duration::from_secs(10);
    let security = options.device.security.security()?;
    let addresses = Addresses::resolve(&options.listen, Side::Listens, security, RESOLVER)?;
    addresses.first(|address| {
        let device = pair.listener(&chosen, address.ip())?;
        check_listener(&device, address, &addresses.security)?;
        // A peer that connects at once should find the objects.
        let mut server = ServerOptions::new(addresses.security.clone())
            .closed()
            .device(&device);
        if let Some(limit) = options.limit {
            server = server.limit(limit);
        }
        Ok(ObjectServer::bind(address, server)?)
    })
}

/// Has the server offer another owner's object.
fn relay(server: &ObjectServer, options: &Options, from: &ObjectAddress) -> Result<Relay> {
    /// How long the owner may take to answer.
    const LIMIT: Duration = Duration::from_secs(10);
    let link = options.device.connect(&from.owner, LIMIT)?;
    let object = link.open(from.name.clone(), Deadline::after(LIMIT))?;
    Ok(Relay::start(server, from.name.clone(), object, LIMIT)?)
}

fn create(server: &ObjectServer, spec: &ObjectSpec, shape: Shape, place: &Place) -> Result<Object> {
    let options = ObjectOptions::new(spec.element, shape)
        .mode(spec.mode)
        .checksum(spec.checksum)
        .grant(Grantee::Everyone, spec.rights);
    server
        .create(spec.name.clone(), options, place)
        .with_context(|| format!("the object {} cannot be created", spec.name))
}

fn document(event: Event<'_>, output: &mut Output) -> gdr_perf::Result<()> {
    output.json(&Document {
        schema: Schema::first("gdr.serve"),
        content: event,
    })
}

/// Prints what is served, and where.
fn announce(
    global: &Global,
    options: &Options,
    served: &Served,
    context: Option<&GpuContext>,
    metrics: Option<SocketAddr>,
    output: &mut Output,
) -> Result<()> {
    let server = &served.server;
    let device = server.device();
    if global.json {
        let event = Event::Serving {
            address: server.address(),
            generation: server.generation().to_string(),
            device: device.name(),
            rdma_address: device.address(),
            peers: options.device.security.peers(),
            metrics,
            limit_bytes_per_s: options.limit,
            simulated: context.is_some_and(|gpu| gpu.simulated.is_some()),
            objects: served.rows(),
        };
        return Ok(document(event, output)?);
    }
    if let Some(context) = context {
        say_simulated(context, output)?;
    }
    let text = format!(
        "serving at {} by {}; Ctrl-C ends it",
        server.address(),
        device.name()
    );
    output.paragraph("", "  ", &text)?;
    if let Some(limit) = options.limit {
        let rate = figure(limit.get() as f64 / 1e9);
        output.line(format_args!("at most {rate} GB/s to all readers together"))?;
    }
    if let Some(address) = metrics {
        output.line(format_args!("metrics at http://{address}/metrics"))?;
    }
    Layout::default().show(&table(&served.objects()), output)
}

/// Waits for a signal. Also ends if a publisher fails, or if the owner of a relayed object is gone.
fn wait(
    global: &Global,
    stop: &AtomicBool,
    reports: &Receiver<publisher::Report>,
    relays: &[Relay],
    output: &mut Output,
) -> Result<()> {
    /// How often to check for a signal.
    const LOOK: Duration = Duration::from_millis(100);
    let mut publishers_run = true;
    while !stop.load(Ordering::Relaxed) {
        for relay in relays {
            if let Some(error) = relay.wait(Deadline::after(Duration::ZERO)) {
                return Err(error)
                    .with_context(|| format!("the relay of {} has ended", relay.name()));
            }
        }
        if !publishers_run {
            std::thread::sleep(LOOK);
            continue;
        }
        match reports.recv_timeout(LOOK) {
            Ok(report) => {
                let epoch = report.result?;
                if global.json {
                    let event = Event::Published {
                        object: report.object.as_str(),
                        epoch: epoch.map(Epoch::get),
                    };
                    document(event, output)?;
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => publishers_run = false,
        }
    }
    Ok(())
}
