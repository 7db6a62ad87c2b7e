//! RDMA devices and network interfaces, with their PCI functions.

use std::fmt;

use gdr_pci::Bdf;

use crate::source::{Absence, Datum, Source, virtual_path};

/// The logical state of an RDMA device's port (IBTA, PortInfo:PortState; Linux `enum
/// ib_port_state`).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum PortState {
    /// The link is down.
    Down,
    /// The link is up, but the subnet manager has not configured the port.
    Init,
    /// The subnet manager has configured the port, but not activated it.
    Armed,
    /// The port carries data.
    Active,
    /// Another state, in the kernel's words: `NOP`, `ACTIVE_DEFER`.
    Other(String),
}

impl From<&str> for PortState {
    fn from(name: &str) -> Self {
        match name {
            "DOWN" => Self::Down,
            "INIT" => Self::Init,
            "ARMED" => Self::Armed,
            "ACTIVE" => Self::Active,
            other => Self::Other(other.to_owned()),
        }
    }
}

impl fmt::Display for PortState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Down => "DOWN",
            Self::Init => "INIT",
            Self::Armed => "ARMED",
            Self::Active => "ACTIVE",
            Self::Other(name) => name,
        })
    }
}

/// One port of an RDMA device, as `/sys/class/infiniband/<device>/ports/<number>` describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RdmaPort {
    /// Its number, from 1.
    pub number: u32,
    /// Its logical state.
    pub state: Datum<PortState>,
    /// Its physical state, without the leading number: `LinkUp`, `Polling`, `Disabled`.
    pub physical_state: Datum<String>,
    /// Its rate, in the kernel's words: `400 Gb/sec (4X NDR)`.
    pub rate: Datum<String>,
    /// `InfiniBand` or `Ethernet`.
    pub link_layer: Datum<String>,
}

/// One RDMA device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RdmaDevice {
    /// Its name: `mlx5_0`.
    pub name: String,
    /// Its PCI function; [`Absence::Missing`] for a software device.
    pub function: Datum<Bdf>,
    /// Its firmware version.
    pub firmware: Datum<String>,
    /// Its board's PSID.
    pub board: Datum<String>,
    /// Its ports, by number.
    pub ports: Vec<RdmaPort>,
}

/// One network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Netdev {
    /// Its name: `ens1np0`.
    pub name: String,
    /// Its PCI function; [`Absence::Missing`] for a software interface.
    pub function: Datum<Bdf>,
    /// Its hardware address, as the kernel writes it.
    pub address: Datum<String>,
    /// The port of the function that it uses, from 0.
    pub port: Datum<u32>,
    /// The MTU, in bytes.
    pub mtu: Datum<u32>,
    /// `up`, `down` and so on.
    pub state: Datum<String>,
    /// The driver of its function.
    pub driver: Datum<String>,
    /// Its firmware version, if captured from `ethtool -i`.
    pub firmware: Datum<String>,
}

impl RdmaDevice {
    /// Reads all RDMA devices of a node, by name.
    pub fn read_all(source: &impl Source) -> Datum<Vec<Self>> {
        const CLASS: &str = "/sys/class/infiniband";
        source.list(CLASS).map(|names| {
            let device = |name: String| {
                let path = format!("{CLASS}/{name}");
                let mut ports: Vec<RdmaPort> = source
                    .list(&format!("{path}/ports"))
                    .ok()
                    .unwrap_or_default()
                    .iter()
                    .filter_map(|number| number.parse().ok())
                    .map(|number| RdmaPort::read(source, &path, number))
                    .collect();
                ports.sort_by_key(|port| port.number);
                Self {
                    function: function_of(source, &path),
                    firmware: source.text(&format!("{path}/fw_ver")),
                    board: source.text(&format!("{path}/board_id")),
                    ports,
                    name,
                }
            };
            names.into_iter().map(device).collect()
        })
    }

    /// Returns the interfaces of the same hardware: those on the same function and, if it has several ports, on a port
    /// of this device.
    pub fn netdevs<'a>(&self, all: &'a [Netdev]) -> Vec<&'a Netdev> {
        let function = self.function.as_ref().ok();
        let same = |netdev: &&Netdev| {
            let port = |number: u32| self.ports.iter().any(|port| port.number == number + 1);
            function.is_some()
                && netdev.function.as_ref().ok() == function
                && (self.ports.is_empty() || netdev.port.as_ref().ok().is_none_or(|n| port(*n)))
        };
        all.iter().filter(same).collect()
    }
}

impl RdmaPort {
    /// Returns whether it is known to carry data.
    pub fn is_active(&self) -> bool {
        self.state == Ok(PortState::Active)
    }

    fn read(source: &impl Source, device: &str, number: u32) -> Self {
        let text = |name: &str| source.text(&format!("{device}/ports/{number}/{name}"));
        // `4: ACTIVE`
        let named = |name: &str| {
            text(name).map(|text| match text.split_once(": ") {
                Some((_, state)) => state.to_owned(),
                None => text,
            })
        };
        Self {
            number,
            state: named("state").map(|name| PortState::from(name.as_str())),
            physical_state: named("phys_state"),
            rate: text("rate"),
            link_layer: text("link_layer"),
        }
    }
}

impl Netdev {
    /// Reads all network interfaces visible in the reader's network namespace, by name.
    pub fn read_all(source: &impl Source) -> Datum<Vec<Self>> {
        const CLASS: &str = "/sys/class/net";
        source.list(CLASS).map(|names| {
            let netdev = |name: String| {
                let path = format!("{CLASS}/{name}");
                let text = |file: &str| source.text(&format!("{path}/{file}"));
                Self {
                    function: function_of(source, &path),
                    address: text("address"),
                    port: text("dev_port").and_then(|text| number(&text).ok_or(Absence::Missing)),
                    mtu: text("mtu").and_then(|text| number(&text).ok_or(Absence::Missing)),
                    state: text("operstate"),
                    driver: source.link_name(&format!("{path}/device/driver")),
                    firmware: source.text(&virtual_path::netdev_firmware(&name)),
                    name,
                }
            };
            names.into_iter().map(netdev).collect()
        })
    }
}

/// Parses a number in the kernel's notation, decimal or `0x`.
fn number(text: &str) -> Option<u32> {
    match text.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

/// Returns a class device's PCI function: the last address in the path of its `device`, which may be below the function
/// (an auxiliary or virtio device).
fn function_of(source: &impl Source, path: &str) -> Datum<Bdf> {
    source.link(&format!("{path}/device")).and_then(|_| {
        source.resolve(&format!("{path}/device")).and_then(|path| {
            path.rsplit('/')
                .find_map(|name| name.parse().ok())
                .ok_or(Absence::Missing)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::MemorySource;

    const NIC: &str = "/sys/devices/pci0000:40/0000:40:01.1/0000:41:00.1";

    fn node() -> MemorySource {
        MemorySource::new()
            .link_to(
                "/sys/class/infiniband/mlx5_1",
                &format!("../..{}/infiniband/mlx5_1", &NIC[4..]),
            )
            .link_to(
                &format!("{NIC}/infiniband/mlx5_1/device"),
                "../../../0000:41:00.1",
            )
            .file(&format!("{NIC}/infiniband/mlx5_1/fw_ver"), "28.41.1000\n")
            .file(
                &format!("{NIC}/infiniband/mlx5_1/ports/1/state"),
                "4: ACTIVE\n",
            )
            .file(
                &format!("{NIC}/infiniband/mlx5_1/ports/1/rate"),
                "400 Gb/sec (4X NDR)\n",
            )
            .file("/sys/class/infiniband/rxe0/node_type", "1: CA\n")
            .link_to(
                "/sys/class/net/ens1",
                &format!("../..{}/net/ens1", &NIC[4..]),
            )
            .link_to(&format!("{NIC}/net/ens1/device"), "../../../0000:41:00.1")
            .file(&format!("{NIC}/net/ens1/dev_port"), "0\n")
            .file(&format!("{NIC}/net/ens1/mtu"), "9000\n")
            .link_to(
                "/sys/class/net/second",
                &format!("../..{}/net/second", &NIC[4..]),
            )
            .link_to(&format!("{NIC}/net/second/device"), "../../../0000:41:00.1")
            .file(&format!("{NIC}/net/second/dev_port"), "1\n")
            .directory("/sys/class/net/lo")
    }

    #[test]
    fn an_rdma_device_has_its_interface_and_its_function() {
        let devices = RdmaDevice::read_all(&node()).unwrap();
        let netdevs = Netdev::read_all(&node()).unwrap();
        assert_eq!(devices[0].name, "mlx5_1");
        assert_eq!(devices[0].function, Ok("41:00.1".parse().unwrap()));
        assert_eq!(devices[0].ports[0].state, Ok(PortState::Active));
        let names: Vec<&str> = devices[0]
            .netdevs(&netdevs)
            .iter()
            .map(|netdev| netdev.name.as_str())
            .collect();
        assert_eq!(names, ["ens1"]);
    }

    #[test]
    fn every_state_keeps_the_name_that_the_kernel_gives_it() {
        for name in ["DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER"] {
            assert_eq!(PortState::from(name).to_string(), name);
        }
        assert_eq!(PortState::from("NOP"), PortState::Other("NOP".to_owned()));
    }

    #[test]
    fn software_devices_have_no_function() {
        let devices = RdmaDevice::read_all(&node()).unwrap();
        assert_eq!(devices[1].function, Err(Absence::Missing));
        let netdevs = Netdev::read_all(&node()).unwrap();
        let lo = netdevs.iter().find(|netdev| netdev.name == "lo").unwrap();
        assert_eq!(lo.function, Err(Absence::Missing));
        assert!(devices[1].netdevs(&netdevs).is_empty());
    }
}
