//! Errors of scenarios.

use std::fmt;

/// The location of a problem in a scenario.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The line in a file, from 1.
    pub line: Option<usize>,
    /// The rule, from 1; `None` if the problem belongs to no rule.
    pub rule: Option<usize>,
    /// The key.
    pub key: Option<String>,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        if let Some(line) = self.line {
            write!(f, "line {line}")?;
            separator = ", ";
        }
        if let Some(rule) = self.rule {
            write!(f, "{separator}rule {rule}")?;
            separator = ", ";
        }
        if let Some(key) = &self.key {
            write!(f, "{separator}key `{key}`")?;
        }
        Ok(())
    }
}

/// What is wrong, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// The scenario has no rule.
    #[error("the scenario has no rule; give one, e.g. `drop p=1%`")]
    Empty,
    /// The fault is unknown.
    #[error("`{name}` is not a fault; the faults are {}", known.join(", "))]
    UnknownFault {
        /// The given text.
        name: String,
        /// The known faults.
        known: Vec<&'static str>,
    },
    /// The fault has no such key.
    #[error("`{fault}` has no such key; its keys are {}", known.join(", "))]
    UnknownKey {
        /// The fault.
        fault: &'static str,
        /// Its keys.
        known: Vec<&'static str>,
    },
    /// A key is given twice.
    #[error("it is given twice; leave one out")]
    Twice,
    /// A required key is missing.
    #[error("`{fault}` needs it; add {example}")]
    Missing {
        /// The fault.
        fault: &'static str,
        /// An example of the key.
        example: &'static str,
    },
    /// The value is invalid.
    #[error("`{value}` is not {wanted}")]
    Value {
        /// The given text.
        value: String,
        /// The expected form, with an example.
        wanted: String,
    },
    /// A word without `=`.
    #[error("`{word}` has no `=`; write key=value, or separate rules by `;`")]
    NoValue {
        /// The word.
        word: String,
    },
    /// Two mutually exclusive keys.
    #[error("it and `{other}` exclude each other; leave one out")]
    Excluded {
        /// The other key.
        other: &'static str,
    },
    /// The text is not TOML, or has another structure.
    #[error(
        "this is not a scenario: {0}; it is TOML with `seed`, and a table [[fault]] for each rule"
    )]
    Syntax(String),
}

/// A scenario that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScenarioError {
    /// Where.
    pub place: Place,
    /// What is wrong, and why.
    pub problem: Problem,
}

impl fmt::Display for ScenarioError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = self.place.to_string();
        match place.is_empty() {
            true => write!(f, "{}", self.problem),
            false => write!(f, "{place}: {}", self.problem),
        }
    }
}

impl std::error::Error for ScenarioError {}
