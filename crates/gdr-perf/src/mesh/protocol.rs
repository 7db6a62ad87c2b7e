//! Messages between the coordinator, which is rank 0, and the ranks.

use std::net::SocketAddr;
use std::time::Duration;

use gdr_rdma::Service;
use serde::{Deserialize, Serialize};

use super::outlier::DoctorFinding;
use crate::wire::Wire;

/// Name of the service in the greetings of both ends.
pub const SERVICE: Service = Service::new("gdr-mesh");
/// Version of the protocol.
pub const VERSION: u32 = 2;
/// How long the doctor may take. It takes longest with a driver that does not answer.
pub(super) const DOCTOR_LIMIT: Duration = Duration::from_secs(90);

/// What a rank says about itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// The version of the protocol.
    pub version: u32,
    /// From 0.
    pub rank: usize,
    /// The number of ranks that it was started with.
    pub ranks: usize,
    /// The name of its host.
    pub host: String,
    /// Its RDMA device.
    pub device: String,
    /// Its GPU; `None` for host memory.
    pub gpu: Option<String>,
    /// Whether its GPU is simulated.
    pub simulated: bool,
    /// Where it accepts its partners.
    pub listens: SocketAddr,
}

/// A message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "message", rename_all = "snake_case")]
pub(super) enum Message {
    /// A rank is there.
    Join(Member),
    /// Write into the memory of a partner, and report the rate.
    Write {
        /// The partner.
        to: usize,
        /// Where it listens.
        address: SocketAddr,
    },
    /// Let a partner write.
    Serve {
        /// The partner.
        from: usize,
    },
    /// A direction is done. Only the writing rank has a rate, in bytes per second.
    Done {
        /// Bytes a second.
        bytes_per_second: Option<u64>,
        /// The wire that carried what it wrote.
        #[serde(default)]
        wire: Option<Wire>,
    },
    /// It failed.
    Failed {
        /// Why.
        reason: String,
    },
    /// Look for causes on the host, and report the findings.
    Diagnose,
    /// What the doctor found.
    Findings {
        /// The worst first.
        findings: Vec<DoctorFinding>,
    },
    /// All rounds are over.
    End {
        /// Whether everything is as expected.
        passed: bool,
    },
}

impl Message {
    pub(super) const fn name(&self) -> &'static str {
        match self {
            Self::Join(_) => "join",
            Self::Write { .. } => "write",
            Self::Serve { .. } => "serve",
            Self::Done { .. } => "done",
            Self::Failed { .. } => "failed",
            Self::Diagnose => "diagnose",
            Self::Findings { .. } => "findings",
            Self::End { .. } => "end",
        }
    }
}
