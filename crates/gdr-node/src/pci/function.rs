//! A PCI function and its properties.

use std::fmt;

use gdr_pci::Bdf;

use super::acs::Acs;
use super::aer::Aer;
use super::ats::Ats;
use super::bar::Bar;
use super::config::ConfigSpace;
use super::express::Express;
use super::identity::Identity;
use super::link::Link;
use super::rebar::ResizableBar;
use super::sriov::Sriov;
use crate::source::{Absence, Datum, DatumExt};

/// The number of a NUMA node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NumaNode(pub u32);

impl fmt::Display for NumaNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// The bus numbers behind a bridge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BusRange {
    /// The bus directly behind it.
    pub secondary: u8,
    /// The last bus behind it.
    pub subordinate: u8,
}

impl BusRange {
    /// Returns whether a bus is behind the bridge. A bridge not configured by firmware has secondary bus 0, and no
    /// buses behind it.
    pub fn contains(self, bus: u8) -> bool {
        self.secondary != 0 && (self.secondary..=self.subordinate).contains(&bus)
    }
}

impl ConfigSpace {
    /// Returns the buses behind the function, if it is a bridge.
    pub fn bridge(&self) -> Option<BusRange> {
        (self.header_type() == 1).then(|| BusRange {
            secondary: self.header_byte(0x19),
            subordinate: self.header_byte(0x1a),
        })
    }
}

/// A PCI function and its properties.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// Its address.
    pub bdf: Bdf,
    /// Its IDs.
    pub identity: Identity,
    /// Whether it no longer responds: its config space reads as all ones, because it has fallen off the bus or lost
    /// power. Facts cached by the kernel or a tool may still be known.
    pub gone: bool,
    /// Whether it is a NIC that manages its baseboard's NVSwitches and carries no data: its vital product data then
    /// contains `SW_MNG` (NVIDIA Fabric Manager user guide, fourth-generation NVSwitches).
    pub manages_switches: bool,
    /// The buses behind it, if it is a bridge.
    pub bridge: Option<BusRange>,
    /// The NUMA node assigned by firmware; [`Absence::Missing`] if there is none (-1).
    pub numa: Datum<NumaNode>,
    /// The driver bound to it.
    pub driver: Datum<String>,
    /// Its IOMMU group.
    pub iommu_group: Datum<u32>,
    /// The physical function, if it is a virtual one.
    pub physical_function: Datum<Bdf>,
    /// Its address ranges.
    pub bars: Datum<Vec<Bar>>,
    /// Its current upstream link; for a downstream port, the link below it.
    pub link: Datum<Link>,
    /// The highest speed and width of that link at this end.
    pub link_capable: Datum<Link>,
    /// Its config space, as read. The capabilities below come from these bytes or, if a capture lacks them, from a
    /// tool's printout of the registers.
    pub config: Datum<ConfigSpace>,
    /// The PCI Express capability.
    pub express: Datum<Express>,
    /// Access Control Services.
    pub acs: Datum<Acs>,
    /// Address Translation Services.
    pub ats: Datum<Ats>,
    /// Advanced Error Reporting.
    pub aer: Datum<Aer>,
    /// Single Root I/O Virtualization.
    pub sriov: Datum<Sriov>,
    /// The resizable BARs.
    pub resizable_bars: Datum<Vec<ResizableBar>>,
}

impl Function {
    /// Returns a function with an address and no other facts.
    pub fn new(bdf: Bdf) -> Self {
        Self {
            bdf,
            identity: Identity::default(),
            gone: false,
            manages_switches: false,
            bridge: None,
            numa: Err(Absence::NotCollected),
            driver: Err(Absence::NotCollected),
            iommu_group: Err(Absence::NotCollected),
            physical_function: Err(Absence::NotCollected),
            bars: Err(Absence::NotCollected),
            link: Err(Absence::NotCollected),
            link_capable: Err(Absence::NotCollected),
            config: Err(Absence::NotCollected),
            express: Err(Absence::NotCollected),
            acs: Err(Absence::NotCollected),
            ats: Err(Absence::NotCollected),
            aer: Err(Absence::NotCollected),
            sriov: Err(Absence::NotCollected),
            resizable_bars: Err(Absence::NotCollected),
        }
    }

    /// Returns whether it is a bridge to other buses.
    pub fn is_bridge(&self) -> bool {
        self.bridge.is_some() || self.identity.class.is_some_and(|class| class.is_bridge())
    }

    /// Returns whether it is a virtual function.
    pub fn is_virtual(&self) -> bool {
        self.physical_function.is_ok()
    }

    /// Sets the config space and every fact it contains; other facts stay. A config space that reads as all ones only
    /// shows that the function is gone.
    pub fn apply(&mut self, config: ConfigSpace) {
        if config.is_gone() {
            self.gone = true;
        } else {
            self.identity = config.identity().or(std::mem::take(&mut self.identity));
            self.bridge = config.bridge().or(self.bridge);
            learn(&mut self.express, config.express());
            learn(&mut self.acs, config.acs());
            learn(&mut self.ats, config.ats());
            learn(&mut self.aer, config.aer());
            learn(&mut self.sriov, config.sriov());
            learn(&mut self.resizable_bars, config.resizable_bars());
            self.take_links();
        }
        self.config = Ok(config);
    }

    /// Sets the config space and every capability to the reason why they are unknown.
    pub(crate) fn without_config(&mut self, absence: Absence) {
        self.config = Err(absence);
        self.express = Err(absence);
        self.acs = Err(absence);
        self.ats = Err(absence);
        self.aer = Err(absence);
        self.sriov = Err(absence);
        self.resizable_bars = Err(absence);
    }

    /// Fills in facts that this capture of the function lacks and another one has.
    pub(crate) fn complete(&mut self, other: Self) {
        self.identity = std::mem::take(&mut self.identity).or(other.identity);
        self.bridge = self.bridge.or(other.bridge);
        self.manages_switches |= other.manages_switches;
        fill(&mut self.numa, other.numa);
        fill(&mut self.driver, other.driver);
        fill(&mut self.iommu_group, other.iommu_group);
        fill(&mut self.physical_function, other.physical_function);
        fill(&mut self.bars, other.bars);
        fill(&mut self.link, other.link);
        fill(&mut self.link_capable, other.link_capable);
        fill(&mut self.config, other.config);
        fill(&mut self.express, other.express);
        fill(&mut self.acs, other.acs);
        fill(&mut self.ats, other.ats);
        fill(&mut self.aer, other.aer);
        fill(&mut self.sriov, other.sriov);
        fill(&mut self.resizable_bars, other.resizable_bars);
    }

    /// Takes links that are still unknown from the PCI Express capability.
    pub(crate) fn take_links(&mut self) {
        let link = |pick: fn(&Express) -> Option<Link>| {
            let express = self.express.by_ref()?;
            pick(express).ok_or(Absence::Missing)
        };
        self.link = self.link.or_else(|_| link(|express| express.link));
        self.link_capable = (self.link_capable).or_else(|_| link(|express| express.link_capable));
    }
}

fn learn<T>(fact: &mut Datum<T>, said: Datum<T>) {
    if !said.is_unknown() || matches!(fact, Err(Absence::NotCollected)) {
        *fact = said;
    }
}

/// Takes another capture's fact if this one is unknown.
fn fill<T>(fact: &mut Datum<T>, other: Datum<T>) {
    if fact.is_unknown() && !matches!(other, Err(Absence::NotCollected)) {
        *fact = other;
    }
}
