//! The output of RDMA and network tools: `ibstat`, `ibstatus`, `ibv_devinfo`, `ibdev2netdev`, `ethtool -i`, `ip
//! address` and `mlxconfig -d DEVICE q`.
//!
//! Each shows one side of a NIC. They are joined by bus address, and by the GUID of an RDMA device, which is derived
//! from its interface's MAC address.

use std::collections::BTreeMap;
use std::net::IpAddr;

use gdr_pci::Bdf;

use crate::source::{MemorySource, virtual_path};

/// The most devices of each kind.
const MOST: usize = 1024;

/// The mlxconfig settings to keep.
const SETTINGS: [&str; 7] = [
    "ADVANCED_PCI_SETTINGS",
    "ATS_ENABLED",
    "LINK_TYPE_P1",
    "LINK_TYPE_P2",
    "MAX_ACC_OUT_READ",
    "PCI_WR_ORDERING",
    "ROCE_CONTROL",
];

/// The devices found so far.
#[derive(Debug, Default)]
pub(super) struct RdmaTools {
    devices: BTreeMap<String, RdmaDevice>,
    interfaces: BTreeMap<String, Interface>,
    /// Output of `ethtool -i` without the command, which names the interface.
    unnamed: BTreeMap<Bdf, Interface>,
    /// Pairs of RDMA device and interface.
    pairs: Vec<(String, String)>,
}

#[derive(Debug, Default)]
struct RdmaDevice {
    at: Option<Bdf>,
    guid: Option<u64>,
    /// Its sysfs files.
    files: BTreeMap<String, String>,
    /// Its firmware settings.
    settings: BTreeMap<&'static str, String>,
}

#[derive(Clone, Debug, Default)]
struct Interface {
    at: Option<Bdf>,
    mac: Option<[u8; 6]>,
    driver: Option<String>,
    firmware: Option<String>,
    files: BTreeMap<&'static str, String>,
    addresses: Vec<IpAddr>,
}

/// The record that the current lines belong to.
#[derive(Clone, Debug)]
enum Record {
    Nothing,
    /// An RDMA device, and its port if one was named.
    Device(String, Option<u32>),
    Interface(String),
    /// Output of `ethtool -i` for an interface that no line has named.
    Unnamed(Interface),
    /// An mlxconfig device before the line that names it: its type, board, and port protocol.
    Settings(BTreeMap<String, String>),
}

impl RdmaTools {
    /// Reads a text. Returns false if none of it was printed by these tools.
    pub(super) fn read(&mut self, text: &str) -> bool {
        let mut is_found = false;
        let mut record = Record::Nothing;
        // `ethtool -i eth0` names the interface in the command only.
        let mut asked: Option<String> = None;
        for line in super::plain::lines(text) {
            if let Some((_, rest)) = line.split_once("ethtool -i ") {
                asked = rest.split_whitespace().next().map(str::to_owned);
                record = Record::Nothing;
                continue;
            }
            if let Record::Interface(name) = &record
                && let Some(address) = ip_address(line)
                && let Some(interface) = self.interfaces.get_mut(name)
                && interface.addresses.len() < MOST
            {
                interface.addresses.push(address);
                continue;
            }
            if let Some(next) = self.begins(line, &mut asked) {
                is_found = true;
                record = next;
            } else if let Some((label, value)) = line.split_once(':') {
                is_found |= self.field(&mut record, label.trim(), value.trim());
            } else if let Record::Device(name, None) = &record
                && let Some(device) = self.devices.get_mut(name)
            {
                device.setting(line);
            }
        }
        is_found
    }

    fn device(&mut self, name: &str) -> Option<&mut RdmaDevice> {
        let is_new = !self.devices.contains_key(name);
        if is_new && (self.devices.len() >= MOST || !is_name(name)) {
            return None;
        }
        Some(self.devices.entry(name.to_owned()).or_default())
    }

    fn interface(&mut self, name: &str) -> Option<&mut Interface> {
        let is_new = !self.interfaces.contains_key(name);
        if is_new && (self.interfaces.len() >= MOST || !is_name(name)) {
            return None;
        }
        Some(self.interfaces.entry(name.to_owned()).or_default())
    }

    /// Returns the record that a line starts.
    fn begins(&mut self, line: &str, asked: &mut Option<String>) -> Option<Record> {
        let line = line.trim();
        let quoted = |start: &str| line.strip_prefix(start)?.split('\'').next();
        if let Some(name) = quoted("CA '").or_else(|| {
            let name = line.strip_prefix("hca_id:")?.trim();
            (!name.is_empty()).then_some(name)
        }) {
            self.device(name)?;
            return Some(Record::Device(name.to_owned(), None));
        }
        if let Some(name) = quoted("Infiniband device '") {
            let port = line.split_once("' port ")?.1.split_whitespace().next()?;
            self.device(name)?;
            return Some(Record::Device(name.to_owned(), port.parse().ok()));
        }
        if let Some((left, right)) = line.split_once(" ==> ") {
            self.pair(left, right)?;
            return Some(Record::Nothing);
        }
        if let Some(driver) = line.strip_prefix("driver: ") {
            let driver = Some(driver.trim().to_owned()).filter(|name| is_name(name));
            let name = asked.take()?;
            self.interface(&name)?.driver = driver;
            return Some(Record::Interface(name));
        }
        self.link(line)
    }

    /// Parses `mlx5_0 port 1 ==> eth0 (Up)`; `-v` puts an address in front.
    fn pair(&mut self, left: &str, right: &str) -> Option<()> {
        let words: Vec<&str> = left.split_whitespace().collect();
        let at: Option<Bdf> = words.first()?.parse().ok();
        let name = (*words.get(usize::from(at.is_some()))?).to_owned();
        words.iter().position(|word| *word == "port")?;
        let interface = right.split_whitespace().next()?;
        let device = self.device(&name)?;
        device.at = device.at.or(at);
        self.interface(interface)?;
        if self.pairs.len() < MOST {
            self.pairs.push((name, interface.to_owned()));
        }
        Some(())
    }

    /// Parses `2: eth0: <BROADCAST,UP> mtu 9000 qdisc mq state UP ...`.
    fn link(&mut self, line: &str) -> Option<Record> {
        let (number, rest) = line.split_once(": ")?;
        number.parse::<u32>().ok()?;
        let (name, rest) = rest.split_once(": <")?;
        let name = name.split('@').next().unwrap_or(name);
        let words: Vec<&str> = rest.split_whitespace().collect();
        let after = |label: &str| {
            let at = words.iter().position(|word| *word == label)?;
            words.get(at + 1).copied()
        };
        let interface = self.interface(name)?;
        if let Some(mtu) = after("mtu") {
            interface.files.insert("mtu", mtu.to_owned());
        }
        if let Some(state) = after("state") {
            interface
                .files
                .insert("operstate", state.to_ascii_lowercase());
        }
        Some(Record::Interface(name.to_owned()))
    }

    /// Parses a line of a record, or one that may start a record. Returns true if it shows a device.
    fn field(&mut self, record: &mut Record, label: &str, value: &str) -> bool {
        match (label, &mut *record) {
            ("driver", _) => {
                *record = Record::Unnamed(Interface {
                    driver: Some(value.to_owned()).filter(|name| is_name(name)),
                    ..Interface::default()
                });
                return false;
            }
            ("Device type", _) => {
                let kind = ("hca_type".to_owned(), value.to_owned());
                *record = Record::Settings(BTreeMap::from([kind]));
                return false;
            }
            ("Device", Record::Settings(files)) => {
                let files = std::mem::take(files);
                let Some(device) = self.device(value) else {
                    return false;
                };
                device.files.extend(files);
                *record = Record::Device(value.to_owned(), None);
                return true;
            }
            _ => {}
        }
        match record {
            Record::Nothing | Record::Settings(_) => {}
            Record::Unnamed(interface) => {
                if label == "firmware-version" {
                    interface.firmware = Some(value.to_owned());
                } else if label == "bus-info"
                    && let Ok(at) = value.parse()
                    && self.unnamed.len() < MOST
                {
                    interface.at = Some(at);
                    self.unnamed.insert(at, interface.clone());
                    *record = Record::Nothing;
                    return true;
                }
            }
            Record::Interface(name) => {
                let Some(interface) = self.interfaces.get_mut(name) else {
                    return false;
                };
                if label == "bus-info" {
                    interface.at = value.parse().ok();
                } else if label == "firmware-version" {
                    interface.firmware = Some(value.to_owned());
                } else if let Some(rest) = label.strip_prefix("link/ether ") {
                    // The line was split at a colon inside the address.
                    let first = format!("{rest}:{value}");
                    interface.mac = mac(first.split_whitespace().next().unwrap_or_default());
                }
            }
            Record::Device(name, port) => {
                if let Some(number) = label.strip_prefix("Port ").and_then(|it| it.parse().ok()) {
                    *port = Some(number);
                } else if label == "port" && value.parse::<u32>().is_ok() {
                    *port = value.parse().ok();
                } else if let Some(device) = self.devices.get_mut(name) {
                    device.field(*port, label, value);
                }
            }
        }
        false
    }

    /// Returns the devices' sysfs files, joined; `None` without a device.
    pub(super) fn files(mut self) -> Option<MemorySource> {
        self.join();
        if self.devices.is_empty() && self.interfaces.is_empty() {
            return None;
        }
        let mut node = MemorySource::partial();
        // Not below /sys/bus/pci, as listing that would seem to name all functions of the node.
        let link = |at: Bdf| format!("../../../devices/{at}");
        for (name, device) in &self.devices {
            let path = format!("/sys/class/infiniband/{name}");
            node = node.directory(&path);
            for (file, content) in &device.files {
                node = node.file(&format!("{path}/{file}"), format!("{content}\n"));
            }
            if let Some(at) = device.at {
                node = node.link_to(&format!("{path}/device"), &link(at));
            }
            if !device.settings.is_empty() {
                let pairs = device.settings.iter();
                let lines: String = pairs
                    .map(|(name, value)| format!("{name} {value}\n"))
                    .collect();
                node = node.file(&virtual_path::nic_settings(name), lines);
            }
        }
        let addresses: String = (self.interfaces.iter())
            .flat_map(|(name, interface)| {
                let line = move |address| format!("{name} {address}\n");
                interface.addresses.iter().map(line)
            })
            .collect();
        if !addresses.is_empty() {
            node = node.file(virtual_path::ADDRESSES, addresses);
        }
        for (name, interface) in &self.interfaces {
            let path = format!("/sys/class/net/{name}");
            node = node.directory(&path);
            for (file, content) in &interface.files {
                node = node.file(&format!("{path}/{file}"), format!("{content}\n"));
            }
            if let Some([a, b, c, d, e, f]) = interface.mac {
                let text = format!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}\n");
                node = node.file(&format!("{path}/address"), text);
            }
            if let Some(at) = interface.at {
                node = node.link_to(&format!("{path}/device"), &link(at));
                if let Some(driver) = &interface.driver {
                    let target = format!("../../bus/pci/drivers/{driver}");
                    node = node.link_to(&format!("/sys/devices/{at}/driver"), &target);
                }
            }
            if let Some(firmware) = &interface.firmware {
                node = node.file(
                    &virtual_path::netdev_firmware(name),
                    format!("{firmware}\n"),
                );
            }
        }
        Some(node)
    }

    /// Propagates an address from one side of a NIC to the other.
    fn join(&mut self) {
        for (at, unnamed) in std::mem::take(&mut self.unnamed) {
            let known = (self.interfaces.values_mut()).find(|interface| interface.at == Some(at));
            match known {
                Some(interface) => {
                    interface.driver = interface.driver.take().or(unnamed.driver);
                    interface.firmware = interface.firmware.take().or(unnamed.firmware);
                }
                // Without a name in any text, the address serves as one.
                None => {
                    self.interfaces.insert(at.to_string(), unnamed);
                }
            }
        }
        for (name, device) in &self.devices {
            let same = |interface: &Interface| {
                let guids = interface.mac.map(guids);
                device
                    .guid
                    .is_some_and(|guid| guids.is_some_and(|of| of.contains(&guid)))
            };
            for (other, interface) in &self.interfaces {
                if same(interface) && self.pairs.len() < MOST {
                    self.pairs.push((name.clone(), other.clone()));
                }
            }
        }
        for (device, interface) in &self.pairs {
            let (Some(device), Some(interface)) = (
                self.devices.get_mut(device),
                self.interfaces.get_mut(interface),
            ) else {
                continue;
            };
            let at = device.at.or(interface.at);
            (device.at, interface.at) = (at, at);
        }
    }
}

impl RdmaDevice {
    /// Parses `LINK_TYPE_P1   ETH(2)` of mlxconfig; with `-e` there are three values: default, current, next boot.
    fn setting(&mut self, line: &str) {
        let line = line.trim_start_matches(['*', ' ', '\t']);
        let words: Vec<&str> = line.split_whitespace().collect();
        let (name, now, next) = match words[..] {
            [name, only] => (name, only, only),
            [name, _, now, next] => (name, now, next),
            _ => return,
        };
        let Some(name) = SETTINGS.into_iter().find(|known| *known == name) else {
            return;
        };
        self.settings.insert(name, next.to_owned());
        let layer = match now.split('(').next() {
            Some("ETH") => "Ethernet",
            Some("IB") => "InfiniBand",
            _ => return,
        };
        if let Some(port) = name.strip_prefix("LINK_TYPE_P") {
            let path = format!("ports/{port}/link_layer");
            self.files.entry(path).or_insert_with(|| layer.to_owned());
        }
    }

    fn field(&mut self, port: Option<u32>, label: &str, value: &str) {
        let mut put = |name: &str, value: String| {
            let name = match port {
                Some(port) => format!("ports/{port}/{name}"),
                None => name.to_owned(),
            };
            self.files.insert(name, value);
        };
        match (port, label) {
            (None, "Firmware version" | "fw_ver") => put("fw_ver", value.to_owned()),
            (None, "CA type") => put("hca_type", value.to_owned()),
            (None, "board_id") => put("board_id", value.to_owned()),
            (None, "Node GUID" | "node_guid") => {
                let digits = value.trim_start_matches("0x").replace(':', "");
                let guid = u64::from_str_radix(&digits, 16).ok();
                if let Some(guid) = guid {
                    let [a, b, c, d] = [48, 32, 16, 0].map(|shift| guid >> shift & 0xffff);
                    put("node_guid", format!("{a:04x}:{b:04x}:{c:04x}:{d:04x}"));
                }
                self.guid = guid;
            }
            (Some(_), "State" | "state") => put("state", state(value)),
            (Some(_), "Physical state" | "phys state") => put("phys_state", physical(value)),
            (Some(_), "Rate") => put("rate", format!("{value} Gb/sec")),
            (Some(_), "rate") => put("rate", value.to_owned()),
            (Some(_), "Link layer" | "link_layer") => put("link_layer", value.to_owned()),
            (Some(_), "Base lid" | "base lid" | "port_lid") => put("lid", lid(value)),
            (Some(_), "SM lid" | "sm lid" | "sm_lid") => put("sm_lid", lid(value)),
            _ => {}
        }
    }
}

/// Returns whether a name is a possible sysfs directory.
fn is_name(name: &str) -> bool {
    let mut bytes = name.bytes();
    (1..=64).contains(&name.len())
        && name.bytes().any(|b| b != b'.')
        && bytes.all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.'))
}

fn mac(text: &str) -> Option<[u8; 6]> {
    let bytes: Option<Vec<u8>> = text
        .split(':')
        .map(|part| {
            u8::from_str_radix(part, 16)
                .ok()
                .filter(|_| part.len() == 2)
        })
        .collect();
    bytes?.try_into().ok()
}

/// Parses `inet 10.0.0.5/24 brd 10.0.0.255 scope global ib0` or `inet6 fe80::1/64 scope link`.
fn ip_address(line: &str) -> Option<IpAddr> {
    let mut words = line.split_whitespace();
    matches!(words.next()?, "inet" | "inet6").then_some(())?;
    let address = words.next()?;
    (address.split('/').next())?.parse().ok()
}

/// Returns the GUIDs that an adapter may derive from its MAC address: with `ff:fe` or `03:00` in the middle, and with
/// the universal bit as is or inverted.
fn guids([a, b, c, d, e, f]: [u8; 6]) -> [u64; 3] {
    [
        [a, b, c, 0x03, 0x00, d, e, f],
        [a, b, c, 0xff, 0xfe, d, e, f],
        [a ^ 2, b, c, 0xff, 0xfe, d, e, f],
    ]
    .map(u64::from_be_bytes)
}

/// Converts a port state to the kernel's notation: `4: ACTIVE` for `Active`, `PORT_ACTIVE (4)` and itself.
fn state(text: &str) -> String {
    let word = text.split(" (").next().unwrap_or(text);
    let word = word.rsplit(": ").next().unwrap_or(word);
    let word = word.trim_start_matches("PORT_").to_ascii_uppercase();
    let (number, word) = match word.as_str() {
        "DOWN" => (1, "DOWN"),
        "INIT" | "INITIALIZING" => (2, "INIT"),
        "ARMED" => (3, "ARMED"),
        "ACTIVE" => (4, "ACTIVE"),
        _ => return text.to_owned(),
    };
    format!("{number}: {word}")
}

/// Converts a physical state to the kernel's notation.
fn physical(text: &str) -> String {
    match text {
        "LinkUp" => "5: LinkUp".to_owned(),
        "Polling" => "2: Polling".to_owned(),
        "Disabled" => "3: Disabled".to_owned(),
        other => other.to_owned(),
    }
}

/// Converts a LID to the kernel's notation.
fn lid(text: &str) -> String {
    let number = match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    };
    number.map_or_else(|| text.to_owned(), |number| format!("{number:#x}"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::inventory::Inventory;
    use crate::rdma::PortState;

    const IBSTAT: &str = "CA 'mlx5_0'\n\tCA type: MT4129\n\tFirmware version: 28.39.1002\n\
        \tNode GUID: 0xb83fd20300a1b2c4\n\tPort 1:\n\t\tState: Active\n\t\tPhysical state: LinkUp\n\
        \t\tRate: 400\n\t\tBase lid: 12\n\t\tSM lid: 1\n\t\tLink layer: InfiniBand\n";
    const DEVINFO: &str = "hca_id:\tmlx5_0\n\ttransport:\t\tInfiniBand (0)\n\tfw_ver:\t\t28.39.1002\n\
        \tnode_guid:\t\tb83f:d203:00a1:b2c4\n\t\tport:\t1\n\t\t\tstate:\t\tPORT_ACTIVE (4)\n\
        \t\t\tsm_lid:\t\t1\n\t\t\tport_lid:\t\t12\n\t\t\tlink_layer:\t\tInfiniBand\n";
    const IBSTATUS: &str = "Infiniband device 'mlx5_0' port 1 status:\n\tbase lid:\t 0xc\n\
        \tsm lid:\t\t 0x1\n\tstate:\t\t 4: ACTIVE\n\tphys state:\t 5: LinkUp\n\
        \trate:\t\t 400 Gb/sec (4X NDR)\n\tlink_layer:\t InfiniBand\n";

    fn node(texts: &[&str]) -> Inventory {
        let mut tools = RdmaTools::default();
        for text in texts {
            assert!(tools.read(text), "{text}");
        }
        Inventory::read(&tools.files().unwrap())
    }

    #[test]
    fn every_tool_shows_the_same_port() {
        for text in [IBSTAT, DEVINFO, IBSTATUS] {
            let inventory = node(&[text]);
            let device = &inventory.rdma.as_ref().unwrap()[0];
            assert_eq!(device.name, "mlx5_0", "{text}");
            assert!(device.function.is_err(), "{text}");
            let port = &device.ports[0];
            assert_eq!(
                (port.number, &port.state),
                (1, &Ok(PortState::Active)),
                "{text}"
            );
            assert_eq!(port.link_layer, Ok("InfiniBand".to_owned()), "{text}");
        }
    }

    #[test]
    fn a_device_gets_its_address_by_its_interface_or_its_guid() {
        let ethtool = "$ ethtool -i ens1\ndriver: mlx5_core\nversion: 5.15.0\n\
                       firmware-version: 28.39.1002\nbus-info: 0000:19:00.0\n";
        let ip = "2: ens1: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 9000 qdisc mq state UP group default\n    \
                  link/ether b8:3f:d2:a1:b2:c4 brd ff:ff:ff:ff:ff:ff\n    inet 10.0.0.1/24 scope global ens1\n";
        let pairs = "mlx5_0 port 1 ==> ens1 (Up)\n";
        let verbose = "0000:19:00.0 mlx5_0 (MT4129 - X) ConnectX-7 fw 28.39.1002 port 1 (ACTIVE) ==> ens1 (Up)\n";
        for texts in [
            vec![IBSTAT, ip, ethtool],
            vec![IBSTAT, pairs, ethtool],
            vec![verbose, IBSTAT],
        ] {
            let inventory = node(&texts);
            let at = "0000:19:00.0".parse().unwrap();
            let device = &inventory.rdma.as_ref().unwrap()[0];
            assert_eq!(device.function, Ok(at), "{texts:?}");
            let netdevs = inventory.netdevs.as_ref().unwrap();
            assert_eq!(
                (netdevs[0].name.as_str(), &netdevs[0].function),
                ("ens1", &Ok(at))
            );
        }
        let inventory = node(&[ip]);
        let netdev = &inventory.netdevs.as_ref().unwrap()[0];
        assert_eq!(
            (netdev.mtu, netdev.state.clone()),
            (Ok(9000), Ok("up".to_owned()))
        );
    }

    #[test]
    fn a_card_is_named_by_its_interface_else_by_its_address() {
        let ethtool = "driver: mlx5_core\nversion: 5.15.0\nfirmware-version: 28.39.1002 (X)\n\
                       bus-info: 0000:19:00.0\n";
        let named = format!("$ ethtool -i ens1\n{ethtool}");
        for (texts, name) in [
            (vec![ethtool], "0000:19:00.0"),
            (vec![named.as_str()], "ens1"),
            (vec![ethtool, named.as_str()], "ens1"),
        ] {
            let inventory = node(&texts);
            let [netdev] = &inventory.netdevs.as_ref().unwrap()[..] else {
                panic!("{inventory:?}");
            };
            assert_eq!(netdev.name, name);
            assert_eq!(netdev.function, Ok("0000:19:00.0".parse().unwrap()));
            assert_eq!(netdev.driver, Ok("mlx5_core".to_owned()));
            assert_eq!(netdev.firmware, Ok("28.39.1002 (X)".to_owned()));
            // A single card is not the list of all functions.
            assert!(inventory.tree.is_err());
        }
    }

    #[test]
    fn mlxconfig_names_a_device_and_the_protocol_of_its_port() {
        let inventory = node(&["Device #1:\n----------\n\nDevice type:    ConnectX6DX\n\
            Name:           X_Ax\nDescription:    Mellanox ConnectX-6 Dx\nDevice:         mlx5_0\n\n\
            Configurations:          Next Boot\n         LINK_TYPE_P1   ETH(2)\n*        LINK_TYPE_P2   IB(1)\n"]);
        let device = &inventory.rdma.as_ref().unwrap()[0];
        assert_eq!(device.name, "mlx5_0");
        let layers: Vec<_> = device
            .ports
            .iter()
            .map(|port| port.link_layer.clone())
            .collect();
        assert_eq!(
            layers,
            ["Ethernet", "InfiniBand"].map(|it| Ok(it.to_owned()))
        );
    }

    #[test]
    fn other_texts_have_no_device() {
        let mut tools = RdmaTools::default();
        assert!(!tools.read("words: of a log\ndriver: x\nport: 1\nState: Active\n"));
        assert!(tools.files().is_none());
    }

    proptest! {
        #[test]
        fn any_text_is_read(text in "((CA '|hca_id:|==>|ethtool -i |driver: |bus-info: |Device type: |Device: |LINK_TYPE_P1 |ETH|01:00.0|[0-9]: |[a-z/.:<>' ]{1,8})\n?){0,40}") {
            let mut tools = RdmaTools::default();
            tools.read(&text);
            tools.files();
        }
    }
}
