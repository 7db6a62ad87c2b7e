//! lspci's text about the PCI Express capability.

use crate::pci::{Aspm, Express, Link, LinkWidth, PortType};

/// Starts a capability from `Express (v2) Root Port (Slot+), MSI 00`.
pub(super) fn begin(name: &str) -> Express {
    let name = name.split_once(") ").map_or(name, |(_, rest)| rest);
    let port = match name.split([',', '(']).next().unwrap_or(name).trim() {
        "Endpoint" => PortType::Endpoint,
        "Legacy Endpoint" => PortType::LegacyEndpoint,
        "Root Port" => PortType::RootPort,
        "Upstream Port" => PortType::SwitchUpstream,
        "Downstream Port" => PortType::SwitchDownstream,
        "PCI-Express to PCI/PCI-X Bridge" => PortType::ToPciBridge,
        "PCI/PCI-X to PCI-Express Bridge" => PortType::FromPciBridge,
        "Root Complex Integrated Endpoint" => PortType::IntegratedEndpoint,
        "Root Complex Event Collector" => PortType::EventCollector,
        _ => PortType::Other(0xf),
    };
    Express {
        port,
        slot: name.contains("(Slot+)"),
        slot_number: None,
        payload_capable: 128,
        payload: 128,
        read_request: 128,
        relaxed_ordering: false,
        extended_tags: false,
        no_snoop: false,
        ten_bit_tags_completer: false,
        ten_bit_tags_requester: false,
        ten_bit_tags: false,
        link_capable: None,
        link: None,
        aspm: Aspm::default(),
    }
}

/// Parses a line below the capability.
pub(super) fn take_line(express: &mut Express, words: &str) {
    let on = |flag: &str| words.split_whitespace().any(|word| word == flag);
    let bytes = |label| number_after(words, label);
    if words.starts_with("DevCap:") {
        express.payload_capable = bytes("MaxPayload ").unwrap_or(128);
    } else if let Some(read_request) = bytes("MaxReadReq ") {
        express.read_request = read_request;
        express.payload = bytes("MaxPayload ").unwrap_or(128);
    } else if words.starts_with("RlxdOrd") {
        express.relaxed_ordering = on("RlxdOrd+");
        express.extended_tags = on("ExtTag+");
        express.no_snoop = on("NoSnoop+");
    } else if words.starts_with("LnkCap:") {
        express.link_capable = link(words);
    } else if words.starts_with("LnkSta:") {
        express.link = link(words);
    } else if let Some(rest) = words.strip_prefix("LnkCtl:") {
        let states = rest.split(';').next().unwrap_or_default();
        let enabled = states.contains("Enabled");
        express.aspm = Aspm {
            l0s: enabled && states.contains("L0s"),
            l1: enabled && states.contains("L1"),
        };
    } else if words.starts_with("Slot #") {
        express.slot_number = number_after(words, "Slot #");
    } else if words.starts_with("DevCtl2:") {
        express.ten_bit_tags = on("10BitTagReq+");
    } else if words.starts_with("10BitTagComp") {
        express.ten_bit_tags_completer = on("10BitTagComp+");
        express.ten_bit_tags_requester = on("10BitTagReq+");
    }
}

/// Parses `Speed 32GT/s (ok), Width x16 (ok)`.
fn link(words: &str) -> Option<Link> {
    let speed = words.split("Speed ").nth(1)?.split([',', ' ']).next()?;
    let width = number_after(words, "Width x").filter(|width| *width != 0)?;
    Some(Link {
        speed: speed.parse().ok()?,
        width: LinkWidth(width),
    })
}

/// Parses the number after a label.
pub(super) fn number_after<T: std::str::FromStr>(words: &str, label: &str) -> Option<T> {
    let rest = words.split(label).nth(1)?;
    let end = rest
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(rest.len());
    rest[..end].parse().ok()
}
