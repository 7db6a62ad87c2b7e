//! Receive queues, of one queue pair or shared.

use std::collections::VecDeque;

use crate::request::Outstanding;

/// The receives of a queue that are posted and not polled.
#[derive(Debug, Default)]
pub(crate) struct ReceiveQueue {
    pub(crate) receives: VecDeque<Outstanding>,
    /// How many it holds; `None` where what is outstanding may be less than what is recorded.
    pub(crate) room: Option<u32>,
}

impl ReceiveQueue {
    /// An empty queue; one without room belongs to a queue pair whose receives are elsewhere.
    pub(crate) fn new(room: u32) -> Self {
        Self {
            receives: VecDeque::new(),
            room: (room != 0).then_some(room),
        }
    }

    /// Says how far the last receive is beyond the room, if that is certain.
    pub(crate) fn overflow(&self) -> Option<(&Outstanding, String)> {
        let (outstanding, room) = (self.receives.len(), self.room?);
        let last = self.receives.back()?;
        (outstanding > room as usize).then(|| {
            let detail = format!(
                "{outstanding} receives are outstanding, but the queue has room for {room}"
            );
            (last, detail)
        })
    }
}
