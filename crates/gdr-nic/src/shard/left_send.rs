//! Requests that posters leave to the holder of the engine's lock.

use gdr_roce::{Data, Operation, PostError, Segment, SendFlags, SendRequest, WrId};
use smallvec::SmallVec;

use crate::connection::Connection;
use crate::send_queue::SendQueue;
use crate::shard::intake::Terms;

/// The longest message that may be left: the lock holder has its own work to do.
const LONGEST: u32 = 4096;
/// The maximum number of inline bytes, which are copied.
const MOST_INLINE: usize = 64;

/// A short request of a connection, with copies of its segments or inline bytes.
#[derive(Debug)]
pub(crate) struct LeftSend {
    id: WrId,
    operation: Operation,
    data: LeftData,
    flags: SendFlags,
}

#[derive(Debug)]
enum LeftData {
    Segments(SmallVec<[Segment; 2]>),
    Inline(SmallVec<[u8; MOST_INLINE]>),
}

impl LeftSend {
    /// Returns a copy of a request, if it is short and certain to be accepted under these terms.
    pub(crate) fn of(request: &SendRequest<'_>, terms: &Terms) -> Option<Self> {
        let fills_memory = match request.operation {
            Operation::Send { .. } | Operation::Write { .. } => false,
            Operation::Read { .. } | Operation::Atomic { .. } => true,
            // Rare operations with rules of their own.
            _ => return None,
        };
        let data = match request.data {
            Data::Inline(bytes) => {
                let most = MOST_INLINE.min(terms.max_inline as usize);
                if fills_memory || bytes.len() > most {
                    return None;
                }
                LeftData::Inline(SmallVec::from_slice(bytes))
            }
            Data::Segments(segments) => {
                let len: u64 = segments.iter().map(|segment| u64::from(segment.len)).sum();
                let is_word = !matches!(request.operation, Operation::Atomic { .. }) || len == 8;
                if segments.len() > 2
                    || len > u64::from(LONGEST)
                    || !is_word
                    || fills_memory && !terms.takes_reads
                {
                    return None;
                }
                LeftData::Segments(SmallVec::from_slice(segments))
            }
        };
        Some(Self {
            id: request.id,
            operation: request.operation,
            data,
            flags: request.flags,
        })
    }

    /// Posts the request.
    pub(crate) fn post(&self, queue: &mut SendQueue<'_, Connection>) -> Result<(), PostError> {
        let data = match &self.data {
            LeftData::Segments(segments) => Data::Segments(segments),
            LeftData::Inline(bytes) => Data::Inline(bytes),
        };
        queue.push(&SendRequest {
            id: self.id,
            operation: self.operation,
            data,
            flags: self.flags,
        })
    }
}
