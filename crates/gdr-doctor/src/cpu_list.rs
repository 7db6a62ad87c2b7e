//! Lists of CPUs as the kernel writes them.

use std::collections::BTreeSet;

/// More CPUs than any machine has.
const MOST: u32 = 1 << 16;

/// The CPUs of a list such as `0-47,96-143`; `None` if the text is not such a list.
pub(crate) fn parse_cpus(text: &str) -> Option<BTreeSet<u32>> {
    let mut cpus = BTreeSet::new();
    // Ranges may overlap, and a text from outside may repeat a range any number of times.
    let mut named = 0;
    for range in text.trim().split(',').filter(|range| !range.is_empty()) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u32, u32) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        if first > last || last >= MOST {
            return None;
        }
        named += last - first + 1;
        if named > MOST {
            return None;
        }
        cpus.extend(first..=last);
    }
    Some(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus_are_read_and_others_are_not() {
        let cpus = parse_cpus("0-2,9\n").unwrap();
        assert_eq!(cpus.into_iter().collect::<Vec<_>>(), [0, 1, 2, 9]);
        assert!(parse_cpus("").unwrap().is_empty());
        assert_eq!(parse_cpus(&"0-65535,".repeat(1000)), None);
        for bad in ["x", "3-1", "0-99999999", "1-"] {
            assert_eq!(parse_cpus(bad), None, "{bad}");
        }
    }
}
