//! The checks: a folder for each group, a file for each check.

use crate::check::Check;

mod cpu;
#[cfg(test)]
mod fixture;
mod host;
pub(crate) mod kernel_log;
mod modules;
mod network;
mod pcie;
pub(crate) mod simple_value;
mod topology;

pub(crate) use network::ports;

/// The names that almost every check uses.
mod prelude {
    pub(super) use gdr_node::pci::{DeviceId, Function, VendorId};
    pub(super) use gdr_node::{Absence, Bdf, Datum, DatumExt, GpuDevice, RdmaDevice, virtual_path};

    pub(super) use crate::check::{Check, CheckId, Workload};
    pub(super) use crate::context::{Context, Nic, Pair};
    pub(super) use crate::facts::{Container, Library, Machine};
    pub(super) use crate::finding::{Finding, Subject, Verdict};
    pub(super) use crate::fix::{Action, Effect, Fix, Persistence, Privilege, Risk};
    pub(super) use crate::runner::{self, Judgement, Known, Scope, Unjudged};
    pub(super) use crate::version::{Flavour, NvidiaDriver, Version};

    pub(super) use super::network::ports::Which;
}

/// Every check, in the order of reports.
pub fn all() -> impl Iterator<Item = &'static Check> {
    [
        modules::CHECKS,
        topology::CHECKS,
        pcie::CHECKS,
        host::CHECKS,
        network::CHECKS,
        kernel_log::CHECKS,
    ]
    .into_iter()
    .flatten()
    .copied()
}

/// The check of this name.
pub fn find(id: &str) -> Option<&'static Check> {
    all().find(|check| check.id.0 == id)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_check_has_a_unique_name_and_documentation() {
        let mut names = HashSet::new();
        for check in all() {
            assert!(names.insert(check.id), "{} exists twice", check.id);
            let said = check.documentation();
            assert!(!check.title.is_empty(), "{}", check.id);
            for text in [said.why, said.inputs, said.criteria] {
                assert!(!text.is_empty(), "{}", check.id);
            }
            assert!(!said.sources.is_empty(), "{} has no source", check.id);
        }
    }

    #[test]
    fn every_cause_that_a_check_names_exists() {
        for check in all() {
            for cause in check.symptom_of {
                assert!(find(cause).is_some(), "{} names {cause}", check.id);
            }
        }
    }
}
