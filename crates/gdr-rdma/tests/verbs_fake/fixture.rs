//! Made-up devices, and connections between them.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use fake_ibverbs::{Call, DeviceSpec, Fake, Request};
use gdr_rdma::{
    Access, AckTimeout, Buffer, Completion, CompletionQueue, ConnectionOptions, Deadline, Device,
    MemoryRegion, Mtu, ProtectionDomain, QueuePair, QueuePairOptions, RetryCount, VerbsOptions,
    WcStatus,
};

/// Nothing here takes a noticeable part of this; a test that hits it is stuck.
pub(crate) fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(60))
}

/// A number for names and addresses, another one each time.
fn number() -> u8 {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A RoCE device with a name and an address that no other has.
pub(crate) fn roce() -> DeviceSpec {
    let number = number();
    let address = Ipv4Addr::new(10, 1, 0, number);
    DeviceSpec::roce(&format!("mlx5_{number}"), address)
}

/// Options with which devices of this library are opened.
pub(crate) fn options_of(fake: &Fake) -> VerbsOptions {
    // Tests of their own prove registrations; calls are counted in others.
    VerbsOptions::new()
        .library(fake.verbs())
        .skip_verification()
}

/// Makes the device up, and opens it.
pub(crate) fn open(fake: &Fake, spec: &DeviceSpec) -> Device {
    fake.add(spec.clone());
    Device::verbs(&options_of(fake).device(&spec.name)).unwrap()
}

/// The calls of these verbs on a device, in order.
pub(crate) fn calls(fake: &Fake, name: &str, verbs: &[&str]) -> Vec<Call> {
    let mut calls = fake.calls(verbs);
    calls.retain(|call| call.device == name);
    calls
}

/// The verbs that post to a send queue.
pub(crate) const POSTING: [&str; 2] = ["ibv_post_send", "ibv_wr_complete"];

/// Whether transfers that begin at the device wait.
pub(crate) fn hold(fake: &Fake, name: &str, held: bool) {
    let device = name.to_owned();
    fake.request(&Request::Hold { device, held });
}

pub(crate) fn set_port(fake: &Fake, name: &str, port: u8, state: u32) {
    let device = name.to_owned();
    fake.request(&Request::Port {
        device,
        port,
        state,
    });
}

/// One side.
pub(crate) struct Side {
    pub(crate) pair: QueuePair,
    pub(crate) queue: CompletionQueue,
    pub(crate) domain: ProtectionDomain,
    pub(crate) device: Device,
}

impl Side {
    pub(crate) fn new(fake: &Fake, spec: &DeviceSpec) -> Self {
        Self::on(open(fake, spec))
    }

    pub(crate) fn on(device: Device) -> Self {
        let domain = device.protection_domain();
        let queue = device.completion_queue(256);
        let pair = domain.queue_pair(&QueuePairOptions::new(&queue)).unwrap();
        Self {
            pair,
            queue,
            domain,
            device,
        }
    }

    pub(crate) fn name(&self) -> String {
        self.device.name().to_owned()
    }

    /// Registered host memory for every use.
    pub(crate) fn memory(&self, len: usize) -> MemoryRegion {
        let buffer = Buffer::host(len).unwrap();
        self.domain.register(&buffer, Access::all()).unwrap()
    }

    /// The next completion, which must be a good one.
    pub(crate) fn done(&self) -> Completion {
        let completion = self.queue.wait(soon()).unwrap();
        assert_eq!(completion.status, WcStatus::Success, "{completion:?}");
        completion
    }

    /// How the next completion ended.
    pub(crate) fn status(&self) -> WcStatus {
        self.queue.wait(soon()).unwrap().status
    }
}

/// An answer is waited for 4 times 2 ms.
pub(crate) fn options() -> ConnectionOptions {
    ConnectionOptions {
        timeout: AckTimeout::new(9),
        retry_count: RetryCount::new(3),
        ..ConnectionOptions::new(Mtu::B4096)
    }
}

pub(crate) fn connect(a: &Side, b: &Side) {
    a.pair.connect(&b.pair.endpoint(), &options()).unwrap();
    b.pair.connect(&a.pair.endpoint(), &options()).unwrap();
}

/// Two connected sides on devices of these kinds.
pub(crate) fn connected(fake: &Fake, a: &DeviceSpec, b: &DeviceSpec) -> (Side, Side) {
    let sides = (Side::new(fake, a), Side::new(fake, b));
    connect(&sides.0, &sides.1);
    sides
}

/// Two connected sides on devices that can do everything.
pub(crate) fn sides(fake: &Fake) -> (Side, Side) {
    connected(fake, &roce(), &roce())
}

/// Drops both, and checks that nothing is left.
pub(crate) fn close(fake: &Fake, a: Side, b: Side) {
    drop((a, b));
    fake.assert_clean();
}

/// Bytes that differ from place to place.
pub(crate) fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len)
        .map(|i| (i as u8).wrapping_mul(31).wrapping_add((i >> 8) as u8) ^ seed)
        .collect()
}

pub(crate) fn fill(region: &MemoryRegion, seed: u8) -> Vec<u8> {
    let bytes = pattern(region.len() as usize, seed);
    region.buffer().write_at(0, &bytes).unwrap();
    bytes
}

pub(crate) fn bytes(region: &MemoryRegion) -> Vec<u8> {
    let mut bytes = vec![0; region.len() as usize];
    region.buffer().read_at(0, &mut bytes).unwrap();
    bytes
}
