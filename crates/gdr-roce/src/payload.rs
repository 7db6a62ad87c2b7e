//! The local data of a send request.

use smallvec::SmallVec;

use crate::MAX_MESSAGE;
use crate::attributes::Capabilities;
use crate::contents::Contents;
use crate::error::PostError;
use crate::ids::Key;
use crate::memory::{Access, AccessError, Extent, Memory};
use crate::mtu::Mtu;
use crate::request::Data;
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
    Segments(Segments),
    Inline(SmallVec<[u8; 64]>),
}

impl Payload {
    /// Copies inline data or the segment list; also returns the message length.
    #[inline]
    pub(crate) fn new(data: Data<'_>, caps: &Capabilities) -> Result<(Self, u32), PostError> {
        let (payload, len) = match data {
            Data::Inline(bytes) if bytes.len() > caps.max_inline as usize => {
                return Err(PostError::InlineTooLong {
                    len: bytes.len(),
                    max: caps.max_inline,
                });
            }
            Data::Inline(bytes) => (
                Self::Inline(SmallVec::from_slice(bytes)),
                bytes.len() as u64,
            ),
            Data::Segments(segments) => (
                Self::Segments(Segments::from_slice(segments)),
                sge::total_len(segments),
            ),
        };
        if len > u64::from(MAX_MESSAGE) {
            return Err(PostError::TooLong(len));
        }
        Ok((payload, len as u32))
    }

    /// Checks access to the first `len` bytes.
    pub(crate) fn check(
        &self,
        memory: &dyn Memory,
        len: usize,
        access: Access,
    ) -> Result<(), AccessError> {
        match self {
            Self::Segments(segments) => sge::check(memory, segments, 0, len, access),
            Self::Inline(_) => Ok(()),
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
        let part = match self {
            Self::Segments(segments) => sge::first_part(segments, offset, left as usize),
            Self::Inline(_) => None,
        };
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
        match self {
            Self::Segments(segments) => sge::scatter(memory, segments, offset, contents),
            // Unreachable: posting refuses inline data for a response.
            Self::Inline(_) => Err(AccessError::Permission),
        }
    }
}
