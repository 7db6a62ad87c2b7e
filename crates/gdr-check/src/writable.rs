//! Memory that devices may write: outstanding receives and READ destinations.

use std::collections::{BTreeMap, VecDeque};

use crate::finding::StackId;

/// Address ranges in the process, each with the number of times it is outstanding.
#[derive(Debug, Default)]
pub(crate) struct Writable {
    outstanding: BTreeMap<(u64, u64), (u32, StackId)>,
    /// The ranges that ended most recently.
    ended: VecDeque<(u64, u64)>,
}

/// The number of ended ranges to keep.
const ENDED: usize = 1024;

/// How a range overlaps an outstanding one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Overlap {
    /// The ranges are identical.
    Same(StackId),
    /// The ranges share some bytes.
    Partial {
        first: u64,
        end: u64,
        stack: StackId,
    },
}

impl Writable {
    /// Adds a range. Returns what it overlaps with.
    pub(crate) fn add(&mut self, first: u64, len: u64, stack: StackId) -> Option<Overlap> {
        if len == 0 {
            return None;
        }
        let end = first.saturating_add(len);
        if let Some((count, before)) = self.outstanding.get_mut(&(first, end)) {
            *count += 1;
            return Some(Overlap::Same(*before));
        }
        let before = self.outstanding.range(..(first, end)).next_back();
        let after = self.outstanding.range((first, end)..).next();
        let other = before.into_iter().chain(after);
        let overlap = other
            .filter(|((other, other_end), _)| *other < end && first < *other_end)
            .map(|((first, end), (_, stack))| Overlap::Partial {
                first: *first,
                end: *end,
                stack: *stack,
            })
            .next();
        self.outstanding.insert((first, end), (1, stack));
        overlap
    }

    pub(crate) fn remove(&mut self, first: u64, len: u64) {
        let key = (first, first.saturating_add(len));
        if self.ended.len() == ENDED {
            self.ended.pop_front();
        }
        self.ended.push_back(key);
        if let Some((count, _)) = self.outstanding.get_mut(&key) {
            *count -= 1;
            if *count == 0 {
                self.outstanding.remove(&key);
            }
        }
    }
}

impl Writable {
    /// Returns whether a device may recently have written to a range, or may still do so.
    pub(crate) fn may_have_written(&self, first: u64, len: u64) -> bool {
        let end = first.saturating_add(len);
        let mut all = self.outstanding.keys().chain(&self.ended);
        all.any(|(other, other_end)| *other < end && first < *other_end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_overlap_in_part_or_as_a_whole() {
        let mut writable = Writable::default();
        let stack = StackId(1);
        assert_eq!(writable.add(100, 10, stack), None);
        assert_eq!(writable.add(110, 10, stack), None);
        assert_eq!(writable.add(100, 10, stack), Some(Overlap::Same(stack)));
        for (first, len) in [(105, 2), (95, 6), (90, 200)] {
            assert!(matches!(
                writable.add(first, len, stack),
                Some(Overlap::Partial { .. })
            ));
            writable.remove(first, len);
        }
        writable.remove(100, 10);
        assert_eq!(writable.add(100, 10, stack), Some(Overlap::Same(stack)));
        writable.remove(100, 10);
        writable.remove(100, 10);
        assert!(writable.may_have_written(109, 1) && !writable.may_have_written(10, 80));
        assert_eq!(writable.add(95, 10, stack), None);
    }
}
