use std::collections::BTreeMap;

use super::hops::hops;
use crate::checks::prelude::*;

/// The device IDs of the ports of Broadcom's PEX 89000 switches.
const LOCKED: [DeviceId; 2] = [DeviceId(0xc030), DeviceId(0xc040)];

pub(super) const CHECK: Check = Check {
    id: CheckId("pci.readback"),
    title: "registers keep the values that are written",
    why: "Some switches leave Device Control to their firmware: a write is accepted and has no \
          effect. Ports of PEX 89000 switches keep a read request size of 128. That does no harm, \
          since ports send no reads, but a fix has to check what it wrote. gdr fix reads every \
          register after it writes it.",
    inputs: "Vendor and device ID of the bridges above GPUs and NICs.",
    criteria: "pass: no such bridge. info: there are some; sizes are checked at the devices only.",
    sources: &[
        "https://github.com/voipmonitor/rtx6kpro (PEX890xx notes)",
        "PCI Express Base Specification 6.0, 7.5.3.4",
    ],
    scope: Scope::Node(run),
    ..super::CHECK
};

fn run(context: &Context<'_>) -> Judgement {
    let all = runner::functions(context)?;
    let mut locked: BTreeMap<Bdf, u16> = BTreeMap::new();
    for (_, function) in all {
        for hop in hops(context, function.bdf) {
            let ends = hop.upper.into_iter().chain([hop.lower]);
            for port in ends.filter(|port| port.is_bridge()) {
                let identity = &port.identity;
                let is_locked = identity.vendor == Some(VendorId::BROADCOM_LSI)
                    && identity.device.is_some_and(|it| LOCKED.contains(&it));
                if is_locked {
                    let size = port.express.as_ref().ok().map_or(0, |it| it.read_request);
                    locked.insert(port.bdf, size);
                }
            }
        }
    }
    let Some((first, size)) = locked.first_key_value() else {
        return Ok(Finding::pass(
            "no bridge on the path is known to ignore writes",
        ));
    };
    let mut finding = Finding::info(format!(
        "{} ports of PEX 89000 switches leave Device Control to their firmware; sizes are checked \
         at the devices only",
        locked.len()
    ));
    finding = match size {
        0 => finding.evidence("first of them", first),
        size => finding.evidence(format!("{first} Device Control, MRRS"), size),
    };
    Ok(finding)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::fixture::*;

    #[test]
    fn switches_that_ignore_writes_are_info() {
        let found = judged(&CHECK, &example::healthy(), Info);
        // Four switches, each with one upstream port and four downstream ports.
        assert!(found.summary.starts_with("20 ports"), "{}", found.summary);
    }

    #[test]
    fn other_switches_pass() {
        let mut node = example::healthy();
        let paths: Vec<String> = node.paths().map(str::to_owned).collect();
        for path in paths.iter().filter(|path| path.ends_with("/device")) {
            node = node.file(path, "0xc010\n");
        }
        for path in paths.iter().filter(|path| path.ends_with("/config")) {
            node = node.not_collected(path);
        }
        assert_eq!(verdicts(&CHECK, &node), [Pass]);
    }
}
