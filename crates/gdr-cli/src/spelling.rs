//! Suggestions for misspelled names.

/// Returns the one of `known` that is nearest to `name`, if few letters differ: at most a third.
pub(crate) fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let (differing, nearest) = (known.into_iter())
        .map(|known| (differing_letters(name, known), known))
        .min_by_key(|(differing, _)| *differing)?;
    let longer = name.chars().count().max(nearest.chars().count());
    (3 * differing <= longer).then_some(nearest)
}

/// Returns how many letters must be changed, added, removed or swapped with the next one.
fn differing_letters(one: &str, other: &str) -> usize {
    let (one, other): (Vec<char>, Vec<char>) = (one.chars().collect(), other.chars().collect());
    // Rows of the table for prefixes of `one` that are one and two letters shorter.
    let mut last: Vec<usize> = (0..=other.len()).collect();
    let mut before_last = last.clone();
    for (row, letter) in one.iter().enumerate() {
        let mut current = vec![row + 1];
        for (column, with) in other.iter().enumerate() {
            let change = last[column] + usize::from(letter != with);
            let mut least = change.min(last[column + 1] + 1).min(current[column] + 1);
            let is_swapped =
                row > 0 && column > 0 && *letter == other[column - 1] && one[row - 1] == *with;
            if is_swapped {
                least = least.min(before_last[column - 1] + 1);
            }
            current.push(least);
        }
        before_last = std::mem::replace(&mut last, current);
    }
    last[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_a_mistake_is_found_and_another_one_is_not() {
        let known = ["gpu.present", "acs.path", "write-bw", "size"];
        for (name, meant) in [
            ("gpu.presnt", Some("gpu.present")),
            ("acs.pth", Some("acs.path")),
            ("wirte-bw", Some("write-bw")),
            ("siez", Some("size")),
            ("size", Some("size")),
            ("memlock", None),
            ("", None),
        ] {
            assert_eq!(nearest(name, known), meant, "{name}");
        }
        assert_eq!(nearest("size", []), None);
    }

    #[test]
    fn letters_that_differ_are_counted_alike_from_both_sides() {
        for (one, other, differing) in [
            ("", "abc", 3),
            ("abc", "abc", 0),
            ("acb", "abc", 1),
            ("ab", "abc", 1),
            ("xbc", "abc", 1),
            ("ca", "abc", 3),
        ] {
            assert_eq!(differing_letters(one, other), differing, "{one} {other}");
            assert_eq!(differing_letters(other, one), differing, "{other} {one}");
        }
    }
}
