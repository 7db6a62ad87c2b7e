use std::collections::BTreeMap;

use gdr_node::pci::AcsBits;

use super::direct;
use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    id: CheckId("acs.directnic"),
    title: "the ports around a ConnectX's DMA function have the ACS bits that it needs",
    why: "ConnectX-8 and later may have a separate function for access to GPU memory. Its requests \
          should go directly to the GPU, and the GPU's completions back through the root complex. \
          The ports of the common switch therefore need different ACS bits. With equal bits a \
          seventh of the bandwidth is lost, or the driver refuses to map.",
    inputs: "Functions 15b3:2100; the ACS control registers of the switch port to the DMA \
             function, of the switch port to the GPU, and of the root port. Needs root.",
    criteria: "pass: xx110x1 at the port to the DMA function, xx101x1 at the port to the GPU, \
               xx111x0 at the root port (bits 6 to 0, x is either). fail: other bits below a Grace \
               root port. warn: other bits elsewhere. skip: no such function, or a guest.",
    sources: &[
        "rdma-core kernel-boot/rdma_topo",
        "Linux Documentation/admin-guide/kernel-parameters.txt: pci=config_acs=",
        "https://github.com/NVIDIA/nodewright/issues/111",
    ],
    scope: Scope::Several(run),
    ..super::CHECK
};

/// The ACS bits that a port needs.
#[derive(Clone, Copy)]
struct Wanted {
    on: AcsBits,
    off: AcsBits,
    /// The bits in the syntax of `pci=config_acs`.
    mask: &'static str,
}

const FORWARDING: AcsBits = AcsBits::UPSTREAM_FORWARDING;
const TO_DMA: Wanted = Wanted {
    on: FORWARDING
        .union(AcsBits::COMPLETION_REDIRECT)
        .union(AcsBits::SOURCE_VALIDATION),
    off: AcsBits::REQUEST_REDIRECT,
    mask: "xx110x1",
};
const TO_GPU: Wanted = Wanted {
    on: FORWARDING
        .union(AcsBits::REQUEST_REDIRECT)
        .union(AcsBits::SOURCE_VALIDATION),
    off: AcsBits::COMPLETION_REDIRECT,
    mask: "xx101x1",
};
const ROOT: Wanted = Wanted {
    on: FORWARDING
        .union(AcsBits::REQUEST_REDIRECT)
        .union(AcsBits::COMPLETION_REDIRECT),
    off: AcsBits::SOURCE_VALIDATION,
    mask: "xx111x0",
};

/// The root ports of Grace.
const GRACE: [DeviceId; 3] = [DeviceId(0x22b1), DeviceId(0x22b2), DeviceId(0x22b8)];

fn run(context: &Context<'_>) -> Result<Vec<Finding>, Unjudged> {
    context.inventory.tree.by_ref().known("the PCI tree")?;
    if context.is_guest() {
        return Err(Unjudged::skip("in a guest the host configures the ports"));
    }
    let paths = direct::paths(context);
    if paths.is_empty() {
        return Err(Unjudged::skip(
            "no ConnectX has a DMA function below one switch with a GPU",
        ));
    }
    // Several paths may have the same root port.
    let mut wanted: BTreeMap<Bdf, Wanted> = BTreeMap::new();
    for path in &paths {
        wanted.insert(path.dma_port, TO_DMA);
        wanted.insert(path.gpu_port, TO_GPU);
        wanted.insert(path.root_port, ROOT);
    }
    let argument: Vec<String> = (wanted.iter())
        .map(|(port, wanted)| format!("{}@{port}", wanted.mask))
        .collect();
    let argument = format!("pci=config_acs={}", argument.join(";"));
    Ok(runner::each(&paths, |path| {
        let judgement = judge(context, path, &wanted, &argument);
        (path.subject(context), judgement)
    }))
}

fn judge(
    context: &Context<'_>,
    path: &direct::DirectPath,
    wanted: &BTreeMap<Bdf, Wanted>,
    argument: &str,
) -> Judgement {
    let mut wrong = Vec::new();
    let mut evidence = Vec::new();
    for port in [path.dma_port, path.gpu_port, path.root_port] {
        let Some(wanted) = wanted.get(&port) else {
            continue;
        };
        let acs = context.fact(port, |function| function.acs);
        match acs {
            Ok(acs) => {
                evidence.push((
                    format!("ACS control of {port}, wanted {}", wanted.mask),
                    format!("{:07b} ({})", acs.control.bits() & 0x7f, acs.control),
                ));
                if !acs.control.contains(wanted.on) || acs.control.intersects(wanted.off) {
                    wrong.push(port.to_string());
                }
            }
            Err(Absence::Missing) => wrong.push(port.to_string()),
            absent => {
                return Ok(
                    Finding::unknown("the ACS control register of a port", &absent)
                        .evidence("port", port),
                );
            }
        }
    }
    let finding = if wrong.is_empty() {
        Finding::pass(format!(
            "the ports between it and DMA function {} have the right ACS bits",
            path.dma
        ))
    } else {
        let grace = (context.function(path.root_port)).is_some_and(|root| {
            root.identity.vendor == Some(VendorId::NVIDIA)
                && root
                    .identity
                    .device
                    .is_some_and(|device| GRACE.contains(&device))
        });
        let verdict = if grace { Verdict::Fail } else { Verdict::Warn };
        Finding::new(
            verdict,
            format!(
                "the ACS bits of {} are not those that DMA function {} needs",
                wrong.join(", "),
                path.dma
            ),
        )
        .fix(
            Fix::at_boot(
                "Set the bits at every boot (kernels with pci=config_acs)",
                Action::boot(argument.to_owned()),
            )
            .risk(
                Risk::Medium,
                "IOMMU groups change; check which devices are assigned to guests",
            ),
        )
    };
    Ok(finding.evidence_all(evidence))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::checks::fixture::*;

    /// Returns the example with a DMA function in place of mlx5_1, with GPU0 alone, below a Grace root port.
    pub(in crate::checks) fn with_dma_function() -> MemorySource {
        let node = example::healthy()
            .without("/sys/class/infiniband/mlx5_1")
            .without(&format!("/sys/bus/pci/devices/{}", example::GPUS[1]));
        let node = turned_into(node, example::NICS[1], (0x15b3, 0x2100), 0x08_0100);
        turned_into(node, example::ROOT_PORTS[0], (0x10de, 0x22b1), 0x06_0400)
    }

    pub(in crate::checks) fn set_as_wanted(node: MemorySource) -> MemorySource {
        [
            (example::NIC_PORTS[1], TO_DMA),
            (example::GPU_PORTS[0], TO_GPU),
            (example::ROOT_PORTS[0], ROOT),
        ]
        .into_iter()
        .fold(node, |node, (port, wanted)| {
            example::edit(node, port, |space| {
                space.acs_control(wanted.on);
            })
        })
    }

    #[test]
    fn ports_with_the_needed_bits_pass() {
        let node = set_as_wanted(with_dma_function());
        assert_eq!(verdict(&CHECK, &node), Pass);
    }

    #[test]
    fn ports_with_equal_bits_fail_and_one_argument_sets_them_all() {
        let found = judged(&CHECK, &with_dma_function(), Fail);
        assert!(found.fixes[0].actions[0].to_string().ends_with(
            "pci=config_acs=xx111x0@0000:15:01.0;xx101x1@0000:17:00.0;xx110x1@0000:17:01.0"
        ));
    }

    #[test]
    fn needed_redirection_is_not_bad_in_acs_path() {
        let node = set_as_wanted(with_dma_function());
        let path = super::super::acs_path::CHECK;
        assert!(!verdict(&path, &node).is_bad());
    }

    #[test]
    fn registers_that_only_root_may_read_are_unknown() {
        let node = example::edit(with_dma_function(), example::GPU_PORTS[0], |space| {
            space.header_only();
        });
        assert_eq!(verdict(&CHECK, &node), Unknown);
    }

    #[test]
    fn a_node_without_a_dma_function_is_skipped() {
        assert_eq!(verdict(&CHECK, &example::healthy()), Skip);
    }
}
