//! Measures the benefit of several shards: the rate of WRITEs between two devices of this process over 1, 2, 4 and 8
//! shards, into host memory and, if there is a GPU, into GPU memory. Prints one JSON document.
//!
//! ```text
//! cargo run --release -p gdr-rdma --example shards
//! ```
//!
//! Eight queue pairs write at the same time, either each from its own thread with its own completion queue, or all from
//! one thread with one completion queue. Both ends and the wire are on this host, so each busy shard takes a processor
//! at both ends.

use std::error::Error;
use std::net::{IpAddr, Ipv4Addr};
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use gdr_cuda::{Cuda, Gpu, MemoryKind, Ordinal};
use gdr_rdma::{
    Access, Buffer, CompletionQueue, ConnectionOptions, CopyEngineThreshold, Deadline, Device,
    MemoryRegion, Mtu, QueuePair, QueuePairOptions, SendRequest, SoftOptions, WcStatus, WrId,
};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const QUEUE_PAIRS: usize = 8;
const SHARDS: [usize; 4] = [1, 2, 4, 8];
/// Bytes per message, and the number of messages in flight per queue pair.
const MESSAGES: [(u64, usize); 2] = [(1 << 20, 4), (64, 64)];
const TIME: Duration = Duration::from_secs(1);
const WARM_UP: Duration = Duration::from_millis(200);
const LIMIT: Duration = Duration::from_secs(30);

/// Which threads post requests and take completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Threads {
    OneForEach,
    One,
}

fn main() -> ExitCode {
    match example() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn example() -> Result<()> {
    let mut targets = vec![("host", Buffer::host(area())?)];
    match gpu_memory() {
        Ok(buffer) => targets.push(("gpu", buffer)),
        Err(error) => eprintln!("no GPU memory: {error}"),
    }
    let mut rows = Vec::new();
    for (memory, target) in &targets {
        for threads in [Threads::OneForEach, Threads::One] {
            for (bytes, depth) in MESSAGES {
                for shards in SHARDS {
                    let rate = measure(shards, threads, target, bytes, depth)?;
                    let row = format!(
                        "    {{\"memory\": \"{memory}\", \"threads\": {}, \"size\": {bytes}, \
                         \"shards\": {shards}, \"gb_per_s\": {:.3}, \"mpps\": {:.4}}}",
                        if threads == Threads::One {
                            1
                        } else {
                            QUEUE_PAIRS
                        },
                        rate * bytes as f64 / 1e9,
                        rate / 1e6,
                    );
                    eprintln!("{}", row.trim());
                    rows.push(row);
                }
            }
        }
    }
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let time = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    println!("{{\n  \"schema\": {{\"name\": \"gdr.shards\", \"version\": 1}},");
    println!("  \"host\": \"{}\", \"time\": {time},", host.trim());
    println!("  \"version\": \"{}\",", env!("CARGO_PKG_VERSION"));
    println!(
        "  \"cpus\": {}, \"queue_pairs\": {QUEUE_PAIRS},",
        thread::available_parallelism()?
    );
    println!("  \"rows\": [\n{}\n  ]\n}}", rows.join(",\n"));
    Ok(())
}

/// Returns the room for the longest message of each queue pair.
fn area() -> usize {
    QUEUE_PAIRS << 20
}

fn gpu_memory() -> Result<Buffer> {
    let gpu = Gpu::open(Cuda::load()?, Ordinal(0))?;
    let device = Arc::new(gpu.allocate(MemoryKind::Plain, area() as u64)?);
    let context = gdr_copy::Context::open()?;
    let mapping = context.pin(device.ptr(), device.len())?.map()?;
    let threshold = CopyEngineThreshold::Planned;
    Ok(Buffer::direct_with_copies(mapping, device, threshold)?)
}

/// Returns the messages per second of all queue pairs together.
fn measure(
    shards: usize,
    threads: Threads,
    target: &Buffer,
    bytes: u64,
    depth: usize,
) -> Result<f64> {
    let open = |last| {
        let address = IpAddr::V4(Ipv4Addr::new(127, 77, 10, last));
        let options = SoftOptions::new(address).port(0).shards(shards);
        Device::soft_with(options.busy_poll(Duration::from_millis(2)))
    };
    let (near, far) = (open(1)?, open(2)?);
    let (near_domain, far_domain) = (near.protection_domain(), far.protection_domain());
    let host = Buffer::host(area())?;
    let pattern: Vec<u8> = (0..area()).map(|at| (at * 31 + shards) as u8).collect();
    host.write_at(0, &pattern)?;
    let source = near_domain.register(&host, Access::LOCAL_WRITE)?;
    let target_region = far_domain.register(target, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    let shared = near.completion_queue(QUEUE_PAIRS * depth);
    let far_queue = far.completion_queue(1);
    let mut lanes = Vec::new();
    let mut far_pairs = Vec::new();
    for number in 0..QUEUE_PAIRS {
        let queue = match threads {
            Threads::One => shared.clone(),
            Threads::OneForEach => near.completion_queue(depth),
        };
        let pair = near_domain.queue_pair(&QueuePairOptions::new(&queue))?;
        let far_pair = far_domain.queue_pair(&QueuePairOptions::new(&far_queue))?;
        let options = ConnectionOptions::new(Mtu::B4096);
        pair.connect(&far_pair.endpoint(), &options)?;
        far_pair.connect(&pair.endpoint(), &options)?;
        far_pairs.push(far_pair);
        lanes.push(Lane {
            number,
            pair,
            queue,
            in_flight: 0,
        });
    }
    let writes = Writes {
        source: &source,
        target: &target_region,
        bytes,
        depth,
    };
    let rate = match threads {
        Threads::One => writes.run(&mut lanes)?,
        Threads::OneForEach => thread::scope(|scope| {
            let runs: Vec<_> = lanes
                .chunks_mut(1)
                .map(|lane| scope.spawn(|| writes.run(lane)))
                .collect();
            let mut sum = 0.0;
            for run in runs {
                sum += run.join().map_err(|_| "a thread panicked")??;
            }
            Ok::<_, Box<dyn Error + Send + Sync>>(sum)
        })?,
    };
    for number in 0..QUEUE_PAIRS {
        let at = number << 20;
        let mut arrived = vec![0; bytes as usize];
        target.read_at(at as u64, &mut arrived)?;
        if arrived != pattern[at..at + bytes as usize] {
            return Err(format!("queue pair {number}: other bytes arrived").into());
        }
    }
    Ok(rate)
}

/// A queue pair and its messages in flight.
struct Lane {
    number: usize,
    pair: QueuePair,
    queue: CompletionQueue,
    in_flight: usize,
}

/// An endless sequence of the same WRITE.
struct Writes<'a> {
    source: &'a MemoryRegion,
    target: &'a MemoryRegion,
    bytes: u64,
    depth: usize,
}

impl Writes<'_> {
    /// Writes from one thread for the time of a measurement; returns messages a second.
    fn run(&self, lanes: &mut [Lane]) -> Result<f64> {
        self.write_for(lanes, WARM_UP)?;
        let start = Instant::now();
        let completed = self.write_for(lanes, TIME)?;
        Ok(completed as f64 / start.elapsed().as_secs_f64())
    }

    fn write_for(&self, lanes: &mut [Lane], time: Duration) -> Result<u64> {
        let (start, mut completed) = (Instant::now(), 0);
        let deadline = Deadline::after(LIMIT);
        loop {
            let is_open = start.elapsed() < time;
            for lane in lanes.iter_mut().filter(|_| is_open) {
                self.post(lane)?;
            }
            if lanes.iter().all(|lane| lane.in_flight == 0) {
                return Ok(completed);
            }
            let mut idle = true;
            let queues = lanes.first().map(|lane| lane.queue.clone());
            while let Some(done) = queues
                .as_ref()
                .map(CompletionQueue::poll)
                .transpose()?
                .flatten()
            {
                if done.status != WcStatus::Success {
                    return Err(format!("a WRITE failed: {}", done.status).into());
                }
                let lane = lanes
                    .iter_mut()
                    .find(|lane| lane.number as u64 == done.id.0);
                lane.ok_or("a completion of another queue pair")?.in_flight -= 1;
                completed += 1;
                idle = false;
            }
            if idle && deadline.has_passed() {
                return Err("WRITEs do not complete".into());
            }
        }
    }

    fn post(&self, lane: &mut Lane) -> Result<()> {
        let room = self.depth - lane.in_flight;
        let at = (lane.number as u64) << 20;
        let remote = self.target.remote().at(at);
        let segment = self.source.segment(at, self.bytes)?;
        let id = WrId(lane.number as u64);
        let requests = (0..room).map(|_| SendRequest::write(id, remote).segment(segment.clone()));
        lane.pair.post_sends(requests)?;
        lane.in_flight += room;
        Ok(())
    }
}
