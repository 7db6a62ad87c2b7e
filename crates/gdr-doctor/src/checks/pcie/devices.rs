//! The GPUs and the NICs that a check is about, or why there are none.

use gdr_node::pci::Function;
use gdr_node::{Bdf, GpuDevice};

use crate::context::{Context, Nic};
use crate::finding::{Finding, Subject};

/// Every NIC with its function; where there is none, what a check says instead.
pub(in crate::checks) fn nics<'b, 'a>(
    context: &'b Context<'a>,
) -> Result<Vec<(&'b Nic<'a>, &'a Function)>, Vec<Finding>> {
    let nics: Vec<_> = (context.nics().iter())
        .filter_map(|nic| Some((nic, context.function(nic.bdf)?)))
        .collect();
    if !nics.is_empty() {
        return Ok(nics);
    }
    let inventory = context.inventory;
    Err(vec![if !inventory.tree.is_present() {
        Finding::unknown(Subject::Node, "the list of PCI functions", &inventory.tree)
    } else if inventory.rdma.is_unknown() {
        Finding::unknown(Subject::Node, "the list of RDMA devices", &inventory.rdma)
    } else {
        Finding::skip("there is no RDMA NIC that is a PCI function")
    }])
}

/// Every GPU with its function; where there is none, what a check says instead.
pub(in crate::checks) fn gpus<'a>(
    context: &Context<'a>,
) -> Result<Vec<(&'a GpuDevice, &'a Function)>, Vec<Finding>> {
    let gpus: Vec<_> = context
        .gpus()
        .filter_map(|gpu| Some((gpu, context.function(gpu.bdf)?)))
        .collect();
    if !gpus.is_empty() {
        return Ok(gpus);
    }
    let tree = &context.inventory.tree;
    Err(vec![if tree.is_present() {
        Finding::skip("there is no NVIDIA GPU")
    } else {
        Finding::unknown(Subject::Node, "the list of PCI functions", tree)
    }])
}

/// GPUs first, then NICs, each with what a finding about it is about.
pub(in crate::checks) fn both<'a>(
    context: &Context<'a>,
) -> Result<Vec<(Subject, &'a Function)>, Vec<Finding>> {
    let gpus = gpus(context);
    let nics = nics(context);
    let mut all = Vec::new();
    for (gpu, function) in gpus.iter().flatten() {
        all.push((Subject::gpu(gpu), *function));
    }
    for (nic, function) in nics.iter().flatten() {
        all.push((Subject::nic(nic), *function));
    }
    if !all.is_empty() {
        return Ok(all);
    }
    // Not knowing of NICs weighs more than knowing that there is no GPU.
    Err(nics.err().or(gpus.err()).unwrap_or_else(|| {
        vec![Finding::skip(
            "there is neither an NVIDIA GPU nor an RDMA NIC",
        )]
    }))
}

/// Whether a function is a GPU or a NIC that was not asked about.
pub(in crate::checks) fn is_left_out(context: &Context<'_>, bdf: Bdf) -> bool {
    let gpu = (context.inventory.gpus.iter()).any(|gpu| gpu.bdf == bdf);
    let nic = (context.inventory.rdma_functions()).any(|(_, at)| at == bdf);
    (gpu && context.gpus().all(|gpu| gpu.bdf != bdf))
        || (nic && context.nics().iter().all(|nic| nic.bdf != bdf))
}

/// The rates of a NIC's ports that are up, in Gb/s.
pub(in crate::checks) fn active_ports(nic: &Nic<'_>) -> Vec<u32> {
    let ports = nic.rdma.into_iter().flat_map(|rdma| &rdma.ports);
    ports
        .filter(|port| port.state.present().is_some_and(|state| state == "ACTIVE"))
        .filter_map(|port| gigabits(port.rate.present()?))
        .collect()
}

/// The fastest of a NIC's ports that are up, in Gb/s.
pub(in crate::checks) fn fastest_port(nic: &Nic<'_>) -> Option<u32> {
    active_ports(nic).into_iter().max()
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
