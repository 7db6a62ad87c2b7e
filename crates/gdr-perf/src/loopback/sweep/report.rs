//! What a sweep measured.

use std::fmt;

use serde::Serialize;

use super::super::report::Path;
use crate::report::{Schema, Subject};
use crate::stats::Summary;

/// What a sweep measured.
#[derive(Clone, Debug, Serialize)]
pub struct Sweep {
    /// `gdr.loopback.sweep`.
    #[serde(flatten)]
    pub schema: Schema,
    /// The GPU, the backend and its route, `simulated` among it.
    #[serde(flatten)]
    pub subject: Subject,
    /// The CUDA function that allocated the GPU memory.
    pub allocated_by: String,
    /// The way the bytes took.
    pub path: Path,
    /// Why nothing was measured directly, where that is so.
    pub direct_missing: Option<String>,
    /// Direct READs of this many bytes and more were made by the copy engine.
    pub long_reads_from: Option<u64>,
    /// By operation, then by size, then by way.
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

/// One operation on one size by one way.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Row {
    /// What was done.
    pub operation: Operation,
    /// Bytes a request.
    pub size: u64,
    /// Into or out of which memory.
    pub way: Way,
    /// From the post to the completion, one request at a time.
    pub latency: Summary,
    /// Bytes a nanosecond (GB/s), several requests in flight.
    pub gb_per_s: f64,
}

/// What was done.
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

/// Into or out of which memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Way {
    /// Host memory: what the stack costs by itself.
    Host,
    /// GPU memory through a CPU mapping of it, or registered with a device of the kernel.
    Direct,
    /// GPU memory through host memory and the GPU's copy engine.
    Staged,
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Host => "host",
            Self::Direct => "direct",
            Self::Staged => "staged",
        })
    }
}
