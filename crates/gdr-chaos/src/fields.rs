//! The keys of a rule, not yet interpreted.

use std::time::Duration;

use crate::error::{Place, Problem, ScenarioError};
use crate::value;

/// A key with its value.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) key: String,
    pub(crate) value: String,
    /// The line in a file.
    pub(crate) line: Option<usize>,
}

/// The keys of a rule.
#[derive(Debug)]
pub(crate) struct Fields {
    entries: Vec<Entry>,
    /// The rule, from 1, and the line where it starts.
    rule: usize,
    line: Option<usize>,
    /// The keys requested so far.
    known: Vec<&'static str>,
}

type Result<T> = std::result::Result<T, ScenarioError>;

impl Fields {
    pub(crate) fn new(rule: usize, line: Option<usize>, entries: Vec<Entry>) -> Result<Self> {
        let fields = Self {
            entries,
            rule,
            line,
            known: Vec::new(),
        };
        for (at, entry) in fields.entries.iter().enumerate() {
            if fields.entries[..at]
                .iter()
                .any(|other| other.key == entry.key)
            {
                return Err(fields.error_at(entry, Problem::Twice));
            }
        }
        Ok(fields)
    }

    fn error_at(&self, entry: &Entry, problem: Problem) -> ScenarioError {
        ScenarioError {
            place: Place {
                line: entry.line.or(self.line),
                rule: Some(self.rule),
                key: Some(entry.key.clone()),
            },
            problem,
        }
    }

    /// Returns an error for a key, which may be absent.
    pub(crate) fn error(&self, key: &str, problem: Problem) -> ScenarioError {
        let absent = Entry {
            key: key.to_owned(),
            value: String::new(),
            line: None,
        };
        let entry = self.entries.iter().find(|entry| entry.key == key);
        self.error_at(entry.unwrap_or(&absent), problem)
    }

    /// Returns the value of a key, parsed by `parse`.
    pub(crate) fn get<T>(
        &mut self,
        key: &'static str,
        wanted: &str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Result<Option<T>> {
        self.known.push(key);
        let Some(entry) = self.entries.iter().find(|entry| entry.key == key) else {
            return Ok(None);
        };
        match parse(&entry.value) {
            Some(value) => Ok(Some(value)),
            None => Err(self.error_at(
                entry,
                Problem::Value {
                    value: entry.value.clone(),
                    wanted: wanted.to_owned(),
                },
            )),
        }
    }

    /// Returns an integer that is at least `least`.
    pub(crate) fn number<T>(&mut self, key: &'static str, least: T) -> Result<Option<T>>
    where
        T: std::str::FromStr + PartialOrd + std::fmt::Display,
    {
        let wanted = format!("a whole number from {least} on");
        self.get(key, &wanted, |text| {
            text.parse().ok().filter(|number| *number >= least)
        })
    }

    pub(crate) fn duration(&mut self, key: &'static str) -> Result<Option<Duration>> {
        self.get(key, "a time, e.g. 200us, 3ms or 2s", value::duration)
    }

    pub(crate) fn size(&mut self, key: &'static str) -> Result<Option<u64>> {
        self.get(
            key,
            "a number of bytes above 0, e.g. 4096, 64K or 1M",
            |text| value::size(text).filter(|size| *size > 0),
        )
    }

    /// Returns the value of a required key.
    pub(crate) fn needed<T>(
        &self,
        value: Option<T>,
        fault: &'static str,
        key: &str,
        example: &'static str,
    ) -> Result<T> {
        value.ok_or_else(|| self.error(key, Problem::Missing { fault, example }))
    }

    /// Fails on the first key that was never requested.
    pub(crate) fn finish(self, fault: &'static str) -> Result<()> {
        let unknown = |entry: &&Entry| !self.known.contains(&entry.key.as_str());
        match self.entries.iter().find(unknown) {
            None => Ok(()),
            Some(entry) => Err(self.error_at(
                entry,
                Problem::UnknownKey {
                    fault,
                    known: self.known.clone(),
                },
            )),
        }
    }
}
