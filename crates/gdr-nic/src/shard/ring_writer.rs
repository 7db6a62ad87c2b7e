//! Writing of requests to a ring as they are posted.

use gdr_roce::{AccessError, Data, SendRequest, Time};

use crate::connection::Connection;
use crate::send_queue::SendQueue;
use crate::shard::memory::read_host;
use crate::shard::region_table::RegionTable;
use crate::types::{Counters, Domain};
use crate::wire::memory::{RingId, Rings};

/// The regions of a shard, whose table is locked for each request: a posting program may change it between two.
#[derive(Clone, Copy)]
pub(crate) struct ShardRegions<'a> {
    pub(crate) table: &'a RegionTable,
    pub(crate) shard: usize,
}

/// Writes requests of a connection to its ring.
pub(crate) struct RingWriter<'a> {
    pub(crate) rings: &'a mut Rings,
    pub(crate) ring: RingId,
    pub(crate) counters: &'a mut Counters,
    pub(crate) regions: ShardRegions<'a>,
    pub(crate) domain: Domain,
    /// When the posting call began.
    pub(crate) now: Time,
}

impl RingWriter<'_> {
    /// Posts a request and writes its only packet to room in the ring. Returns its length, for [`Rings::push`]; `None`,
    /// with nothing posted, unless that is the same as posting and sending it.
    // Inlined for single requests and for lists.
    #[inline(always)]
    pub(crate) fn write(
        &mut self,
        queue: &mut SendQueue<'_, Connection>,
        request: &SendRequest<'_>,
    ) -> Option<usize> {
        let ShardRegions { table, shard } = self.regions;
        let domain = self.domain;
        let fill = |to: &mut [u8]| match request.data {
            Data::Inline(bytes) => {
                to.copy_from_slice(bytes);
                Ok(())
            }
            Data::Segments([segment]) => read_host(&table.read(shard), domain, segment, to),
            Data::Segments(_) => Err(AccessError::Failed),
        };
        let room = self.rings.room_to_copy(self.ring)?;
        let len = queue.push_and_transmit(request, self.now, fill, room)?;
        self.counters.count_sent_by_memory(len as u64);
        Some(len)
    }
}
