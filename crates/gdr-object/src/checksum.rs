//! The checksum of a publication, computed where its bytes are: by a kernel of the GPU that holds them, otherwise by
//! the CPU. Both compute [`Sum64`].

use std::sync::{Arc, Mutex};

use gdr_cuda::{DeviceBuffer, Gpu, HostBuffer, MemoryKind, Stream, Sum64};
use gdr_rdma::{Buffer, Deadline};

use crate::error::Result;
use crate::lock::lock;

/// Bytes that the CPU reads at a time, a multiple of 8.
const PIECE: usize = 256 << 10;
/// Bytes of a checksum in memory.
const SUM: usize = 8;

/// Computes checksums of one buffer.
#[derive(Debug, Default)]
pub(crate) struct Summer {
    /// Created for the first checksum, if the buffer is in GPU memory.
    kernel: Mutex<Option<Kernel>>,
}

/// What a kernel needs to compute checksums.
#[derive(Debug)]
struct Kernel {
    stream: Stream,
    sum: DeviceBuffer,
    copy: Arc<HostBuffer>,
}

impl Summer {
    /// Computes the checksum of `len` bytes at `offset`. Only a kernel observes the deadline: it may wait for other
    /// work of its GPU.
    pub(crate) fn sum(
        &self,
        buffer: &Buffer,
        offset: u64,
        len: u64,
        deadline: Deadline,
    ) -> Result<u64> {
        match buffer.device_memory() {
            // Kernels take aligned words.
            Some((memory, start)) if (memory.ptr().get() + start + offset).is_multiple_of(8) => {
                self.by_kernel(memory, start + offset, len, deadline)
            }
            _ => by_cpu(buffer, offset, len),
        }
    }

    fn by_kernel(
        &self,
        memory: &DeviceBuffer,
        offset: u64,
        len: u64,
        deadline: Deadline,
    ) -> Result<u64> {
        let mut slot = lock(&self.kernel);
        // After an error it is not used again, because its sum may still be written.
        let kernel = match slot.take() {
            Some(kernel) => kernel,
            None => Kernel::new(memory.gpu())?,
        };
        let sum = kernel.sum(memory, offset, len, deadline)?;
        *slot = Some(kernel);
        Ok(sum)
    }
}

impl Kernel {
    fn new(gpu: &Gpu) -> Result<Self> {
        Ok(Self {
            stream: gpu.stream()?,
            sum: gpu.allocate(MemoryKind::Plain, SUM as u64)?,
            copy: Arc::new(gpu.allocate_host(SUM)?),
        })
    }

    fn sum(&self, memory: &DeviceBuffer, offset: u64, len: u64, deadline: Deadline) -> Result<u64> {
        let Self { stream, sum, copy } = self;
        stream.queue_sum64(memory, offset, len, sum, 0)?;
        stream.queue_read(sum, 0, copy, 0, SUM)?;
        stream.wait(deadline.remaining())?;
        let mut bytes = [0; SUM];
        copy.read(0, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }
}

fn by_cpu(buffer: &Buffer, offset: u64, len: u64) -> Result<u64> {
    let sum = sum_by(len, |at, piece| buffer.read_at(offset + at, piece))?;
    Ok(sum.get())
}

/// Computes the checksum of `len` bytes, which `read` reads from an offset on.
pub(crate) fn sum_by<E>(
    len: u64,
    mut read: impl FnMut(u64, &mut [u8]) -> Result<(), E>,
) -> Result<Sum64, E> {
    let mut bytes = vec![0; PIECE.min(usize::try_from(len).unwrap_or(PIECE))];
    let (mut sum, mut at) = (Sum64::new(len), 0);
    while at < len {
        let left = usize::try_from(len - at).unwrap_or(PIECE);
        let piece = &mut bytes[..left.min(PIECE)];
        read(at, piece)?;
        sum.add(at, piece);
        at += piece.len() as u64;
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use gdr_cuda::{Ordinal, SimDriver};

    use super::*;

    #[test]
    fn content_has_the_same_checksum_in_host_and_in_gpu_memory() {
        let gpu = Gpu::open(SimDriver::new(1), Ordinal(0)).unwrap();
        let len = 2 * PIECE + 5;
        let bytes: Vec<u8> = (0..len).map(|at| (at * at) as u8).collect();
        let expected = Sum64::of(&bytes).get();
        let device = gpu.allocate(MemoryKind::Plain, len as u64 + 16).unwrap();
        let buffers = [
            Buffer::host(len + 16).unwrap(),
            Buffer::staged(device).unwrap(),
        ];
        let limit = Deadline::after(Duration::from_secs(60));
        for buffer in &buffers {
            let summer = Summer::default();
            // A kernel sums the second one, and the CPU the first one.
            for offset in [3, 8] {
                buffer.write_at(offset, &bytes).unwrap();
                let sum = summer.sum(buffer, offset, len as u64, limit).unwrap();
                assert_eq!(sum, expected, "{buffer:?} at {offset}");
            }
            let by_kernel = buffer.device_memory().is_some();
            assert_eq!(lock(&summer.kernel).is_some(), by_kernel);
        }
    }
}
