//! Reads of GPU memory by the resident kernel and by the copy engine, and the effect of a fault on them.
//!
//! ```text
//! cargo run --release -p gdr-copy --example reads
//! compute-sanitizer target/release/examples/reads valid
//! ```
//!
//! Reads by the resident kernel return what was stored just before, at every offset and length, and also when request
//! numbers repeat. Calls that wait for the whole context return while reads go on. Then a kernel faults during a long
//! read: the read ends with the number of bytes that were copied, and reads by the resident kernel end with an error.
//! `valid` leaves out the fault, and most reads. Needs an NVIDIA GPU; exits with 77 without one.

use std::error::Error as StdError;
use std::num::NonZeroU16;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use gdr_copy::plan::{Calibration, CopyPath, Machine, PathLimits, Planner};
use gdr_copy::{Context, Copier, Error};
use gdr_cuda::{Cuda, DeviceBuffer, DevicePtr, Gpu, Launch, MemoryKind, Ordinal};

/// Long enough for a fault in the middle: about 20 ms at 50 GB/s.
const LEN: usize = 1 << 30;
/// An operation that takes this long hangs.
const LIMIT: Duration = Duration::from_secs(20);
/// More than the request numbers of 16 bits, so that they repeat.
const MANY: usize = 70_000;
/// Enough reads for every length and alignment with a kernel that runs many times slower.
const FEW: usize = 2000;

/// What to run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Scope {
    All,
    /// Only valid accesses, for a tool that reports invalid ones.
    Valid,
}

impl Scope {
    fn of_arguments() -> Option<Self> {
        let mut arguments = std::env::args().skip(1);
        let scope = match arguments.next().as_deref() {
            None => Self::All,
            Some("valid") => Self::Valid,
            Some(_) => return None,
        };
        arguments.next().is_none().then_some(scope)
    }
}

type Result<T = ()> = std::result::Result<T, Box<dyn StdError + Send + Sync>>;

fn main() -> ExitCode {
    let Some(scope) = Scope::of_arguments() else {
        eprintln!("usage: reads [valid]");
        return ExitCode::from(2);
    };
    let driver = match Cuda::load() {
        Ok(driver) => driver,
        Err(error) => {
            eprintln!("no GPU: {error}");
            return ExitCode::from(77);
        }
    };
    match run(driver, scope) {
        Ok(()) => {
            println!("PASS");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}

fn run(driver: Arc<Cuda>, scope: Scope) -> Result {
    let gpu = Gpu::open(driver, Ordinal(0))?;
    let buffer = Arc::new(gpu.allocate(MemoryKind::Plain, LEN as u64)?);
    let context = Context::open_for(&gpu)?;
    let mapping = context.pin_buffer(&buffer)?.map()?;
    let threads = NonZeroU16::new(4).unwrap_or(NonZeroU16::MIN);
    let planner = Planner::new(
        &Calibration::built_in(Machine::Pcie),
        PathLimits::all(threads),
    );
    let mut copier = Copier::new(mapping, Arc::clone(&buffer), planner)?.with_limit(LIMIT);
    copier.allow_resident_kernel(&context)?;
    if scope == Scope::Valid {
        return fresh(&copier, FEW);
    }
    fresh(&copier, MANY)?;
    latency(&copier)?;
    beside_waits(&gpu, &copier)?;
    fault(&gpu, &buffer, &copier)
}

/// Returns a number that changes from call to call (an LCG).
fn next(state: &mut u64) -> u64 {
    *state = state
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

/// Stores by the CPU, then reads the same bytes through the kernel.
fn fresh(copier: &Copier, count: usize) -> Result {
    let mut state = 7;
    for round in 0..count {
        // Most reads are short, so that request numbers repeat soon.
        let longest = if round % 64 == 0 { 100_000 } else { 200 };
        let len = (next(&mut state) % longest + 1) as usize;
        let offset = next(&mut state) % (1 << 20);
        let bytes: Vec<u8> = (0..len).map(|at| (at * 7 + round) as u8).collect();
        copier.write_at_by(CopyPath::ONE_THREAD, offset, &bytes)?;
        let mut seen = vec![0xEE; len];
        copier.read_at_by(CopyPath::Resident, offset, &mut seen)?;
        if seen != bytes {
            let text = format!("read {round}, {len} bytes at {offset}: not what was stored");
            return Err(text.into());
        }
    }
    println!("{count} reads by the resident kernel returned what was stored before");
    Ok(())
}

/// Measures the median duration of reads of some sizes, one after the other.
fn latency(copier: &Copier) -> Result {
    for len in [8, 1 << 10, 4 << 10, 16 << 10, 32 << 10] {
        let mut bytes = vec![0; len];
        let mut times = Vec::new();
        for _ in 0..2000 {
            let began = Instant::now();
            copier.read_at_by(CopyPath::Resident, 0, &mut bytes)?;
            times.push(began.elapsed());
        }
        times.sort_unstable();
        let at = |part: usize| times[(times.len() - 1) * part / 100];
        println!(
            "{len} bytes by the resident kernel: {:.2?} median, {:.2?} least, {:.2?} in 99 of 100",
            at(50),
            at(0),
            at(99)
        );
    }
    Ok(())
}

/// Reads while page-locked memory is freed, which waits for every kernel of the context.
fn beside_waits(gpu: &Gpu, copier: &Copier) -> Result {
    let ends = AtomicBool::new(false);
    thread::scope(|scope| -> Result {
        let reader = scope.spawn(|| -> Result<u64> {
            let (mut reads, mut bytes) = (0, [0; 64]);
            while !ends.load(Ordering::Relaxed) {
                copier.read_at_by(CopyPath::Resident, 0, &mut bytes)?;
                reads += 1;
            }
            Ok(reads)
        });
        let mut longest = Duration::ZERO;
        for _ in 0..50 {
            let memory = gpu.allocate_host(4096);
            let began = Instant::now();
            drop(memory);
            longest = longest.max(began.elapsed());
        }
        ends.store(true, Ordering::Relaxed);
        let reads = reader.join().map_err(|_| "the reader panicked")??;
        println!("50 waits for the whole context beside {reads} reads took {longest:.1?} at most");
        match longest < LIMIT {
            true => Ok(()),
            false => Err("a wait for the whole context did not end".into()),
        }
    })
}

/// Makes the context unusable in the middle of a read, by a kernel that writes to an invalid address.
fn fault(gpu: &Gpu, buffer: &Arc<DeviceBuffer>, copier: &Copier) -> Result {
    let expected: Vec<u8> = (0..LEN).map(|at| (at * 31 + (at >> 12)) as u8).collect();
    let stream = gpu.stream()?;
    // The kernels are compiled at the first launch, which would take too long below.
    stream.fill_pattern(buffer, 0, 1, 0, LIMIT)?;
    buffer.write(0, &expected)?;
    thread::scope(|scope| -> Result {
        let reader = scope.spawn(|| {
            let (began, mut bytes) = (Instant::now(), vec![0; LEN]);
            let read = copier.read_at_by(CopyPath::CopyEngine, 0, &mut bytes);
            (read, began.elapsed(), bytes)
        });
        thread::sleep(Duration::from_millis(5));
        let (dst, words, seed) = (DevicePtr::new(16), 1, 0);
        // SAFETY: none is accessed: the address is invalid, and the GPU reports that as an error of the context.
        unsafe { stream.launch(&Launch::Fill { dst, words, seed }) }?;
        let (read, took, bytes) = reader.join().map_err(|_| "the reader panicked")?;
        let copied = match read {
            Err(Error::Incomplete { copied, source, .. }) => {
                println!("a fault ended a read after {copied} of {LEN} bytes: {source}");
                copied as usize
            }
            Err(error) => return Err(error.into()),
            Ok(()) => return Err(format!("the fault came after the read of {took:.1?}").into()),
        };
        if took >= LIMIT {
            return Err("the read hung".into());
        }
        match bytes[..copied] == expected[..copied] {
            true => Ok(()),
            false => Err("bytes that count as copied are wrong".into()),
        }
    })?;
    let began = Instant::now();
    match copier.read_at_by(CopyPath::Resident, 0, &mut [0; 64]) {
        Err(error) => println!("by the resident kernel: {error}"),
        Ok(()) => return Err("the context still works".into()),
    }
    match began.elapsed() < LIMIT {
        true => Ok(()),
        false => Err("the resident kernel's read hung".into()),
    }
}
