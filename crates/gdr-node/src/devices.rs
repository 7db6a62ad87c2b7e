//! Looking up GPUs and RDMA NICs by name.

use std::fmt;

use gdr_pci::Bdf;

use crate::DatumExt;
use crate::inventory::Inventory;
use crate::pci::{Function, VendorId, naming};

/// The kind of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DeviceKind {
    /// A GPU.
    Gpu,
    /// An RDMA NIC.
    Nic,
}

/// A GPU or an RDMA NIC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its kind.
    pub kind: DeviceKind,
    /// `GPU0`, `mlx5_0`, or the PCI address of a NIC without a name.
    pub name: String,
    /// Its PCI address.
    pub bdf: Bdf,
}

/// The node has no device of this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("device `{name}` does not exist: {}", these(known))]
pub struct UnknownDevice {
    /// The name that was not found.
    pub name: String,
    /// The names of the devices of the node.
    pub known: Vec<String>,
}

fn these(known: &[String]) -> String {
    if known.is_empty() {
        "the node has no visible GPU or RDMA NIC".to_owned()
    } else {
        format!("the devices are {}", known.join(", "))
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.name)
    }
}

impl Inventory {
    /// Returns the GPUs, then the RDMA NICs, each in its order.
    pub fn devices(&self) -> Vec<Device> {
        let gpus = self.gpus.iter().map(|gpu| Device {
            kind: DeviceKind::Gpu,
            name: gpu.index.to_string(),
            bdf: gpu.bdf,
        });
        gpus.chain(self.nics()).collect()
    }

    /// Returns the RDMA NICs that are PCI functions and carry data, by name. Without a list of RDMA devices and their
    /// locations, returns the physical functions that [`is_rdma_nic`] finds, by address.
    pub fn nics(&self) -> Vec<Device> {
        let mut nics: Vec<Device> = self
            .rdma_functions()
            .filter(|(_, bdf)| self.carries_data(*bdf))
            .map(|(device, bdf)| Device {
                kind: DeviceKind::Nic,
                name: device.name.clone(),
                bdf,
            })
            .collect();
        let devices = || self.rdma.as_ref().ok().into_iter().flatten();
        let has_places = devices().any(|device| !device.function.is_unknown());
        if nics.is_empty() && (self.rdma.is_unknown() || devices().count() > 0 && !has_places) {
            nics = (self.tree.as_ref().ok().into_iter())
                .flat_map(|tree| tree.functions())
                .filter(|function| is_rdma_nic(function))
                .map(|function| Device {
                    kind: DeviceKind::Nic,
                    name: function.bdf.to_string(),
                    bdf: function.bdf,
                })
                .collect();
        }
        nics
    }

    /// Finds a device by its name or by nvidia-smi's index (`NIC3`), or any function by its address.
    ///
    /// # Errors
    ///
    /// [`UnknownDevice`] with the names of the devices of the node.
    pub fn device(&self, name: &str) -> Result<Device, UnknownDevice> {
        let devices = self.devices();
        if let Some(device) = devices.iter().find(|it| it.name.eq_ignore_ascii_case(name)) {
            return Ok(device.clone());
        }
        let counted = name.to_ascii_uppercase();
        if let Some(number) = counted.strip_prefix("NIC").and_then(|n| n.parse().ok())
            && let Some(nic) = self.nics().into_iter().nth(number)
        {
            return Ok(nic);
        }
        if let Ok(bdf) = name.parse::<Bdf>() {
            if let Some(device) = devices.iter().find(|device| device.bdf == bdf) {
                return Ok(device.clone());
            }
            if let Some(function) = self.function(bdf) {
                return Ok(Device {
                    kind: if function.identity.is_nvidia_gpu() {
                        DeviceKind::Gpu
                    } else {
                        DeviceKind::Nic
                    },
                    name: bdf.to_string(),
                    bdf,
                });
            }
        }
        Err(UnknownDevice {
            name: name.to_owned(),
            known: devices.into_iter().map(|device| device.name).collect(),
        })
    }
}

/// Returns whether a function is a physical RDMA NIC that carries data: an InfiniBand or fabric controller, a Mellanox
/// network controller, or one whose number, name or driver belongs to an RDMA NIC.
pub fn is_rdma_nic(function: &Function) -> bool {
    let identity = &function.identity;
    let Some(class) = identity.class else {
        return false;
    };
    let is_product = || {
        let ids = identity.vendor.zip(identity.device);
        ids.is_some_and(|(vendor, device)| naming::is_rdma_product(vendor, device))
            || identity.name.as_deref().is_some_and(naming::names_rdma_nic)
            || (function.driver.as_ref().ok())
                .is_some_and(|driver| RDMA_DRIVERS.contains(&driver.as_str()))
    };
    let is_nic = matches!(class.subclass(), 0x0207 | 0x0208)
        || class.is_network() && (identity.vendor == Some(VendorId::MELLANOX) || is_product());
    is_nic && !function.is_virtual() && !function.manages_switches
}

/// PCI drivers that support only RDMA NICs.
const RDMA_DRIVERS: [&str; 4] = ["efa", "erdma", "hfi1", "vmw_pvrdma"];

#[cfg(test)]
mod tests {
    use snapshot::assert_contains;

    use super::*;
    use crate::example;

    #[test]
    fn a_device_has_its_name_its_number_and_its_address() {
        let node = example::node();
        let inventory = Inventory::read(&node);
        assert_eq!(inventory.devices().len(), 18);
        let nic = inventory.device("mlx5_3").unwrap();
        assert_eq!(inventory.device("NIC3"), Ok(nic.clone()));
        assert_eq!(inventory.device(example::NICS[3]), Ok(nic));
        assert_eq!(inventory.device("gpu1").unwrap().name, "GPU1");
        let error = inventory.device("mlx5_99").unwrap_err().to_string();
        assert_contains!(error, "the devices are GPU0, GPU1");
    }
}
