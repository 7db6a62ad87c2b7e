//! Findings that the user already knows of.

use std::fs;
use std::path::PathBuf;

use gdr_check::{Found, FoundFrame, Rule};

use crate::exit::UsageError;

/// Lines from files of `--suppress`.
#[derive(Debug, Default)]
pub(super) struct Suppressions(Vec<Suppression>);

/// A line.
#[derive(Debug)]
struct Suppression {
    /// All rules without one.
    rule: Option<Rule>,
    /// Part of a name in the stack; without it, the line applies everywhere.
    part: Option<String>,
}

impl Suppressions {
    pub(super) fn read(files: &[PathBuf]) -> Result<Self, UsageError> {
        let mut all = Self::default();
        for path in files {
            let text = fs::read_to_string(path).map_err(|error| {
                UsageError(format!(
                    "--suppress {}: the file cannot be read: {error}",
                    path.display()
                ))
            })?;
            all.add(&text)
                .map_err(|why| UsageError(format!("--suppress {}: {why}", path.display())))?;
        }
        Ok(all)
    }

    fn add(&mut self, text: &str) -> Result<(), String> {
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.split('#').next().unwrap_or_default();
            let mut words = line.split_whitespace();
            let Some(rule) = words.next() else {
                continue;
            };
            let rule = match rule {
                "*" => None,
                id => Some(Rule::from_id(id).ok_or_else(|| {
                    format!("line {number}: {id} is not a rule; docs/check.md lists them")
                })?),
            };
            let part = words.next().map(str::to_owned);
            if words.next().is_some() {
                return Err(format!("line {number}: expected only a rule and a name"));
            }
            if rule.is_none() && part.is_none() {
                return Err(format!("line {number}: this would suppress everything"));
            }
            self.0.push(Suppression { rule, part });
        }
        Ok(())
    }

    /// Returns whether a line is about this finding.
    pub(super) fn cover(&self, found: &Found) -> bool {
        self.0.iter().any(|it| {
            it.rule.is_none_or(|rule| rule == found.rule)
                && it.part.as_deref().is_none_or(|part| {
                    let mut frames = found.places.iter().flat_map(|place| &place.frames);
                    frames.any(|frame| names(frame).any(|name| name.contains(part)))
                })
        })
    }
}

/// Returns the names of a frame.
fn names(frame: &FoundFrame) -> impl Iterator<Item = &str> {
    let all = [
        Some(&frame.object),
        frame.symbol.as_ref(),
        frame.source.as_ref(),
    ];
    all.into_iter().flatten().map(String::as_str)
}

#[cfg(test)]
mod tests {
    use gdr_check::FoundPlace;

    use super::*;

    #[test]
    fn a_line_names_a_rule_and_a_part_of_the_stack() {
        let found = |rule, symbol: &str| Found {
            rule,
            pid: 1,
            object: String::new(),
            detail: String::new(),
            places: vec![FoundPlace {
                what: String::new(),
                frames: vec![FoundFrame {
                    object: "/usr/lib/libapp.so".to_owned(),
                    offset: 0,
                    symbol: Some(symbol.to_owned()),
                    source: None,
                }],
            }],
        };
        let mut all = Suppressions::default();
        all.add("# known\ncq-overrun main\n* helper\nleaked\n")
            .unwrap();
        assert!(all.cover(&found(Rule::CqOverrun, "main")));
        assert!(!all.cover(&found(Rule::CqOverrun, "other")));
        assert!(all.cover(&found(Rule::PostInError, "a_helper")));
        assert!(!all.cover(&found(Rule::PostInError, "main")));
        assert!(all.cover(&found(Rule::Leaked, "any")));
        for wrong in ["no-such-rule", "*", "leaked a b"] {
            assert!(Suppressions::default().add(wrong).is_err(), "{wrong}");
        }
    }
}
