//! Chooses the path of a copy: CPU stores and loads through the mapping, by one or several threads; the GPU's copy
//! engine; or, for short reads and on request, a resident kernel.
//!
//! A [`Calibration`] holds the costs of copies on each path, as [`CostCurve`]s. A [`Planner`] is created once, from a
//! calibration and from what the program allows ([`PathLimits`]), and then returns a [`CopyPlan`] for each copy within
//! a few nanoseconds.
//!
//! ```
//! use std::num::NonZeroU16;
//!
//! use gdr_copy::plan::{
//!     Calibration, CopyDirection, CopyPath, CopyRequest, HostMemory, Machine, PathLimits, Planner,
//! };
//!
//! let calibration = Calibration::built_in(Machine::Pcie);
//! let planner = Planner::new(&calibration, PathLimits::all(NonZeroU16::MIN));
//! let request = CopyRequest {
//!     direction: CopyDirection::FromGpu,
//!     host: HostMemory::PageLocked,
//!     address: 0,
//!     len: 64,
//! };
//! assert_eq!(planner.plan(&request).path(), CopyPath::ONE_THREAD);
//! let megabyte = CopyRequest { len: 1 << 20, ..request };
//! assert_eq!(planner.plan(&megabyte).path(), CopyPath::CopyEngine);
//! ```
//!
//! This module measures nothing and reads neither files nor clocks. [`Profile`] is the text form of a calibration, with
//! the machine on which it was measured.

mod built_in;
mod calibration;
mod curve;
mod path;
mod planner;
mod profile;

pub use built_in::Machine;
pub use calibration::{Calibration, Series};
pub use curve::{CostCurve, CostPoint, InvalidCurve};
pub use path::{CopyDirection, CopyPath, HostMemory, ParsePathError};
pub use planner::{
    CopyEngineUse, CopyPlan, CopyRequest, Estimate, PathLimits, Pieces, Planner, ResidentUse, Step,
};
pub use profile::{ParseProfileError, Profile, ProfileKey};
