//! Pairs of connected sides.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use gdr_rdma::{Counters, Deadline, Device, Integrity, Mtu};
use gdr_vm_tests::kernel::{self, Backing, KernelEnd};
use gdr_vm_tests::own::OwnEnd;
use gdr_vm_tests::{Done, End, Outcome, Settings, soft, verbs};

/// Memory of each side.
pub(crate) const MEMORY: usize = 4 << 20;

/// Nothing here takes a noticeable part of this, even under translation; a test that hits it is
/// stuck.
pub(crate) fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(15))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    V4,
    V6,
}

impl Family {
    fn near(self) -> IpAddr {
        match self {
            Self::V4 => soft::V4,
            Self::V6 => soft::V6,
        }
    }

    fn far(self) -> IpAddr {
        match self {
            Self::V4 => kernel::V4,
            Self::V6 => kernel::V6,
        }
    }
}

/// Who asks whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Roles {
    SoftAsksRxe,
    RxeAsksSoft,
    /// In one device, in memory of this kind.
    RxeAsksItself(Backing),
    /// As [`Roles::SoftAsksRxe`], with gdr's verbs provider in front of rxe.
    SoftAsksVerbs,
    VerbsAsksSoft,
    VerbsAsksItself,
}

/// The devices of both hosts, at their addresses of one family.
pub(crate) struct Hosts {
    soft: Device,
    rxe: Arc<kernel::Device>,
    /// The same device.
    verbs: Device,
    family: Family,
}

pub(crate) type Ends = (Box<dyn End>, Box<dyn End>);

impl Hosts {
    pub(crate) fn new(family: Family) -> Self {
        let soft = soft::device(family.near()).unwrap();
        // The tests are root, and rxe's packets have no UDP checksum.
        let all_of_icrc = match family {
            Family::V4 => Integrity::IcrcOrChecksum,
            Family::V6 => Integrity::Icrc,
        };
        assert_eq!(soft.integrity(), all_of_icrc);
        Self {
            soft,
            rxe: kernel::Device::open("rxe0").unwrap(),
            verbs: verbs::device("rxe0", family.far()).unwrap(),
            family,
        }
    }

    /// What the soft provider has counted.
    pub(crate) fn counters(&self) -> Counters {
        self.soft.counters()
    }

    fn soft_end(&self) -> Box<dyn End> {
        Box::new(OwnEnd::new(&self.soft, MEMORY).unwrap())
    }

    fn verbs_end(&self) -> Box<dyn End> {
        Box::new(OwnEnd::new(&self.verbs, MEMORY).unwrap())
    }

    fn rxe_end(&self, backing: Backing) -> Box<dyn End> {
        let end = KernelEnd::new(&self.rxe, self.family.far(), backing, MEMORY);
        Box::new(end.unwrap())
    }

    /// Two sides, the one that asks first.
    pub(crate) fn sides(&self, roles: Roles) -> Ends {
        match roles {
            Roles::SoftAsksRxe => (self.soft_end(), self.rxe_end(Backing::Memfd)),
            Roles::RxeAsksSoft => (self.rxe_end(Backing::Memfd), self.soft_end()),
            Roles::RxeAsksItself(backing) => (self.rxe_end(backing), self.rxe_end(backing)),
            Roles::SoftAsksVerbs => (self.soft_end(), self.verbs_end()),
            Roles::VerbsAsksSoft => (self.verbs_end(), self.soft_end()),
            Roles::VerbsAsksItself => (self.verbs_end(), self.verbs_end()),
        }
    }

    /// The same, connected.
    pub(crate) fn ends(&self, roles: Roles, settings: &Settings) -> Ends {
        let (mut asks, mut answers) = self.sides(roles);
        asks.connect(&answers.peer(), settings);
        answers.connect(&asks.peer(), settings);
        (asks, answers)
    }
}

/// Two connected sides on hosts of their own making.
pub(crate) fn ends(roles: Roles, family: Family, settings: &Settings) -> Ends {
    Hosts::new(family).ends(roles, settings)
}

/// As [`ends`], with settings that forgive.
pub(crate) fn ends_at(roles: Roles, family: Family, mtu: Mtu) -> Ends {
    ends(roles, family, &Settings::new(mtu))
}

/// The next completion, which must be a good one.
pub(crate) fn done(end: &dyn End) -> Done {
    let done = completion(end);
    assert_eq!(done.outcome, Outcome::Success, "{}: {done:?}", end.name());
    done
}

/// The next completion.
pub(crate) fn completion(end: &dyn End) -> Done {
    end.wait(soon())
        .unwrap_or_else(|| panic!("{}: no completion", end.name()))
}

/// Bytes that differ from place to place.
pub(crate) fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len)
        .map(|i| (i as u8).wrapping_mul(31).wrapping_add((i >> 8) as u8) ^ seed)
        .collect()
}

/// Fills all of a side's memory.
pub(crate) fn fill(end: &dyn End, seed: u8) -> Vec<u8> {
    let bytes = pattern(MEMORY, seed);
    end.fill(0, &bytes);
    bytes
}

/// Where two stretches first differ, for a message that fits a screen.
#[track_caller]
pub(crate) fn assert_same(found: &[u8], expected: &[u8], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    if let Some(at) = (0..found.len()).find(|&at| found[at] != expected[at]) {
        let wrong = (0..found.len()).filter(|&at| found[at] != expected[at]);
        panic!(
            "{what}: {} of {} bytes are wrong, first at {at}: {:#04x}, not {:#04x}",
            wrong.count(),
            found.len(),
            found[at],
            expected[at]
        );
    }
}
