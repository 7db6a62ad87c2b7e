//! Pseudonyms, which are consistent throughout an archive.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, Ipv6Addr};

/// An Ethernet address.
pub(super) type Mac = [u8; 6];
/// An InfiniBand GUID, or an IPv6 interface identifier.
pub(super) type Guid = [u8; 8];

/// A kind of name whose pseudonym is the kind and a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    User,
    Serial,
    Uuid,
    Container,
}

/// The pseudonyms assigned so far.
///
/// They preserve what checks need of an address: the device's vendor, whether the address is link-local or IPv4, and
/// which addresses share a network.
#[derive(Debug, Default)]
pub(super) struct Pseudonyms {
    names: BTreeMap<(Kind, String), usize>,
    /// Devices, by the last three bytes, which are assigned by the vendor.
    devices: BTreeMap<[u8; 3], u32>,
    makers: BTreeSet<[u8; 3]>,
    networks: BTreeMap<[u8; 3], u32>,
    hosts: BTreeMap<Ipv4Addr, u8>,
    prefixes: BTreeMap<[u8; 8], u16>,
}

impl Pseudonyms {
    /// Returns the number of a name within its kind, from 1, assigning one if it is new.
    pub(super) fn number(&mut self, kind: Kind, name: &str) -> usize {
        let next = self.names.keys().filter(|(of, _)| *of == kind).count() + 1;
        let name = name.to_ascii_lowercase();
        *self.names.entry((kind, name)).or_insert(next)
    }

    /// Returns the names of a kind seen so far.
    pub(super) fn known(&self, kind: Kind) -> Vec<String> {
        let of_kind = self.names.keys().filter(|(of, _)| *of == kind);
        of_kind.map(|(_, name)| name.clone()).collect()
    }

    /// Returns whether addresses of this vendor and of this device were seen.
    pub(super) fn knows(&self, maker: [u8; 3], device: [u8; 3]) -> bool {
        self.makers.contains(&global(maker)) && self.devices.contains_key(&device)
    }

    fn device(&mut self, last: [u8; 3]) -> [u8; 3] {
        let taken: Vec<u32> = self.devices.values().copied().collect();
        let of = |number: u32| {
            let [_, a, b, c] = number.to_be_bytes();
            [a, b, c]
        };
        if !self.devices.contains_key(&last) {
            // A pseudonym must differ from every original.
            let free = (1..).find(|number| {
                !taken.contains(number)
                    && of(*number) != last
                    && !self.devices.contains_key(&of(*number))
            });
            self.devices.insert(last, free.unwrap_or(0));
        }
        of(self.devices[&last])
    }

    /// Replaces the device part of the address, and keeps the vendor part.
    pub(super) fn mac(&mut self, mac: Mac) -> Mac {
        let [a, b, c, x, y, z] = mac;
        // All zeros and all ones name no device.
        if mac == [0; 6] || mac == [0xff; 6] {
            return mac;
        }
        self.makers.insert(global([a, b, c]));
        let [x, y, z] = self.device([x, y, z]);
        [a, b, c, x, y, z]
    }

    /// Replaces the device part, and keeps the vendor part, and the middle two bytes if they are common ones.
    pub(super) fn guid(&mut self, guid: Guid) -> Guid {
        let [a, b, c, d, e, x, y, z] = guid;
        if guid == [0; 8] || guid == [0xff; 8] {
            return guid;
        }
        self.makers.insert(global([a, b, c]));
        let [x, y, z] = self.device([x, y, z]);
        let [d, e] = match [d, e] {
            usual @ ([0x03, 0x00] | [0xff, 0xfe] | [0, 0]) => usual,
            _ => [0, 0],
        };
        [a, b, c, d, e, x, y, z]
    }

    /// Returns an address in the benchmarking networks (RFC 2544). Addresses that differ only in the last byte share a
    /// network.
    pub(super) fn ipv4(&mut self, address: Ipv4Addr) -> Ipv4Addr {
        let octets = address.octets();
        // Network masks start with 255.
        let speaks_for_itself = address.is_loopback()
            || address.is_unspecified()
            || address.is_multicast()
            || octets[0] == 255
            || octets[0] == 0;
        if speaks_for_itself {
            return address;
        }
        let [a, b, c, _] = octets;
        let next = self.networks.len() as u32;
        let network = *self.networks.entry([a, b, c]).or_insert(next) % 512;
        let same = |other: &&Ipv4Addr| other.octets()[..3] == octets[..3];
        let next = self.hosts.keys().filter(same).count() as u8;
        let host = *self.hosts.entry(address).or_insert(next.wrapping_add(1));
        Ipv4Addr::new(198, 18 + (network >> 8) as u8, network as u8, host)
    }

    /// Returns a pseudonym for an IPv6 address, or for a GID of InfiniBand or RoCE, which have the same layout.
    pub(super) fn ipv6(&mut self, address: Ipv6Addr) -> Ipv6Addr {
        if address.is_unspecified() || address.is_loopback() {
            return address;
        }
        if let Some(mapped) = address.to_ipv4_mapped() {
            return self.ipv4(mapped).to_ipv6_mapped();
        }
        let octets = address.octets();
        let mut prefix = [0; 8];
        prefix.copy_from_slice(&octets[..8]);
        let mut own = [0; 8];
        own.copy_from_slice(&octets[8..]);
        // The link-local prefix, which is also InfiniBand's default, and multicast prefixes do not identify a site.
        let is_common = prefix == [0xfe, 0x80, 0, 0, 0, 0, 0, 0] || prefix[0] == 0xff;
        if !is_common {
            let next = self.prefixes.len() as u16;
            let number = *self.prefixes.entry(prefix).or_insert(next);
            // 2001:db8::/32, for documentation (RFC 3849).
            prefix = [0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0];
            prefix[6..].copy_from_slice(&number.to_be_bytes());
        }
        let own = self.guid(own);
        let mut made = [0; 16];
        made[..8].copy_from_slice(&prefix);
        made[8..].copy_from_slice(&own);
        Ipv6Addr::from(made)
    }
}

/// Returns the vendor part without the bit for locally administered addresses, which IPv6 interface identifiers invert.
fn global([a, b, c]: [u8; 3]) -> [u8; 3] {
    [a & !0x02, b, c]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_addresses_of_a_device_stay_together() {
        let mut all = Pseudonyms::default();
        let mac = all.mac([0x9c, 0x63, 0xc0, 1, 2, 3]);
        let guid = all.guid([0x9c, 0x63, 0xc0, 0x03, 0x00, 1, 2, 3]);
        assert_eq!(mac[..3], [0x9c, 0x63, 0xc0]);
        assert_eq!(mac[3..], guid[5..]);
        assert_eq!(all.mac([0x9c, 0x63, 0xc0, 1, 2, 3]), mac);
        assert_ne!(all.mac([0x9c, 0x63, 0xc0, 1, 2, 4]), mac);
        assert_eq!(all.mac([0; 6]), [0; 6]);
    }

    #[test]
    fn no_device_gets_its_own_number() {
        let mut all = Pseudonyms::default();
        for last in 1..20_u8 {
            let mac = all.mac([2, 0, 0, 0, 0, last]);
            assert_ne!(mac[5], last);
        }
    }

    #[test]
    fn networks_stay_networks_and_kinds_stay_kinds() {
        let mut all = Pseudonyms::default();
        let mut of = |text: &str| all.ipv4(text.parse().unwrap()).octets();
        let (a, b, c) = (of("10.20.30.1"), of("10.20.30.2"), of("10.20.31.1"));
        assert_eq!(a[..3], b[..3]);
        assert_ne!(a[..3], c[..3]);
        assert_ne!(a, b);
        assert_eq!(of("127.0.0.1"), [127, 0, 0, 1]);
        assert_eq!(of("255.255.255.0"), [255, 255, 255, 0]);
        let mut of = |text: &str| all.ipv6(text.parse().unwrap());
        assert!(of("::ffff:10.20.30.1").to_ipv4_mapped().is_some());
        assert_eq!(of("fe80::9c63:c0ff:fe01:203").segments()[0], 0xfe80);
        assert_eq!(of("2a01:4f8::1").segments()[..2], [0x2001, 0x0db8]);
        assert_eq!(of("::"), Ipv6Addr::UNSPECIFIED);
    }
}
