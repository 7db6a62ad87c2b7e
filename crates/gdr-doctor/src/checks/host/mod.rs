//! Checks of limits, device nodes, containers and CPUs.

use super::simple_value;
use crate::check::{Check, Group};

mod cpu_affinity;
mod cpu_cstates;
mod cpu_governor;
mod dev_nodes;
mod dev_nvidia;
mod device_list;
mod devx;
mod hugepages;
mod memlock_container;
mod memlock_daemons;
mod memlock_self;
mod memory_lock;
mod netns;
mod shm;
mod vf;
mod virt;
mod vm_topology;

/// The fields that the checks of this group share.
const CHECK: Check = Check {
    group: Group::Host,
    ..Check::DEFAULT
};

/// In the order of reports.
pub(super) const CHECKS: &[&Check] = &[
    &memlock_self::CHECK,
    &memlock_daemons::CHECK,
    &memlock_container::CHECK,
    &dev_nodes::CHECK,
    &dev_nvidia::CHECK,
    &netns::CHECK,
    &devx::CHECK,
    &shm::CHECK,
    &hugepages::CHECK,
    &cpu_governor::CHECK,
    &cpu_cstates::CHECK,
    &simple_value::NUMA_BALANCING,
    &simple_value::THP,
    &cpu_affinity::CHECK,
    &virt::CHECK,
    &vm_topology::CHECK,
    &vf::CHECK,
];
