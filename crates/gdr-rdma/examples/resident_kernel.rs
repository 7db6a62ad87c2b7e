//! RDMA into GPU memory while a kernel of the program keeps running.
//!
//! ```text
//! cargo run --release -p gdr-rdma --example resident_kernel
//! ```
//!
//! The kernel runs on a stream that blocks the legacy default stream, like any stream made by `cudaStreamCreate`: every
//! plain `cuMemcpy` of the process waits until it ends. WRITE, READ and an atomic operation on mapped and on staged GPU
//! memory must complete nevertheless, and a region must be able to end. Needs an NVIDIA GPU; exits with 77 without one.

mod gpu_program;
mod side;

use std::error::Error;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::process::ExitCode;
use std::ptr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gdr_cuda::{Cuda, DeviceBuffer, Gpu, MemoryKind, Ordinal};
use gdr_rdma::{
    Access, AtomicOp, Buffer, CopyEngineThreshold, Deadline, SendRequest, WcStatus, WrId,
};

use side::Side;

const LEN: usize = 256 << 10;
/// Anything that takes this long waits for the kernel.
const LIMIT: Duration = Duration::from_secs(20);

fn main() -> ExitCode {
    gpu_program::run(run, "nothing waited for the kernel")
}

fn run(driver: Arc<Cuda>) -> Result<(), Box<dyn Error>> {
    let gpu = Gpu::open(driver, Ordinal(0))?;
    let [near, far] = Side::connected([[127, 77, 9, 1], [127, 77, 9, 2]])?;

    let context = gdr_copy::Context::open()?;
    let mut memory = Vec::new();
    let mut buffers = Vec::new();
    for name in ["staged", "direct", "direct, read by copies"] {
        let device = Arc::new(gpu.allocate(MemoryKind::Plain, LEN as u64)?);
        device.write(0, &vec![0; LEN])?;
        let long_reads = match name {
            "direct" => CopyEngineThreshold::Planned,
            _ => CopyEngineThreshold::From(1),
        };
        buffers.push(if name == "staged" {
            Buffer::staged(Arc::clone(&device))?
        } else {
            let mapping = context.pin(device.ptr(), device.len())?.map()?;
            Buffer::direct_with_copies(mapping, Arc::clone(&device), long_reads)?
        });
        memory.push((name, device));
    }

    let kernel = SpinningKernel::start()?;
    for ((name, _), buffer) in memory.iter().zip(buffers) {
        exercise(name, &near, &far, &buffer)?;
        // Dropping the last reference ends the region and the streams of its copies.
        let began = Instant::now();
        drop(buffer);
        println!("{name}: released after {:.1?}", began.elapsed());
    }
    if !kernel.is_running()? {
        return Err("the kernel ended by itself: nothing was shown".into());
    }
    kernel.stop()?;
    for (name, buffer) in memory {
        check(name, &buffer)?;
    }
    Ok(())
}

/// Executes WRITE, READ and an atomic operation, each with a deadline.
fn exercise(name: &str, near: &Side, far: &Side, target: &Buffer) -> Result<(), Box<dyn Error>> {
    let region = far.domain.register(target, Access::all())?;
    let host = Buffer::host(LEN)?;
    host.write_at(0, &pattern())?;
    let source = near.domain.register(&host, Access::LOCAL_WRITE)?;
    let back = near
        .domain
        .register(&Buffer::host(LEN)?, Access::LOCAL_WRITE)?;
    let len = LEN as u64;
    let remote = region.remote();
    let add = AtomicOp::FetchAdd { add: 1 };
    let requests = [
        (
            "WRITE",
            SendRequest::write(WrId(1), remote.at(0)).segment(source.segment(0, len)?),
        ),
        (
            "READ",
            SendRequest::read(WrId(2), remote.at(0)).segment(back.segment(0, len)?),
        ),
        (
            "FETCH_ADD",
            SendRequest::atomic(WrId(3), remote.at(8), add).segment(back.segment(0, 8)?),
        ),
    ];
    for (what, request) in requests {
        let began = Instant::now();
        near.pair.post_send(request)?;
        let done = near.queue.wait(Deadline::after(LIMIT))?;
        if done.status != WcStatus::Success {
            return Err(format!("{name}: {what}: {}", done.status).into());
        }
        println!("{name}: {what} beside the kernel: {:.1?}", began.elapsed());
    }
    let mut seen = vec![0; LEN];
    back.buffer().read_at(0, &mut seen)?;
    // The atomic operation's result overwrites the first word that was read.
    if seen[..8] != pattern()[8..16] || seen[8..] != pattern()[8..] {
        return Err(format!("{name}: what was read is not what was written").into());
    }
    Ok(())
}

/// Checks by the copy engine what is in the buffer.
fn check(name: &str, buffer: &DeviceBuffer) -> Result<(), Box<dyn Error>> {
    let mut seen = vec![0; LEN];
    buffer.read(0, &mut seen)?;
    let mut expected = pattern();
    let word = u64::from_ne_bytes(expected[8..16].try_into()?).wrapping_add(1);
    expected[8..16].copy_from_slice(&word.to_ne_bytes());
    if seen != expected {
        return Err(format!("{name}: the GPU's memory is not what was written").into());
    }
    Ok(())
}

fn pattern() -> Vec<u8> {
    (0..LEN).map(|i| (i * 31 + (i >> 8)) as u8).collect()
}

/// Spins until the 32-bit word at `stop` is not 0.
const PTX: &[u8] = b"
.version 6.0
.target sm_60
.address_size 64
.visible .entry spin(.param .u64 stop)
{
	.reg .u64 %address;
	.reg .u32 %value;
	.reg .pred %again;
	ld.param.u64 	%address, [stop];
loop:
	ld.volatile.u32 	%value, [%address];
	setp.eq.u32 	%again, %value, 0;
	@%again bra 	loop;
	ret;
}
\0";

const CUDA_SUCCESS: c_int = 0;
const CUDA_ERROR_NOT_READY: c_int = 600;
const CU_MEMHOSTALLOC_DEVICEMAP: c_uint = 2;
/// A stream that synchronizes with the legacy default stream.
const CU_STREAM_DEFAULT: c_uint = 0;

/// A kernel in the device's primary context that runs until it is stopped.
struct SpinningKernel {
    library: libloading::Library,
    stream: *mut c_void,
    stop: *mut u32,
}

/// Calls a function of libcuda by its name.
macro_rules! cuda {
    ($library:expr, $name:literal, fn($($type:ty),* $(,)?), $($argument:expr),* $(,)?) => {{
        // SAFETY: the driver API declares the function with these types.
        let function = unsafe {
            $library.get::<unsafe extern "C" fn($($type),*) -> c_int>(
                concat!($name, "\0").as_bytes(),
            )
        }?;
        // SAFETY: the arguments are output variables, or results of earlier calls.
        match unsafe { function($($argument),*) } {
            CUDA_SUCCESS => Ok(()),
            code => Err(format!("{} failed: {code}", $name)),
        }
    }};
}

/// An output variable for a handle.
type Out = *mut *mut c_void;
type Handle = *mut c_void;

impl SpinningKernel {
    fn start() -> Result<Self, Box<dyn Error>> {
        // SAFETY: gdr-cuda has already loaded libcuda, so its constructors have run.
        let library = unsafe { libloading::Library::new("libcuda.so.1") }?;
        let mut context = ptr::null_mut();
        let retain = &mut context;
        cuda!(
            library,
            "cuDevicePrimaryCtxRetain",
            fn(Out, c_int),
            retain,
            0
        )?;
        cuda!(library, "cuCtxSetCurrent", fn(Handle), context)?;

        let mut module = ptr::null_mut();
        let text = PTX.as_ptr().cast();
        cuda!(
            library,
            "cuModuleLoadData",
            fn(Out, *const c_void),
            &mut module,
            text
        )?;
        let mut function = ptr::null_mut();
        cuda!(
            library,
            "cuModuleGetFunction",
            fn(Out, Handle, *const c_char),
            &mut function,
            module,
            c"spin".as_ptr()
        )?;
        let mut stream = ptr::null_mut();
        cuda!(
            library,
            "cuStreamCreate",
            fn(Out, c_uint),
            &mut stream,
            CU_STREAM_DEFAULT
        )?;
        let mut stop = ptr::null_mut();
        cuda!(
            library,
            "cuMemHostAlloc",
            fn(Out, usize, c_uint),
            &mut stop,
            4,
            CU_MEMHOSTALLOC_DEVICEMAP
        )?;
        let stop = stop.cast::<u32>();
        // SAFETY: four bytes of the allocation above, which the kernel does not read yet.
        unsafe { stop.write_volatile(0) };

        // With unified addressing, host address and device address are equal.
        let mut argument = stop as u64;
        let mut arguments = [(&raw mut argument).cast::<c_void>()];
        type Dimension = c_uint;
        cuda!(
            library,
            "cuLaunchKernel",
            fn(
                Handle,
                Dimension,
                Dimension,
                Dimension,
                Dimension,
                Dimension,
                Dimension,
                c_uint,
                Handle,
                Out,
                Out,
            ),
            function,
            1,
            1,
            1,
            1,
            1,
            1,
            0,
            stream,
            arguments.as_mut_ptr(),
            ptr::null_mut()
        )?;
        Ok(Self {
            library,
            stream,
            stop,
        })
    }

    fn is_running(&self) -> Result<bool, Box<dyn Error>> {
        type Query = unsafe extern "C" fn(Handle) -> c_int;
        // SAFETY: the driver API declares the function with this type, and the stream is this kernel's.
        let status = unsafe { self.library.get::<Query>(b"cuStreamQuery\0")?(self.stream) };
        match status {
            CUDA_SUCCESS => Ok(false),
            CUDA_ERROR_NOT_READY => Ok(true),
            code => Err(format!("cuStreamQuery failed: {code}").into()),
        }
    }

    fn stop(self) -> Result<(), Box<dyn Error>> {
        // SAFETY: the kernel reads the word until it is not 0; the allocation lives as long as
        // the process.
        unsafe { self.stop.write_volatile(1) };
        cuda!(self.library, "cuStreamSynchronize", fn(Handle), self.stream)?;
        Ok(())
    }
}
