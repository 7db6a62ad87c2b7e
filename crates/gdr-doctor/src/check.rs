//! The type of checks and their documentation.

use std::fmt;

use serde::Serialize;

pub use crate::check_id::{CheckId, Group, Workload};
use crate::runner::Scope;

/// The documentation of a check that `gdr doctor show` prints: plain text of one or more sentences
/// each.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Documentation {
    /// Why it matters.
    #[serde(rename = "means")]
    pub why: &'static str,
    /// The inputs: files, registers and attributes.
    #[serde(rename = "reads")]
    pub inputs: &'static str,
    /// The criteria of each verdict.
    #[serde(rename = "judges")]
    pub criteria: &'static str,
    /// The sources of the rule: specification section, kernel file, issue thread.
    pub sources: &'static [&'static str],
}

/// A check: one property of a node, and the function that examines it.
pub struct Check {
    /// Its name.
    pub id: CheckId,
    /// Its group in reports.
    pub group: Group,
    /// One line that is true if the check passes.
    pub title: &'static str,
    /// Why it matters.
    pub why: &'static str,
    /// What is read, by file, register or attribute.
    pub inputs: &'static str,
    /// What makes which verdict.
    pub criteria: &'static str,
    /// Where the rule comes from: specification section, kernel file, issue thread.
    pub sources: &'static [&'static str],
    /// The workloads that it matters for; empty means all.
    pub workloads: &'static [Workload],
    /// Checks whose bad findings explain a bad finding of this one if both have the same subject:
    /// such a finding is a symptom and is reported under its cause.
    pub symptom_of: &'static [&'static str],
    /// Its subjects, and the function that judges them.
    pub(crate) scope: Scope,
    /// The name of all subjects together ("all GPUs"): if all findings are equal, one finding about
    /// the node replaces them, and its summary begins with this name.
    pub(crate) together: Option<&'static str>,
    /// The reason of the skip if no subject is in scope.
    pub(crate) otherwise: Option<&'static str>,
}

impl Check {
    /// The default values of the fields, for struct update.
    pub(crate) const DEFAULT: Self = Self {
        id: CheckId(""),
        group: Group::Modules,
        title: "",
        why: "",
        inputs: "",
        criteria: "",
        sources: &[],
        workloads: &[],
        symptom_of: &[],
        scope: Scope::Several(|_| Ok(Vec::new())),
        together: None,
        otherwise: None,
    };

    /// Returns whether it matters for a workload.
    pub fn serves(&self, workload: Workload) -> bool {
        self.workloads.is_empty() || self.workloads.contains(&workload)
    }

    /// Returns its documentation.
    pub const fn documentation(&self) -> Documentation {
        Documentation {
            why: self.why,
            inputs: self.inputs,
            criteria: self.criteria,
            sources: self.sources,
        }
    }
}

impl fmt::Debug for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Check").field(&self.id.0).finish()
    }
}
