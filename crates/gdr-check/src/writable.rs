//! The memory that devices may write to: receives and destinations of READs that are outstanding.

use std::collections::BTreeMap;

use crate::finding::StackId;

/// Ranges of addresses of the process, each with how often it is outstanding.
#[derive(Debug, Default)]
pub(crate) struct Writable(BTreeMap<(u64, u64), (u32, StackId)>);

/// How a range meets another that is outstanding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Overlap {
    /// It is the same.
    Same(StackId),
    /// They share some bytes.
    Partial {
        first: u64,
        end: u64,
        stack: StackId,
    },
}

impl Writable {
    /// Adds a range; returns what it overlaps with.
    pub(crate) fn add(&mut self, first: u64, len: u64, stack: StackId) -> Option<Overlap> {
        if len == 0 {
            return None;
        }
        let end = first.saturating_add(len);
        if let Some((count, before)) = self.0.get_mut(&(first, end)) {
            *count += 1;
            return Some(Overlap::Same(*before));
        }
        let before = self.0.range(..(first, end)).next_back();
        let after = self.0.range((first, end)..).next();
        let other = before.into_iter().chain(after);
        let overlap = other
            .filter(|((other, other_end), _)| *other < end && first < *other_end)
            .map(|((first, end), (_, stack))| Overlap::Partial {
                first: *first,
                end: *end,
                stack: *stack,
            })
            .next();
        self.0.insert((first, end), (1, stack));
        overlap
    }

    pub(crate) fn remove(&mut self, first: u64, len: u64) {
        let key = (first, first.saturating_add(len));
        if let Some((count, _)) = self.0.get_mut(&key) {
            *count -= 1;
            if *count == 0 {
                self.0.remove(&key);
            }
        }
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
        assert_eq!(writable.add(95, 10, stack), None);
    }
}
