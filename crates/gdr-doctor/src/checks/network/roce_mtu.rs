use super::ports::Port;
use crate::checks::prelude::*;

/// The lowest MTU of an interface with which RoCE sends packets of 4096 bytes after their IP, UDP
/// and IBTA headers.
const FOR_4096: u32 = 4200;
/// The same for 2048 bytes.
const FOR_2048: u32 = 2200;

pub(super) const CHECK: Check = Check {
    id: CheckId("roce.mtu"),
    title: "RoCE ports send packets of 4096 bytes",
    why: "The MTU of RoCE follows the interface's: with 1500 the packets have 1024 bytes, \
          with 4200 or more they have 4096. Small packets cost bandwidth. All nodes must have the \
          same MTU, or transfers fail with \"local access violation work queue error\".",
    inputs: "/sys/class/net/*/mtu of the interfaces of active Ethernet ports.",
    criteria: "pass: 4200 or more. info: 2200 or more. warn: less. skip: no Ethernet port is \
               active. unknown: the interface is not known.",
    sources: &[
        "Linux include/rdma/ib_addr.h: iboe_get_mtu",
        "https://github.com/NVIDIA/nccl/issues/1524",
    ],
    scope: Scope::Port(Which::ActiveEthernet, judge),
    ..super::CHECK
};

fn judge(context: &Context<'_>, port: &Port<'_>) -> Judgement {
    let Some(netdev) = port.netdev(context) else {
        context.inventory.netdevs.by_ref().known("its interface")?;
        return Ok(
            Finding::unknown("its interface", &Err::<(), _>(Absence::Missing)).symptom_of("netns"),
        );
    };
    let path = format!("/sys/class/net/{}/mtu", netdev.name);
    let mtu = netdev.mtu.known("the MTU of its interface")?;
    let shown = mtu.to_string();
    let finding = match mtu {
        FOR_4096.. => Finding::pass("it sends packets of 4096 bytes"),
        FOR_2048.. => Finding::info(format!(
            "with an MTU of {mtu} it sends packets of 2048 bytes; 4096 may be faster"
        )),
        _ => Finding::warn(format!(
            "with an MTU of {mtu} it sends packets of 1024 bytes or less"
        ))
        .fix(
            Fix::now(
                "Raise the MTU",
                Action::Mtu {
                    netdev: netdev.name.clone(),
                    mtu: 9000,
                },
            )
            .risk(
                Risk::Medium,
                "switches and all other nodes need the same MTU; otherwise open connections stall",
            ),
        ),
    };
    Ok(finding.evidence(path, shown))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::fixture::*;

    fn mtu(text: &str) -> MemorySource {
        example::healthy().file("/sys/class/net/enp6s0np0/mtu", text)
    }

    #[test]
    fn large_packets_pass() {
        assert_eq!(verdicts(&CHECK, &example::healthy()), [Pass; 2]);
        assert_eq!(verdict(&CHECK, &mtu("4200\n")), Pass);
    }

    #[test]
    fn small_packets_are_a_warning_with_the_command_as_fix() {
        assert_eq!(verdict(&CHECK, &mtu("2500\n")), Info);
        let found = judged(&CHECK, &mtu("1500\n"), Warn);
        assert_eq!(
            found.fixes[0].actions[0].to_string(),
            "ip link set dev enp6s0np0 mtu 9000"
        );
    }

    #[test]
    fn an_unknown_interface_is_unknown() {
        let node = example::healthy().without("/sys/class/net");
        assert_eq!(verdict(&CHECK, &node), Unknown);
    }
}
