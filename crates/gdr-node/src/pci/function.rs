//! One PCI function and what is known about it.

use std::fmt;

use gdr_cuda::Bdf;

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
use crate::source::Datum;

/// The number of a NUMA node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NumaNode(pub u32);

impl fmt::Display for NumaNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// The buses behind a bridge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BusRange {
    /// The bus right behind it.
    pub secondary: u8,
    /// The last bus behind it.
    pub subordinate: u8,
}

impl BusRange {
    /// Whether a bus is behind the bridge. A bridge that firmware left alone says 0 and has none.
    pub fn contains(self, bus: u8) -> bool {
        self.secondary != 0 && (self.secondary..=self.subordinate).contains(&bus)
    }
}

/// One PCI function and what is known about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// Its address.
    pub bdf: Bdf,
    /// Who made it and what it is.
    pub identity: Identity,
    /// The buses behind it, if it is a bridge.
    pub bridge: Option<BusRange>,
    /// The NUMA node that firmware put it on; [`Datum::Missing`] where firmware did not say (-1).
    pub numa: Datum<NumaNode>,
    /// The driver bound to it.
    pub driver: Datum<String>,
    /// Its IOMMU group.
    pub iommu_group: Datum<u32>,
    /// The physical function, if it is a virtual one.
    pub physical_function: Datum<Bdf>,
    /// Its address ranges.
    pub bars: Datum<Vec<Bar>>,
    /// Its upstream link now; for a downstream port the link below it.
    pub link: Datum<Link>,
    /// The best that link can do at this end.
    pub link_capable: Datum<Link>,
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
    /// The BARs whose size can be changed.
    pub resizable_bars: Datum<Vec<ResizableBar>>,
}

impl Function {
    /// A function of which only the address is known.
    pub fn new(bdf: Bdf) -> Self {
        Self {
            bdf,
            identity: Identity::default(),
            bridge: None,
            numa: Datum::NotCollected,
            driver: Datum::NotCollected,
            iommu_group: Datum::NotCollected,
            physical_function: Datum::NotCollected,
            bars: Datum::NotCollected,
            link: Datum::NotCollected,
            link_capable: Datum::NotCollected,
            express: Datum::NotCollected,
            acs: Datum::NotCollected,
            ats: Datum::NotCollected,
            aer: Datum::NotCollected,
            sriov: Datum::NotCollected,
            resizable_bars: Datum::NotCollected,
        }
    }

    /// Whether it is a bridge to other buses.
    pub fn is_bridge(&self) -> bool {
        self.bridge.is_some() || self.identity.class.is_some_and(|class| class.is_bridge())
    }

    /// Whether it is a virtual function.
    pub fn is_virtual(&self) -> bool {
        self.physical_function.is_present()
    }

    /// Takes in what its config space says; what that leaves unknown stays as it was.
    pub fn apply(&mut self, config: &ConfigSpace) {
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

    /// Fills in what the PCI Express capability says about links and nothing else said.
    pub(crate) fn take_links(&mut self) {
        let link = |pick: fn(&Express) -> Option<Link>| {
            self.express
                .as_ref()
                .and_then(|express| pick(express).into())
        };
        let (now, best) = (
            link(|express| express.link),
            link(|express| express.link_capable),
        );
        self.link = std::mem::replace(&mut self.link, Datum::Missing).or_else(|| now);
        self.link_capable =
            std::mem::replace(&mut self.link_capable, Datum::Missing).or_else(|| best);
    }
}

fn learn<T>(fact: &mut Datum<T>, said: Datum<T>) {
    if !said.is_unknown() || matches!(fact, Datum::NotCollected) {
        *fact = said;
    }
}
