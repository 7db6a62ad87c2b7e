//! The local data of a send request.

use std::slice;

use smallvec::SmallVec;

use crate::MAX_MESSAGE;
use crate::attributes::Capabilities;
use crate::contents::Contents;
use crate::error::PostError;
use crate::ids::{Key, Lkey};
use crate::memory::{Access, AccessError, Extent, Memory};
use crate::mtu::Mtu;
use crate::request::{Data, Segment};
use crate::sge::{self, Segments};

/// The maximum number of packets whose payload one packet with a payload reference covers.
pub(crate) const MOST_MERGED: u32 = 1024;

/// Returns how many packets' payload, from `extent`, one packet carries by reference. The message has `message` bytes;
/// `left` of them remain. 0 means that the next packet carries a copy.
pub(crate) fn choose_merged(
    memory: &mut dyn Memory,
    key: Key,
    extent: Extent,
    left: u32,
    message: u32,
    mtu: Mtu,
) -> Result<u32, AccessError> {
    let bytes = mtu.bytes() as u32;
    // Unless they end the message, the bytes must fill whole packets.
    let len = match extent.len == left {
        true => left,
        false => extent.len - extent.len % bytes,
    };
    if len == 0 {
        return Ok(0);
    }
    let extent = Extent { len, ..extent };
    let referred = memory.choose_payload(key, extent, message)?;
    debug_assert!(referred == len || referred < len && referred.is_multiple_of(bytes));
    Ok(referred.div_ceil(bytes))
}

/// The source of a SEND or WRITE, or the destination of a READ or atomic.
#[derive(Debug)]
pub(crate) enum Payload {
    /// The usual case.
    One(Segment),
    Segments(Segments),
    Inline(SmallVec<[u8; 64]>),
}

impl Payload {
    /// A payload to be [set](Payload::set).
    pub(crate) const EMPTY: Self = Self::One(Segment {
        lkey: Lkey(0),
        addr: 0,
        len: 0,
    });

    /// Returns the segments, unless the data is inline.
    fn segments(&self) -> Option<&[Segment]> {
        match self {
            Self::One(segment) => Some(slice::from_ref(segment)),
            Self::Segments(segments) => Some(segments),
            Self::Inline(_) => None,
        }
    }

    /// Copies inline data or the segment list; also returns the message length.
    pub(crate) fn new(data: Data<'_>, caps: &Capabilities) -> Result<(Self, u32), PostError> {
        let mut payload = Self::EMPTY;
        let len = payload.set(data, caps)?;
        Ok((payload, len))
    }

    /// Sets an empty payload to a copy of inline data or of the segment list. Returns the message length.
    #[inline(always)]
    pub(crate) fn set(&mut self, data: Data<'_>, caps: &Capabilities) -> Result<u32, PostError> {
        let len = match (data, &mut *self) {
            // By fields: otherwise the segment would be copied twice.
            (Data::Segments([only]), Self::One(segment)) => {
                (segment.lkey, segment.addr, segment.len) = (only.lkey, only.addr, only.len);
                only.len.into()
            }
            (Data::Inline(bytes), _) if bytes.len() > caps.max_inline as usize => {
                return Err(PostError::InlineTooLong {
                    len: bytes.len(),
                    max: caps.max_inline,
                });
            }
            (Data::Inline(bytes), _) => {
                *self = Self::Inline(SmallVec::from_slice(bytes));
                bytes.len() as u64
            }
            (Data::Segments(segments), _) => {
                *self = Self::Segments(Segments::from_slice(segments));
                sge::total_len(segments)
            }
        };
        if len > u64::from(MAX_MESSAGE) {
            return Err(PostError::TooLong(len));
        }
        Ok(len as u32)
    }

    /// Checks access to the first `len` bytes.
    pub(crate) fn check(
        &self,
        memory: &dyn Memory,
        len: usize,
        access: Access,
    ) -> Result<(), AccessError> {
        match self.segments() {
            Some(segments) => sge::check(memory, segments, 0, len, access),
            None => Ok(()),
        }
    }

    /// Copies the bytes at `offset` to `out`.
    pub(crate) fn fill(
        &self,
        memory: &mut dyn Memory,
        offset: u32,
        out: &mut [u8],
    ) -> Result<(), AccessError> {
        match self {
            Self::One(segment) => sge::gather(memory, slice::from_ref(segment), offset, out),
            Self::Segments(segments) => sge::gather(memory, segments, offset, out),
            Self::Inline(bytes) => {
                let from = bytes.get(offset as usize..).unwrap_or_default();
                out.copy_from_slice(from.get(..out.len()).ok_or(AccessError::OutOfRange)?);
                Ok(())
            }
        }
    }

    /// Decides how many packets' payload at `offset` leaves by reference in one packet, at most `most`, in a message of
    /// `message` bytes. 0 means that the next packet carries a copy.
    pub(crate) fn choose(
        &self,
        memory: &mut dyn Memory,
        offset: u32,
        most: u32,
        message: u32,
        mtu: Mtu,
    ) -> Result<u32, AccessError> {
        let left = (message - offset).min(most * mtu.bytes() as u32);
        let segments = self.segments();
        let part = segments.and_then(|segments| sge::first_part(segments, offset, left as usize));
        match part {
            Some((key, extent)) => choose_merged(memory, key, extent, left, message, mtu),
            None => Ok(0),
        }
    }

    /// Stores the payload of a response at `offset`.
    pub(crate) fn place(
        &self,
        memory: &mut dyn Memory,
        offset: u32,
        contents: Contents<'_>,
    ) -> Result<(), AccessError> {
        // Otherwise unreachable: posting refuses inline data for a response.
        let segments = self.segments().ok_or(AccessError::Permission)?;
        sge::scatter(memory, segments, offset, contents)
    }
}
