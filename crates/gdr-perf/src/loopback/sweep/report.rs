//! The result of a sweep.

use std::fmt;

use serde::Serialize;

use super::super::report::Path;
use crate::report::{Schema, Subject};
use crate::stats::Summary;

/// The result of a sweep.
#[derive(Clone, Debug, Serialize)]
pub struct Sweep {
    /// `gdr.loopback.sweep`.
    #[serde(flatten)]
    pub schema: Schema,
    /// The GPU and the backend, with `simulated`.
    #[serde(flatten)]
    pub subject: Subject,
    /// The CUDA function that allocated the GPU memory.
    pub allocated_by: String,
    /// The devices.
    pub path: Path,
    /// Why the direct path was not measured.
    pub direct_missing: Option<String>,
    /// Direct READs of this many bytes and more were made by the copy engine.
    pub long_reads_from: Option<u64>,
    /// By operation, then by size, then by path.
    pub rows: Vec<Row>,
}

impl Sweep {
    pub(super) fn new(
        subject: Subject,
        allocated_by: &str,
        path: Path,
        direct_missing: Option<String>,
        long_reads_from: Option<u64>,
    ) -> Self {
        Self {
            schema: Schema::first("gdr.loopback.sweep"),
            subject,
            allocated_by: allocated_by.to_owned(),
            path,
            direct_missing,
            long_reads_from,
            rows: Vec::new(),
        }
    }
}

/// One operation on one size by one path.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Row {
    /// The operation.
    pub operation: Operation,
    /// Bytes a request.
    pub size: u64,
    /// The path.
    #[serde(rename = "way")]
    pub kind: PathKind,
    /// From post to completion, one request at a time.
    pub latency: Summary,
    /// Bytes a nanosecond (GB/s), several requests in flight.
    pub gb_per_s: f64,
}

/// An RDMA operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Operation {
    /// RDMA WRITE from host memory, until it is acknowledged.
    Write,
    /// RDMA READ into host memory.
    Read,
}

impl Operation {
    /// As InfiniBand writes it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Write => "RDMA WRITE",
            Self::Read => "RDMA READ",
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The memory that a path leads to, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PathKind {
    /// Host memory: the cost of the network stack alone.
    Host,
    /// GPU memory through a CPU mapping, or registered with a kernel device.
    Direct,
    /// GPU memory through host memory and the GPU's copy engine.
    Staged,
}

impl fmt::Display for PathKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Host => "host",
            Self::Direct => "direct",
            Self::Staged => "staged",
        })
    }
}
