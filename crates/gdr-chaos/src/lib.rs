//! Fault injection scenarios for an RDMA device.
//!
//! A [`Scenario`] is a seed and a list of [`Rule`]s. [`Scenario::parse`] reads the inline form, and
//! `Scenario::parse_toml` a file. [`Scenario::strikes`] decides whether a fault strikes, based on the seed, the rule,
//! the queue pair and the number of the operation, so a seed always strikes the same places. A device reports each
//! strike as a [`Record`], a line of text.
//!
//! The crate does no I/O, reads no clock and keeps no state.
//!
//! ```
//! use gdr_chaos::{Fault, Scenario, Site};
//!
//! # fn main() -> Result<(), gdr_chaos::ScenarioError> {
//! let scenario = Scenario::parse("seed=7; drop p=10% qp=0; late by=200us op=3")?;
//! let site = |operation| Site { queue_pair: 0, operation, part: operation };
//! let drops = (0..1000).filter(|n| scenario.strikes(0, site(*n)));
//! assert!((70..130).contains(&drops.count()));
//! assert!(scenario.strikes(1, site(3)) && !scenario.strikes(1, site(4)));
//! assert_eq!(Scenario::parse(&scenario.to_string())?, scenario);
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

#[cfg(feature = "toml")]
mod document;
mod error;
mod fault;
mod fields;
mod record;
mod rule;
mod scenario;
mod value;

pub use error::{Place, Problem, ScenarioError};
pub use fault::{Class, Fault, Icrc, PlacementOrder, RefusedErrno, StatusCode};
pub use record::{Record, Strike};
pub use rule::{Direction, Kinds, Memory, Queues, Rule, Trigger};
pub use scenario::{Scenario, Site};
