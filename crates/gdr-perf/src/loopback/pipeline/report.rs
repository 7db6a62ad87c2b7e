//! Result of a comparison.

use serde::{Deserialize, Serialize};

use super::super::report::Path;
use super::consumer::Facts;
use super::cost_model::{CostModel, Crossing};
use crate::memory_facts::MemoryFacts;
use crate::report::{ProcessFacts, Schema, Subject};
use crate::stats::Summary;
use crate::transfer::Role;

/// Result of a comparison.
#[derive(Clone, Debug, Serialize)]
pub struct PipelineReport {
    /// `gdr.compare`.
    #[serde(flatten)]
    pub schema: Schema,
    /// The GPU and the backend, with `simulated`.
    #[serde(flatten)]
    pub subject: Subject,
    /// The CUDA function that allocated the GPU memory.
    pub allocated_by: String,
    /// The memory of the frames.
    pub source: MemoryFacts,
    /// The devices: frames go from `from` to `to`.
    pub path: Path,
    /// The two processes; `None` if both ends were in one.
    pub processes: Option<PipelineProcesses>,
    /// How the direct mode reaches the GPU memory.
    pub direct: Option<String>,
    /// Why the direct mode was not measured.
    pub direct_missing: Option<String>,
    /// By size.
    pub rows: Vec<PipelineRow>,
    /// Cost of the staged mode by size; `None` for fewer than two sizes.
    pub staged_model: Option<CostModel>,
    /// Cost of the direct mode by size.
    pub direct_model: Option<CostModel>,
    /// Which mode is faster according to the models.
    pub crossing: Option<Crossing>,
    /// Published figures of the same frames.
    pub published: Option<Published>,
}

/// The processes of a comparison between two.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PipelineProcesses {
    /// The process that wrote the report: the client has the GPU, the server the frames.
    pub role: Role,
    /// The process with the frames.
    pub from: ProcessFacts,
    /// The process with the GPU.
    pub to: ProcessFacts,
}

/// Published figures.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Published {
    /// In the staged mode.
    pub staged_gbit_per_s: f64,
    /// In the direct mode.
    pub direct_gbit_per_s: f64,
    /// Where they were measured.
    pub hardware: &'static str,
}

impl Published {
    /// Of KIRO's GPUDirect extension.
    pub const KIRO: Self = Self {
        staged_gbit_per_s: 1.75,
        direct_gbit_per_s: 3.70,
        hardware: "KIRO 1.3.0, GPUDirect branch, 2015: Tesla K40c, ConnectX-3, CUDA 6.5, driver 340.29",
    };
}

/// Frames of one size, in both modes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PipelineRow {
    /// Bytes of a frame.
    pub size: u64,
    /// Received into host memory, then copied to the GPU.
    pub staged: FrameFigures,
    /// Received into GPU memory; `None` if it was not measured.
    pub direct: Option<FrameFigures>,
    /// Median of the staged mode divided by the median of the direct mode.
    pub ratio: Option<f64>,
}

/// Frames of one size, in one mode.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct FrameFigures {
    /// Time from posting the READ until the kernel's result is in host memory.
    pub total: Summary,
    /// Part of it until the READ is complete.
    pub receive: Summary,
    /// Bytes of a frame divided by the median of `total`, in bytes per nanosecond (GB/s).
    pub gb_per_s: f64,
}

impl PipelineRow {
    pub(super) fn new(size: u64, staged: FrameFigures, direct: Option<FrameFigures>) -> Self {
        let ratio = direct.map(|direct| staged.total.median_ns / direct.total.median_ns);
        Self {
            size,
            staged,
            direct,
            ratio,
        }
    }
}

impl PipelineReport {
    /// Creates a report without rows.
    pub(super) fn begin(facts: Facts, source: MemoryFacts, path: Path) -> Self {
        Self {
            schema: Schema::first("gdr.compare"),
            subject: facts.subject,
            allocated_by: facts.allocated_by,
            source,
            path,
            processes: None,
            direct: facts.direct,
            direct_missing: facts.direct_missing,
            rows: Vec::new(),
            staged_model: None,
            direct_model: None,
            crossing: None,
            published: None,
        }
    }

    /// Adds the models of the measured rows.
    pub(super) fn conclude(&mut self) {
        let sizes = || self.rows.iter().map(|row| row.size);
        let staged: Vec<_> = self
            .rows
            .iter()
            .map(|row| (row.size, row.staged.total.median_ns))
            .collect();
        let direct: Vec<_> = self
            .rows
            .iter()
            .filter_map(|row| Some((row.size, row.direct?.total.median_ns)))
            .collect();
        self.staged_model = CostModel::fit(&staged);
        self.direct_model = CostModel::fit(&direct);
        self.crossing = match (&self.direct_model, &self.staged_model) {
            (Some(direct), Some(staged)) => sizes()
                .min()
                .zip(sizes().max())
                .map(|(least, most)| Crossing::between(direct, staged, least, most)),
            _ => None,
        };
    }
}
