//! A kernel that sends and a kernel that waits for the data: the building blocks of GPU-initiated communication.
//!
//! ```text
//! cargo run --release -p gdr-rdma --example gpu_initiated
//! ```
//!
//! A kernel writes bytes to its GPU's memory and then a flag to page-locked memory. A CPU thread, the proxy, polls the
//! flag and posts a WRITE of the bytes to the memory of another GPU, where a kernel polls a word that announces them.
//! That word arrives by a second WRITE, or the WRITE of the bytes has an immediate, and the receiver's proxy stores the
//! word through a mapping once it has the completion. The receiving kernel compares every byte.
//!
//! Both ends are in this process, on two GPUs if there are two, otherwise on one. Without a GPU, a simulated one is
//! used and reported as such; the times then mean nothing.

mod side;

use std::error::Error;
use std::hint;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gdr_copy::{Context, Mapping};
use gdr_cuda::{
    DeviceBuffer, DevicePtr, Direction, DriverKind, Gpu, HostBuffer, Launch, MemoryKind, Ordinal,
    SimDriver, Stream, open_driver,
};
use gdr_rdma::{
    Access, Buffer, Completion, CopyEngineThreshold, Deadline, Immediate, MemoryRegion,
    RecvRequest, SendRequest, WcStatus, WrId,
};

use side::Side;

const ROUNDS: u32 = 100;
/// How long a step may take before the run fails.
const LIMIT: Duration = Duration::from_secs(10);
/// Offsets of the kernel's words and of the bytes in the memory of each end.
const PING: u64 = 0;
const BARRIER: u64 = 16;
const MISMATCHES: u64 = 24;
const DATA: u64 = 4096;
/// Offset in page-locked memory of the word that stops the kernel.
const STOP: u64 = 4;
const SIZES: [u64; 3] = [0, 1 << 10, 64 << 10];

/// What the receiving kernel waits for.
#[derive(Clone, Copy)]
enum Announcement {
    /// By a WRITE of its own, into GPU memory.
    Write,
    /// By the completion that the immediate makes, after which the CPU stores the word.
    Immediate,
}

/// One end: a kernel, its memory, and the queue pair of its proxy.
struct End {
    side: Side,
    device: Arc<DeviceBuffer>,
    mapping: Arc<Mapping>,
    region: MemoryRegion,
    /// Answers of the kernel, and the word that stops it.
    host: HostBuffer,
    stream: Stream,
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let driver = open_driver().unwrap_or_else(|error| {
        println!("no GPU can be used ({error}): simulating two");
        SimDriver::new(2)
    });
    let first = Gpu::open(Arc::clone(&driver), Ordinal(0))?;
    let second = match Gpu::open(driver, Ordinal(1)) {
        Ok(gpu) => gpu,
        Err(_) => first.clone(),
    };
    println!("from {} to {}", first.info().name, second.info().name);
    println!(
        "{:>8}  {:>16}  {:>16}",
        "bytes", "flag by WRITE", "by immediate"
    );
    for len in SIZES {
        let by_write = median(&first, &second, Announcement::Write, len)?;
        let by_immediate = median(&first, &second, Announcement::Immediate, len)?;
        println!("{len:>8}  {by_write:>16.1?}  {by_immediate:>16.1?}");
    }
    let simulated = match first.driver().kind() {
        DriverKind::Simulated => " (simulated)",
        _ => "",
    };
    println!("{ROUNDS} rounds each, from one kernel's flag to the other's{simulated}");
    Ok(())
}

/// Measures the median time from the flag of the sending kernel to the answer of the receiving one.
fn median(
    first: &Gpu,
    second: &Gpu,
    announcement: Announcement,
    len: u64,
) -> Result<Duration, Box<dyn Error>> {
    let [near, far] = Side::connected([[127, 77, 8, 1], [127, 77, 8, 2]])?;
    let near = End::new(near, first)?;
    let far = End::new(far, second)?;
    let times = near
        .start(Direction::GpuToCpu, len)
        .and_then(|()| far.start(Direction::CpuToGpu, len))
        .and_then(|()| play(&near, &far, announcement, len));
    // The kernels must end before their memory is freed. `exit` runs no destructors.
    for end in [&near, &far] {
        if let Err(error) = end.stop() {
            eprintln!("error: the kernel does not end: {error}");
            std::process::exit(1);
        }
    }
    let mut times = times?;
    times.sort();
    match far.mapping.flag::<u64>(MISMATCHES)?.load() {
        0 => Ok(times[times.len() / 2]),
        words => Err(format!("{words} words arrived wrong").into()),
    }
}

/// Runs all rounds and returns the time of each.
fn play(
    near: &End,
    far: &End,
    announcement: Announcement,
    len: u64,
) -> Result<Vec<Duration>, Box<dyn Error>> {
    let mut times = Vec::new();
    for round in 1..=ROUNDS {
        // A program's computation on the GPU would end like this: the kernel has bytes to send.
        near.mapping.flag::<u32>(PING)?.store(round);
        near.wait_for_answer(round)?;
        let began = Instant::now();
        let to = far.region.remote();
        let data =
            SendRequest::write(WrId(1), to.at(DATA)).segment(near.region.segment(DATA, len)?);
        match announcement {
            Announcement::Write => {
                let flag = SendRequest::write(WrId(2), to.at(PING)).inline(&round.to_ne_bytes());
                near.side.pair.post_send(data.unsignalled())?;
                near.side.pair.post_send(flag)?;
            }
            Announcement::Immediate => {
                far.side.pair.post_recv(RecvRequest::new(WrId(3)))?;
                near.side.pair.post_send(data.immediate(Immediate(round)))?;
                let received = far.complete()?;
                let number = received.immediate.ok_or("a completion has no immediate")?;
                far.mapping.flag::<u32>(PING)?.store(number.0);
            }
        }
        far.wait_for_answer(round)?;
        times.push(began.elapsed());
        near.complete()?;
    }
    Ok(times)
}

impl End {
    fn new(side: Side, gpu: &Gpu) -> Result<Self, Box<dyn Error>> {
        let len = DATA + SIZES[SIZES.len() - 1];
        let device = Arc::new(gpu.allocate(MemoryKind::Plain, len)?);
        device.write(0, &vec![0; len as usize])?;
        let context = Context::open_for(gpu)?;
        let mapping = Arc::new(context.pin(device.ptr(), device.len())?.map()?);
        // Long messages are sent with the copy engine, because the CPU's loads from GPU memory have PCIe latency.
        let threshold = CopyEngineThreshold::Planned;
        let buffer =
            Buffer::direct_with_copies(Arc::clone(&mapping), Arc::clone(&device), threshold)?;
        let region = side.domain.register(&buffer, Access::all())?;
        let host = gpu.allocate_host(64)?;
        host.write(0, &[0; 64])?;
        Ok(Self {
            side,
            device,
            mapping,
            region,
            host,
            stream: gpu.stream()?,
        })
    }

    /// Launches the kernel, which waits for a round at [`PING`] and answers in page-locked memory.
    fn start(&self, direction: Direction, len: u64) -> Result<(), Box<dyn Error>> {
        let at = |offset| DevicePtr::new(self.device.ptr().get() + offset);
        let pong = self.host.gpu_ptr();
        let launch = Launch::PingPong {
            ping: at(PING),
            pong,
            stop: DevicePtr::new(pong.get() + STOP),
            iterations: ROUNDS,
            data: at(DATA),
            data_words: len / 4,
            direction,
            blocks: 1,
            threads: 256,
            barrier: at(BARRIER),
            mismatches: at(MISMATCHES),
        };
        // SAFETY: every address is in `device` or `host`, with the length that the documentation of `Launch::PingPong`
        // states. `median` frees them once the stream is idle, or not at all.
        unsafe { self.stream.launch(&launch)? };
        Ok(())
    }

    fn wait_for_answer(&self, round: u32) -> Result<(), Box<dyn Error>> {
        let began = Instant::now();
        while self.host.load_u32(0)? != round {
            if began.elapsed() > LIMIT {
                return Err(format!("a kernel does not answer in round {round}").into());
            }
            hint::spin_loop();
        }
        Ok(())
    }

    fn complete(&self) -> Result<Completion, Box<dyn Error>> {
        let done = self.side.queue.wait(Deadline::after(LIMIT))?;
        match done.status {
            WcStatus::Success => Ok(done),
            status => Err(status.to_string().into()),
        }
    }

    fn stop(&self) -> Result<(), Box<dyn Error>> {
        self.host.store_u32(STOP as usize, 1)?;
        Ok(self.stream.wait(LIMIT)?)
    }
}
