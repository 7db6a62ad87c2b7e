use gdr_node::pci::{AcsBits, PortType};
use gdr_node::topology::Relation;

use super::is_handed;
use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    id: CheckId("acs.virt"),
    title: "the ports above a guest's devices allow direct traffic between its GPU and NIC",
    why: "Devices of guests are isolated by redirection of their requests to the root complex. A \
          guest's NIC and GPU still have a direct path if the NIC translates addresses beforehand \
          (ATS) and its port forwards translated requests (Direct Translated). If one of the two \
          is missing, requests go through the root complex or fail.",
    inputs: "Functions bound to vfio-pci; the ACS control registers of the ports between such GPUs \
             and NICs. Needs root.",
    criteria: "pass: 1x111x1 above the NIC, xx111x1 above the GPU and at the root port (bits 6 to \
               0, x is either). fail: other bits. skip: no GPU and NIC below one switch are \
               assigned to guests; or this is a guest: run the check on the host.",
    sources: &[
        "NVIDIA AI Enterprise, GPUDirect RDMA in virtual machines",
        "rdma-core kernel-boot/rdma_topo",
    ],
    scope: Scope::Several(run),
    otherwise: Some("no GPU and NIC below one switch are assigned to guests"),
    ..super::CHECK
};

const ISOLATED: AcsBits = AcsBits::SOURCE_VALIDATION
    .union(AcsBits::REQUEST_REDIRECT)
    .union(AcsBits::COMPLETION_REDIRECT)
    .union(AcsBits::UPSTREAM_FORWARDING);

/// The most devices of a kind that are examined: a capture may claim any number.
const MOST: usize = 64;

fn run(context: &Context<'_>) -> Result<Vec<Finding>, Unjudged> {
    let inventory = context.inventory;
    if context.is_guest() {
        return Err(Unjudged::skip(
            "this is a guest: on the host, ATS must be on at the NIC and Direct Translated at its \
             port",
        ));
    }
    let tree = inventory.tree.by_ref().known("the PCI tree")?;
    let topology = inventory.topology().known("the PCI tree")?;
    let nics: Vec<Bdf> = tree
        .functions()
        .filter(|function| function.identity.is_network() && is_handed(context, function.bdf))
        .map(|function| function.bdf)
        .take(MOST)
        .collect();
    let mut findings = Vec::new();
    let gpus = context.gpus().filter(|gpu| is_handed(context, gpu.bdf));
    for gpu in gpus.take(MOST) {
        let near = (nics.iter())
            .filter_map(|nic| Some((*nic, topology.relation(gpu.bdf, *nic).ok()?)))
            .filter(|(_, relation)| {
                matches!(relation.ancestor, gdr_node::topology::Ancestor::Bridge(_))
            });
        findings.extend(runner::each(near, |(nic, relation)| {
            let subject = Subject::Pair {
                gpu: gpu.index.to_string(),
                gpu_bdf: gpu.bdf,
                nic: nic.to_string(),
                nic_bdf: nic,
            };
            (subject, judge(context, nic, &relation))
        }));
    }
    Ok(findings)
}

fn judge(context: &Context<'_>, nic: Bdf, relation: &Relation) -> Judgement {
    let above_nic = |port: Bdf| {
        let chain = context
            .inventory
            .tree
            .as_ref()
            .ok()
            .and_then(|tree| tree.chain(nic));
        chain.is_some_and(|(_, bridges)| bridges.contains(&port))
    };
    let mut wrong: Vec<(Bdf, AcsBits)> = Vec::new();
    let mut evidence = Vec::new();
    for port in &relation.ports {
        let Some(function) = context.function(*port) else {
            continue;
        };
        let upstream = (function.express.as_ref().ok())
            .is_some_and(|express| express.port == PortType::SwitchUpstream);
        let wanted = if above_nic(*port) {
            ISOLATED | AcsBits::DIRECT_TRANSLATED
        } else {
            ISOLATED
        };
        match &function.acs {
            Ok(acs) => {
                evidence.push((
                    format!("ACS control of {port}"),
                    format!("{} (wanted {wanted})", acs.control),
                ));
                if !acs.control.contains(wanted) {
                    wrong.push((*port, wanted));
                }
            }
            Err(Absence::Missing) if upstream => {}
            Err(Absence::Missing) => wrong.push((*port, wanted)),
            absent => {
                return Ok(
                    Finding::unknown("the ACS control register of a port", absent)
                        .evidence("port", port),
                );
            }
        }
    }
    let finding = if wrong.is_empty() {
        Finding::pass("the ports between them have the ACS bits for a guest")
    } else {
        let ports: Vec<String> = wrong.iter().map(|(port, _)| port.to_string()).collect();
        let masks: Vec<String> = (wrong.iter())
            .map(|(port, wanted)| {
                let mask = if wanted.contains(AcsBits::DIRECT_TRANSLATED) {
                    "1x111x1"
                } else {
                    "xx111x1"
                };
                format!("{mask}@{port}")
            })
            .collect();
        Finding::fail(format!(
            "both belong to guests, and the ACS bits of {} prevent direct traffic",
            ports.join(", ")
        ))
        .fix(
            Fix::at_boot(
                "Set the bits at every boot (kernels with pci=config_acs)",
                Action::boot(format!("pci=config_acs={}", masks.join(";"))),
            )
            .risk(Risk::Medium, "IOMMU groups change"),
        )
    };
    Ok(finding.evidence_all(evidence))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::checks::fixture::*;

    /// Returns the example with GPU0 and mlx5_1 assigned to a guest.
    pub(in crate::checks) fn handed() -> MemorySource {
        let node = example::healthy().without("/sys/class/infiniband/mlx5_1");
        let node = bound_to(node, example::NICS[1], "vfio-pci");
        bound_to(node, example::GPUS[0], "vfio-pci")
    }

    fn set_for_a_guest(node: MemorySource) -> MemorySource {
        let node = example::edit(node, example::NIC_PORTS[1], |port| {
            port.acs_control(ISOLATED | AcsBits::DIRECT_TRANSLATED);
        });
        example::edit(node, example::GPU_PORTS[0], |port| {
            port.acs_control(ISOLATED);
        })
    }

    #[test]
    fn ports_with_the_bits_for_a_guest_pass_and_are_not_bad_in_acs_path() {
        let node = set_for_a_guest(handed());
        assert_eq!(verdicts(&CHECK, &node), [Pass]);
        let path = super::super::acs_path::CHECK;
        assert!(!verdict(&path, &node).is_bad());
    }

    #[test]
    fn other_bits_fail() {
        assert_eq!(verdicts(&CHECK, &handed()), [Fail]);
        let without_direct =
            example::edit(set_for_a_guest(handed()), example::NIC_PORTS[1], |port| {
                port.acs_control(ISOLATED);
            });
        assert_eq!(verdicts(&CHECK, &without_direct), [Fail]);
    }

    #[test]
    fn unreadable_registers_are_unknown_and_nodes_without_guests_are_skipped() {
        let user = example::edit(handed(), example::GPU_PORTS[0], |port| {
            port.header_only();
        });
        assert_eq!(verdict(&CHECK, &user), Unknown);
        assert_eq!(verdict(&CHECK, &example::healthy()), Skip);
        let guest = handed().file("/proc/cpuinfo", "flags : hypervisor\n");
        assert_eq!(verdict(&CHECK, &guest), Skip);
    }
}
