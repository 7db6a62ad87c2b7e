use gdr_node::pci::Express;

use super::hops::{Hop, hops, own_express};
use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    id: CheckId("pci.mps"),
    title: "devices send the largest payload that their path supports (MPS)",
    why: "Every PCI Express packet has some 20 bytes of overhead. With payloads of 128 bytes the \
          overhead takes a tenth more of the link than with 256. If a device sends larger payloads \
          than a port above it accepts, its packets are dropped as malformed.",
    inputs: "Device Control (bits 7:5) and Device Capabilities (bits 2:0) of the device and of \
             every port above it. Needs root.",
    criteria: "pass: the largest payload that the whole path supports. info: less than that, or \
               128 if no more is possible. warn: 128 if 256 or more is possible; or more than a \
               port above accepts. unknown: not root. skip: virtual functions, and in guests.",
    sources: &[
        "PCI Express Base Specification 6.0, 2.2.2 and 7.5.3.4",
        "Linux Documentation/admin-guide/kernel-parameters.txt: pci=pcie_bus_perf",
    ],
    scope: Scope::Several(run),
    otherwise: Some("no device has a register of its own for it"),
    ..super::CHECK
};

fn run(context: &Context<'_>) -> Result<Vec<Finding>, Unjudged> {
    let all = runner::functions(context)?;
    if context.is_guest() {
        return Err(Unjudged::skip("in a guest the ports above are emulated"));
    }
    Ok(runner::each(all, |(subject, function)| {
        (subject, judge(context, function))
    }))
}

fn judge(context: &Context<'_>, function: &Function) -> Judgement {
    let express = own_express(function)?.known("its payload size")?;
    let links = hops(context, function.bdf);
    let above: Vec<&Function> = links.iter().flat_map(ports).collect();
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
            "it may send payloads of {set} bytes through {}, which accepts only {}",
            port.bdf, at.payload
        ))
        .evidence(format!("{} Device Control, MPS", port.bdf), at.payload)
        .fix(tune())
    } else if set >= best && set > 128 {
        Finding::pass(format!("it sends payloads of up to {set} bytes"))
    } else if set >= best {
        Finding::info(format!(
            "it sends payloads of {set} bytes, the largest that its path supports"
        ))
    } else if set > 128 {
        Finding::info(format!(
            "it sends payloads of up to {set} bytes; its path supports {best}"
        ))
    } else {
        Finding::warn(format!(
            "it sends payloads of {set} bytes only; its path supports {best}"
        ))
        .fix(tune())
    };
    Ok(finding
        .evidence(name, set)
        .evidence("largest payload that the path supports", best))
}

/// Returns the ports at the ends of a link: the upper end, and the lower end if it is a bridge.
fn ports<'a>(hop: &Hop<'a>) -> impl Iterator<Item = &'a Function> + use<'a> {
    let lower = Some(hop.lower).filter(|lower| lower.is_bridge());
    hop.upper.into_iter().chain(lower)
}

fn tune() -> Fix {
    Fix::at_boot(
        "Make Linux set payload sizes for performance",
        Action::boot("pci=pcie_bus_perf"),
    )
    .risk(
        Risk::Medium,
        "devices with direct traffic between them must then accept each other's payload size; \
         measure",
    )
}

#[cfg(test)]
mod tests {
    use snapshot::assert_contains;

    use super::*;
    use crate::checks::fixture::*;

    #[test]
    fn less_than_the_path_supports_is_info_from_256_bytes() {
        let found = judged(&CHECK, &example::healthy(), Info);
        assert_contains!(found.summary, "supports 512");
    }

    #[test]
    fn the_largest_payload_of_the_path_passes() {
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
    fn small_payloads_and_those_that_a_port_drops_are_warnings() {
        for bytes in [128, 512] {
            let node = example::edit(example::healthy(), example::NICS[1], |nic| {
                nic.payload(bytes);
            });
            assert_eq!(verdict(&CHECK, &node), Warn, "{bytes}");
        }
    }

    #[test]
    fn a_platform_limited_to_128_bytes_is_info() {
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
    fn a_config_space_of_64_bytes_is_unknown_and_a_guest_is_skipped() {
        let node = example::edit(example::healthy(), example::GPUS[0], |gpu| {
            gpu.header_only();
        });
        assert_eq!(verdict(&CHECK, &node), Unknown);
        let guest = example::healthy().file("/proc/cpuinfo", "flags\t: fpu hypervisor\n");
        assert_eq!(verdict(&CHECK, &guest), Skip);
    }
}
