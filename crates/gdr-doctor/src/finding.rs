//! The findings of checks.

use std::fmt;

use gdr_node::{Absence, Bdf, Datum, GpuDevice};
use serde::{Serialize, Serializer};

use crate::check::CheckId;
use crate::context::{Nic, Pair};
use crate::fix::Fix;

/// The verdict of a check, in the order of severity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// The check does not apply.
    Skip,
    /// Nothing is wrong.
    Pass,
    /// Nothing is wrong; the fact may matter.
    Info,
    /// It cannot be decided: no permission, or not collected.
    Unknown,
    /// It works, but slowly, sometimes or not for all.
    Warn,
    /// It does not work.
    Fail,
}

impl Verdict {
    /// Returns whether it is a problem to fix.
    pub const fn is_bad(self) -> bool {
        matches!(self, Self::Warn | Self::Fail)
    }

    /// Returns its name in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Skip => "skip",
            Self::Pass => "pass",
            Self::Info => "info",
            Self::Unknown => "unknown",
            Self::Warn => "warn",
            Self::Fail => "fail",
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The subject of a finding.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Subject {
    /// The node as a whole.
    Node,
    /// A GPU.
    Gpu { name: String, bdf: Bdf },
    /// An RDMA device, or a NIC that should be one.
    Nic {
        /// `mlx5_0`, or its address if it has no name.
        name: String,
        bdf: Bdf,
    },
    /// A port of an RDMA device.
    Port {
        nic: String,
        /// The port's number, from 1.
        port: u32,
    },
    /// A GPU, a NIC and the path between them.
    Pair {
        gpu: String,
        gpu_bdf: Bdf,
        nic: String,
        nic_bdf: Bdf,
    },
    /// Another PCI function: a port of a switch, a root port.
    Function(Bdf),
    /// Something else by its name: a service, an interface.
    Named(String),
}

impl Subject {
    /// Returns the subject for a GPU.
    pub fn gpu(gpu: &GpuDevice) -> Self {
        Self::Gpu {
            name: gpu.index.to_string(),
            bdf: gpu.bdf,
        }
    }

    /// Returns the subject for a NIC.
    pub fn nic(nic: &Nic<'_>) -> Self {
        Self::Nic {
            name: nic.name.clone(),
            bdf: nic.bdf,
        }
    }

    /// Returns the subject for a pair.
    pub fn pair(pair: &Pair<'_>) -> Self {
        Self::Pair {
            gpu: pair.gpu.index.to_string(),
            gpu_bdf: pair.gpu.bdf,
            nic: pair.nic.name.clone(),
            nic_bdf: pair.nic.bdf,
        }
    }

    /// Returns whether a fault of one may explain a fault of the other: they are equal, share a
    /// part, or one is the whole node.
    pub fn touches(&self, other: &Self) -> bool {
        if matches!(self, Self::Node) || matches!(other, Self::Node) || self == other {
            return true;
        }
        let (mine, theirs) = (self.parts(), other.parts());
        mine.iter().any(|part| theirs.contains(part))
    }

    /// Returns the addresses and names of its parts.
    fn parts(&self) -> Vec<String> {
        match self {
            Self::Node => Vec::new(),
            Self::Gpu { bdf, .. } | Self::Function(bdf) => vec![bdf.to_string()],
            Self::Nic { name, bdf } => vec![bdf.to_string(), name.clone()],
            Self::Port { nic, .. } => vec![nic.clone()],
            Self::Pair {
                gpu_bdf,
                nic,
                nic_bdf,
                ..
            } => vec![gpu_bdf.to_string(), nic_bdf.to_string(), nic.clone()],
            Self::Named(name) => vec![name.clone()],
        }
    }

    /// Returns its kind in JSON.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Gpu { .. } => "gpu",
            Self::Nic { .. } => "nic",
            Self::Port { .. } => "port",
            Self::Pair { .. } => "pair",
            Self::Function(_) => "function",
            Self::Named(_) => "named",
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node => f.write_str("this node"),
            Self::Gpu { name, .. } | Self::Nic { name, .. } | Self::Named(name) => {
                f.write_str(name)
            }
            Self::Port { nic, port } => write!(f, "{nic} port {port}"),
            Self::Pair { gpu, nic, .. } => write!(f, "{gpu} - {nic}"),
            Self::Function(bdf) => bdf.fmt(f),
        }
    }
}

impl Serialize for Subject {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct;
        let mut out = serializer.serialize_struct("Subject", 3)?;
        out.serialize_field("kind", self.kind())?;
        out.serialize_field("name", &self.to_string())?;
        let addresses: Vec<String> = match self {
            Self::Gpu { bdf, .. } | Self::Nic { bdf, .. } | Self::Function(bdf) => {
                vec![bdf.to_string()]
            }
            Self::Pair {
                gpu_bdf, nic_bdf, ..
            } => vec![gpu_bdf.to_string(), nic_bdf.to_string()],
            Self::Node | Self::Port { .. } | Self::Named(_) => Vec::new(),
        };
        out.serialize_field("pci", &addresses)?;
        out.end()
    }
}

/// Evidence of a finding: one thing that was read, and its value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Evidence {
    /// A file, a register, an attribute.
    pub source: String,
    /// Its value, or the reason of its absence.
    pub value: String,
}

/// A finding of a check about one subject.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Its verdict.
    pub verdict: Verdict,
    /// Its subject.
    pub subject: Subject,
    /// One sentence: the fact and its consequence.
    pub summary: String,
    /// Its evidence.
    pub evidence: Vec<Evidence>,
    /// The absence of the fact that an unknown finding needs.
    pub absence: Option<Absence>,
    /// Fixes, the best first.
    pub fixes: Vec<Fix>,
    /// Checks whose bad findings about the same subject explain this one, in addition to the
    /// check's own.
    pub symptom_of: Vec<CheckId>,
}

impl Finding {
    /// Returns a finding about the node; [`about`](Self::about) sets another subject.
    pub fn new(verdict: Verdict, summary: impl Into<String>) -> Self {
        Self {
            verdict,
            subject: Subject::Node,
            summary: summary.into(),
            evidence: Vec::new(),
            absence: None,
            fixes: Vec::new(),
            symptom_of: Vec::new(),
        }
    }

    /// Nothing is wrong.
    pub fn pass(summary: impl Into<String>) -> Self {
        Self::new(Verdict::Pass, summary)
    }

    /// Nothing is wrong; the fact may matter.
    pub fn info(summary: impl Into<String>) -> Self {
        Self::new(Verdict::Info, summary)
    }

    /// It works, but not as it should.
    pub fn warn(summary: impl Into<String>) -> Self {
        Self::new(Verdict::Warn, summary)
    }

    /// Does not work.
    pub fn fail(summary: impl Into<String>) -> Self {
        Self::new(Verdict::Fail, summary)
    }

    /// Returns a finding that the check does not apply, for this reason.
    pub fn skip(why: impl Into<String>) -> Self {
        Self::new(Verdict::Skip, why)
    }

    /// It cannot be decided, since `what` is absent.
    pub fn unknown<T>(what: &str, absence: &Datum<T>) -> Self {
        let why = match absence {
            Err(Absence::Denied) => "needs root to read",
            Err(Absence::NotCollected) => "was not collected",
            Err(Absence::Missing) => "does not exist",
            Err(Absence::Failed(_)) => "could not be read",
            Ok(_) => "is invalid",
        };
        let mut finding = Self::new(Verdict::Unknown, format!("{what} {why}"));
        finding.absence = absence.as_ref().err().copied();
        if let Err(Absence::Failed(errno)) = absence {
            finding.summary = format!("{} ({errno})", finding.summary);
        }
        finding
    }

    /// Sets the subject.
    #[must_use]
    pub fn about(mut self, subject: Subject) -> Self {
        self.subject = subject;
        self
    }

    /// Adds evidence.
    #[must_use]
    pub fn evidence(mut self, source: impl fmt::Display, value: impl fmt::Display) -> Self {
        self.evidence.push(Evidence {
            source: source.to_string(),
            value: value.to_string(),
        });
        self
    }

    /// Adds several pieces of evidence.
    #[must_use]
    pub fn evidence_all<A: fmt::Display, B: fmt::Display>(
        self,
        all: impl IntoIterator<Item = (A, B)>,
    ) -> Self {
        (all.into_iter()).fold(self, |finding, (source, value)| {
            finding.evidence(source, value)
        })
    }

    /// Adds a fix if the verdict is bad.
    #[must_use]
    pub fn fix_if_bad(self, fix: Fix) -> Self {
        if self.verdict.is_bad() {
            self.fix(fix)
        } else {
            self
        }
    }

    /// Adds a fix after the better ones.
    #[must_use]
    pub fn fix(mut self, fix: Fix) -> Self {
        self.fixes.push(fix);
        self
    }

    /// Declares that a bad finding of `check` about the same subject explains this one.
    #[must_use]
    pub fn symptom_of(mut self, check: &'static str) -> Self {
        self.symptom_of.push(CheckId(check));
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bdf(text: &str) -> Bdf {
        text.parse().unwrap()
    }

    #[test]
    fn a_pair_touches_its_devices_and_the_ports_of_its_nic_only() {
        let pair = Subject::Pair {
            gpu: "GPU0".into(),
            gpu_bdf: bdf("1:00.0"),
            nic: "mlx5_0".into(),
            nic_bdf: bdf("2:00.0"),
        };
        let nic = |name: &str, at: &str| Subject::Nic {
            name: name.into(),
            bdf: bdf(at),
        };
        assert!(pair.touches(&nic("mlx5_0", "2:00.0")));
        assert!(!pair.touches(&nic("mlx5_1", "3:00.0")));
        let port = Subject::Port {
            nic: "mlx5_0".into(),
            port: 1,
        };
        assert!(port.touches(&pair));
        assert!(Subject::Node.touches(&pair));
        assert!(!Subject::Function(bdf("9:00.0")).touches(&pair));
    }

    #[test]
    fn the_summary_of_an_unknown_finding_has_the_reason() {
        let denied = Err::<u8, _>(Absence::Denied);
        let finding = Finding::unknown("the ACS control register", &denied);
        assert_eq!(
            finding.summary,
            "the ACS control register needs root to read"
        );
        assert_eq!(finding.verdict, Verdict::Unknown);
    }
}
