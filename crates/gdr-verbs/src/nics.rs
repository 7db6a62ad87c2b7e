//! Which devices there are: the environment variable `GDR_NICS`.

use std::net::IpAddr;

use gdr_nic::SoftAddress;

/// Names the addresses or network interfaces of the devices, separated by commas.
const VARIABLE: &str = "GDR_NICS";

/// Returns the address of each device, in the order of their names.
pub(crate) fn addresses() -> Vec<SoftAddress> {
    let all = match gdr_nic::addresses() {
        Ok(all) => all,
        Err(error) => {
            tracing::error!(%error, "no address of this host can be listed");
            Vec::new()
        }
    };
    match gdr_process::variable(VARIABLE).and_then(|list| list.into_string().ok()) {
        Some(list) => list
            .split(',')
            .map(str::trim)
            .filter(|nic| !nic.is_empty())
            .filter_map(|nic| named(nic, &all))
            .collect(),
        None => defaults(&all),
    }
}

/// The address that an entry names: itself, or the first one of an interface.
fn named(nic: &str, all: &[SoftAddress]) -> Option<SoftAddress> {
    let found = match nic.parse::<IpAddr>() {
        // All of 127.0.0.0/8 belongs to the host, and only 127.0.0.1 is listed.
        Ok(IpAddr::V4(v4)) if v4.is_loopback() => {
            let lo = all.iter().find(|own| own.address.is_loopback());
            lo.cloned().map(|mut own| {
                own.address = v4.into();
                own
            })
        }
        Ok(address) => all.iter().find(|own| own.address == address).cloned(),
        Err(_) => all.iter().find(|own| own.interface == nic).cloned(),
    };
    if found.is_none() {
        tracing::error!(nic, "{VARIABLE} names no address or interface of this host");
    }
    found
}

/// The first IPv4 and the first IPv6 address of each interface, loopback first.
fn defaults(all: &[SoftAddress]) -> Vec<SoftAddress> {
    let mut chosen: Vec<SoftAddress> = Vec::new();
    let (own, others): (Vec<_>, Vec<_>) = all.iter().partition(|own| own.address.is_loopback());
    for own in own.into_iter().chain(others) {
        let same = |other: &SoftAddress| {
            other.interface == own.interface && other.address.is_ipv4() == own.address.is_ipv4()
        };
        if !chosen.iter().any(same) {
            chosen.push(own.clone());
        }
    }
    chosen
}
