//! Sets of CPUs, as the kernel and taskset write them.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use crate::numa::parse_list;

/// CPUs by number: `0-47,96-143`.
///
/// ```
/// use gdr_node::CpuSet;
///
/// let cpus: CpuSet = "0-2,9".parse()?;
/// assert!(cpus.is_disjoint(&"3-8".parse()?));
/// assert_eq!(cpus.to_string(), "0-2,9");
/// # Ok::<(), gdr_node::InvalidCpuSet>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuSet(BTreeSet<u32>);

/// A text that is not a list of CPUs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a list of CPUs: use numbers and ranges, such as 0-7,16")]
pub struct InvalidCpuSet(String);

impl CpuSet {
    /// Returns whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether the sets have no CPU in common.
    pub fn is_disjoint(&self, other: &Self) -> bool {
        self.0.is_disjoint(&other.0)
    }

    /// Returns whether `other` contains every CPU of this set.
    pub fn is_subset(&self, other: &Self) -> bool {
        self.0.is_subset(&other.0)
    }

    /// Returns the CPUs that both sets contain.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        self.0.intersection(&other.0).copied().collect()
    }

    /// Iterates over the CPUs in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().copied()
    }
}

impl FromIterator<u32> for CpuSet {
    fn from_iter<I: IntoIterator<Item = u32>>(cpus: I) -> Self {
        Self(cpus.into_iter().collect())
    }
}

impl FromStr for CpuSet {
    type Err = InvalidCpuSet;

    fn from_str(text: &str) -> Result<Self, InvalidCpuSet> {
        let cpus = parse_list(text).ok_or_else(|| InvalidCpuSet(text.to_owned()))?;
        Ok(cpus.into_iter().collect())
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut cpus = self.iter().peekable();
        let mut separator = "";
        while let Some(first) = cpus.next() {
            let mut last = first;
            while let Some(next) = cpus.next_if(|next| Some(*next) == last.checked_add(1)) {
                last = next;
            }
            match last == first {
                true => write!(f, "{separator}{first}")?,
                false => write!(f, "{separator}{first}-{last}")?,
            }
            separator = ",";
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_is_written_as_it_is_read() {
        for text in ["", "0", "0-2", "0-2,9", "1,3,5-6,4294967295"] {
            let cpus: CpuSet = text.parse().unwrap();
            assert_eq!(cpus.to_string(), text);
        }
        let cpus: CpuSet = "9,0-1,1-2\n".parse().unwrap();
        assert_eq!(cpus.to_string(), "0-2,9");
        for bad in ["x", "3-1", "0-99999999", "1-", &"0-65535,".repeat(1000)] {
            bad.parse::<CpuSet>().unwrap_err();
        }
    }

    #[test]
    fn sets_are_compared_and_intersected() {
        let of = |text: &str| text.parse::<CpuSet>().unwrap();
        assert_eq!(of("0-7").intersection(&of("4-9,12")), of("4-7"));
        assert!(of("1,3").is_subset(&of("0-3")) && !of("1,4").is_subset(&of("0-3")));
        assert!(of("1,3").is_disjoint(&of("2,4")) && !of("1,3").is_disjoint(&of("3")));
        assert!(of("").is_empty() && !of("0").is_empty());
    }
}
