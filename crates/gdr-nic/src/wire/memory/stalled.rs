//! Records that wait for a payload in GPU memory, by queue pair.

use std::collections::VecDeque;
use std::time::Instant;

use gdr_roce::wire::Bth;
use gdr_roce::{Extent, Qpn};

use super::imports::{Imports, Pending};
use super::ring::{Continuation, Run};
use super::rings::{PacketSink, RingPacket, RingSender, Taken};

/// The maximum number of waiting records. Further records stay in the ring.
const MOST: usize = 4096;
/// The maximum length in bytes of one copy of GPU memory.
pub(super) const MOST_COPIED: u32 = 8 << 20;

/// The location of a waiting record's payload.
#[derive(Clone, Copy, Debug)]
pub(super) enum Payload {
    /// In the record, which was copied as a whole.
    Copied,
    /// In the record, which stays in the ring until its room is returned.
    InRing(Extent),
    /// In GPU memory of the producer.
    InDevice(Extent),
}

/// A waiting record.
#[derive(Debug)]
pub(super) struct StalledRecord {
    pub(super) position: u64,
    /// The position of the record's end.
    pub(super) end: u64,
    pub(super) start: Box<[u8]>,
    pub(super) payload: Payload,
}

impl StalledRecord {
    pub(super) fn new(range: (u64, u64), start: &[u8], payload: Payload) -> Self {
        let (position, end) = range;
        Self {
            position,
            end,
            start: start.into(),
            payload,
        }
    }

    fn header(&self) -> Option<Bth> {
        self.start.first_chunk().map(Bth::parse)
    }

    /// Returns the payloads of this record, which begins with `header`, and of the records that continue it.
    fn run<'a>(
        &self,
        header: Bth,
        payload: Extent,
        behind: impl Iterator<Item = &'a Self>,
    ) -> Continuation {
        let mut run = Run::new(header, payload, self.end, MOST_COPIED);
        for record in behind {
            let (Payload::InDevice(next), Some(header)) = (record.payload, record.header()) else {
                break;
            };
            if !run.add(header, next, record.end) {
                break;
            }
        }
        run.all()
    }
}

/// The waiting records of a queue pair, in order.
#[derive(Debug)]
struct Queue {
    qpn: Qpn,
    /// When the first record was first passed to the sink.
    since: Instant,
    records: VecDeque<StalledRecord>,
}

/// The waiting records of all queue pairs of a ring.
#[derive(Debug, Default)]
pub(super) struct Stalled(Vec<Queue>);

impl Stalled {
    /// Returns the position of the oldest record.
    pub(super) fn first(&self) -> Option<u64> {
        let records = self.0.iter().filter_map(|queue| queue.records.front());
        records.map(|record| record.position).min()
    }

    /// Returns whether records of a queue pair wait, in which case its later records must wait as well.
    pub(super) fn has(&self, qpn: Qpn) -> bool {
        self.0.iter().any(|queue| queue.qpn == qpn)
    }

    pub(super) fn is_full(&self) -> bool {
        self.0
            .iter()
            .map(|queue| queue.records.len())
            .sum::<usize>()
            >= MOST
    }

    /// Appends a record to the queue of its queue pair.
    pub(super) fn add(&mut self, qpn: Qpn, record: StalledRecord) {
        match self.0.iter_mut().find(|queue| queue.qpn == qpn) {
            Some(queue) => queue.records.push_back(record),
            None => self.0.push(Queue {
                qpn,
                since: Instant::now(),
                records: VecDeque::from([record]),
            }),
        }
    }

    /// Drops all records: the producer has ended, and its memory with it.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// Passes the records whose payloads have arrived to `sink`.
    pub(super) fn pass(
        &mut self,
        imports: &mut Imports,
        sender: &RingSender,
        sink: &mut impl PacketSink,
    ) {
        for queue in &mut self.0 {
            queue.pass(imports, sender, sink);
        }
        self.0.retain(|queue| !queue.records.is_empty());
    }
}

impl Queue {
    fn pass(&mut self, imports: &mut Imports, sender: &RingSender, sink: &mut impl PacketSink) {
        // Records of a queue pair stay in order, so one without its payload blocks that queue pair, but no other.
        while let Some(record) = self.records.front() {
            let records = &self.records;
            let behind;
            let packet = match record.payload {
                Payload::Copied => RingPacket::Whole(&record.start),
                Payload::InRing(extent) => RingPacket::Long(&record.start, extent),
                Payload::InDevice(payload) => {
                    let Some(header) = record.header() else {
                        self.next();
                        continue;
                    };
                    behind = move || record.run(header, payload, records.iter().skip(1));
                    let run = imports.run(header, record.position, payload.addr, &behind);
                    RingPacket::InDevice(&record.start, payload, run)
                }
            };
            // A failed read of host memory is detected when the room is returned.
            let (taken, _) = sink.take(sender, packet);
            if let Payload::InDevice(payload) = record.payload {
                if taken == Taken::NotYet
                    && imports.wait(record.position, self.since, payload) == Pending::Waits
                {
                    return;
                }
                if let Some(header) = record.header() {
                    imports.pass(header);
                }
            }
            self.next();
        }
    }

    fn next(&mut self) {
        self.records.pop_front();
        // The copy of the next record could not begin earlier, so its delay is measured from here.
        self.since = Instant::now();
    }
}
