//! One device and a queue pair on it.

use std::error::Error;
use std::net::{IpAddr, Ipv4Addr};

use gdr_rdma::{
    CompletionQueue, ConnectionOptions, Device, Mtu, ProtectionDomain, QueuePair, QueuePairOptions,
    SoftOptions,
};

pub(crate) struct Side {
    pub(crate) pair: QueuePair,
    pub(crate) queue: CompletionQueue,
    pub(crate) domain: ProtectionDomain,
}

impl Side {
    fn new(address: Ipv4Addr) -> Result<Self, Box<dyn Error>> {
        let device = Device::soft_with(SoftOptions::new(IpAddr::V4(address)).port(0))?;
        let domain = device.protection_domain();
        let queue = device.completion_queue(64);
        let pair = domain.queue_pair(&QueuePairOptions::new(&queue))?;
        Ok(Self {
            pair,
            queue,
            domain,
        })
    }

    /// Returns two connected sides, at addresses of this host alone.
    pub(crate) fn connected(addresses: [[u8; 4]; 2]) -> Result<[Self; 2], Box<dyn Error>> {
        let [near, far] = addresses.map(|address| Self::new(address.into()));
        let (near, far) = (near?, far?);
        let options = ConnectionOptions::new(Mtu::B4096);
        near.pair.connect(&far.pair.endpoint(), &options)?;
        far.pair.connect(&near.pair.endpoint(), &options)?;
        Ok([near, far])
    }
}
