//! rxe by gdr's verbs provider.

use std::net::IpAddr;

use gdr_rdma::{Device, VerbsOptions};

use crate::kernel;

/// The kernel's device, at the GID of this address.
///
/// # Errors
/// Those of [`Device::verbs`].
pub fn device(name: &str, ip: IpAddr) -> anyhow::Result<Device> {
    let index = kernel::Device::open(name)?.gid_index(ip)?;
    let options = VerbsOptions::new().device(name).gid_index(index.into());
    Ok(Device::verbs(&options)?)
}
