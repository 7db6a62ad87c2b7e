//! The local bytes of a request on a send queue.

use smallvec::SmallVec;

use crate::MAX_MESSAGE;
use crate::attributes::Capabilities;
use crate::contents::Contents;
use crate::error::PostError;
use crate::memory::{Access, AccessError, Memory, PayloadBy};
use crate::request::Data;
use crate::sge::{self, Segments};

/// The source of a SEND or WRITE, or the destination of a READ or atomic.
#[derive(Debug)]
pub(crate) enum Payload {
    Segments(Segments),
    Inline(SmallVec<[u8; 64]>),
}

impl Payload {
    /// Copies inline data or segments; returns the length of the message, too.
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

    /// Checks the access to the first `len` bytes.
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

    /// Decides how `len` bytes at `offset` of a message of `message` bytes leave.
    pub(crate) fn choose(
        &self,
        memory: &mut dyn Memory,
        offset: u32,
        len: usize,
        message: u32,
    ) -> Result<PayloadBy, AccessError> {
        let part = match self {
            Self::Segments(segments) => sge::only_part(segments, offset, len),
            Self::Inline(_) => None,
        };
        match part {
            Some((key, extent)) => memory.choose_payload(key, extent, message),
            None => Ok(PayloadBy::Copy),
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
            Self::Inline(_) => Err(AccessError::Permission),
        }
    }
}
