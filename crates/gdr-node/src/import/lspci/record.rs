//! lspci's lines about one function.

use gdr_pci::Bdf;

use super::device_line::{class_of, identity, of_parts};
use super::express::{self, number_after};
use crate::pci::{
    Acs, AcsBits, Aer, Ats, Bar, BarKind, BusRange, ConfigSpace, CorrectableErrors, Function,
    NumaNode, Offset, ResizableBar, SWITCH_MARK, Sriov, UncorrectableErrors, Unread, names, naming,
};
use crate::source::{Absence, Datum};

/// The size of a whole config space in bytes.
const MOST_BYTES: usize = 0x1000;

/// The facts about a function in the lines so far.
pub(super) struct Record {
    function: Function,
    bytes: Vec<u8>,
    /// The capability that the current lines describe.
    capability: Option<(Offset, Kind)>,
    capabilities: Capabilities,
    /// The capabilities mentioned, with or without their registers, which require `-vv`.
    named: Vec<Kind>,
    /// Whether the registers of the PCI Express capability were listed.
    express_listed: bool,
    /// Whether it is in the form of `-vmm`, which has no headline.
    is_machine_form: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Express,
    Acs,
    Ats,
    Aer,
    Sriov,
    ResizableBar,
    Other,
}

/// Whether a record lists capabilities.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Capabilities {
    /// No: printed without `-v`.
    Silent,
    /// Yes (`Cap-` or `Cap+`), so that unlisted ones do not exist.
    Listed,
    /// No: `<access denied>`.
    Denied,
}

impl Record {
    pub(super) fn new(bdf: Bdf, headline: &str) -> Self {
        let mut function = Function::new(bdf);
        function.identity = identity(headline);
        // All bits of the revision are set if nothing responds.
        function.gone = headline.contains("(rev ff)");
        Self {
            function,
            bytes: Vec::new(),
            capability: None,
            capabilities: Capabilities::Silent,
            named: Vec::new(),
            express_listed: false,
            is_machine_form: headline.trim().is_empty(),
        }
    }

    /// Returns whether it has the details of `-v`, so that what it omits does not exist.
    pub(super) fn is_verbose(&self) -> bool {
        self.capabilities != Capabilities::Silent
    }

    /// Parses a line. Returns false if it cannot belong to a function.
    pub(super) fn line(&mut self, line: &str) -> bool {
        let words = line.trim();
        if words.is_empty() {
            return true;
        }
        if words.starts_with("!!! Unknown header type 7f") {
            self.function.gone = true;
            return true;
        }
        if self.hex_row(words) {
            return true;
        }
        if !line.starts_with([' ', '\t']) && !is_detail(words) {
            return false;
        }
        if words.starts_with('[') && words.contains(SWITCH_MARK) {
            self.function.manages_switches = true;
        }
        if let Some(rest) = words.strip_prefix("Capabilities:") {
            self.begin_capability(rest.trim());
        } else if let Some((label, rest)) = words.split_once(':').filter(|_| is_top_level(words)) {
            self.field(label, rest.trim());
        } else if let Some((at, kind)) = self.capability {
            self.detail(at, kind, words);
        } else if let Some(rest) = words.strip_prefix("Region ") {
            self.region(rest);
        }
        true
    }

    pub(super) fn finish(mut self) -> Function {
        let silence = match self.capabilities {
            Capabilities::Silent => None,
            Capabilities::Listed => Some(false),
            Capabilities::Denied => Some(true),
        };
        if let Some(denied) = silence {
            let f = &mut self.function;
            let is_named = |kind| self.named.contains(&kind);
            settle(&mut f.express, denied, is_named(Kind::Express));
            settle(&mut f.acs, denied, is_named(Kind::Acs));
            settle(&mut f.ats, denied, is_named(Kind::Ats));
            settle(&mut f.aer, denied, is_named(Kind::Aer));
            settle(&mut f.sriov, denied, is_named(Kind::Sriov));
            settle(&mut f.resizable_bars, denied, is_named(Kind::ResizableBar));
        }
        if self.function.express.is_ok() && !self.express_listed {
            self.function.express = Err(Absence::NotCollected);
        }
        if let Ok(config) = ConfigSpace::new(self.bytes, Unread::NotCollected) {
            self.function.apply(config);
        }
        self.function.take_links();
        self.function
    }

    /// Parses `10: 0c 00 00 ...`; the offset must be the end of the bytes so far.
    fn hex_row(&mut self, words: &str) -> bool {
        let Some((offset, row)) = words.split_once(": ") else {
            return false;
        };
        let Ok(offset) = usize::from_str_radix(offset, 16) else {
            return false;
        };
        if offset != self.bytes.len() || offset >= MOST_BYTES {
            return false;
        }
        let byte = |word: &str| {
            u8::from_str_radix(word, 16)
                .ok()
                .filter(|_| word.len() == 2)
        };
        let Some(row) = row
            .split_whitespace()
            .map(byte)
            .collect::<Option<Vec<u8>>>()
        else {
            return false;
        };
        self.bytes.extend(row.iter().take(16));
        !row.is_empty()
    }

    /// Parses a line about the function itself.
    fn field(&mut self, label: &str, rest: &str) {
        let f = &mut self.function;
        match label {
            "Status" if self.capabilities == Capabilities::Silent && rest.starts_with("Cap") => {
                self.capabilities = Capabilities::Listed;
            }
            "Flags" => {
                let number = |label: &str| {
                    let mut parts = rest.split(", ");
                    parts.find_map(|part| part.strip_prefix(label)?.trim().parse::<u32>().ok())
                };
                if let Some(node) = number("NUMA node") {
                    f.numa = Ok(NumaNode(node));
                }
                if let Some(group) = number("IOMMU group") {
                    f.iommu_group = Ok(group);
                }
            }
            "NUMA node" => f.numa = rest.parse().ok().map(NumaNode).ok_or(Absence::Missing),
            "IOMMU group" => f.iommu_group = rest.parse().ok().ok_or(Absence::Missing),
            // As in `-vmm`.
            "Class" => f.identity.class = class_of(rest),
            "Vendor" => f.identity = of_parts("", rest, "").or(std::mem::take(&mut f.identity)),
            "Device" if self.is_machine_form => {
                let maker = f.identity.name.take().unwrap_or_default();
                f.identity = of_parts("", &maker, rest).or(std::mem::take(&mut f.identity));
            }
            "Rev" => f.gone |= rest == "ff",
            "NUMANode" => f.numa = rest.parse().ok().map(NumaNode).ok_or(Absence::Missing),
            "IOMMUGroup" => f.iommu_group = rest.parse().ok().ok_or(Absence::Missing),
            "Kernel driver in use" | "Driver" => f.driver = Ok(rest.to_owned()),
            // Follows the driver in use, if there is one.
            "Kernel modules" if f.driver.is_err() => f.driver = Err(Absence::Missing),
            "Bus" => f.bridge = bus_range(rest).or(f.bridge),
            "Subsystem" => {
                if let Some((vendor, device)) = naming::ids_in_brackets(rest) {
                    f.identity.subsystem_vendor = Some(vendor);
                    f.identity.subsystem_device = Some(device);
                }
            }
            _ => {}
        }
    }

    /// Starts a capability from `[2a0 v1] Access Control Services`.
    fn begin_capability(&mut self, rest: &str) {
        self.capability = None;
        if rest == "<access denied>" {
            self.capabilities = Capabilities::Denied;
            return;
        }
        let Some((place, name)) = rest.strip_prefix('[').and_then(|r| r.split_once(']')) else {
            return;
        };
        let place = place.split_whitespace().next().unwrap_or_default();
        let Ok(at) = u16::from_str_radix(place, 16) else {
            return;
        };
        let (at, name) = (Offset(at), name.trim());
        if self.capabilities == Capabilities::Silent {
            self.capabilities = Capabilities::Listed;
        }
        let kind = match name {
            _ if name.starts_with("Express") => Kind::Express,
            _ if name.starts_with("Access Control Services") => Kind::Acs,
            _ if name.starts_with("Address Translation Service") => Kind::Ats,
            _ if name.starts_with("Advanced Error Reporting") => Kind::Aer,
            _ if name.starts_with("Single Root I/O Virtualization") => Kind::Sriov,
            _ if name.ends_with("Resizable BAR") && !name.starts_with("Virtual") => {
                Kind::ResizableBar
            }
            _ => Kind::Other,
        };
        if kind != Kind::Other && !self.named.contains(&kind) {
            self.named.push(kind);
        }
        if kind == Kind::Express {
            self.function.express = Ok(express::begin(name));
        }
        self.capability = Some((at, kind));
    }

    /// Parses a line below a capability.
    fn detail(&mut self, at: Offset, kind: Kind, words: &str) {
        let f = &mut self.function;
        match kind {
            Kind::Express => {
                if let Ok(known) = &mut f.express {
                    express::take_line(known, words);
                    self.express_listed |= words.contains("MaxReadReq ");
                }
            }
            Kind::Acs => {
                let bits = |rest| flags(rest, &names::ACS).fold(AcsBits::empty(), |a, b| a | b);
                let empty = Acs {
                    at: Some(at),
                    capable: bits(""),
                    control: bits(""),
                };
                let acs = f.acs.as_ref().ok().copied().unwrap_or(empty);
                if let Some(rest) = words.strip_prefix("ACSCap:") {
                    f.acs = Ok(Acs {
                        capable: bits(rest),
                        ..acs
                    });
                } else if let Some(rest) = words.strip_prefix("ACSCtl:") {
                    f.acs = Ok(Acs {
                        control: bits(rest),
                        ..acs
                    });
                }
            }
            Kind::Ats => {
                if let Some(rest) = words.strip_prefix("ATSCtl:") {
                    f.ats = Ok(Ats {
                        enabled: rest.trim().starts_with("Enable+"),
                    });
                }
            }
            Kind::Aer => {
                let empty = Aer {
                    uncorrectable: UncorrectableErrors::empty(),
                    correctable: CorrectableErrors::empty(),
                };
                let mut aer = f.aer.as_ref().ok().copied().unwrap_or(empty);
                if let Some(rest) = words.strip_prefix("UESta:") {
                    aer.uncorrectable.extend(flags(rest, &names::UNCORRECTABLE));
                } else if let Some(rest) = words.strip_prefix("CESta:") {
                    aer.correctable.extend(flags(rest, &names::CORRECTABLE));
                } else {
                    return;
                }
                f.aer = Ok(aer);
            }
            Kind::Sriov => {
                let mut sriov = f.sriov.as_ref().ok().copied().unwrap_or(Sriov {
                    enabled: false,
                    total: 0,
                    number: 0,
                });
                if let Some(rest) = words.strip_prefix("IOVCtl:") {
                    sriov.enabled = rest.trim().starts_with("Enable+");
                } else if words.starts_with("Initial VFs:") {
                    sriov.total = number_after(words, "Total VFs: ").unwrap_or(0);
                    sriov.number = number_after(words, "Number of VFs: ").unwrap_or(0);
                } else {
                    return;
                }
                f.sriov = Ok(sriov);
            }
            Kind::ResizableBar => {
                if let Some(bar) = resizable_bar(words) {
                    let mut bars = f.resizable_bars.as_ref().ok().cloned().unwrap_or_default();
                    // There are at most six BARs; a longer list is garbage.
                    if bars.len() < 6 {
                        bars.push(bar);
                    }
                    f.resizable_bars = Ok(bars);
                }
            }
            Kind::Other => {}
        }
    }

    /// Parses `2: Memory at 92000000000 (64-bit, prefetchable) [size=128G]`.
    fn region(&mut self, rest: &str) {
        let bar = || {
            let (number, rest) = rest.split_once(':')?;
            let number: u8 = number.trim().parse().ok().filter(|number| *number < 6)?;
            let kind = match rest {
                _ if rest.contains("I/O ports") => BarKind::Io,
                _ if rest.contains("non-prefetchable") => BarKind::Memory,
                _ => BarKind::Prefetchable,
            };
            let start = rest
                .split(" at ")
                .nth(1)
                .and_then(|rest| u64::from_str_radix(rest.split_whitespace().next()?, 16).ok());
            let size = rest.split("[size=").nth(1)?.split(']').next()?;
            Some(Bar {
                number,
                kind,
                start: start.unwrap_or(0),
                size: size_in_bytes(size)?,
            })
        };
        if let Some(bar) = bar() {
            let mut bars = self
                .function
                .bars
                .as_ref()
                .ok()
                .cloned()
                .unwrap_or_default();
            bars.retain(|known| known.number != bar.number);
            bars.push(bar);
            self.function.bars = Ok(bars);
        }
    }
}

/// Sets a capability that is not listed to missing or denied. A capability mentioned without its registers stays "not
/// collected".
fn settle<T>(fact: &mut Datum<T>, denied: bool, is_named: bool) {
    if matches!(fact, Err(Absence::NotCollected)) && !is_named {
        *fact = if denied {
            Err(Absence::Denied)
        } else {
            Err(Absence::Missing)
        };
    }
}

/// Returns whether a line belongs to a record even though it lost its leading blanks.
fn is_detail(words: &str) -> bool {
    const BEGINNINGS: [&str; 46] = [
        "Class:",
        "Vendor:",
        "Device:",
        "SVendor:",
        "SDevice:",
        "PhySlot:",
        "Rev:",
        "ProgIf:",
        "Driver:",
        "Module:",
        "NUMANode:",
        "IOMMUGroup:",
        "[",
        "Subsystem:",
        "Control:",
        "Status:",
        "Flags:",
        "Latency",
        "Interrupt:",
        "NUMA node:",
        "IOMMU group:",
        "Physical Slot:",
        "DeviceName:",
        "Region ",
        "Memory at ",
        "I/O ports at ",
        "Expansion ROM at ",
        "Bus:",
        "I/O behind bridge:",
        "Memory behind bridge:",
        "Prefetchable memory behind bridge:",
        "Secondary status:",
        "BridgeCtl:",
        "Capabilities:",
        "Kernel driver in use:",
        "Kernel modules:",
        "MaxPayload ",
        "Initial VFs:",
        "BAR ",
        "Slot #",
        "VF offset:",
        "Supported Page Size:",
        "Address:",
        "Vector table:",
        "PBA:",
        "Changed:",
    ];
    // A capability register: `LnkCap:`, `UESta:`, `ACSCtl:`.
    let register = words.split(':').next().unwrap_or_default();
    let is_register = register.len() < words.len()
        && (register.bytes()).all(|b| b.is_ascii_alphanumeric())
        && ["Cap", "Ctl", "Sta", "Msk", "Svrt", "Cap2", "Ctl2", "Sta2"]
            .iter()
            .any(|end| register.ends_with(end));
    // A continuation of a register: `RlxdOrd+ ExtTag+ PhantFunc-`.
    let first = words.split_whitespace().next().unwrap_or_default();
    let is_flag = first.len() > 2 && first.ends_with(['+', '-']) && !first.starts_with(['+', '-']);
    is_register || is_flag || BEGINNINGS.iter().any(|start| words.starts_with(start))
}

/// Returns whether a line is a property of the function itself, whatever its indentation: lspci uses one tab, some
/// captures use blanks.
fn is_top_level(words: &str) -> bool {
    const LABELS: [&str; 15] = [
        "Class:",
        "Vendor:",
        "Device:",
        "Rev:",
        "NUMANode:",
        "IOMMUGroup:",
        "Driver:",
        "Flags: ",
        "Status: Cap",
        "NUMA node:",
        "IOMMU group:",
        "Kernel driver in use:",
        "Kernel modules:",
        "Bus:",
        "Subsystem:",
    ];
    LABELS.iter().any(|label| words.starts_with(label))
}

/// Parses `primary=00, secondary=01, subordinate=08, sec-latency=0`.
fn bus_range(rest: &str) -> Option<BusRange> {
    let bus = |label: &str| {
        let text = rest.split(label).nth(1)?;
        u8::from_str_radix(text.split(',').next()?.trim(), 16).ok()
    };
    Some(BusRange {
        secondary: bus("secondary=")?,
        subordinate: bus("subordinate=")?,
    })
}

/// Returns the values of the names followed by a plus in `rest`.
fn flags<'a, T: Copy>(rest: &'a str, names: &'a [(&'a str, T)]) -> impl Iterator<Item = T> + 'a {
    rest.split_whitespace()
        .filter_map(|word| word.strip_suffix('+'))
        .filter_map(move |word| {
            names
                .iter()
                .find(|(name, _)| *name == word)
                .map(|(_, value)| *value)
        })
}

/// Parses `BAR 1: current size: 64GB, supported: 64MB 128MB 64GB`.
fn resizable_bar(words: &str) -> Option<ResizableBar> {
    let (bar, rest) = words.strip_prefix("BAR ")?.split_once(": current size: ")?;
    let (size, supported) = rest.split_once(", supported:")?;
    let sizes = supported
        .split_whitespace()
        .filter_map(size_in_bytes)
        .filter_map(|size| size.checked_ilog2()?.checked_sub(20))
        .filter_map(|exponent| 1_u64.checked_shl(exponent))
        .fold(0, |sizes, size| sizes | size);
    Some(ResizableBar {
        bar: bar.parse().ok().filter(|bar| *bar < 6)?,
        size: size_in_bytes(size.trim())?,
        sizes,
    })
}

/// Parses `128G`, `64MB` or `128`.
fn size_in_bytes(text: &str) -> Option<u64> {
    let end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let shift = match text[end..].chars().next() {
        None | Some('B') => 0,
        Some('K') => 10,
        Some('M') => 20,
        Some('G') => 30,
        Some('T') => 40,
        Some(_) => return None,
    };
    text[..end].parse::<u64>().ok()?.checked_mul(1 << shift)
}
