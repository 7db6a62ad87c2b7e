//! Result of a sweep.

use std::fmt;

use serde::Serialize;

use super::super::report::Path;
use crate::report::{Schema, Subject};
use crate::stats::Summary;

/// Result of a sweep.
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
    /// The copy engine made direct READs of this many bytes and more.
    pub long_reads_from: Option<u64>,
    /// Ordered by operation, then by size, then by path.
    pub rows: Vec<Row>,
    /// Ordered by operation, then by size. Only where both paths were measured.
    pub direct_to_staged: Vec<DirectRatio>,
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
            direct_to_staged: Vec::new(),
        }
    }

    /// Returns where the direct path is slowest relative to the staged one.
    pub fn slowest_direct(&self) -> Option<&DirectRatio> {
        let least = |ratio: &DirectRatio| ratio.latency.min(ratio.rate);
        let ratios = self.direct_to_staged.iter();
        ratios.min_by(|a, b| least(a).total_cmp(&least(b)))
    }
}

/// The direct path beside the staged one, at one size.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct DirectRatio {
    /// The operation.
    pub operation: Operation,
    /// Bytes a request.
    pub size: u64,
    /// Staged latency divided by direct latency, by the medians.
    pub latency: f64,
    /// Direct bandwidth divided by staged bandwidth.
    pub rate: f64,
}

impl DirectRatio {
    /// Returns the ratios of rows with the same operation and size; `None` if one of the paths is missing.
    pub fn of(rows: &[Row]) -> Option<Self> {
        let of = |kind: PathKind| rows.iter().find(|row| row.kind == kind);
        let (direct, staged) = (of(PathKind::Direct)?, of(PathKind::Staged)?);
        Some(Self {
            operation: direct.operation,
            size: direct.size,
            latency: staged.latency.median_ns / direct.latency.median_ns,
            rate: direct.gb_per_s / staged.gb_per_s,
        })
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
    /// Bytes per nanosecond (GB/s) with several requests in flight: the median of the turns.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::Samples;

    fn row(size: u64, kind: PathKind, ns: f64, gb_per_s: f64) -> Row {
        let mut samples = Samples::new().unwrap();
        samples.record(ns);
        Row {
            operation: Operation::Read,
            size,
            kind,
            latency: samples.summary().unwrap(),
            gb_per_s,
        }
    }

    #[test]
    fn direct_is_compared_with_staged_where_both_were_measured() {
        let host = row(4, PathKind::Host, 100.0, 9.0);
        let direct = row(4, PathKind::Direct, 1000.0, 3.0);
        let staged = row(4, PathKind::Staged, 2000.0, 2.0);
        let ratio = DirectRatio::of(&[host, direct, staged]).unwrap();
        assert!((ratio.latency - 2.0).abs() < 0.01, "{ratio:?}");
        assert!((ratio.rate - 1.5).abs() < 1e-9, "{ratio:?}");
        assert!(DirectRatio::of(&[host, direct]).is_none());
        assert!(DirectRatio::of(&[host, staged]).is_none());
    }
}
