//! One side of a connection.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use gdr_rdma::{
    Access, Buffer, Completion, CompletionQueue, ConnectionOptions, Deadline, Device, Error,
    MemoryRegion, NicError, ProtectionDomain, QueuePair, QueuePairOptions, Remote, SendRequest,
    SocketError, SoftOptions, WcStatus, WrId,
};

pub const FIRST: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 1));
pub const SECOND: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));
pub const V6: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);

/// Returns a deadline that nothing here approaches: a test that hits it is stuck.
#[must_use]
pub fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(60))
}

/// Waits awake until something holds that no completion announces.
pub fn wait_until(what: impl Fn() -> bool) {
    let deadline = soon();
    while !what() {
        assert!(!deadline.has_passed());
        std::thread::yield_now();
    }
}

/// Opens a device of the software NIC on a free port. If this machine lacks the address, says so and returns `None`.
#[must_use]
pub fn soft(address: IpAddr) -> Option<Device> {
    soft_with(SoftOptions::new(address).port(0), address)
}

/// Like [`soft`], with options.
#[must_use]
pub fn soft_with(options: SoftOptions, address: IpAddr) -> Option<Device> {
    match Device::soft_with(options) {
        Ok(device) => Some(device),
        Err(Error::Nic(NicError::Socket(SocketError::AddressNotLocal { .. }))) => {
            skip::skip(format_args!("this machine has no {address}"));
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// A queue pair, with everything it needs.
#[derive(Debug)]
pub struct Side {
    pub pair: QueuePair,
    pub queue: CompletionQueue,
    pub domain: ProtectionDomain,
    pub device: Device,
}

impl Side {
    /// Creates a queue pair of a new device of the software NIC. Returns `None` like [`soft`].
    #[must_use]
    pub fn soft(address: IpAddr) -> Option<Self> {
        soft(address).map(Self::on)
    }

    /// Creates a new queue pair of the device.
    #[must_use]
    pub fn on(device: Device) -> Self {
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

    /// Creates another queue pair, whose completions go to the same queue.
    #[must_use]
    pub fn another(&self) -> QueuePair {
        let options = QueuePairOptions::new(&self.queue);
        self.domain.queue_pair(&options).unwrap()
    }

    /// Returns the name of the device.
    #[must_use]
    pub fn name(&self) -> String {
        self.device.name().to_owned()
    }

    /// Registers host memory for every use.
    #[must_use]
    pub fn memory(&self, len: usize) -> MemoryRegion {
        self.memory_for(len, Access::all())
    }

    /// Registered host memory.
    #[must_use]
    pub fn memory_for(&self, len: usize, access: Access) -> MemoryRegion {
        let buffer = Buffer::host(len).unwrap();
        self.domain.register(&buffer, access).unwrap()
    }

    /// Posts a WRITE of a whole region, and waits until it is done.
    pub fn write(&self, source: &MemoryRegion, to: Remote) {
        self.pair.post_send(write(source, to)).unwrap();
        self.done();
    }

    /// Waits for the next completion, which must be a success.
    pub fn done(&self) -> Completion {
        let completion = self.queue.wait(soon()).unwrap();
        assert_eq!(completion.status, WcStatus::Success, "{completion:?}");
        completion
    }

    /// Waits for the next completion; returns its status.
    pub fn status(&self) -> WcStatus {
        self.queue.wait(soon()).unwrap().status
    }
}

/// Returns a WRITE of a whole region.
pub(crate) fn write(source: &MemoryRegion, to: Remote) -> SendRequest {
    SendRequest::write(WrId(0), to).segment(source.segment(0, source.len()).unwrap())
}

/// Connects both queue pairs.
pub fn connect(a: &Side, b: &Side, options: &ConnectionOptions) {
    a.pair.connect(&b.pair.endpoint(), options).unwrap();
    b.pair.connect(&a.pair.endpoint(), options).unwrap();
}
