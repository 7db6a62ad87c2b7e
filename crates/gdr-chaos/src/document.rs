//! Scenarios in TOML.

use std::collections::BTreeMap;

use serde::Deserialize;
use toml::{Spanned, Value};

use crate::error::{Place, Problem, ScenarioError};
use crate::fields::{Entry, Fields};
use crate::rule::Rule;
use crate::scenario::{Scenario, known};

/// A scenario file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    seed: Option<u64>,
    #[serde(default)]
    fault: Vec<Spanned<BTreeMap<Spanned<String>, Value>>>,
}

/// The key of a table that names its fault.
const KIND: &str = "kind";

impl Scenario {
    /// Parses a file: `seed = N`, and a table `[[fault]]` for each rule, with the fault in `kind`.
    ///
    /// # Errors
    /// The first problem, with its line.
    pub fn parse_toml(text: &str) -> Result<Self, ScenarioError> {
        let line_of = |at: usize| {
            let before = text.get(..at).unwrap_or_default();
            before.bytes().filter(|byte| *byte == b'\n').count() + 1
        };
        let document: Document = toml::from_str(text).map_err(|error| ScenarioError {
            place: Place {
                line: error.span().map(|span| line_of(span.start)),
                rule: None,
                key: None,
            },
            problem: Problem::Syntax(error.message().to_owned()),
        })?;
        let mut rules = Vec::new();
        for (number, table) in (1..).zip(document.fault) {
            let line = Some(line_of(table.span().start));
            let mut kind = None;
            let mut entries = Vec::new();
            for (key, value) in table.into_inner() {
                let line = Some(line_of(key.span().start));
                let (key, value) = (key.into_inner(), text_of(&value));
                match key == KIND {
                    true => kind = Some(known(&value, number, line)?),
                    false => entries.push(Entry { key, value, line }),
                }
            }
            let Some(name) = kind else {
                return Err(ScenarioError {
                    place: Place {
                        line,
                        rule: Some(number),
                        key: Some(KIND.to_owned()),
                    },
                    problem: Problem::Missing {
                        fault: "[[fault]]",
                        example: "kind = \"drop\"",
                    },
                });
            };
            rules.push(Rule::of(name, Fields::new(number, line, entries)?)?);
        }
        let seed = document.seed.unwrap_or_default();
        Self { seed, rules }.checked()
    }
}

/// Returns a value in the inline form.
fn text_of(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_says_the_same_as_the_inline_form() {
        let text = "seed = 7\n\n[[fault]]\nkind = \"drop\"\np = \"1%\"\nqp = 0\n\n[[fault]]\nkind = \
                    \"late\"\nby = \"200us\"\n";
        let inline = Scenario::parse("seed=7; drop p=1% qp=0; late by=200us").unwrap();
        assert_eq!(Scenario::parse_toml(text).unwrap(), inline);
    }

    #[test]
    fn errors_name_the_line() {
        for (text, expected) in [
            (
                "seed = 1\nspeed = 2\n",
                "line 2: this is not a scenario: unknown field `speed`, expected `seed` or `fault`",
            ),
            (
                "[[fault]]\np = 0.1\n",
                "line 1, rule 1, key `kind`: `[[fault]]` needs it",
            ),
            (
                "[[fault]]\nkind = \"drop\"\np = \"2\"\n",
                "line 3, rule 1, key `p`: `2` is not a share",
            ),
            (
                "[[fault]]\nkind = \"dorp\"\n",
                "line 2, rule 1: `dorp` is not a fault",
            ),
            ("seed = 1\nx y\n", "line 2: this is not a scenario:"),
            ("seed = 1\n", "the scenario has no rule"),
        ] {
            let found = Scenario::parse_toml(text).unwrap_err().to_string();
            assert!(found.starts_with(expected), "{text}: {found}");
        }
    }
}
