//! Has many ranks write into each other's memory pair by pair, and compares the rates.
//!
//! A launcher such as `srun`, `mpirun` or `torchrun` starts one process per GPU, the ranks ([`Launch`]). Without a
//! launcher, a file lists the hosts ([`HostFile`]). Rank 0 is also the coordinator ([`coordinate`]): the others
//! [`join`] it, and round by round ([`rounds`]) it names their partners, so that no two pairs of a round share a GPU or
//! a NIC. Each transfer is one of [`crate::transfer`], with its bytes compared.
//!
//! The expected rate of a direction is the median of its kind ([`Link`]). Directions below a given part of it, and
//! failed directions, are [`Outlier`]s. Each rank reports what the doctor finds about them on its host. Every wait has
//! a deadline: a killed rank is named in the report, and all others end.

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
