//! Two devices and a connection between them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use gdr_rdma::{
    Access, Buffer, Completion, CompletionQueue, ConnectionOptions, Deadline, Device, Endpoint,
    Error, MemoryRegion, Mtu, NicError, ProtectionDomain, QueuePair, QueuePairOptions, SoftOptions,
    SourcePort, WcStatus,
};

/// Nothing here takes a noticeable part of this; a test that hits it is stuck.
pub(crate) fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(60))
}

pub(crate) const EVERYTHING: Access = Access::all();

pub(crate) const FIRST: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 1));
pub(crate) const SECOND: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));
pub(crate) const V6: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);

/// One side.
pub(crate) struct Side {
    pub(crate) pair: QueuePair,
    pub(crate) queue: CompletionQueue,
    pub(crate) domain: ProtectionDomain,
    pub(crate) device: Device,
}

/// A device on a free port. `None`, loudly, where this machine lacks the address.
pub(crate) fn device(address: IpAddr) -> Option<Device> {
    device_with(SoftOptions::new(address).port(0), address)
}

/// As [`device`], with choices.
pub(crate) fn device_with(options: SoftOptions, address: IpAddr) -> Option<Device> {
    match Device::soft_with(options) {
        Ok(device) => Some(device),
        Err(Error::Nic(NicError::AddressNotLocal { .. })) => {
            skip::skip(format_args!("this machine has no {address}"));
            None
        }
        Err(error) => panic!("{error}"),
    }
}

impl Side {
    pub(crate) fn new(address: IpAddr) -> Option<Self> {
        device(address).map(Self::on)
    }

    /// On a device of its own making.
    pub(crate) fn on(device: Device) -> Self {
        let domain = device.protection_domain();
        let queue = device.completion_queue(1024);
        let pair = domain.queue_pair(&QueuePairOptions::new(&queue)).unwrap();
        Self {
            pair,
            queue,
            domain,
            device,
        }
    }

    /// Registered host memory for every use.
    pub(crate) fn memory(&self, len: usize) -> MemoryRegion {
        let buffer = Buffer::host(len).unwrap();
        self.domain.register(&buffer, EVERYTHING).unwrap()
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

/// perftest's values with a path MTU for loopback.
pub(crate) fn options() -> ConnectionOptions {
    ConnectionOptions::new(Mtu::B4096)
}

pub(crate) fn connect(a: &Side, b: &Side, options: &ConnectionOptions) {
    a.pair.connect(&b.pair.endpoint(), options).unwrap();
    b.pair.connect(&a.pair.endpoint(), options).unwrap();
}

/// As [`connect`], where packets of `card` may come from any port, as those of network cards do.
pub(crate) fn connect_to_card(card: &Side, to: &Side) {
    let any_port = Endpoint {
        source_port: SourcePort::Any,
        loss_recovery: gdr_rdma::LossRecovery::GoBackN,
        ..card.pair.endpoint()
    };
    card.pair.connect(&to.pair.endpoint(), &options()).unwrap();
    to.pair.connect(&any_port, &options()).unwrap();
}

/// Waits awake until something holds that no completion announces.
pub(crate) fn wait_until(what: impl Fn() -> bool) {
    let deadline = soon();
    while !what() {
        assert!(!deadline.has_passed());
        std::thread::yield_now();
    }
}

/// Two connected sides at these addresses.
pub(crate) fn connected(a: IpAddr, b: IpAddr) -> Option<(Side, Side)> {
    let sides = (Side::new(a)?, Side::new(b)?);
    connect(&sides.0, &sides.1, &options());
    Some(sides)
}

/// Two connected sides at 127.0.0.1 and 127.0.0.2.
pub(crate) fn sides() -> Option<(Side, Side)> {
    connected(FIRST, SECOND)
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
