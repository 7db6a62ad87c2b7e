//! Receive queues, private or shared.

use std::collections::VecDeque;

use crate::request::Outstanding;

/// Receives that were posted and not polled.
#[derive(Debug, Default)]
pub(crate) struct ReceiveQueue {
    pub(crate) receives: VecDeque<Outstanding>,
    /// Capacity; `None` if fewer receives may be outstanding than are recorded.
    pub(crate) room: Option<u32>,
}

impl ReceiveQueue {
    /// Returns an empty queue. A capacity of 0 means that the queue pair's receives are elsewhere.
    pub(crate) fn new(room: u32) -> Self {
        Self {
            receives: VecDeque::new(),
            room: (room != 0).then_some(room),
        }
    }

    /// Returns how far the last receive exceeds the capacity, if that is certain.
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
