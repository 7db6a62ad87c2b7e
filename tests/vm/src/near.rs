//! The near host: its network namespace, its addresses and its soft devices.

use std::fs::File;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsFd;
use std::thread;

use anyhow::Context;
use gdr_rdma::{Device, SoftOptions};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// The name of the namespace, which the init script of the guest creates.
pub const NAMESPACE: &str = "near";

/// Runs `work` in the network namespace of the near host. Sockets and threads that it creates remain
/// there.
///
/// # Errors
/// If the namespace does not exist, and the errors of `work`.
pub fn in_near<T: Send>(work: impl FnOnce() -> anyhow::Result<T> + Send) -> anyhow::Result<T> {
    // On a separate thread, which need not return to the other namespace.
    thread::scope(|scope| {
        let worker = scope.spawn(|| {
            let path = format!("/run/netns/{NAMESPACE}");
            let namespace =
                File::open(&path).with_context(|| format!("{path} (not the guest?)"))?;
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
                .context("setns")?;
            work()
        });
        match worker.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// The IPv4 address of the near host.
pub const V4: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 78, 0, 1));
/// The IPv6 address of the near host.
pub const V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfd78, 0, 0, 0, 0, 0, 0, 1));

/// A loopback address of the near host.
pub const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 1));
/// Another loopback address of the near host.
pub const SECOND_LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));

/// Opens a device of the soft provider at this address of the near host.
///
/// # Errors
/// The errors of [`Device::soft`].
pub fn device(ip: IpAddr) -> anyhow::Result<Device> {
    device_with(SoftOptions::new(ip))
}

/// Like [`device`], with options.
///
/// # Errors
/// The errors of [`Device::soft_with`].
pub fn device_with(options: SoftOptions) -> anyhow::Result<Device> {
    in_near(move || Ok(Device::soft_with(options)?))
}
