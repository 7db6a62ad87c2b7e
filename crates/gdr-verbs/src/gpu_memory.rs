//! Memory of GPUs that a program registers by its CUDA address.
//!
//! Nothing here loads or initializes CUDA for a program: an address is looked up only if the process
//! has the driver's library already. The memory is mapped through `gdr-copy`, so the engine's thread
//! stores to it without a CUDA context. What is sent from it is read by the GPU's copy engine, by calls of
//! a thread of their own: a thread of the program may hold a lock of the driver while it waits for a kernel
//! that waits for the bytes to be sent, so the engine's thread must not need the driver.

use std::ffi::OsStr;
use std::sync::{Arc, Mutex};

use gdr_copy::{Context, Mapping, PerProcess, PinGranularity, PinOptions};
use gdr_cuda::{Cuda, DeviceBuffer, DevicePtr, Driver, Gpu, Ordinal, PointerKind};
use gdr_nic::{Buffer, CopyEngineThreshold, CopyThread};

use crate::device::lock;
use crate::errno::Errno;

/// What an address belongs to.
pub(crate) enum Place {
    /// Host memory, also if a GPU's driver page-locked it.
    Host,
    /// Memory that stays on a GPU.
    Gpu(Ordinal),
}

/// The driver, if this process has loaded it.
fn driver() -> Option<&'static Arc<Cuda>> {
    Cuda::of_process()
        .inspect_err(|error| tracing::debug!(%error, "the CUDA driver cannot be asked"))
        .ok()?
}

/// What an address belongs to; host memory if CUDA is not in use, or does not know it.
pub(crate) fn place(address: usize) -> Place {
    let info = driver().and_then(|driver| driver.pointer_info(DevicePtr::new(address as u64)).ok());
    match info {
        Some(info) if info.kind == PointerKind::Device => Place::Gpu(info.device),
        _ => Place::Host,
    }
}

/// Says how memory of GPUs is read.
const VARIABLE: &str = "GDR_VERBS_GPU_READS";

/// How memory of GPUs is read that is sent, or that peers READ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GpuReads {
    /// Long messages by the GPU's copy engine, and those between GPU memory of two processes by a kernel of the receiver's
    /// GPU.
    PeerToPeer,
    /// Long messages by the GPU's copy engine.
    CopyEngine,
    /// All by loads of the engine's thread.
    Cpu,
}

/// What the environment says of [`GpuReads`].
///
/// # Errors
/// `EINVAL` for a value that has no meaning.
pub(crate) fn reads() -> Result<GpuReads, Errno> {
    reads_of(gdr_process::variable(VARIABLE).as_deref()).map_err(|value| {
        tracing::error!(
            "{VARIABLE} is `{value}`: give `peer-to-peer`, `copy-engine` or `cpu`, or leave it unset; no device opens"
        );
        Errno::INVAL
    })
}

fn reads_of(value: Option<&OsStr>) -> Result<GpuReads, String> {
    let value = value.filter(|value| !value.is_empty());
    let text = value.map(|value| value.to_string_lossy());
    match text.as_deref().map(str::trim) {
        None | Some("peer-to-peer") => Ok(GpuReads::PeerToPeer),
        Some("copy-engine") => Ok(GpuReads::CopyEngine),
        Some("cpu") => Ok(GpuReads::Cpu),
        Some(other) => Err(other.to_owned()),
    }
}

/// Returns whether GPU memory can be taken: the driver is there, and its memory can be mapped.
pub(crate) fn is_supported() -> bool {
    driver().is_some_and(|driver| access(driver, Ordinal(0)).is_ok())
}

/// The ways to memory of a GPU.
struct GpuAccess {
    context: Context,
    /// `None` where the CPU loads all that is read.
    copies: Option<Copies>,
}

/// Who copies long messages, and which are long.
struct Copies {
    thread: CopyThread,
    from: CopyEngineThreshold,
}

impl GpuAccess {
    /// The settings of this environment.
    fn open(gpu: &Gpu) -> gdr_copy::Result<Self> {
        let thread = match reads() {
            Ok(GpuReads::PeerToPeer) => Some(CopyThread::new(gpu)),
            Ok(GpuReads::CopyEngine) => Some(CopyThread::without_peer_copies(gpu)),
            Ok(GpuReads::Cpu) | Err(_) => None,
        };
        let copies = thread.map(|thread| Copies {
            thread,
            from: CopyEngineThreshold::Planned,
        });
        let context = Context::open_for(gpu)?;
        Ok(Self { context, copies })
    }
}

/// The ways to memory of a GPU. They are found once for each GPU, and kept where there are none, too.
fn access(driver: &Arc<Cuda>, ordinal: Ordinal) -> Result<Arc<GpuAccess>, Errno> {
    type Known = Vec<(Ordinal, Option<Arc<GpuAccess>>)>;
    static KNOWN: PerProcess<Mutex<Known>> = PerProcess::new();
    let mut known = lock(KNOWN.get());
    let of_gpu = known.iter().find(|(of, _)| *of == ordinal);
    let access = if let Some((_, access)) = of_gpu {
        access.clone()
    } else {
        let gpu = Gpu::open(Arc::clone(driver) as Arc<dyn Driver>, ordinal)
            .inspect_err(|error| tracing::warn!(%error, "no GPU memory can be registered"));
        let access = gpu.ok().and_then(|gpu| {
            GpuAccess::open(&gpu)
                .inspect_err(|error| tracing::warn!(%error, "no GPU memory can be registered"))
                .ok()
        });
        let access = access.map(Arc::new);
        known.push((ordinal, access.clone()));
        access
    };
    access.ok_or(Errno::OPNOTSUPP)
}

/// Maps memory of a GPU.
///
/// # Errors
/// `EOPNOTSUPP` where no backend of `gdr-copy` works; `EFAULT` for memory that cannot be mapped.
pub(crate) fn map(ordinal: Ordinal, address: usize, len: usize) -> Result<Buffer, Errno> {
    let driver = driver().ok_or(Errno::OPNOTSUPP)?;
    let access = access(driver, ordinal)?;
    map_pages(&access, address, len)
}

/// Maps the GPU pages of a range.
///
/// As with a network card, only pages have to be allocated: programs round the ranges that they
/// register, UCX to 16 bytes, and CUDA reports the length of an allocation as it was asked for.
fn map_pages(access: &GpuAccess, address: usize, len: usize) -> Result<Buffer, Errno> {
    let options = PinOptions::new().with_granularity(PinGranularity::GpuPages);
    let mapping = access
        .context
        .pin_with(DevicePtr::new(address as u64), len as u64, options)
        .and_then(|pinned| pinned.map())
        .map_err(|error| {
            tracing::warn!(%error, address, len, "GPU memory cannot be registered");
            Errno::FAULT
        })?;
    let mapping = Arc::new(mapping);
    if let Some(copies) = &access.copies {
        match copied(&mapping, copies) {
            Ok(buffer) => return Ok(buffer),
            Err(error) => tracing::debug!(%error, "GPU memory is loaded by CPU"),
        }
    }
    Ok(Buffer::direct(mapping)?)
}

/// A mapping from which long messages are copied.
fn copied(mapping: &Arc<Mapping>, copies: &Copies) -> gdr_nic::Result<Buffer> {
    let gpu = copies.thread.gpu();
    // SAFETY: the program keeps memory allocated while it is registered, as `ibv_reg_mr` asks of it. If it
    // frees the memory nevertheless, the copy thread finds that out before it reads it.
    let memory = unsafe { DeviceBuffer::borrowed_part(gpu, mapping.device_ptr(), mapping.len()) }?;
    let mapping = Arc::clone(mapping);
    Buffer::direct_with_copy_thread(mapping, memory, &copies.thread, copies.from)
}

#[cfg(test)]
mod tests {
    use gdr_cuda::{MemoryKind, SimDriver};

    use super::*;

    const PAGE: usize = 64 << 10;

    fn gpu() -> Gpu {
        Gpu::open(SimDriver::new(1), Ordinal(0)).unwrap()
    }

    fn by_cpu(gpu: &Gpu) -> GpuAccess {
        GpuAccess {
            context: Context::builder().gpu(gpu).unwrap().open().unwrap(),
            copies: None,
        }
    }

    fn by_copy_engine(gpu: &Gpu) -> GpuAccess {
        let copies = Copies {
            thread: CopyThread::new(gpu),
            from: CopyEngineThreshold::From(1),
        };
        GpuAccess {
            copies: Some(copies),
            ..by_cpu(gpu)
        }
    }

    #[test]
    fn a_range_may_end_after_its_allocation_on_the_last_page_of_that() {
        for access in [by_cpu, by_copy_engine] {
            let gpu = gpu();
            let access = access(&gpu);
            let memory = gpu.allocate(MemoryKind::Plain, PAGE as u64 + 8).unwrap();
            let address = memory.ptr().get() as usize;

            let buffer = map_pages(&access, address, PAGE + 16).unwrap();
            assert_eq!(buffer.len(), PAGE as u64 + 16);
            buffer.write_at(PAGE as u64, b"the last").unwrap();
            let mut seen = [0; 8];
            memory.read(PAGE as u64, &mut seen).unwrap();
            assert_eq!(&seen, b"the last");
            let long_from = access.copies.as_ref().map(|_| 1);
            assert_eq!(buffer.long_reads_from(), long_from);

            assert_eq!(
                buffer_len(map_pages(&access, address, 2 * PAGE)),
                Ok(2 * PAGE as u64)
            );
            let past = map_pages(&access, address, 2 * PAGE + 1);
            assert_eq!(buffer_len(past), Err(Errno::FAULT));
        }
    }

    #[test]
    fn memory_of_a_program_is_copied_unless_the_environment_says_otherwise() {
        let os = |text: &'static str| Some(OsStr::new(text));
        for value in [None, os(""), os("peer-to-peer"), os(" peer-to-peer\n")] {
            assert_eq!(reads_of(value), Ok(GpuReads::PeerToPeer), "{value:?}");
        }
        assert_eq!(reads_of(os("copy-engine")), Ok(GpuReads::CopyEngine));
        assert_eq!(reads_of(os("cpu")), Ok(GpuReads::Cpu));
        for value in ["0", "CPU", "auto", "no"] {
            assert_eq!(reads_of(os(value)), Err(value.to_owned()));
        }
    }

    fn buffer_len(mapped: Result<Buffer, Errno>) -> Result<u64, Errno> {
        mapped.map(|buffer| buffer.len())
    }
}
