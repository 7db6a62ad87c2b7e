//! References to memory of this process that another process may read.

use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use gdr_cuda::ExportedMemory;
use gdr_process::lock::lock;

use super::exports::Exports;
use super::segment::Segment;
use gdr_udp::Deadline;

/// How long to wait for a read in progress. It takes longer only if the reading process is stopped.
const LIMIT: Duration = Duration::from_secs(1);

/// A record in a ring that refers to memory of this process.
#[derive(Clone, Debug)]
pub(crate) struct Reference {
    /// The ring's segment, while the ring exists.
    segment: Weak<Segment>,
    /// The position of the record's end.
    end: u64,
}

impl Reference {
    pub(super) fn new(segment: &Arc<Segment>, end: u64) -> Self {
        Self {
            segment: Arc::downgrade(segment),
            end,
        }
    }

    /// Revokes the other process's access to the memory. Waits for a read in progress, for at most [`LIMIT`].
    pub(crate) fn end(&self) {
        let Some(segment) = self.segment.upgrade() else {
            return;
        };
        let limit = Deadline::after(LIMIT);
        if !segment.header().void_references(self.end, limit) {
            tracing::warn!(
                "a process is stopped while it reads memory of this one, which ends before it has; it may get other bytes"
            );
        }
    }
}

/// The last reference in each ring to a memory region, and the rings to whose consumers the region was offered.
#[derive(Debug, Default)]
pub(crate) struct References {
    last: Mutex<Vec<Reference>>,
    offers: Mutex<Vec<Weak<Exports>>>,
}

impl References {
    /// Records a reference, which must be later than the other ones in its ring.
    pub(crate) fn add(&self, reference: Reference) {
        let mut all = lock(&self.last);
        let of_ring = |other: &&mut Reference| Weak::ptr_eq(&other.segment, &reference.segment);
        match all.iter_mut().find(of_ring) {
            Some(last) => last.end = reference.end,
            None => {
                // Drop the references in rings that have ended.
                all.retain(|other| other.segment.strong_count() > 0);
                all.push(reference);
            }
        }
    }

    /// Records that the region, which is GPU memory, was offered to the consumer of a ring.
    pub(crate) fn offer(&self, to: &Arc<Exports>) {
        let mut offers = lock(&self.offers);
        offers.retain(|other| other.strong_count() > 0);
        if !offers.iter().any(|other| other.as_ptr() == Arc::as_ptr(to)) {
            offers.push(Arc::downgrade(to));
        }
    }

    /// Revokes all references. A region of GPU memory is part of `export`, which other regions may share; the offers
    /// are withdrawn with the last of them.
    pub(crate) fn end(&self, export: Option<&Arc<ExportedMemory>>) {
        for reference in lock(&self.last).drain(..) {
            reference.end();
        }
        for offer in lock(&self.offers).drain(..) {
            if let (Some(exports), Some(export)) = (offer.upgrade(), export)
                && Arc::strong_count(export) == 1
            {
                exports.withdraw(export);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_keep_no_ring_and_those_of_ended_rings_are_dropped() {
        let segment = || Arc::new(Segment::create(1 << 14).unwrap().0);
        let regions = [References::default(), References::default()];
        for _ in 0..3 {
            let ring = segment();
            for region in &regions {
                region.add(Reference::new(&ring, 64));
                region.add(Reference::new(&ring, 128));
                assert_eq!(lock(&region.last).len(), 1);
            }
            assert_eq!(Arc::strong_count(&ring), 1);
        }
    }
}
