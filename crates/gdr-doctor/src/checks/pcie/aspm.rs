use super::hops::hops;
use crate::checks::prelude::*;

/// The kernel's policy for idle links.
const POLICY: &str = "/sys/module/pcie_aspm/parameters/policy";

pub(super) const CHECK: Check = Check {
    id: CheckId("pci.aspm"),
    title: "links of NICs do not enter L1 when they are idle (ASPM)",
    why: "A link in L1 takes some microseconds to wake up. The first message after a pause has a \
          higher latency, so that results vary between runs.",
    inputs: "Link Control, bits 1:0, of the NIC and of the ports above it, which needs root; \
             /sys/module/pcie_aspm/parameters/policy.",
    criteria: "pass: L1 is off on the path. warn: L1 is on at both ends of a link. unknown: not \
               root.",
    sources: &[
        "PCI Express Base Specification 6.0, 5.4.1 and 7.5.3.7",
        "Linux Documentation/admin-guide/kernel-parameters.txt: pcie_aspm.policy",
    ],
    workloads: Workload::RDMA,
    scope: Scope::Nic(judge),
    ..super::CHECK
};

fn judge(context: &Context<'_>, _: &Nic<'_>, function: &Function) -> Judgement {
    let sleeps = |function: &Function| function.express.as_ref().ok().map(|it| it.aspm.l1);
    let own = match &function.express {
        Ok(_) => sleeps(function),
        // A virtual function shares the link of its physical function; the port above has the
        // setting.
        Err(Absence::Missing) => None,
        absent => return Ok(Finding::unknown("whether its link may enter L1", absent)),
    };
    let sleeping = hops(context, function.bdf).into_iter().find(|hop| {
        let lower = if hop.lower.bdf == function.bdf {
            own
        } else {
            sleeps(hop.lower)
        };
        let upper = hop.upper.and_then(sleeps);
        // A link enters L1 only if both of its ends allow it.
        lower.or(upper) == Some(true) && upper.or(lower) == Some(true)
    });
    let policy = context.text(POLICY).ok();
    let finding = match sleeping {
        None => Finding::pass("no link above it may enter L1"),
        Some(hop) => Finding::warn(format!(
            "the link of {} may enter L1, from which it wakes up slowly",
            hop.lower.bdf
        ))
        .evidence(format!("{} Link Control, ASPM", hop.lower.bdf), "L1 on")
        .fix(Fix::now(
            "Turn L1 off until the next boot",
            Action::sysfs(POLICY, "performance"),
        ))
        .fix(Fix::at_boot(
            "Turn L1 off permanently",
            Action::boot("pcie_aspm.policy=performance"),
        )),
    };
    Ok(match policy {
        Some(policy) => finding.evidence(POLICY, policy),
        None => finding,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::fixture::*;

    #[test]
    fn links_without_l1_pass() {
        assert_eq!(verdicts(&CHECK, &example::healthy()), [Pass; 10]);
    }

    #[test]
    fn l1_at_both_ends_is_a_warning() {
        let one = example::edit(example::healthy(), example::NICS[1], |nic| {
            nic.aspm(2);
        });
        assert_eq!(verdict(&CHECK, &one), Pass);
        let both = example::edit(one, example::NIC_PORTS[1], |port| {
            port.aspm(2);
        });
        let found = judged(&CHECK, &both, Warn);
        assert_eq!(found.fixes.len(), 2);
    }

    #[test]
    fn a_config_space_of_64_bytes_is_unknown() {
        let node = example::edit(example::healthy(), example::NICS[1], |nic| {
            nic.header_only();
        });
        assert_eq!(verdict(&CHECK, &node), Unknown);
    }
}
