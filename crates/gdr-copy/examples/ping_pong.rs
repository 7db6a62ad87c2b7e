//! Flags between the CPU and a kernel that runs on the GPU.
//!
//! ```text
//! cargo run --release -p gdr-copy --example ping_pong
//! ```
//!
//! The CPU stores the number of a round into GPU memory through a mapping; the kernel polls that word and answers in
//! page-locked host memory. Without a GPU the example uses a simulated one and reports that; the times are then
//! meaningless.

use std::error::Error;
use std::hint;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use gdr_copy::{Context, Mapping};
use gdr_cuda::{
    DeviceBuffer, DevicePtr, Direction, DriverKind, Gpu, HostBuffer, Launch, MemoryKind, Ordinal,
    SimDriver, Stream, open_driver,
};

const ROUNDS: u32 = 100;
/// The time limit of a round; a slower answer fails the run.
const LIMIT: Duration = Duration::from_secs(10);

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
    let gpu = open_driver().and_then(|driver| Gpu::open(driver, Ordinal(0)));
    let gpu = match gpu {
        Ok(gpu) => gpu,
        Err(error) => {
            println!("no GPU can be used ({error}): simulating one");
            Gpu::open(SimDriver::new(1), Ordinal(0))?
        }
    };
    let context = Context::open_for(&gpu)?;
    println!("{}, backend {}", gpu.info().name, context.backend());

    // Word 0 is `ping`; the kernel's counters follow it.
    let device = gpu.allocate(MemoryKind::Plain, 64)?;
    device.write(0, &[0; 64])?;
    let mapping = context.pin(device.ptr(), device.len())?.map()?;
    // Word 0 is `pong`, word 1 is `stop`.
    let host = gpu.allocate_host(64)?;
    host.write(0, &[0; 64])?;
    let stream = gpu.stream()?;

    let result = play(&device, &mapping, &host, &stream);
    // The kernel must end before its memory is freed. `exit` runs no destructors.
    if let Err(error) = host.store_u32(4, 1).and_then(|()| stream.wait(LIMIT)) {
        eprintln!("error: the kernel does not end: {error}");
        std::process::exit(1);
    }
    let mean = result?;

    let simulated = match gpu.driver().kind() {
        DriverKind::Simulated => " (simulated)",
        _ => "",
    };
    println!("{ROUNDS} round trips, {mean:.1?} each{simulated}");
    Ok(())
}

/// Runs all rounds and returns the mean time of one.
fn play(
    device: &DeviceBuffer,
    mapping: &Mapping,
    host: &HostBuffer,
    stream: &Stream,
) -> Result<Duration, Box<dyn Error>> {
    let (ping, pong) = (device.ptr(), host.gpu_ptr());
    let launch = Launch::PingPong {
        ping,
        pong,
        stop: DevicePtr::new(pong.get() + 4),
        iterations: ROUNDS,
        data: ping,
        data_words: 0,
        direction: Direction::CpuToGpu,
        blocks: 1,
        threads: 1,
        barrier: DevicePtr::new(ping.get() + 16),
        mismatches: DevicePtr::new(ping.get() + 24),
    };
    // SAFETY: every address is in `device` or `host`, with the length that the documentation of `Launch::PingPong`
    // states. `main` frees them once the stream is idle, or not at all.
    unsafe { stream.launch(&launch)? };

    let flag = mapping.flag::<u32>(0)?;
    let began = Instant::now();
    for round in 1..=ROUNDS {
        let sent = Instant::now();
        flag.store(round);
        while host.load_u32(0)? != round {
            if sent.elapsed() > LIMIT {
                return Err(format!("no answer in round {round}").into());
            }
            hint::spin_loop();
        }
    }
    Ok(began.elapsed() / ROUNDS)
}
