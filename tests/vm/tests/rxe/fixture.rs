//! The devices of both hosts.

use std::net::IpAddr;

use conformance::{Bench, Side, connect, pattern};
use gdr_rdma::{AckTimeout, ConnectionOptions, Device, Integrity, MemoryRegion, Mtu, WcStatus};
use gdr_vm_tests::{near, rxe_endpoint};

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

/// Whose device it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Host {
    /// The soft provider's.
    Soft,
    /// rxe, by the verbs provider.
    Rxe,
}

impl Host {
    pub(crate) fn device(self, family: Family) -> Device {
        match self {
            Self::Rxe => rxe_endpoint::verbs_device("rxe0", family.far()).unwrap(),
            Self::Soft => {
                let soft = near::device(family.near()).unwrap();
                // The tests run as root, and the packets of rxe have no UDP checksum.
                let expected = match family {
                    Family::V4 => Integrity::IcrcOrChecksum,
                    Family::V6 => Integrity::Icrc,
                };
                assert_eq!(soft.integrity(), expected);
                soft
            }
        }
    }
}

/// Seven retries after 134 ms: under TCG a vCPU may not run for tens of milliseconds.
pub(crate) fn options(mtu: Mtu) -> ConnectionOptions {
    ConnectionOptions {
        timeout: AckTimeout::new(15),
        ..ConnectionOptions::new(mtu)
    }
}

/// Returns two connected sides on these devices.
pub(crate) fn sides(devices: [&Device; 2], options: &ConnectionOptions) -> (Side, Side) {
    let [a, b] = devices.map(|device| Side::on(device.clone()));
    connect(&a, &b, options);
    (a, b)
}

/// Runs a test of the suite of all providers over both address families.
pub(crate) fn suite(near: Host, far: Host, test: fn(&Bench<'_>)) {
    for (family, mtu) in [(Family::V4, Mtu::B4096), (Family::V6, Mtu::B1024)] {
        let devices = (|| near.device(family), || far.device(family));
        let mut bench = Bench::new(&devices.0, &devices.1).options(options(mtu));
        if far == Host::Rxe {
            // Its `copy_data` fails with EINVAL, which rxe handles as a malformed receive.
            bench = bench.long_message(WcStatus::RemoteOperation);
        }
        test(&bench);
    }
}

/// Fills the beginning of a region.
pub(crate) fn fill(region: &MemoryRegion, at: u64, len: usize, seed: u8) -> Vec<u8> {
    let bytes = pattern(len, seed);
    region.buffer().write_at(at, &bytes).unwrap();
    bytes
}

/// Returns a part of a region.
pub(crate) fn bytes(region: &MemoryRegion, at: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    region.buffer().read_at(at, &mut bytes).unwrap();
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
