//! Checks of links, BARs and registers of PCI functions.

use crate::check::{Check, Group};

mod acc_out_read;
mod aer;
mod aspm;
mod bar1_address;
mod bar1_size;
pub(super) mod devices;
mod firmware_settings;
mod hops;
mod irq_affinity;
mod link_bottleneck;
mod link_speed;
mod link_width;
mod mps;
mod mrrs;
mod readback;
mod relaxed_ordering;
mod runtime_pm;
mod slot_power;
mod tags;

/// The fields that the checks of this group share.
const CHECK: Check = Check {
    group: Group::Pcie,
    ..Check::DEFAULT
};

/// In the order of reports.
pub(super) const CHECKS: &[&Check] = &[
    &bar1_size::CHECK,
    &bar1_address::CHECK,
    &link_width::CHECK,
    &link_speed::CHECK,
    &link_bottleneck::CHECK,
    &aer::CHECK,
    &mrrs::CHECK,
    &readback::CHECK,
    &mps::CHECK,
    &relaxed_ordering::CHECK,
    &tags::CHECK,
    &aspm::CHECK,
    &runtime_pm::CHECK,
    &slot_power::CHECK,
    &acc_out_read::CHECK,
    &firmware_settings::CHECK,
    &irq_affinity::CHECK,
];
