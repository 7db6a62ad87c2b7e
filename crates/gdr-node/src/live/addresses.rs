//! The IP addresses of interfaces.

use std::fmt::Write as _;
use std::net::{Ipv4Addr, Ipv6Addr};

use crate::source::{Datum, Source};

/// Returns the file of [`ADDRESSES`](crate::virtual_path::ADDRESSES).
pub(super) fn read(root: &dyn Source) -> Datum<Vec<u8>> {
    let routes = root.text("/proc/net/route")?;
    let tables = root.text("/proc/net/fib_trie")?;
    // Missing if IPv6 is off.
    let sixes = root.text("/proc/net/if_inet6").ok().unwrap_or_default();
    let interfaces = root.list("/sys/class/net")?;
    let mut lines: String = interfaces.iter().map(|name| format!("{name}\n")).collect();
    let local = local(&tables);
    for (interface, network, mask) in routes.lines().filter_map(network) {
        for address in &local {
            if address.to_bits() & mask == network {
                let _ = writeln!(lines, "{interface} {address}");
            }
        }
    }
    for (interface, address) in sixes.lines().filter_map(six) {
        let _ = writeln!(lines, "{interface} {address}");
    }
    Ok(lines.into_bytes())
}

/// Returns this host's IPv4 addresses from the kernel's routing tables, which do not name interfaces.
fn local(tables: &str) -> Vec<Ipv4Addr> {
    let mut found = Vec::new();
    let mut last: Option<Ipv4Addr> = None;
    for line in tables.lines().map(str::trim) {
        if let Some(address) = line.strip_prefix("|-- ") {
            last = address.parse().ok();
        } else if line == "/32 host LOCAL" {
            found.extend(last);
        }
    }
    found.sort_unstable();
    found.dedup();
    found
}

/// Parses a route without a gateway into interface, network and mask. The file shows in-memory words as numbers.
fn network(line: &str) -> Option<(&str, u32, u32)> {
    let mut fields = line.split_whitespace();
    let interface = fields.next()?;
    let mut word = |skip| Some(u32::from_str_radix(fields.nth(skip)?, 16).ok()?.to_be());
    let (network, gateway, mask) = (word(0)?, word(0)?, word(4)?);
    // A host route is not the network of an address.
    (gateway == 0 && mask != 0 && mask != u32::MAX).then_some((interface, network, mask))
}

fn six(line: &str) -> Option<(&str, Ipv6Addr)> {
    let mut fields = line.split_whitespace();
    let address = u128::from_str_radix(fields.next()?, 16).ok()?;
    Some((fields.nth(4)?, Ipv6Addr::from_bits(address)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::MemorySource;

    #[test]
    fn addresses_are_those_in_the_networks_of_their_interfaces() {
        let node = MemorySource::new()
            .directory("/sys/class/net/eth0")
            .directory("/sys/class/net/ib0")
            .file(
                "/proc/net/route",
                format!(
                    "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\n\
                     eth0\t00000000\t{:08X}\t0003\t0\t0\t0\t00000000\t0\n\
                     eth0\t{:08X}\t00000000\t0001\t0\t0\t0\t{mask:08X}\t0\n\
                     ib0\t{:08X}\t00000000\t0001\t0\t0\t0\t{mask:08X}\t0\n",
                    u32::from_ne_bytes([192, 0, 2, 1]),
                    u32::from_ne_bytes([192, 0, 2, 0]),
                    u32::from_ne_bytes([10, 20, 30, 0]),
                    mask = u32::from_ne_bytes([255, 255, 255, 0]),
                ),
            )
            .file(
                "/proc/net/fib_trie",
                "Local:\n  |-- 10.20.30.7\n     /32 host LOCAL\n  |-- 10.20.30.255\n     /32 link \
                 BROADCAST\n  |-- 127.0.0.1\n     /32 host LOCAL\n  |-- 192.0.2.2\n     /32 host \
                 LOCAL\n",
            )
            .file(
                "/proc/net/if_inet6",
                "fd000000000000000000000000000002 04 40 00 82     ib0\n",
            );
        let text = String::from_utf8(read(&node).unwrap()).unwrap();
        let expected = "eth0\nib0\neth0 192.0.2.2\nib0 10.20.30.7\nib0 fd00::2\n";
        assert_eq!(text, expected);
        assert!(read(&MemorySource::new()).is_err());
    }
}
