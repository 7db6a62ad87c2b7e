//! One kernel that copies many pieces of GPU memory.

use std::sync::Arc;

use crate::buffer::DeviceBuffer;
use crate::driver::MemoryKind;
use crate::error::{Error, Result};
use crate::gpu::Gpu;
use crate::kernel::Launch;
use crate::pointer::DevicePtr;

/// The maximum number of bytes that one block of the kernel copies.
const MOST_OF_BLOCK: u64 = 128 << 10;
/// The maximum number of blocks of a kernel.
const MOST_BLOCKS: u32 = (1 << 31) - 1;
/// The size in bytes of a table entry: source, destination, length.
const ENTRY: u64 = 24;

/// Pieces of one GPU's memory, and their offsets in one target, for
/// [`Stream::queue_gather`](crate::Stream::queue_gather).
///
/// A separate copy of each piece takes the GPU a microsecond or two, which is longer than copying a small piece. One
/// kernel copies all of them, and finds them in a table that is created once.
#[derive(Debug)]
pub struct Gather {
    table: DeviceBuffer,
    pieces: Vec<Arc<DeviceBuffer>>,
    blocks: u32,
    /// The end of the last piece in the target.
    end: u64,
}

impl Gather {
    /// Creates the table: all of each buffer is copied to its offset. Waits until the table is uploaded.
    ///
    /// # Errors
    /// [`Error::ForeignBuffer`]; [`Error::Overlap`] if two buffers overlap in the target; [`Error::OutOfRange`] if
    /// there are no buffers, or more than a kernel supports; the driver's errors.
    pub fn new(gpu: &Gpu, pieces: Vec<(Arc<DeviceBuffer>, u64)>) -> Result<Self> {
        let mut places = Vec::with_capacity(pieces.len());
        for (buffer, to) in &pieces {
            if !buffer.gpu().is_same(gpu) {
                return Err(Error::ForeignBuffer {
                    buffer: buffer.gpu().info().ordinal,
                    stream: gpu.info().ordinal,
                });
            }
            let end = to.checked_add(buffer.len()).ok_or(Error::OutOfRange {
                offset: *to,
                wanted: buffer.len(),
                len: u64::MAX,
            })?;
            places.push((*to, end, buffer.ptr()));
        }
        places.sort_unstable();
        for pair in places.windows(2) {
            if let [(_, end, _), (next, _, ptr)] = *pair
                && next < end
            {
                let len = end - next;
                return Err(Error::Overlap { ptr, len });
            }
        }
        let table = table(&places);
        let entries = table.len() as u64 / ENTRY;
        let blocks = u32::try_from(entries).ok();
        let blocks = blocks.filter(|blocks| (1..=MOST_BLOCKS).contains(blocks));
        let blocks = blocks.ok_or(Error::OutOfRange {
            offset: 0,
            wanted: entries,
            len: MOST_BLOCKS.into(),
        })?;
        let on_gpu = gpu.allocate(MemoryKind::Plain, table.len() as u64)?;
        on_gpu.write(0, &table)?;
        Ok(Self {
            table: on_gpu,
            pieces: pieces.into_iter().map(|(buffer, _)| buffer).collect(),
            blocks,
            end: places.last().map_or(0, |(_, end, _)| *end),
        })
    }

    /// Returns the end of the last piece in the target: the minimum size of the target in bytes.
    pub const fn end(&self) -> u64 {
        self.end
    }

    /// Returns the buffers that the kernel uses.
    pub(crate) fn buffers(&self) -> impl Iterator<Item = &DeviceBuffer> {
        self.pieces.iter().map(|it| &**it).chain([&self.table])
    }

    pub(crate) fn launch(&self, dst: DevicePtr) -> Launch {
        Launch::Gather {
            table: self.table.ptr(),
            blocks: self.blocks,
            dst,
            len: self.end,
        }
    }
}

/// Returns the entries of the table, one for each block.
fn table(places: &[(u64, u64, DevicePtr)]) -> Vec<u8> {
    let mut table = Vec::new();
    for (to, end, from) in places {
        let len = end - to;
        let mut done = 0;
        while done < len {
            let part = MOST_OF_BLOCK.min(len - done);
            for word in [from.get() + done, to + done, part] {
                table.extend(word.to_le_bytes());
            }
            done += part;
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Ordinal, SimDriver};

    fn gpu() -> Gpu {
        Gpu::open(SimDriver::new(1), Ordinal(0)).unwrap()
    }

    fn buffer(gpu: &Gpu, len: u64, byte: u8) -> Arc<DeviceBuffer> {
        let buffer = gpu.allocate(MemoryKind::Plain, len).unwrap();
        buffer.write(0, &vec![byte; len as usize]).unwrap();
        Arc::new(buffer)
    }

    #[test]
    fn every_piece_goes_whole_to_its_place_and_nowhere_else() {
        let gpu = gpu();
        let lens = [1, 16, 5000, MOST_OF_BLOCK, 2 * MOST_OF_BLOCK + 3];
        let (mut pieces, mut expected) = (Vec::new(), vec![0xff; 7]);
        for (byte, len) in (1..).zip(lens) {
            pieces.push((buffer(&gpu, len, byte), expected.len() as u64 - 7));
            expected.extend(vec![byte; len as usize]);
            expected.extend([0xff; 3]);
        }
        pieces.reverse();
        let gather = Arc::new(Gather::new(&gpu, pieces).unwrap());
        assert_eq!(gather.end(), expected.len() as u64 - 10);
        let target = buffer(&gpu, expected.len() as u64, 0xff);
        let stream = gpu.stream().unwrap();
        stream.queue_gather(&gather, &target, 7).unwrap();
        stream.wait(std::time::Duration::from_secs(60)).unwrap();
        let mut found = vec![0; expected.len()];
        target.read(0, &mut found).unwrap();
        assert!(found == expected);
    }

    #[test]
    fn what_a_kernel_cannot_copy_is_refused() {
        let gpu = gpu();
        let (one, two) = (buffer(&gpu, 8, 1), buffer(&gpu, 8, 2));
        let none = Gather::new(&gpu, Vec::new());
        assert!(matches!(none, Err(Error::OutOfRange { .. })));
        let overlaps = Gather::new(&gpu, vec![(Arc::clone(&one), 0), (two, 7)]);
        assert!(matches!(overlaps, Err(Error::Overlap { .. })));
        let far = Gather::new(&gpu, vec![(Arc::clone(&one), u64::MAX - 4)]);
        assert!(matches!(far, Err(Error::OutOfRange { .. })));
        let foreign = Gather::new(&self::gpu(), vec![(Arc::clone(&one), 0)]);
        assert!(matches!(foreign, Err(Error::ForeignBuffer { .. })));
        let gather = Gather::new(&gpu, vec![(one, 8)]).unwrap();
        let gather = Arc::new(gather);
        let target = buffer(&gpu, 20, 0);
        let short = gpu.stream().unwrap().queue_gather(&gather, &target, 5);
        assert!(matches!(short, Err(Error::OutOfRange { .. })));
    }
}
