//! What a check is.

use std::fmt;

use serde::Serialize;

pub use crate::check_id::{CheckId, Group, Workload};
use crate::runner::Scope;

/// What `gdr doctor show` prints of a check: each a sentence or more of plain text.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Documentation {
    /// Why it matters.
    #[serde(rename = "means")]
    pub why: &'static str,
    /// What is read, by file, register or attribute.
    #[serde(rename = "reads")]
    pub inputs: &'static str,
    /// What makes which verdict.
    #[serde(rename = "judges")]
    pub criteria: &'static str,
    /// Where the rule comes from: specification section, kernel file, issue thread.
    pub sources: &'static [&'static str],
}

/// One question about a node, and how to answer it.
pub struct Check {
    /// Its name.
    pub id: CheckId,
    /// What it is about.
    pub group: Group,
    /// One line: what holds when it passes.
    pub title: &'static str,
    /// Why it matters.
    pub why: &'static str,
    /// What is read, by file, register or attribute.
    pub inputs: &'static str,
    /// What makes which verdict.
    pub criteria: &'static str,
    /// Where the rule comes from: specification section, kernel file, issue thread.
    pub sources: &'static [&'static str],
    /// The workloads that it matters to; empty means all.
    pub workloads: &'static [Workload],
    /// Checks whose bad findings explain a bad finding of this one, where both are about the same
    /// thing: such a finding is a symptom, and is reported under its cause.
    pub symptom_of: &'static [&'static str],
    /// What it judges, and how.
    pub(crate) scope: Scope,
    /// What the subjects are together ("all GPUs"): findings that are alike become one finding
    /// about the node, which begins with this.
    pub(crate) together: Option<&'static str>,
    /// Why the check does not apply, where none of the subjects concerns it.
    pub(crate) otherwise: Option<&'static str>,
}

impl Check {
    /// What most checks have in common, for struct update.
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

    /// Whether it matters for a workload.
    pub fn serves(&self, workload: Workload) -> bool {
        self.workloads.is_empty() || self.workloads.contains(&workload)
    }

    /// Its documentation.
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
