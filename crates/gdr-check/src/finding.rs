//! What was found.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

use crate::rule::Rule;

/// The number of a stack, by which the caller of the shadow finds it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct StackId(pub u32);

/// A place in the program that a finding is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// What happened there, as in "posted".
    pub what: &'static str,
    /// The stack.
    pub stack: StackId,
}

/// A rule that was not kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The rule.
    pub rule: Rule,
    /// The object, as in "queue pair 17".
    pub object: String,
    /// What happened, with its numbers.
    pub detail: String,
    /// Where, the cause first.
    pub places: Vec<Place>,
}

/// What was found, once for each rule and place that broke it.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    new: Vec<Finding>,
    known: HashSet<(Rule, Option<StackId>)>,
}

impl Findings {
    /// Adds a finding, unless the rule is known to be broken at this place.
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

/// A finding as a process writes it down.
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
    /// Where, the cause first.
    pub places: Vec<FoundPlace>,
}

/// A place with its stack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FoundPlace {
    /// What happened there.
    pub what: String,
    /// The stack, the innermost call first.
    pub frames: Vec<FoundFrame>,
}

/// A call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FoundFrame {
    /// The file of the program or the library.
    pub object: String,
    /// The address of the call in that file.
    pub offset: u64,
    /// The function, if it is known.
    pub symbol: Option<String>,
    /// File and line, as in "client.c:17", if they are known.
    #[serde(default)]
    pub source: Option<String>,
}
