//! The environment variables of communication libraries that follow from a node's topology.
//!
//! [`Environment::of`] is a pure function of a [`Context`]: it chooses the NICs of each GPU
//! ([`Rails`]) and writes them in the words of one library, each variable with its reason.
//!
//! ```
//! use gdr_doctor::Context;
//! use gdr_doctor::environment::{Environment, CommunicationLibrary, Rails};
//! use gdr_node::{Inventory, example};
//!
//! let node = example::healthy();
//! let inventory = Inventory::read(&node);
//! let context = Context::new(&node, &inventory);
//! let rails = Rails::of(&context)?;
//! let environment = Environment::of(&context, &rails, CommunicationLibrary::Nccl);
//! assert_eq!(environment.variables[0].name, "NCCL_IB_HCA");
//! # Ok::<(), gdr_doctor::environment::NoRail>(())
//! ```

mod rails;
mod variables;

use std::fmt;

use serde::{Serialize, Serializer};

pub use self::rails::{GpuRails, NoRail, Rail, Rails};
use crate::context::Context;

/// A library that moves GPU memory over RDMA NICs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CommunicationLibrary {
    /// NCCL.
    Nccl,
    /// UCX, and MPI over it.
    Ucx,
    /// NIXL, whose default backend is UCX.
    Nixl,
    /// NVSHMEM.
    Nvshmem,
    /// Mooncake's transfer engine and store.
    Mooncake,
}

impl CommunicationLibrary {
    /// Every library.
    pub const ALL: [Self; 5] = [
        Self::Nccl,
        Self::Ucx,
        Self::Nixl,
        Self::Nvshmem,
        Self::Mooncake,
    ];

    /// Returns its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nccl => "nccl",
            Self::Ucx => "ucx",
            Self::Nixl => "nixl",
            Self::Nvshmem => "nvshmem",
            Self::Mooncake => "mooncake",
        }
    }
}

impl fmt::Display for CommunicationLibrary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Serialize for CommunicationLibrary {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// An environment variable and its reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Variable {
    /// Its name.
    pub name: &'static str,
    /// Its value.
    pub value: String,
    /// The reason, in a sentence without a full stop.
    pub reason: String,
}

/// The variables of a library on a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Environment {
    /// The library.
    pub library: CommunicationLibrary,
    /// The variables, in the order that they are explained in.
    pub variables: Vec<Variable>,
    /// The reasons why a variable is left out, and what the library needs besides variables.
    pub remarks: Vec<String>,
}

impl Environment {
    /// Returns the variables of a library for these rails of a node.
    pub fn of(context: &Context<'_>, rails: &Rails, library: CommunicationLibrary) -> Self {
        let mut environment = Self {
            library,
            variables: Vec::new(),
            remarks: rails.remarks(),
        };
        match library {
            CommunicationLibrary::Nccl => variables::nccl(&mut environment, rails),
            CommunicationLibrary::Ucx => variables::ucx(&mut environment, rails),
            CommunicationLibrary::Nixl => variables::nixl(&mut environment, rails),
            CommunicationLibrary::Nvshmem => variables::nvshmem(&mut environment, rails),
            CommunicationLibrary::Mooncake => variables::mooncake(&mut environment, rails, context),
        }
        environment
    }

    fn set(&mut self, name: &'static str, value: impl Into<String>, reason: impl Into<String>) {
        self.variables.push(Variable {
            name,
            value: value.into(),
            reason: reason.into(),
        });
    }

    fn remark(&mut self, remark: impl Into<String>) {
        self.remarks.push(remark.into());
    }
}
