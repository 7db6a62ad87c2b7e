//! Connected endpoints.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use gdr_rdma::{Counters, Deadline, Device, Integrity, Mtu};
use gdr_vm_tests::gdr_endpoint::GdrEndpoint;
use gdr_vm_tests::rxe_endpoint::{self, Backing, RxeEndpoint};
use gdr_vm_tests::{Completion, Endpoint, Settings, Status, gdr_endpoint, near};

/// The memory of each endpoint in bytes.
pub(crate) const MEMORY: usize = 4 << 20;

/// Much longer than any operation takes, even under TCG; a test that reaches it hangs.
pub(crate) fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(15))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    V4,
    V6,
}

impl Family {
    pub(crate) fn near(self) -> IpAddr {
        match self {
            Self::V4 => near::V4,
            Self::V6 => near::V6,
        }
    }

    pub(crate) fn far(self) -> IpAddr {
        match self {
            Self::V4 => rxe_endpoint::V4,
            Self::V6 => rxe_endpoint::V6,
        }
    }
}

/// The requester and the responder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Roles {
    SoftToRxe,
    RxeToSoft,
    /// Two endpoints of one device, with memory of this kind.
    RxeToRxe(Backing),
    /// As [`Roles::SoftToRxe`], with rxe by the verbs provider of gdr-rdma.
    SoftToVerbs,
    VerbsToSoft,
    VerbsToVerbs,
}

/// The devices of both hosts, at their addresses of one family.
pub(crate) struct Hosts {
    soft: Device,
    rxe: Arc<rxe_endpoint::Device>,
    /// The same device by gdr-rdma.
    verbs: Device,
    family: Family,
}

pub(crate) type Endpoints = (Box<dyn Endpoint>, Box<dyn Endpoint>);

impl Hosts {
    pub(crate) fn new(family: Family) -> Self {
        let soft = near::device(family.near()).unwrap();
        // The tests run as root, and the packets of rxe have no UDP checksum.
        let expected = match family {
            Family::V4 => Integrity::IcrcOrChecksum,
            Family::V6 => Integrity::Icrc,
        };
        assert_eq!(soft.integrity(), expected);
        Self {
            soft,
            rxe: rxe_endpoint::Device::open("rxe0").unwrap(),
            verbs: gdr_endpoint::rxe_device("rxe0", family.far()).unwrap(),
            family,
        }
    }

    /// The counters of the soft device.
    pub(crate) fn counters(&self) -> Counters {
        self.soft.counters()
    }

    /// The soft device.
    pub(crate) fn soft(&self) -> &Device {
        &self.soft
    }

    /// A queue pair of rxe for datagrams.
    pub(crate) fn rxe_datagrams(&self, qkey: u32) -> RxeEndpoint {
        RxeEndpoint::datagrams(&self.rxe, self.family.far(), qkey, MEMORY).unwrap()
    }

    /// An endpoint of rxe for a connection.
    pub(crate) fn rxe_connection(&self) -> RxeEndpoint {
        RxeEndpoint::new(&self.rxe, self.family.far(), Backing::Anonymous, MEMORY).unwrap()
    }

    fn soft_endpoint(&self) -> Box<dyn Endpoint> {
        Box::new(GdrEndpoint::new(&self.soft, MEMORY).unwrap())
    }

    fn verbs_endpoint(&self) -> Box<dyn Endpoint> {
        Box::new(GdrEndpoint::new(&self.verbs, MEMORY).unwrap())
    }

    fn rxe_endpoint(&self, backing: Backing) -> Box<dyn Endpoint> {
        let end = RxeEndpoint::new(&self.rxe, self.family.far(), backing, MEMORY);
        Box::new(end.unwrap())
    }

    /// The two endpoints, requester first.
    pub(crate) fn sides(&self, roles: Roles) -> Endpoints {
        match roles {
            Roles::SoftToRxe => (self.soft_endpoint(), self.rxe_endpoint(Backing::Memfd)),
            Roles::RxeToSoft => (self.rxe_endpoint(Backing::Memfd), self.soft_endpoint()),
            Roles::RxeToRxe(backing) => (self.rxe_endpoint(backing), self.rxe_endpoint(backing)),
            Roles::SoftToVerbs => (self.soft_endpoint(), self.verbs_endpoint()),
            Roles::VerbsToSoft => (self.verbs_endpoint(), self.soft_endpoint()),
            Roles::VerbsToVerbs => (self.verbs_endpoint(), self.verbs_endpoint()),
        }
    }

    /// The two endpoints, connected.
    pub(crate) fn endpoints(&self, roles: Roles, settings: &Settings) -> Endpoints {
        let (mut requester, mut responder) = self.sides(roles);
        requester.connect(&responder.peer(), settings);
        responder.connect(&requester.peer(), settings);
        (requester, responder)
    }
}

/// Two connected endpoints on new hosts.
pub(crate) fn endpoints(roles: Roles, family: Family, settings: &Settings) -> Endpoints {
    Hosts::new(family).endpoints(roles, settings)
}

/// As [`ends`], with the default settings.
pub(crate) fn endpoints_at(roles: Roles, family: Family, mtu: Mtu) -> Endpoints {
    endpoints(roles, family, &Settings::new(mtu))
}

/// The next completion, which must be successful.
pub(crate) fn done(end: &dyn Endpoint) -> Completion {
    let done = completion(end);
    assert_eq!(done.status, Status::Success, "{}: {done:?}", end.name());
    done
}

/// The next completion.
pub(crate) fn completion(end: &dyn Endpoint) -> Completion {
    end.wait(soon())
        .unwrap_or_else(|| panic!("{}: no completion", end.name()))
}

/// Bytes that depend on their position.
pub(crate) fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len)
        .map(|i| (i as u8).wrapping_mul(31).wrapping_add((i >> 8) as u8) ^ seed)
        .collect()
}

/// Fills the memory of an endpoint.
pub(crate) fn fill(end: &dyn Endpoint, seed: u8) -> Vec<u8> {
    let bytes = pattern(MEMORY, seed);
    end.fill(0, &bytes);
    bytes
}

/// Asserts that two byte strings are equal, with a short message.
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
