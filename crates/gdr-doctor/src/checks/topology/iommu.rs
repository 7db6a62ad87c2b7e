//! The IOMMU domains of devices.

use gdr_node::{Absence, Bdf, Datum};

use crate::context::Context;

/// The directory of the active IOMMUs.
pub(super) const UNITS: &str = "/sys/class/iommu";

/// The type of a device's IOMMU domain (Linux
/// `Documentation/ABI/testing/sysfs-kernel-iommu_groups`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Domain {
    /// No IOMMU is active.
    Off,
    /// Addresses are not translated.
    Identity,
    /// Addresses are translated: `DMA` or `DMA-FQ`.
    Translated,
    /// A guest or another user of VFIO owns the device.
    Handed,
}

/// Returns the source of the type of a device's domain, and the type.
pub(super) fn domain(context: &Context<'_>, bdf: Bdf) -> (String, Datum<Domain>) {
    let off = off(context);
    if off == Ok(true) {
        return (UNITS.to_owned(), Ok(Domain::Off));
    }
    let group = context
        .function(bdf)
        .map_or(Err(Absence::Missing), |function| function.iommu_group);
    let group = match group {
        Ok(group) => group,
        Err(Absence::Missing) if off == Ok(false) => {
            return (
                format!("/sys/bus/pci/devices/{bdf}/iommu_group"),
                Ok(Domain::Off),
            );
        }
        // Without the list of IOMMUs, a missing group does not mean that no IOMMU is active.
        absent => return by_arguments(context, absent.and(Err(Absence::NotCollected))),
    };
    let path = format!("/sys/kernel/iommu_groups/{group}/type");
    let kind = context.text(&path).and_then(|text| {
        match text.as_str() {
            "identity" => Some(Domain::Identity),
            "DMA" | "DMA-FQ" => Some(Domain::Translated),
            "unmanaged" | "blocked" => Some(Domain::Handed),
            _ => None,
        }
        .ok_or(Absence::Missing)
    });
    if kind.is_ok() {
        (path, kind)
    } else {
        by_arguments(context, kind)
    }
}

/// Returns whether no IOMMU is active.
fn off(context: &Context<'_>) -> Datum<bool> {
    match context.source.list(UNITS) {
        Ok(units) => Ok(units.is_empty()),
        // sysfs without the class means that no IOMMU is active.
        Err(Absence::Missing) if context.inventory.tree.is_ok() => Ok(true),
        absent => absent.map(|_| false),
    }
}

/// Returns the domain by the kernel's command line, for kernels that show no group types.
fn by_arguments(context: &Context<'_>, absence: Datum<Domain>) -> (String, Datum<Domain>) {
    let facts = context.facts();
    let says = |name: &str, value: &str| facts.argument(name) == Ok(value);
    let domain = if says("iommu", "off") || says("amd_iommu", "off") || says("intel_iommu", "off") {
        Ok(Domain::Off)
    } else if says("iommu", "pt") || says("iommu.passthrough", "1") {
        Ok(Domain::Identity)
    } else {
        absence
    };
    ("/proc/cmdline".to_owned(), domain)
}
