use gdr_node::pci::LinkSpeed;

use super::devices::fastest_port;
use super::hops::{hops, own_express, write_device_control};
use crate::checks::prelude::*;

/// Bit 8 of Device Control.
const ENABLE: u16 = 1 << 8;
/// The rate in Gb/s from which 32 outstanding reads are too few.
const FAST: u32 = 200;

pub(super) const CHECK: Check = Check {
    id: CheckId("pci.tags"),
    title: "NICs have enough tags for outstanding reads",
    why: "Every outstanding read has a tag. With 5-bit tags a NIC has 32 of them, with 8-bit tags \
          256, with 10-bit tags 768. At generation 5 even 256 may not fill the link if the latency \
          is high.",
    inputs: "Device Control (bit 8) and Device Control 2 (bit 12) of the NIC; whether the NIC and \
             the root port support 10-bit tags (Device Capabilities 2, bits 16 and 17). Needs \
             root.",
    criteria: "pass: 10-bit tags; or 8-bit tags if 10-bit ones are not supported or the link is \
               below generation 5. info: 8-bit tags although both ends support 10-bit ones; 5-bit \
               tags below 200 Gb/s. warn: 5-bit tags at 200 Gb/s or more. unknown: not root. skip: \
               virtual functions.",
    sources: &[
        "PCI Express Base Specification 6.0, 2.2.6.2, 7.5.3.4 and 7.5.3.16",
        "Linux drivers/pci/probe.c: pci_configure_extended_tags",
    ],
    workloads: Workload::RDMA,
    scope: Scope::Nic(judge),
    otherwise: Some("no NIC has a register of its own for it"),
    ..super::CHECK
};

fn judge(context: &Context<'_>, nic: &Nic<'_>, function: &Function) -> Judgement {
    let express = own_express(function)?.known("the size of its tags")?;
    let name = format!("{} Device Control, tags", function.bdf);
    if express.ten_bit_tags {
        return Ok(Finding::pass("it uses 10-bit tags").evidence(name, "10-bit"));
    }
    if express.extended_tags {
        let fast = hops(context, function.bdf)
            .first()
            .and_then(|hop| hop.now().ok())
            .is_some_and(|link| link.speed >= LinkSpeed::GEN5);
        let root = hops(context, function.bdf).last().and_then(|hop| hop.upper);
        let answers = root
            .and_then(|root| root.express.as_ref().ok())
            .is_some_and(|root| root.ten_bit_tags_completer);
        let finding = if fast && express.ten_bit_tags_requester && answers {
            Finding::info(
                "it uses 8-bit tags, although it and the root port support 10-bit \
                           ones",
            )
            .fix(Fix::manual(
                "Turn on 10-bit tags",
                "turn on \"10-bit tags\" in the BIOS (AMD: \"PCIe Ten Bit Tag Support\"), and \
                     update the firmware of the NIC",
            ))
        } else {
            Finding::pass("it uses 8-bit tags")
        };
        return Ok(finding.evidence(name, "8-bit"));
    }
    let rate = fastest_port(nic).unwrap_or(0);
    let finding = if rate >= FAST {
        Finding::warn(format!(
            "it uses 5-bit tags: 32 outstanding reads are too few for {rate} Gb/s"
        ))
    } else {
        Finding::info("it uses 5-bit tags: it can have 32 outstanding reads")
    };
    let action = write_device_control(function, ENABLE, ENABLE);
    Ok(finding
        .evidence(name, "5-bit")
        .fix(Fix::now("Turn on 8-bit tags", action).risk(
            Risk::Medium,
            "a bridge on the path that does not support 8-bit tags loses completions; Linux turns \
             them off in that case",
        )))
}

#[cfg(test)]
mod tests {
    use snapshot::assert_contains;

    use super::*;
    use crate::checks::fixture::*;

    fn tags(ten_bit: bool, eight_bit: bool) -> MemorySource {
        example::edit(example::healthy(), example::NICS[1], |nic| {
            nic.ten_bit_tags(ten_bit).extended_tags(eight_bit);
        })
    }

    #[test]
    fn nics_with_10_bit_tags_pass() {
        assert_eq!(verdicts(&CHECK, &example::healthy()), [Pass; 10]);
    }

    #[test]
    fn eight_bit_tags_are_info_and_five_bit_tags_a_warning() {
        assert_eq!(verdict(&CHECK, &tags(false, true)), Info);
        let found = judged(&CHECK, &tags(false, false), Warn);
        assert_contains!(found.summary, "400 Gb/s");
    }

    #[test]
    fn a_config_space_of_64_bytes_is_unknown_and_no_nic_is_no_question() {
        let node = example::edit(example::healthy(), example::NICS[1], |nic| {
            nic.header_only();
        });
        assert_eq!(verdict(&CHECK, &node), Unknown);
    }
}
