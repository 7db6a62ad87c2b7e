use super::ports::Port;
use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    id: CheckId("roce.ip"),
    title: "RoCE ports have an IP address",
    why: "RoCE v2 runs over UDP, and its GIDs contain the IP addresses of the interface. Without \
          an IP address a port has only link-local GIDs, which are not routable and which most \
          libraries do not use.",
    inputs: "The GID table in /sys/class/infiniband/*/ports/*/gids of active Ethernet ports, which \
             has every address of the interface.",
    criteria: "pass: a GID of an IPv4 address or of a global IPv6 address. fail: none. warn: none, \
               on a device that is not nearest to a GPU. info: none, since the interface is part \
               of a bond. skip: no Ethernet port is active. unknown: not collected.",
    sources: &[
        "InfiniBand Architecture Specification, Annex A17 (RoCEv2)",
        "https://github.com/NVIDIA/nccl/issues/1796",
    ],
    symptom_of: &["netns"],
    scope: Scope::Port(Which::ActiveEthernet, judge),
    ..super::CHECK
};

/// Returns the verdict on a port without connectivity. Ports that are not nearest to a GPU may not be for data.
pub(super) fn severity(context: &Context<'_>, port: &Port<'_>) -> Verdict {
    if port.serves_a_gpu(context) {
        Verdict::Fail
    } else {
        Verdict::Warn
    }
}

fn judge(context: &Context<'_>, port: &Port<'_>) -> Judgement {
    let path = format!("{}/gids", port.path);
    let gids = port.gids(context).known("its GID table")?;
    if let Some(gid) = gids.iter().find(|gid| gid.is_routable()) {
        let address = match gid.address.to_ipv4_mapped() {
            Some(address) => address.to_string(),
            None => gid.address.to_string(),
        };
        return Ok(Finding::pass(format!("it has the address {address}"))
            .evidence(format!("{path}/{}", gid.index), gid.address));
    }
    if let Some(bond) = port.bond(context) {
        return Ok(Finding::info(format!(
            "its interface is part of {bond}, which has the addresses"
        ))
        .evidence(path, format!("{} GIDs, none of an IP address", gids.len())));
    }
    let netdev = port.netdev(context).map(|netdev| netdev.name.clone());
    Ok(Finding::new(
        severity(context, port),
        "its interface has no IP address: it has only link-local GIDs",
    )
    .evidence(path, format!("{} GIDs, none of an IP address", gids.len()))
    .fix(Fix::run(
        "Assign an IP address to the interface",
        format!(
            "ip address add ADDRESS/PREFIX dev {}",
            netdev.unwrap_or_else(|| "INTERFACE".into())
        ),
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::fixture::*;

    const GIDS: &str = "/sys/class/infiniband/mlx5_0/ports/1/gids";

    #[test]
    fn ports_with_an_address_pass() {
        assert_eq!(verdicts(&CHECK, &example::healthy()), [Pass; 2]);
        assert!(
            worst(&CHECK, &example::healthy())
                .summary
                .contains("10.20.30.32")
        );
    }

    #[test]
    fn link_local_gids_alone_fail_next_to_a_gpu_and_are_a_warning_elsewhere() {
        let near = example::healthy().file(
            "/sys/class/infiniband/mlx5_1/ports/1/link_layer",
            "Ethernet\n",
        );
        let found = judged(&CHECK, &near, Fail);
        assert!(
            found.fixes[0].actions[0]
                .to_string()
                .ends_with("dev ibp25s0")
        );
        let far = example::healthy()
            .file(&format!("{GIDS}/2"), UNUSED_GID)
            .file(&format!("{GIDS}/3"), UNUSED_GID);
        assert_eq!(verdict(&CHECK, &far), Warn);
        let master = "/sys/class/net/enp6s0np0/master";
        let bonded = far.link_to(master, "../../../virtual/net/bond0");
        assert_eq!(verdict(&CHECK, &bonded), Info);
    }

    #[test]
    fn an_uncollected_table_is_unknown() {
        let node = example::healthy().without(GIDS).not_collected(GIDS);
        assert_eq!(verdict(&CHECK, &node), Unknown);
    }
}
