use gdr_node::pci::Bandwidth;

use super::devices::fastest_port;
use super::hops::{own_express, write_device_control};
use crate::checks::prelude::*;

/// Bits 14:12 of Device Control.
const MASK: u16 = 0x7000;
/// The value for 4096 bytes.
const LARGEST: u16 = 0x5000;
/// The rate in Gb/s from which small reads limit the throughput.
const FAST: u32 = 100;
/// The bandwidth of a link for ports of 200 Gb/s: generation 4 with 16 lanes.
const FAST_LINK: Bandwidth = Bandwidth(25_000_000_000);

pub(super) const CHECK: Check = Check {
    id: CheckId("pci.mrrs"),
    title: "NICs request up to 4096 bytes per read (MRRS)",
    why: "To send, a NIC reads the GPU's memory in requests of at most the Maximum Read Request \
          Size. With 512 bytes a fast NIC runs out of outstanding reads before the link is full. \
          Only the setting of the NIC matters: switch ports send no reads, and theirs often cannot \
          be changed.",
    inputs: "Device Control of the NIC, bits 14:12 (offset 8 in its PCI Express capability). Needs \
             root.",
    criteria: "pass: 4096. info: 1024 or 2048; or less on a NIC without an active port of 100 Gb/s \
               or more. warn: 512 or less at 100 Gb/s or more; or, if the ports are not known, \
               with a link of 25 GB/s or more. unknown: not root. skip: virtual functions, which \
               use the setting of their physical function.",
    sources: &[
        "PCI Express Base Specification 6.0, 7.5.3.4",
        "https://enterprise-support.nvidia.com/s/article/understanding-pcie-configuration-for-maximum-performance",
        "https://github.com/oracle-quickstart/oci-hpc",
    ],
    workloads: Workload::RDMA,
    scope: Scope::Nic(judge),
    otherwise: Some("no NIC has a register of its own for it"),
    ..super::CHECK
};

fn judge(_: &Context<'_>, nic: &Nic<'_>, function: &Function) -> Judgement {
    let express = own_express(function)?.known("its read request size")?;
    let size = express.read_request;
    let verdict = match size {
        4096.. => Verdict::Pass,
        ..=512 if is_fast(nic, function) => Verdict::Warn,
        _ => Verdict::Info,
    };
    let summary = match verdict {
        Verdict::Pass => format!("it reads up to {size} bytes per request"),
        Verdict::Warn => format!(
            "it reads only {size} bytes per request, which slows down sending from a GPU{}",
            fastest_port(nic).map_or_else(String::new, |rate| format!(" at {rate} Gb/s"))
        ),
        _ => format!("it reads up to {size} bytes per request; 4096 may be faster"),
    };
    let mut finding = Finding::new(verdict, summary)
        .evidence(format!("{} Device Control, MRRS", function.bdf), size);
    if size < 4096 {
        finding = finding.fix(enlarge(function));
    }
    Ok(finding)
}

/// Returns whether small reads slow down a NIC: by the rate of its ports or, if they are not known,
/// by its link.
fn is_fast(nic: &Nic<'_>, function: &Function) -> bool {
    match (fastest_port(nic), nic.rdma) {
        (Some(rate), _) => rate >= FAST,
        (None, Some(_)) => false,
        (None, None) => {
            (function.link_capable.as_ref().ok()).is_some_and(|link| link.bandwidth() >= FAST_LINK)
        }
    }
}

fn enlarge(function: &Function) -> Fix {
    let action = write_device_control(function, MASK, LARGEST);
    Fix::now("Set the read request size to 4096 bytes", action).risk(
        Risk::Low,
        "reads of other devices on the same path take a little longer",
    )
}

#[cfg(test)]
mod tests {
    use snapshot::assert_contains;

    use super::*;
    use crate::checks::fixture::*;

    fn reading(bytes: u16) -> MemorySource {
        example::edit(example::healthy(), example::NICS[1], |nic| {
            nic.read_request(bytes);
        })
    }

    #[test]
    fn nics_with_large_reads_pass_regardless_of_switches() {
        // The ports of the example are set to 512.
        assert_eq!(verdicts(&CHECK, &example::healthy()), [Pass; 10]);
    }

    #[test]
    fn a_fast_nic_with_512_bytes_is_a_warning_and_the_fix_writes_only_its_bits() {
        let found = judged(&CHECK, &reading(512), Warn);
        assert_eq!(found.subject.to_string(), "mlx5_1");
        let Action::WriteConfig {
            mask, value, was, ..
        } = found.fixes[0].actions[0]
        else {
            panic!("{:?}", found.fixes);
        };
        assert_eq!((mask, value, was & MASK), (0x7000, 0x5000, 0x2000));
    }

    #[test]
    fn other_sizes_are_info() {
        assert_eq!(verdict(&CHECK, &reading(1024)), Info);
        let down = reading(128).file("/sys/class/infiniband/mlx5_1/ports/1/state", "1: DOWN\n");
        assert_eq!(verdict(&CHECK, &down), Info);
    }

    #[test]
    fn without_known_ports_the_link_decides() {
        let node = reading(512).without("/sys/class/infiniband");
        let node = node.not_collected("/sys/class/infiniband");
        let found = judged(&CHECK, &node, Warn);
        assert_eq!(found.subject.to_string(), example::NICS[1]);
    }

    #[test]
    fn a_config_space_of_64_bytes_is_unknown() {
        let node = example::edit(reading(512), example::NICS[1], |nic| {
            nic.header_only();
        });
        let found = judged(&CHECK, &node, Unknown);
        assert_contains!(found.summary, "needs root");
    }
}
