use std::collections::BTreeMap;

use super::hops::hops;
use crate::checks::prelude::*;

/// Broadcom's PEX 89000 switches, by the device number of their ports.
const LOCKED: [DeviceId; 2] = [DeviceId(0xc030), DeviceId(0xc040)];

pub(super) const CHECK: Check = Check {
    id: CheckId("pci.readback"),
    title: "settings that are written can be read back",
    why: "Some switches keep Device Control to their firmware: a write is accepted and changes \
          nothing. PEX 89000 ports show a read request size of 128 and stay at it. That is not a \
          fault of the machine, since ports send no reads of their own; it is one of a fix that \
          does not look at what it wrote. gdr fix reads every register again.",
    inputs: "Vendor and device of the bridges above GPUs and NICs.",
    criteria: "pass: no such bridge. info: there are some; sizes are judged at the devices only.",
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
            "no bridge on the way is known to ignore writes",
        ));
    };
    let mut finding = Finding::info(format!(
        "{} ports of PEX 89000 switches keep Device Control to their firmware; sizes are \
             judged at the devices",
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
    fn switches_that_ignore_writes_are_reported() {
        let found = worst(&CHECK, &example::healthy());
        assert_eq!(found.verdict, Info);
        // Four switches of one port up and four down.
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
