//! Memory that knows its expected contents, and panics on any other write.

use std::ops::Range;

use gdr_roce::{Access, AccessError, AtomicOp, Extent, Key, Lkey, Memory, Rkey};

use crate::fixture::Random;

pub(crate) const LKEY: Lkey = Lkey(77);
pub(crate) const RKEY: Rkey = Rkey(99);
pub(crate) const BASE: u64 = 0xdead_0000_0000;

/// The memory of one side: its bytes, their expected values, and where writes are currently allowed.
pub(crate) struct Image {
    pub(crate) bytes: Vec<u8>,
    pub(crate) want: Vec<u8>,
    pub(crate) open: Vec<Open>,
    /// The number of atomics applied to the first eight bytes.
    pub(crate) atomics: usize,
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Open {
    Closed,
    Remote,
    Local,
}

impl Image {
    /// Allocates `len` random bytes, not adjacent to earlier ones.
    pub(crate) fn allocate(&mut self, len: u32, random: &mut Random) -> Range<usize> {
        let start = self.bytes.len() + 1 + random.below(9) as usize;
        let end = start + len as usize;
        let old = self.bytes.len();
        self.bytes.resize(end, 0);
        random.fill(&mut self.bytes[old..]);
        self.want.extend_from_slice(&self.bytes[old..]);
        self.open.resize(end, Open::Closed);
        start..end
    }

    /// Allocates `len` bytes in several pieces.
    pub(crate) fn pieces(&mut self, len: u32, random: &mut Random) -> Vec<Range<usize>> {
        let mut left = len;
        let mut pieces = Vec::new();
        for _ in 0..random.below(3) {
            let piece = random.below(u64::from(left) + 1) as u32;
            left -= piece;
            pieces.push(self.allocate(piece, random));
        }
        pieces.push(self.allocate(left, random));
        pieces
    }

    /// Sets the expected contents of `pieces`, from the first byte on.
    pub(crate) fn expect(&mut self, pieces: &[Range<usize>], mut bytes: &[u8]) {
        for piece in pieces {
            let (here, rest) = bytes.split_at(bytes.len().min(piece.len()));
            self.want[piece.start..piece.start + here.len()].copy_from_slice(here);
            bytes = rest;
        }
        assert_eq!(bytes, b"", "the pieces are long enough");
    }

    pub(crate) fn gather(&self, pieces: &[Range<usize>]) -> Vec<u8> {
        pieces
            .iter()
            .flat_map(|piece| &self.want[piece.clone()])
            .copied()
            .collect()
    }

    /// Allows or forbids writes to the first `len` bytes of `pieces`. When forbidden, they must have their expected
    /// contents.
    pub(crate) fn set(&mut self, pieces: &[Range<usize>], mut len: usize, open: Open) {
        for piece in pieces {
            let range = piece.start..piece.start + piece.len().min(len);
            len -= range.len();
            if open == Open::Closed {
                assert!(
                    self.bytes[range.clone()] == self.want[range.clone()],
                    "the request completed with other bytes than expected"
                );
            }
            self.open[range].fill(open);
        }
    }

    fn range(&self, key: Key, addr: u64, len: usize) -> Result<Range<usize>, AccessError> {
        assert!(
            key == Key::Local(LKEY) || key == Key::Remote(RKEY),
            "{key:?}"
        );
        let start = (addr - BASE) as usize;
        assert!(start + len <= self.bytes.len(), "{addr:#x}+{len}");
        Ok(start..start + len)
    }
}

impl Memory for Image {
    fn check(&self, key: Key, extent: Extent, _: Access) -> Result<(), AccessError> {
        self.range(key, extent.addr, extent.len as usize).map(drop)
    }

    fn read(&mut self, key: Key, addr: u64, out: &mut [u8]) -> Result<(), AccessError> {
        out.copy_from_slice(&self.bytes[self.range(key, addr, out.len())?]);
        Ok(())
    }

    fn write(&mut self, key: Key, addr: u64, bytes: &[u8]) -> Result<(), AccessError> {
        let range = self.range(key, addr, bytes.len())?;
        let by = if key == Key::Local(LKEY) {
            Open::Local
        } else {
            Open::Remote
        };
        assert!(
            self.open[range.clone()].iter().all(|open| *open == by),
            "{range:?} is not open"
        );
        assert!(
            self.want[range.clone()] == *bytes,
            "wrong bytes for {range:?}"
        );
        self.bytes[range].copy_from_slice(bytes);
        Ok(())
    }

    fn atomic(&mut self, key: Key, addr: u64, op: AtomicOp) -> Result<u64, AccessError> {
        assert_eq!(self.range(key, addr, 8)?, 0..8);
        let old = u64::from_ne_bytes(*self.bytes.first_chunk().expect("eight"));
        self.bytes[..8].copy_from_slice(&op.apply(old).to_ne_bytes());
        self.atomics += 1;
        Ok(old)
    }
}
