//! Findings.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

use crate::rule::Rule;

/// A stack's number, by which the shadow's caller identifies it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct StackId(pub u32);

/// A place in the program that is relevant to a finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// What happened there, e.g. "posted".
    pub what: &'static str,
    /// The stack.
    pub stack: StackId,
}

/// A violation of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The rule.
    pub rule: Rule,
    /// The object, e.g. "queue pair 17".
    pub object: String,
    /// What happened, with its numbers.
    pub detail: String,
    /// Where, starting with the cause.
    pub places: Vec<Place>,
}

/// Findings, one for each rule and violating place.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    new: Vec<Finding>,
    known: HashSet<(Rule, Option<StackId>)>,
}

impl Findings {
    /// Adds a finding, unless this rule's violation at this place is already known.
    pub(crate) fn report(
        &mut self,
        (rule, at): (Rule, Option<StackId>),
        object: String,
        detail: String,
        places: Vec<Place>,
    ) {
        if self.known.insert((rule, at)) {
            self.new.push(Finding {
                rule,
                object,
                detail,
                places,
            });
        }
    }

    pub(crate) fn is_known(&self, rule: Rule, at: StackId) -> bool {
        self.known.contains(&(rule, Some(at)))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.new.is_empty()
    }

    pub(crate) fn take(&mut self) -> Vec<Finding> {
        std::mem::take(&mut self.new)
    }
}

/// A finding as a process records it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    /// The rule.
    pub rule: Rule,
    /// The process.
    pub pid: u32,
    /// The object.
    pub object: String,
    /// What happened.
    pub detail: String,
    /// Where, starting with the cause.
    pub places: Vec<FoundPlace>,
}

/// A place with its stack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FoundPlace {
    /// What happened there.
    pub what: String,
    /// The stack, innermost call first.
    pub frames: Vec<FoundFrame>,
}

/// A stack frame.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FoundFrame {
    /// The file of the program or library.
    pub object: String,
    /// The address of the call in that file.
    pub offset: u64,
    /// The function, if known.
    pub symbol: Option<String>,
    /// File and line, e.g. "client.c:17", if known.
    #[serde(default)]
    pub source: Option<String>,
}
