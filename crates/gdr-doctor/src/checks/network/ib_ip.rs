use std::net::IpAddr;

use super::ports::Port;
use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    id: CheckId("ib.ip"),
    title: "InfiniBand ports have an IP address",
    why: "Verbs over InfiniBand need none. Programs that find each other by rdma_cm or by TCP over \
          the same fabric need one on the port's interface (IP over InfiniBand).",
    inputs: "The addresses of the interface: /proc/net/route, fib_trie and if_inet6, or \
             `ip address`.",
    criteria: "pass: an IPv4 or a global IPv6 address. info: none. skip: the port has no interface, \
               its interface is part of a bond, or no InfiniBand port is active. unknown: not \
               collected.",
    sources: &[
        "Linux kernel, Documentation/infiniband/ipoib.rst",
        "rdma_cm(7)",
    ],
    scope: Scope::Port(Which::ActiveInfiniband, judge),
    ..super::CHECK
};

fn judge(context: &Context<'_>, port: &Port<'_>) -> Judgement {
    let interface = match port.interface(context) {
        Err(Unjudged::Unknown(_, Absence::Missing)) => {
            return Err(Unjudged::skip("it has no interface for IP over InfiniBand"));
        }
        interface => &interface?.name,
    };
    if let Some(bond) = port.bond(context) {
        let skip = format!("its interface is part of {bond}, which has the addresses");
        return Err(Unjudged::skip(skip));
    }
    let lines = context
        .text(virtual_path::ADDRESSES)
        .known("its IP address")?;
    let address = lines.lines().find_map(|line| {
        let address: IpAddr = line
            .strip_prefix(interface)?
            .strip_prefix(' ')?
            .parse()
            .ok()?;
        let is_local = matches!(address, IpAddr::V6(six) if six.is_unicast_link_local());
        (!is_local).then_some(address)
    });
    // A page may show the addresses of other interfaces only.
    let is_whole = lines.lines().any(|line| line == interface);
    if address.is_none() && !is_whole {
        return Err(Unjudged::Unknown(
            "its IP address".into(),
            Absence::NotCollected,
        ));
    }
    Ok(match address {
        Some(address) => Finding::pass(format!("{interface} has the address {address}")),
        None => Finding::info(format!(
            "{interface} has no IP address: programs that connect by rdma_cm do not find it"
        ))
        .fix(Fix::run(
            "Assign an IP address to the interface, where programs need one",
            format!("ip address add ADDRESS/PREFIX dev {interface}"),
        )),
    }
    .evidence(virtual_path::ADDRESSES, interface))
}

#[cfg(test)]
mod tests {
    use snapshot::assert_contains;

    use super::*;
    use crate::checks::fixture::*;

    fn with(lines: &str) -> MemorySource {
        example::healthy().file(virtual_path::ADDRESSES, lines)
    }

    #[test]
    fn an_address_of_the_ports_interface_passes_and_none_is_info() {
        let all: String = (0..256)
            .map(|bus| format!("ibp{bus}s0 10.0.0.{bus}\n"))
            .collect();
        assert_eq!(verdict(&CHECK, &with(&all)), Pass);
        let bare: String = (0..256).map(|bus| format!("ibp{bus}s0\n")).collect();
        let found = judged(
            &CHECK,
            &with(&(bare + "ibp25s0 fe80::1\nibp25s0x 10.0.0.1\n")),
            Info,
        );
        let command = found.fixes[0].actions[0].to_string();
        assert_contains!(command, "dev ibp");
    }

    #[test]
    fn uncollected_addresses_are_unknown() {
        assert_eq!(verdict(&CHECK, &with("lo 127.0.0.1\n")), Unknown);
        let node = example::healthy()
            .without(virtual_path::ADDRESSES)
            .not_collected(virtual_path::ADDRESSES);
        assert_eq!(verdict(&CHECK, &node), Unknown);
    }
}
