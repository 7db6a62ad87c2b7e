//! The GPUs and the NICs that a check is about, or why there are none.

use gdr_node::pci::Bandwidth;
use gdr_node::{Bdf, RdmaPort};

use crate::context::{Context, Nic};

/// Whether a function is a GPU or a NIC that was not asked about.
pub(in crate::checks) fn is_left_out(context: &Context<'_>, bdf: Bdf) -> bool {
    let gpu = (context.inventory.gpus.iter()).any(|gpu| gpu.bdf == bdf);
    let nic = (context.inventory.rdma_functions()).any(|(_, at)| at == bdf);
    (gpu && context.gpus().all(|gpu| gpu.bdf != bdf))
        || (nic && context.nics().iter().all(|nic| nic.bdf != bdf))
}

/// The ports of a NIC that are up.
fn active_ports<'a>(nic: &Nic<'a>) -> impl Iterator<Item = &'a RdmaPort> + use<'a> {
    let ports = nic.rdma.into_iter().flat_map(|rdma| &rdma.ports);
    ports.filter(|port| port.is_active())
}

/// The rate of the fastest of a NIC's ports that are up, in Gb/s.
pub(in crate::checks) fn fastest_port(nic: &Nic<'_>) -> Option<u32> {
    active_ports(nic)
        .filter_map(|port| gigabits(port.rate.as_ref().ok()?))
        .max()
}

/// What the ports of a NIC that are up carry in each direction.
pub(in crate::checks) fn data_rates(nic: &Nic<'_>) -> Vec<Bandwidth> {
    active_ports(nic).filter_map(data_rate).collect()
}

/// What a port carries in each direction after line coding.
///
/// Linux writes the signalling rate of InfiniBand up to FDR and the rate of data from there on
/// (`rate_show` of `drivers/infiniband/core/sysfs.c`; of FDR10 and EDR it leaves out the coding).
/// SDR, DDR and QDR spend two bits in ten on it (8b/10b), FDR two in 66. Ports of Ethernet take
/// the names of InfiniBand's speeds, and their rates are those of data.
fn data_rate(port: &RdmaPort) -> Option<Bandwidth> {
    let text = port.rate.as_ref().ok()?;
    let bytes = u64::from(gigabits(text)?) * 125_000_000;
    if (port.link_layer.as_ref().ok()).is_some_and(|layer| layer == "Ethernet") {
        return Some(Bandwidth(bytes));
    }
    // `40 Gb/sec (4X QDR)`; older kernels name no speed but those after SDR.
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

/// The number of `400 Gb/sec (4X NDR)`; of `2.5 Gb/sec` the whole part.
pub(in crate::checks) fn gigabits(rate: &str) -> Option<u32> {
    let number = rate.split_whitespace().next()?;
    number.split('.').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_its_number() {
        assert_eq!(gigabits("400 Gb/sec (4X NDR)"), Some(400));
        assert_eq!(gigabits("2.5 Gb/sec (1X SDR)"), Some(2));
        assert_eq!(gigabits("fast"), None);
    }
}
