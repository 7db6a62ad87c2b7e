use gdr_node::pci::Express;

use super::hops::{Hop, hops, own_express};
use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    id: CheckId("pci.mps"),
    title: "devices send payloads as large as their way takes (MPS)",
    why: "Every packet of PCI Express carries its payload behind some 20 bytes of its own. With \
          payloads of 128 bytes a tenth more of the link is lost to these than with 256. A device \
          that sends larger payloads than a port above it takes has its packets dropped as \
          malformed.",
    inputs: "Device Control (bits 7:5) and Device Capabilities (bits 2:0) of the device and of \
          every port above it. Needs root.",
    criteria: "pass: the largest that all on the way can take. info: less than that, or 128 where \
          more is not possible. warn: 128 where 256 or more is possible; or more than a port above \
          is set to. unknown: not root. skip: virtual functions, and in guests.",
    sources: &[
        "PCI Express Base Specification 6.0, 2.2.2 and 7.5.3.4",
        "Linux Documentation/admin-guide/kernel-parameters.txt: pci=pcie_bus_perf",
    ],
    scope: Scope::Several(run),
    otherwise: Some("no device here has such a register of its own"),
    ..super::CHECK
};

fn run(context: &Context<'_>) -> Result<Vec<Finding>, Unjudged> {
    let all = runner::functions(context)?;
    if context.is_guest() {
        return Err(Unjudged::skip(
            "in a guest the registers of the ports above are made up",
        ));
    }
    Ok(runner::each(all, |(subject, function)| {
        (subject, judge(context, function))
    }))
}

fn judge(context: &Context<'_>, function: &Function) -> Judgement {
    let express = own_express(function)?.known("its payload size")?;
    let way = hops(context, function.bdf);
    let above: Vec<&Function> = way.iter().flat_map(ports).collect();
    let known: Vec<(&Function, &Express)> = above
        .iter()
        .filter_map(|port| Some((*port, port.express.as_ref().ok()?)))
        .collect();
    let set = express.payload;
    let best = (known.iter())
        .map(|(_, port)| port.payload_capable)
        .chain([express.payload_capable])
        .min()
        .unwrap_or(set);
    let name = format!("{} Device Control, MPS", function.bdf);
    let smaller = known.iter().find(|(_, port)| port.payload < set);
    let finding = if let Some((port, at)) = smaller {
        Finding::warn(format!(
            "it may send payloads of {set} bytes through {}, which is set to take {}",
            port.bdf, at.payload
        ))
        .evidence(format!("{} Device Control, MPS", port.bdf), at.payload)
        .fix(tune())
    } else if set >= best && set > 128 {
        Finding::pass(format!("it sends payloads of up to {set} bytes"))
    } else if set >= best {
        Finding::info(format!(
            "it sends payloads of {set} bytes, the largest that its way takes"
        ))
    } else if set > 128 {
        Finding::info(format!(
            "it sends payloads of up to {set} bytes; its way takes {best}"
        ))
    } else {
        Finding::warn(format!(
            "it sends payloads of {set} bytes only; its way takes {best}"
        ))
        .fix(tune())
    };
    Ok(finding
        .evidence(name, set)
        .evidence("largest that all on the way can take", best))
}

/// The ports at the ends of a link: its upper end, and its lower one if that is a bridge too.
fn ports<'a>(hop: &Hop<'a>) -> impl Iterator<Item = &'a Function> + use<'a> {
    let lower = Some(hop.lower).filter(|lower| lower.is_bridge());
    hop.upper.into_iter().chain(lower)
}

fn tune() -> Fix {
    Fix::at_boot(
        "Let Linux set payload sizes for performance",
        Action::boot("pci=pcie_bus_perf"),
    )
    .risk(
        Risk::Medium,
        "devices that talk to each other directly must then take what the other sends; measure",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::fixture::*;

    #[test]
    fn less_than_the_way_takes_is_only_reported_from_256_on() {
        let found = worst(&CHECK, &example::healthy());
        assert_eq!(found.verdict, Info);
        assert!(found.summary.contains("takes 512"), "{}", found.summary);
    }

    #[test]
    fn all_that_the_way_takes_passes() {
        let mut node = example::healthy();
        let paths: Vec<String> = node.paths().map(str::to_owned).collect();
        for path in paths.iter().filter(|path| path.ends_with("/config")) {
            let bdf = path.rsplit('/').nth(1).unwrap();
            node = example::edit(node, bdf, |function| {
                function.payload_capable(256);
            });
        }
        let found = findings(&CHECK, &node);
        assert_eq!(found.len(), 18);
        assert!(found.iter().all(|it| it.verdict == Pass));
    }

    #[test]
    fn small_payloads_and_those_that_a_port_drops_are_warned_of() {
        for bytes in [128, 512] {
            let node = example::edit(example::healthy(), example::NICS[1], |nic| {
                nic.payload(bytes);
            });
            assert_eq!(verdict(&CHECK, &node), Warn, "{bytes}");
        }
    }

    #[test]
    fn a_platform_that_takes_no_more_than_128_is_only_reported() {
        let mut node = example::edit(example::healthy(), example::ROOT_PORTS[0], |port| {
            port.payload_capable(128).payload(128);
        });
        for bdf in ["0000:16:00.0", example::NIC_PORTS[1], example::NICS[1]] {
            node = example::edit(node, bdf, |function| {
                function.payload(128);
            });
        }
        let found = findings(&CHECK, &node);
        let of_nic = found.iter().find(|it| it.subject.to_string() == "mlx5_1");
        assert_eq!(of_nic.unwrap().verdict, Info);
    }

    #[test]
    fn a_config_space_of_64_bytes_is_unknown_and_nothing_to_look_at_is_no_question() {
        let node = example::edit(example::healthy(), example::GPUS[0], |gpu| {
            gpu.header_only();
        });
        assert_eq!(verdict(&CHECK, &node), Unknown);
        let guest = example::healthy().file("/proc/cpuinfo", "flags\t: fpu hypervisor\n");
        assert_eq!(verdict(&CHECK, &guest), Skip);
    }
}
