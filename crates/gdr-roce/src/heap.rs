//! Memory regions on the heap.

use crate::ids::{Key, Lkey, Rkey};
use crate::memory::{Access, AccessError, AtomicOp, Extent, Memory};

/// A protection domain of byte vectors, for tests, examples and simulations.
#[derive(Debug, Default)]
pub struct HeapMemory {
    regions: Vec<Region>,
}

#[derive(Debug)]
struct Region {
    base: u64,
    access: Access,
    bytes: Option<Vec<u8>>,
}

/// A key is its region's index plus one of these bases, so that a key of the wrong kind, or a small number, is invalid.
const LOCAL: u32 = 0x1000_0000;
const REMOTE: u32 = 0x2000_0000;

impl HeapMemory {
    /// Creates a protection domain without regions.
    pub const fn new() -> Self {
        Self {
            regions: Vec::new(),
        }
    }

    /// Registers `bytes` as a region at address `base`.
    pub fn register(&mut self, base: u64, bytes: Vec<u8>, access: Access) -> (Lkey, Rkey) {
        let index = self.regions.len() as u32;
        self.regions.push(Region {
            base,
            access,
            bytes: Some(bytes),
        });
        (Lkey(LOCAL + index), Rkey(REMOTE + index))
    }

    /// Deregisters the region and returns its bytes, or `None` if the key is not valid. Keys are never reused.
    pub fn deregister(&mut self, lkey: Lkey) -> Option<Vec<u8>> {
        let region = self.regions.get_mut(lkey.0.checked_sub(LOCAL)? as usize)?;
        region.bytes.take()
    }

    /// Returns the bytes of a region.
    pub fn bytes(&self, lkey: Lkey) -> Option<&[u8]> {
        self.regions
            .get(lkey.0.checked_sub(LOCAL)? as usize)?
            .bytes
            .as_deref()
    }

    /// Returns the bytes of a region, mutably.
    pub fn bytes_mut(&mut self, lkey: Lkey) -> Option<&mut [u8]> {
        self.regions
            .get_mut(lkey.0.checked_sub(LOCAL)? as usize)?
            .bytes
            .as_deref_mut()
    }

    /// Returns the index of the region of `key`, and the range within its bytes. Fails if the range exceeds the region,
    /// or if the region does not permit `access`.
    fn find(
        &self,
        key: Key,
        addr: u64,
        len: usize,
        access: Access,
    ) -> Result<(usize, std::ops::Range<usize>), AccessError> {
        let index = match key {
            Key::Local(Lkey(key)) => key.checked_sub(LOCAL),
            Key::Remote(Rkey(key)) => key.checked_sub(REMOTE),
        };
        let index = index.ok_or(AccessError::UnknownKey)? as usize;
        let region = self.regions.get(index).ok_or(AccessError::UnknownKey)?;
        let bytes = region.bytes.as_ref().ok_or(AccessError::UnknownKey)?;
        let range = addr
            .checked_sub(region.base)
            .and_then(|start| usize::try_from(start).ok())
            .and_then(|start| Some(start..start.checked_add(len)?))
            .filter(|range| range.end <= bytes.len())
            .ok_or(AccessError::OutOfRange)?;
        if !region.access.contains(access) {
            return Err(AccessError::Permission);
        }
        Ok((index, range))
    }

    fn slice(&mut self, index: usize, range: std::ops::Range<usize>) -> &mut [u8] {
        let bytes = self
            .regions
            .get_mut(index)
            .and_then(|region| region.bytes.as_mut());
        bytes
            .and_then(|bytes| bytes.get_mut(range))
            .unwrap_or_default()
    }
}

impl Memory for HeapMemory {
    fn check(&self, key: Key, extent: Extent, access: Access) -> Result<(), AccessError> {
        self.find(key, extent.addr, extent.len as usize, access)
            .map(drop)
    }

    fn read(&mut self, key: Key, addr: u64, out: &mut [u8]) -> Result<(), AccessError> {
        let access = match key {
            Key::Local(_) => Access::empty(),
            Key::Remote(_) => Access::REMOTE_READ,
        };
        let (index, range) = self.find(key, addr, out.len(), access)?;
        out.copy_from_slice(self.slice(index, range));
        Ok(())
    }

    fn write(&mut self, key: Key, addr: u64, bytes: &[u8]) -> Result<(), AccessError> {
        let access = match key {
            Key::Local(_) => Access::LOCAL_WRITE,
            Key::Remote(_) => Access::REMOTE_WRITE,
        };
        let (index, range) = self.find(key, addr, bytes.len(), access)?;
        self.slice(index, range).copy_from_slice(bytes);
        Ok(())
    }

    fn atomic(&mut self, key: Key, addr: u64, op: AtomicOp) -> Result<u64, AccessError> {
        let (index, range) = self.find(key, addr, 8, Access::REMOTE_ATOMIC)?;
        let place = self
            .slice(index, range)
            .first_chunk_mut()
            .ok_or(AccessError::OutOfRange)?;
        let old = u64::from_ne_bytes(*place);
        *place = op.apply(old).to_ne_bytes();
        Ok(old)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_that_leaves_the_region_is_refused() {
        let mut memory = HeapMemory::new();
        let (lkey, rkey) = memory.register(0x1000, vec![0; 16], Access::REMOTE_READ);
        let check =
            |addr, len| memory.check(Key::Remote(rkey), Extent { addr, len }, Access::REMOTE_READ);
        assert_eq!(check(0x1000, 16), Ok(()));
        for (addr, len) in [
            (0xfff, 1),
            (0x1000, 17),
            (0x1010, 1),
            (u64::MAX, 2),
            (0, u32::MAX),
        ] {
            assert_eq!(
                check(addr, len),
                Err(AccessError::OutOfRange),
                "{addr:#x}+{len}"
            );
        }
        assert_eq!(
            memory.write(Key::Remote(rkey), 0x1000, &[1]),
            Err(AccessError::Permission)
        );
        assert_eq!(
            memory.write(Key::Local(lkey), 0x1000, &[1]),
            Err(AccessError::Permission)
        );
        assert_eq!(memory.deregister(lkey), Some(vec![0; 16]));
        assert_eq!(
            memory.read(Key::Local(lkey), 0x1000, &mut [0]),
            Err(AccessError::UnknownKey)
        );
    }
}
