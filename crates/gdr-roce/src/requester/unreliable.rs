//! Transmission on an unreliable connection.

use super::Requester;
use crate::completion::WcStatus;
use crate::connection::{Connection, ConnectionFailed, Notifications, emit};
use crate::memory::Memory;

impl Requester {
    /// Writes the next request packet to `out`. A request completes when its last packet is written, so nothing is ever
    /// outstanding.
    pub(crate) fn poll_unreliable(
        &mut self,
        connection: &Connection,
        memory: &mut dyn Memory,
        out: &mut [u8],
        notifications: &mut Notifications,
    ) -> Result<Option<usize>, ConnectionFailed> {
        let Some(wqe) = self.send_queue.front_mut() else {
            return Ok(None);
        };
        if wqe.is_local() {
            if self.draining {
                return Ok(None);
            }
            self.execute_local(memory, notifications)?;
            return self.poll_unreliable(connection, memory, out, notifications);
        }
        let first = match wqe.first {
            Some(first) => first,
            // A started message is finished even in SQD: the peer would drop half a message.
            None if self.draining => return Ok(None),
            None if wqe.check(memory).is_err() => {
                self.fail(WcStatus::LocalProtection, notifications)?;
                return Ok(None);
            }
            None => self.next,
        };
        wqe.first = Some(first);
        let index = self.next.distance_from(first);
        // The service has no acknowledgements.
        let ack_request = false;
        let headers = wqe.request_packet(connection, self.next, index, 1, ack_request);
        let payload = wqe.request_payload(connection, index, 1);
        let offset = index * connection.mtu.bytes() as u32;
        let is_last = index + 1 == wqe.packets;
        let fill = |payload: &mut [u8]| wqe.payload.fill(memory, offset, payload);
        let Ok(len) = emit(&headers, payload, out, fill) else {
            self.fail(WcStatus::LocalProtection, notifications)?;
            return Ok(None);
        };
        self.next = self.next.wrapping_add(1);
        (self.una, self.highest) = (self.next, self.next);
        if is_last {
            self.complete(notifications);
        }
        Ok(Some(len))
    }
}
