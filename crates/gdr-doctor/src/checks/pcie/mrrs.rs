use gdr_node::pci::Bandwidth;

use super::devices::fastest_port;
use super::hops::{own_express, write_device_control};
use crate::checks::prelude::*;

/// Bits 14:12 of Device Control.
const MASK: u16 = 0x7000;
/// 4096 bytes in them.
const LARGEST: u16 = 0x5000;
/// From this rate on small reads throttle, in Gb/s.
const FAST: u32 = 100;
/// A link for 200 Gb/s and more: 16 lanes of generation 4.
const FAST_LINK: Bandwidth = Bandwidth(25_000_000_000);

pub(super) const CHECK: Check = Check {
    id: CheckId("pci.mrrs"),
    title: "NICs ask for up to 4096 bytes when they read (MRRS)",
    why: "To send, a NIC reads the GPU's memory in pieces of at most the Maximum Read Request \
          Size. With 512 bytes a fast NIC runs out of outstanding reads before the link is full. \
          Only what the NIC itself is set to matters: ports of switches send no reads, and theirs \
          often cannot be written at all.",
    inputs: "Device Control of the NIC, bits 14:12 (8 bytes into its PCI Express capability). \
          Needs root.",
    criteria: "pass: 4096. info: 1024 or 2048, or less on a NIC whose active ports are below 100 \
          Gb/s, or that has none. warn: 512 or less at 100 Gb/s or more, or where ports are not \
          known with a link of 25 GB/s or more. unknown: not root. skip: virtual functions, which \
          are set through their physical one.",
    sources: &[
        "PCI Express Base Specification 6.0, 7.5.3.4",
        "https://enterprise-support.nvidia.com/s/article/understanding-pcie-configuration-for-maximum-performance",
        "https://github.com/oracle-quickstart/oci-hpc",
    ],
    workloads: Workload::RDMA,
    scope: Scope::Nic(judge),
    otherwise: Some("no NIC here has such a register of its own"),
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
        Verdict::Pass => format!("it reads up to {size} bytes at a time"),
        Verdict::Warn => format!(
            "it reads only {size} bytes at a time, which throttles sending from a GPU{}",
            fastest_port(nic).map_or_else(String::new, |rate| format!(" at {rate} Gb/s"))
        ),
        _ => format!("it reads up to {size} bytes at a time; 4096 may be faster"),
    };
    let mut finding = Finding::new(verdict, summary)
        .evidence(format!("{} Device Control, MRRS", function.bdf), size);
    if size < 4096 {
        finding = finding.fix(enlarge(function));
    }
    Ok(finding)
}

/// Whether small reads throttle a NIC: by its ports, and where nothing is known of these by the
/// link that it was built for.
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
    Fix::now("Let the NIC read 4096 bytes at a time", action).risk(
        Risk::Low,
        "other devices on the same path wait a little longer for theirs",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::fixture::*;

    fn reading(bytes: u16) -> MemorySource {
        example::edit(example::healthy(), example::NICS[1], |nic| {
            nic.read_request(bytes);
        })
    }

    #[test]
    fn nics_that_read_large_pieces_pass_whatever_switches_are_set_to() {
        // The ports of the example are set to 512.
        assert_eq!(verdicts(&CHECK, &example::healthy()), [Pass; 10]);
    }

    #[test]
    fn a_fast_nic_that_reads_512_bytes_is_warned_of_with_a_write_of_only_these_bits() {
        let found = worst(&CHECK, &reading(512));
        assert_eq!(found.verdict, Warn);
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
    fn what_may_be_faster_is_reported() {
        assert_eq!(verdict(&CHECK, &reading(1024)), Info);
        let down = reading(128).file("/sys/class/infiniband/mlx5_1/ports/1/state", "1: DOWN\n");
        assert_eq!(verdict(&CHECK, &down), Info);
    }

    #[test]
    fn where_ports_are_not_known_the_link_shows_how_fast_the_nic_is() {
        let node = reading(512).without("/sys/class/infiniband");
        let node = node.not_collected("/sys/class/infiniband");
        let found = worst(&CHECK, &node);
        assert_eq!(found.verdict, Warn);
        assert_eq!(found.subject.to_string(), example::NICS[1]);
    }

    #[test]
    fn a_config_space_of_64_bytes_is_unknown_and_never_a_failure() {
        let node = example::edit(reading(512), example::NICS[1], |nic| {
            nic.header_only();
        });
        let found = worst(&CHECK, &node);
        assert_eq!(found.verdict, Unknown);
        assert!(found.summary.contains("needs root"), "{}", found.summary);
    }
}
