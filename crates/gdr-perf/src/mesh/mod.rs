//! Every two of many ranks write into each other's memory, and the rates are compared.
//!
//! A launcher such as `srun`, `mpirun` or `torchrun` starts one process for each GPU, its ranks
//! ([`Launch`]); without one, a file lists the hosts ([`HostFile`]). Rank 0 is the coordinator as well ([`coordinate`]): the others [`join`] it, and it names
//! each its partners, round by round ([`rounds`]), so that no two pairs of a round share a GPU or a NIC.
//! Every transfer is one of [`crate::transfer`], with its bytes compared.
//!
//! What a direction should reach is the median of its kind ([`Link`]). Directions below a part of it,
//! and directions that failed, are [`Outlier`]s; each rank reports what the doctor finds on its host
//! about them. Every wait has a deadline: a rank that was killed is named in the report, and all others
//! end.

mod coordinator;
mod host_file;
mod launcher;
mod matrix;
mod member;
mod outlier;
mod protocol;
mod report;
mod schedule;
mod settings;

pub use coordinator::{MOST_RANKS, MeshEvent, coordinate};
pub use host_file::{HostFile, HostFileError, HostPlace};
pub use launcher::{Launch, LaunchError, Launcher};
pub use matrix::{Cell, CellOutcome, Expected, Link, expected};
pub use member::{RankSetup, join};
pub use outlier::{DoctorAnswer, DoctorFinding, Outlier, OutlierSubject, RankSide, outliers};
pub use protocol::{Member, SERVICE, VERSION as PROTOCOL_VERSION};
pub use report::MeshReport;
pub use schedule::{Pair, rounds};
pub use settings::{MeshSettings, RankCpus};
