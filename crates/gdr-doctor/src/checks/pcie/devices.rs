//! The data rates of NICs, and the devices that a report leaves out.

use gdr_node::pci::Bandwidth;
use gdr_node::{Bdf, RdmaPort};

use crate::context::{Context, Nic};

/// Returns whether a function is a GPU or a NIC that the report leaves out.
pub(in crate::checks) fn is_left_out(context: &Context<'_>, bdf: Bdf) -> bool {
    let gpu = (context.inventory.gpus.iter()).any(|gpu| gpu.bdf == bdf);
    let nic = (context.inventory.rdma_functions())
        .any(|(_, at)| at == bdf && context.inventory.carries_data(at));
    (gpu && context.gpus().all(|gpu| gpu.bdf != bdf))
        || (nic && context.nics().iter().all(|nic| nic.bdf != bdf))
}

/// Returns the active ports of a NIC.
fn active_ports<'a>(nic: &Nic<'a>) -> impl Iterator<Item = &'a RdmaPort> + use<'a> {
    let ports = nic.rdma.into_iter().flat_map(|rdma| &rdma.ports);
    ports.filter(|port| port.is_active())
}

/// Returns the rate of a NIC's fastest active port, in Gb/s.
pub(in crate::checks) fn fastest_port(nic: &Nic<'_>) -> Option<u32> {
    active_ports(nic)
        .filter_map(|port| gigabits(port.rate.as_ref().ok()?))
        .max()
}

/// Returns the data rates of a NIC's active ports, in each direction.
pub(in crate::checks) fn data_rates(nic: &Nic<'_>) -> Vec<Bandwidth> {
    active_ports(nic).filter_map(data_rate).collect()
}

/// Returns the data rate of a port in each direction, after line coding.
///
/// For InfiniBand up to FDR, Linux shows the signalling rate; for later speeds, the data rate
/// (`rate_show` in `drivers/infiniband/core/sysfs.c`, which ignores the coding of FDR10 and EDR).
/// SDR, DDR and QDR are coded 8b/10b, FDR 64b/66b. Ethernet ports show the names of InfiniBand's
/// speeds with data rates.
fn data_rate(port: &RdmaPort) -> Option<Bandwidth> {
    let text = port.rate.as_ref().ok()?;
    let bytes = u64::from(gigabits(text)?) * 125_000_000;
    if (port.link_layer.as_ref().ok()).is_some_and(|layer| layer == "Ethernet") {
        return Some(Bandwidth(bytes));
    }
    // `40 Gb/sec (4X QDR)`. Older kernels leave out the name SDR.
    let speed = text
        .split_once('(')
        .map_or("", |(_, lanes)| lanes.trim_end_matches(')'))
        .split_once(' ')
        .map_or("SDR", |(_, speed)| speed);
    Some(Bandwidth(match speed {
        "SDR" | "DDR" | "QDR" => bytes / 10 * 8,
        "FDR" => bytes / 66 * 64,
        _ => bytes,
    }))
}

/// Returns the integer part of a rate in Gb/s: 400 for `400 Gb/sec (4X NDR)`, 2 for `2.5 Gb/sec`.
pub(in crate::checks) fn gigabits(rate: &str) -> Option<u32> {
    let number = rate.split_whitespace().next()?;
    number.split('.').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_integer_part_of_a_rate_is_read() {
        assert_eq!(gigabits("400 Gb/sec (4X NDR)"), Some(400));
        assert_eq!(gigabits("2.5 Gb/sec (1X SDR)"), Some(2));
        assert_eq!(gigabits("fast"), None);
    }
}
