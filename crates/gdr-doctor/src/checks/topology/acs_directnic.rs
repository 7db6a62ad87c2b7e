use std::collections::BTreeMap;

use gdr_node::pci::AcsBits;

use super::direct;
use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    id: CheckId("acs.directnic"),
    title: "the ports beside a ConnectX's DMA function are set as it wants them",
    why: "ConnectX-8 and later may have a function of their own for GPU memory. Its requests are \
          to go straight to the GPU and the GPU's completions back through the root, so that the \
          ports of the common switch want different bits on either side; set alike they cost a \
          seventh of the bandwidth or keep the driver from mapping.",
    inputs: "Functions 15b3:2100 and the ACS control registers of the port towards it, of the port \
          towards the GPU below the same switch, and of the root port. Needs root.",
    criteria: "pass: xx110x1 towards the DMA function, xx101x1 towards the GPU, xx111x0 at the \
          root port (bits 6 to 0, x is either). fail: not so below a Grace root port; warn: not so \
          elsewhere. skip: no such function, or a guest.",
    sources: &[
        "rdma-core kernel-boot/rdma_topo",
        "Linux Documentation/admin-guide/kernel-parameters.txt: pci=config_acs=",
        "https://github.com/NVIDIA/nodewright/issues/111",
    ],
    scope: Scope::Several(run),
    ..super::CHECK
};

/// What a port should be set to.
#[derive(Clone, Copy)]
struct Wanted {
    on: AcsBits,
    off: AcsBits,
    /// As the kernel's argument words it.
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

/// Root ports of Grace.
const GRACE: [DeviceId; 3] = [DeviceId(0x22b1), DeviceId(0x22b2), DeviceId(0x22b8)];

fn run(context: &Context<'_>) -> Result<Vec<Finding>, Unjudged> {
    context.inventory.tree.by_ref().known("the PCI tree")?;
    if context.is_guest() {
        return Err(Unjudged::skip("in a guest the ports of the host decide"));
    }
    let paths = direct::paths(context);
    if paths.is_empty() {
        return Err(Unjudged::skip(
            "no ConnectX with a DMA function beside a GPU",
        ));
    }
    // A root port may be above several.
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
            "the ports between it and DMA function {} are right",
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
                "the ACS bits of {} are not as DMA function {} wants them",
                wrong.join(", "),
                path.dma
            ),
        )
        .fix(
            Fix::at_boot(
                "Set the bits at every boot, on kernels that know pci=config_acs",
                Action::boot(argument.to_owned()),
            )
            .risk(
                Risk::Medium,
                "IOMMU groups change; what is handed to guests may have to be chosen again",
            ),
        )
    };
    Ok(finding.evidence_all(evidence))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::checks::fixture::*;

    /// The example with a DMA function in the place of mlx5_1, beside GPU0 alone, below Grace.
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
    fn ports_that_are_set_as_wanted_pass() {
        let node = set_as_wanted(with_dma_function());
        assert_eq!(verdict(&CHECK, &node), Pass);
    }

    #[test]
    fn ports_that_are_set_alike_fail_and_one_argument_sets_them_all() {
        let found = worst(&CHECK, &with_dma_function());
        assert_eq!(found.verdict, Fail);
        assert!(found.fixes[0].actions[0].to_string().ends_with(
            "pci=config_acs=xx111x0@0000:15:01.0;xx101x1@0000:17:00.0;xx110x1@0000:17:01.0"
        ));
    }

    #[test]
    fn redirection_that_is_wanted_here_is_no_fault_of_the_path() {
        let node = set_as_wanted(with_dma_function());
        let path = super::super::acs_path::CHECK;
        assert!(!verdict(&path, &node).is_bad());
    }

    #[test]
    fn a_user_is_not_informed_that_they_are_off() {
        let node = example::edit(with_dma_function(), example::GPU_PORTS[0], |space| {
            space.header_only();
        });
        assert_eq!(verdict(&CHECK, &node), Unknown);
    }

    #[test]
    fn without_such_a_function_it_does_not_apply() {
        assert_eq!(verdict(&CHECK, &example::healthy()), Skip);
    }
}
