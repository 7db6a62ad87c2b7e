//! A reference to memory of this process that another one may read.

use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use gdr_process::lock::lock;

use super::segment::Segment;
use crate::deadline::Deadline;

/// How long the process that reads may take. It takes longer only if it is stopped.
const LIMIT: Duration = Duration::from_secs(1);

/// A record that refers to memory of this process.
#[derive(Clone, Debug)]
pub(crate) struct Reference {
    /// That of a ring that has not ended.
    segment: Weak<Segment>,
    /// The position behind the record.
    end: u64,
}

impl Reference {
    pub(super) fn new(segment: &Arc<Segment>, end: u64) -> Self {
        Self {
            segment: Arc::downgrade(segment),
            end,
        }
    }

    /// Ends the access of the other process to the memory.
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

/// The last reference of each ring to a memory region.
#[derive(Debug, Default)]
pub(crate) struct References(Mutex<Vec<Reference>>);

impl References {
    /// Notes a reference, which is later than the others in its ring.
    pub(crate) fn add(&self, reference: Reference) {
        let mut all = lock(&self.0);
        let of_ring = |other: &&mut Reference| Weak::ptr_eq(&other.segment, &reference.segment);
        match all.iter_mut().find(of_ring) {
            Some(last) => last.end = reference.end,
            None => {
                // Rings that have ended.
                all.retain(|other| other.segment.strong_count() > 0);
                all.push(reference);
            }
        }
    }

    /// Ends all of them.
    pub(crate) fn end(&self) {
        for reference in lock(&self.0).drain(..) {
            reference.end();
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
                assert_eq!(lock(&region.0).len(), 1);
            }
            assert_eq!(Arc::strong_count(&ring), 1);
        }
    }
}
