//! A program stores into mapped GPU memory and posts at once; the bytes that arrive are the stored ones.
//!
//! ```text
//! cargo run --release -p gdr-rdma --example posted_stores
//! ```
//!
//! The CPU combines stores to a mapping, and holds the last ones until a fence, or until it needs the space. A NIC's
//! doorbell flushes them; if the GPU's copy engine reads the data to send, the post must flush them. This program runs
//! no fence of its own. On x86, the locked instructions of a post flush as well, so there the test shows that the bytes
//! are right, but not which instruction ensures that. Needs an NVIDIA GPU; exits with 77 without one.

mod gpu_program;
mod side;

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use gdr_cuda::{Cuda, DeviceBuffer, Gpu, MemoryKind, Ordinal};
use gdr_rdma::{
    Access, Buffer, CopyEngineThreshold, CopyThread, Deadline, SendRequest, WcStatus, WrId,
};

use side::Side;

const LEN: usize = 64 << 10;
/// Bytes per message: parts of a CPU cache line, whole lines, and more than the CPU combines.
const SIZES: [usize; 6] = [8, 24, 64, 200, 4096, LEN];
/// Messages of each size.
const ROUNDS: usize = 2000;
const LIMIT: Duration = Duration::from_secs(20);

fn main() -> ExitCode {
    gpu_program::run(
        run,
        "every message had the bytes that were stored before its post",
    )
}

fn run(driver: Arc<Cuda>) -> Result<(), Box<dyn Error>> {
    let gpu = Gpu::open(driver, Ordinal(0))?;
    let [near, far] = Side::connected([[127, 77, 10, 1], [127, 77, 10, 2]])?;

    let context = gdr_copy::Context::open()?;
    let device = Arc::new(gpu.allocate(MemoryKind::Plain, LEN as u64)?);
    let map = || context.pin(device.ptr(), device.len())?.map();
    let from = CopyEngineThreshold::From(1);
    let by_reader = Buffer::direct_with_copies(map()?, Arc::clone(&device), from)?;
    // SAFETY: `device` outlives the buffer.
    let borrowed = unsafe { DeviceBuffer::borrowed(&gpu, device.ptr(), device.len()) }?;
    let thread = CopyThread::new(&gpu);
    let by_thread = Buffer::direct_with_copy_thread(map()?, borrowed, &thread, from)?;
    let stored_through = map()?;
    for (name, buffer) in [
        ("copied by the engine", by_reader),
        ("copied by a thread", by_thread),
    ] {
        for size in SIZES {
            let wrong = stale(&near, &far, &stored_through, &buffer, size)?;
            println!("{name}, {size} bytes: {wrong} of {ROUNDS} messages stale");
            if wrong > 0 {
                return Err(format!("{name}: {wrong} messages of {size} bytes were stale").into());
            }
        }
    }
    Ok(())
}

/// Repeatedly stores and posts; returns how many messages lacked the last store.
fn stale(
    near: &Side,
    far: &Side,
    mapping: &gdr_copy::Mapping,
    buffer: &Buffer,
    size: usize,
) -> Result<usize, Box<dyn Error>> {
    let source = near.domain.register(buffer, Access::LOCAL_WRITE)?;
    let sink = far.domain.register(&Buffer::host(LEN)?, Access::all())?;
    let (mut wrong, mut seen) = (0, vec![0; size]);
    for round in 0..ROUNDS {
        let bytes: Vec<u8> = (0..size).map(|at| (at * 31 + round * 7) as u8).collect();
        let segment = source.segment(0, size as u64)?;
        let write = SendRequest::write(WrId(0), sink.remote().at(0)).segment(segment);
        mapping.write_at_unfenced(0, &bytes)?;
        near.pair.post_send(write)?;
        let done = near.queue.wait(Deadline::after(LIMIT))?;
        if done.status != WcStatus::Success {
            return Err(format!("WRITE: {}", done.status).into());
        }
        sink.buffer().read_at(0, &mut seen)?;
        wrong += usize::from(seen != bytes);
    }
    Ok(wrong)
}
