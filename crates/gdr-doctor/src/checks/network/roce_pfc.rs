use super::ports::Port;
use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    id: CheckId("roce.pfc"),
    title: "how to see whether RoCE has a lossless class (PFC) is known",
    why: "RoCE slows down sharply when packets are lost. Priority Flow Control makes a class of \
          traffic lossless, if the NIC and every switch agree which one; on fabrics of more than \
          one switch one of PFC and ECN is needed.",
    inputs: "Nothing that decides: the setting is available over netlink (dcbnl) only. What is read is \
          whether the port has sent or got pause frames, where its driver says so.",
    criteria: "info: the command that shows it. skip: no Ethernet port is up. unknown: not \
          collected.",
    sources: &[
        "IEEE 802.1Q, clause 36 (PFC)",
        "dcb-pfc(8); mlnx_qos of mlnx-tools",
    ],
    scope: Scope::Port(Which::ActiveEthernet, judge),
    ..super::CHECK
};

fn judge(context: &Context<'_>, port: &Port<'_>) -> Judgement {
    let netdev = port.interface(context)?;
    let name = &netdev.name;
    Ok(Finding::info(format!(
        "whether {name} has a lossless class is shown by `dcb pfc show dev {name}`"
    ))
    .evidence("interface", name)
    .fix(
        Fix::run(
            "Make priority 3 lossless and let DSCP choose it",
            format!("mlnx_qos -i {name} --pfc 0,0,0,1,0,0,0,0 --trust dscp"),
        )
        .risk(
            Risk::Medium,
            "only where the switches have the same class lossless; else pauses may stop the port",
        ),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::fixture::*;

    #[test]
    fn the_command_that_shows_it_is_shown() {
        assert_eq!(verdicts(&CHECK, &example::healthy()), [Info; 2]);
        let found = worst(&CHECK, &example::healthy());
        assert!(
            found.summary.contains("dcb pfc show dev enp6s0np0"),
            "{}",
            found.summary
        );
    }

    #[test]
    fn what_was_not_collected_is_unknown() {
        let node = example::healthy()
            .without("/sys/class/net")
            .not_collected("/sys/class/net");
        assert_eq!(verdict(&CHECK, &node), Unknown);
    }
}
