use super::ports::Port;
use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    id: CheckId("roce.pfc"),
    title: "the command that shows whether RoCE has a lossless class (PFC) is known",
    why: "RoCE slows down sharply when packets are lost. Priority Flow Control (PFC) makes a \
          traffic class lossless, if the NIC and every switch use the same class. Fabrics with \
          more than one switch need PFC or ECN.",
    inputs: "The names of the interfaces. The setting itself is available only over netlink \
             (dcbnl).",
    criteria: "info: the command that shows it. skip: no Ethernet port is active. unknown: not \
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
        "`dcb pfc show dev {name}` shows whether {name} has a lossless class"
    ))
    .evidence("interface", name)
    .fix(
        Fix::run(
            "Make priority 3 lossless and select it by DSCP",
            format!("mlnx_qos -i {name} --pfc 0,0,0,1,0,0,0,0 --trust dscp"),
        )
        .risk(
            Risk::Medium,
            "only if the same class is lossless in the switches; otherwise pause frames may stop \
             the port",
        ),
    ))
}

#[cfg(test)]
mod tests {
    use snapshot::assert_contains;

    use super::*;
    use crate::checks::fixture::*;

    #[test]
    fn the_summary_has_the_command() {
        assert_eq!(verdicts(&CHECK, &example::healthy()), [Info; 2]);
        let found = worst(&CHECK, &example::healthy());
        assert_contains!(found.summary, "dcb pfc show dev enp6s0np0");
    }

    #[test]
    fn an_uncollected_interface_is_unknown() {
        let node = example::healthy()
            .without("/sys/class/net")
            .not_collected("/sys/class/net");
        assert_eq!(verdict(&CHECK, &node), Unknown);
    }
}
