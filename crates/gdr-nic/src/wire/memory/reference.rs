//! A reference to memory of this process that another one may read.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use gdr_process::lock::lock;

use super::segment::Segment;
use crate::deadline::Deadline;

/// How long the process that reads may take. It takes longer only if it is stopped.
const LIMIT: Duration = Duration::from_secs(1);

/// A record that refers to memory of this process.
#[derive(Clone, Debug)]
pub(crate) struct Reference {
    segment: Arc<Segment>,
    /// The position behind the record.
    end: u64,
}

impl Reference {
    pub(super) fn new(segment: &Arc<Segment>, end: u64) -> Self {
        Self {
            segment: Arc::clone(segment),
            end,
        }
    }

    /// The other process does not read the memory from here on.
    pub(crate) fn end(&self) {
        if !self
            .segment
            .header()
            .void_references(self.end, Deadline::after(LIMIT))
        {
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
        let of_ring = |other: &&mut Reference| Arc::ptr_eq(&other.segment, &reference.segment);
        match all.iter_mut().find(of_ring) {
            Some(last) => last.end = reference.end,
            None => {
                // Rings that have ended.
                all.retain(|other| Arc::strong_count(&other.segment) > 1);
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
