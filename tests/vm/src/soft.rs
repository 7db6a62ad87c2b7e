//! Devices of the soft provider, on the near host.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use gdr_rdma::{Device, SoftOptions};

use crate::namespace::in_near;

/// The near host's addresses.
pub const V4: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 78, 0, 1));
/// The near host's addresses.
pub const V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfd78, 0, 0, 0, 0, 0, 0, 1));

/// Two addresses that only the near host itself reaches.
pub const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 1));
/// Two addresses that only the near host itself reaches.
pub const SECOND_LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));

/// The soft provider's device at this address of the near host.
///
/// # Errors
/// Those of [`Device::soft`].
pub fn device(ip: IpAddr) -> anyhow::Result<Device> {
    device_with(SoftOptions::new(ip))
}

/// As [`device`], with choices.
///
/// # Errors
/// Those of [`Device::soft_with`].
pub fn device_with(options: SoftOptions) -> anyhow::Result<Device> {
    in_near(move || Ok(Device::soft_with(options)?))
}
