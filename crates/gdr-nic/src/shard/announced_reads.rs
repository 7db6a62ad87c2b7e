//! Reads of GPU memory that an engine has announced.

use std::collections::VecDeque;

use crate::buffer::Queued;

/// The most reads remembered until they are served.
const MOST: usize = 64;

/// The ends of announced reads not yet served, oldest first. Whether a region has further ones determines how a read's
/// bytes are copied.
#[derive(Debug, Default)]
pub(crate) struct AnnouncedReads(VecDeque<End>);

/// The end of a read: its region's key, and the offset past its last byte.
type End = (u32, u64);

impl AnnouncedReads {
    /// Records a read. Returns whether the region has others.
    pub(crate) fn announce(&mut self, key: u32, end: u64) -> Queued {
        let queued = match self.0.iter().any(|(of, _)| *of == key) {
            true => Queued::AmongOthers,
            false => Queued::Alone,
        };
        if self.0.len() == MOST {
            self.0.pop_front();
        }
        self.0.push_back((key, end));
        queued
    }

    /// Records that bytes up to `end` were served. Earlier announced reads of the region were served as well, or never
    /// will be.
    pub(crate) fn serve(&mut self, key: u32, end: u64) {
        let Some(last) = self.0.iter().position(|known| *known == (key, end)) else {
            return;
        };
        // Usually all reads are of the same region.
        let mut place = 0;
        self.0.retain(|(of, _)| {
            place += 1;
            place > last + 1 || *of != key
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_is_alone_if_all_before_it_in_its_region_are_served_or_given_up() {
        let mut reads = AnnouncedReads::default();
        assert_eq!(reads.announce(7, 100), Queued::Alone);
        assert_eq!(reads.announce(8, 100), Queued::Alone, "of another region");
        assert_eq!(reads.announce(7, 200), Queued::AmongOthers);
        reads.serve(7, 50);
        reads.serve(9, 100);
        assert_eq!(reads.announce(7, 300), Queued::AmongOthers);
        // The read that ends at 100 was abandoned.
        reads.serve(7, 200);
        assert_eq!(reads.announce(7, 400), Queued::AmongOthers);
        reads.serve(7, 300);
        reads.serve(7, 400);
        assert_eq!(reads.announce(7, 500), Queued::Alone);
        assert_eq!(reads.announce(8, 500), Queued::AmongOthers);
    }

    #[test]
    fn reads_of_the_same_bytes_are_served_one_by_one() {
        let mut reads = AnnouncedReads::default();
        for queued in [Queued::Alone, Queued::AmongOthers] {
            assert_eq!(reads.announce(7, 100), queued);
        }
        reads.serve(7, 100);
        assert_eq!(reads.announce(7, 100), Queued::AmongOthers);
        reads.serve(7, 100);
        reads.serve(7, 100);
        assert_eq!(reads.announce(7, 100), Queued::Alone);
    }

    #[test]
    fn reads_that_are_never_served_are_forgotten() {
        let mut reads = AnnouncedReads::default();
        for end in 0..1000 {
            reads.announce(7, end);
        }
        assert_eq!(reads.0.len(), MOST);
    }
}
