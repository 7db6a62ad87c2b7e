//! What the IOMMU does with a device's addresses.

use gdr_node::{Absence, Bdf, Datum};

use crate::context::Context;

/// Where Linux lists the IOMMUs that are on.
pub(super) const UNITS: &str = "/sys/class/iommu";

/// What the IOMMU does with a device's addresses (Linux
/// `Documentation/ABI/testing/sysfs-kernel-iommu_groups`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Domain {
    /// No IOMMU is in the way.
    Off,
    /// Addresses stay as they are.
    Identity,
    /// Addresses are translated: `DMA` or `DMA-FQ`.
    Translated,
    /// A guest or another user of VFIO owns the device.
    Handed,
}

/// Where the kind of a device's domain stands, and what it is.
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
        // Without the list of IOMMUs a function without a group says nothing.
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

/// Whether there is no IOMMU at all.
fn off(context: &Context<'_>) -> Datum<bool> {
    match context.source.list(UNITS) {
        Ok(units) => Ok(units.is_empty()),
        // Where sysfs is there and the class is not, no IOMMU is.
        Err(Absence::Missing) if context.inventory.tree.is_ok() => Ok(true),
        absent => absent.map(|_| false),
    }
}

/// What the kernel's command line asks for, of kernels that show no groups.
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
