//! Page-locked memory as ordinary bytes, for copies that need it as source or target.

#![allow(unsafe_code)]

use std::ops::{Deref, DerefMut};

use gdr_cuda::{Gpu, HostBuffer};

use crate::error::Result;

/// Page-locked memory that only the CPU touches, except during a synchronous copy.
pub(crate) struct PageLocked(HostBuffer);

impl PageLocked {
    /// Allocates `len` zeros, at least one byte.
    pub(crate) fn zeroed(gpu: &Gpu, len: usize) -> Result<Self> {
        let host = gpu.allocate_host(len.max(1))?;
        host.write(0, &vec![0; len.max(1)])?;
        Ok(Self(host))
    }
}

impl Deref for PageLocked {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the driver mapped `len` bytes there for as long as the buffer lives, and `zeroed` wrote all of them.
        // The buffer is owned here and its GPU address is not passed on, so only the holder of an exclusive borrow can
        // write to it while the slice lives.
        unsafe { std::slice::from_raw_parts(self.0.cpu_ptr(), self.0.len()) }
    }
}

impl DerefMut for PageLocked {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.0.cpu_ptr(), self.0.len()) }
    }
}

#[cfg(test)]
mod tests {
    use gdr_cuda::{MemoryKind, Ordinal, SimDriver};

    use super::*;

    #[test]
    fn page_locked_bytes_are_zero_and_can_be_copied_from_and_to() {
        let gpu = Gpu::open(SimDriver::new(1), Ordinal(0)).unwrap();
        let mut locked = PageLocked::zeroed(&gpu, 1000).unwrap();
        assert_eq!(*locked, [0; 1000]);
        locked[999] = 7;
        let buffer = gpu.allocate(MemoryKind::Plain, 1000).unwrap();
        buffer.write(0, &locked).unwrap();
        locked.fill(1);
        buffer.read(0, &mut locked).unwrap();
        assert_eq!((locked[0], locked[999]), (0, 7));
    }
}
