//! Counted nouns in sentences.

use std::fmt;

/// A count with its noun: `1 line`, `2 lines`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counted<N>(pub(crate) N, pub(crate) &'static str);

impl<N: fmt::Display + PartialEq + From<u8>> fmt::Display for Counted<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(number, thing) = self;
        let plural = if *number == N::from(1) { "" } else { "s" };
        write!(f, "{number} {thing}{plural}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thing_is_singular() {
        let shown = [0_u32, 1, 2].map(|number| Counted(number, "line").to_string());
        assert_eq!(shown, ["0 lines", "1 line", "2 lines"]);
    }
}
