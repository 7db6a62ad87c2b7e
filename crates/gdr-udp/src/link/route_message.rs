//! rtnetlink(7) messages about interfaces.

/// Lengths of `struct nlmsghdr`, `struct rtattr`, `struct ifinfomsg` and `struct ifaddrmsg`.
pub(super) const HEADER: usize = 16;
pub(super) const ATTRIBUTE: usize = 4;
pub(super) const INTERFACE: usize = 16;
pub(super) const ADDRESS: usize = 8;
/// `NLMSG_ALIGNTO` and `RTA_ALIGNTO`.
const ALIGNMENT: usize = 4;
/// The bits of an attribute's type that are not flags (`NLA_TYPE_MASK`).
const TYPE: u16 = 0x3fff;

/// An interface as the kernel describes it (`RTM_NEWLINK`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Interface {
    pub(super) index: u32,
    /// `IFF_UP` and other flags.
    pub(super) flags: u32,
    pub(super) mtu: Option<u32>,
}

/// Returns the type of the first message in a datagram.
pub(super) fn kind(datagram: &[u8]) -> Option<u16> {
    half(datagram, 4)
}

/// Parses the interface that a datagram describes.
pub(super) fn interface(datagram: &[u8]) -> Option<Interface> {
    let len = usize::try_from(word(datagram, 0)?).ok()?;
    let body = datagram.get(HEADER..len)?;
    if kind(datagram)? != libc::RTM_NEWLINK {
        return None;
    }
    let mtu = attributes(body.get(INTERFACE..)?)
        .find(|(kind, _)| *kind == libc::IFLA_MTU)
        .and_then(|(_, value)| word(value, 0));
    Some(Interface {
        index: word(body, 4)?,
        flags: word(body, 8)?,
        mtu,
    })
}

/// Iterates over attribute types and values, up to the first malformed attribute.
fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let len = usize::from(half(bytes, 0)?);
        let kind = half(bytes, 2)? & TYPE;
        let value = bytes.get(ATTRIBUTE..len)?;
        let next = len.next_multiple_of(ALIGNMENT).min(bytes.len());
        bytes = &bytes[next..];
        Some((kind, value))
    })
}

/// Reads a 32-bit number in host byte order.
fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let raw = bytes.get(at..)?.first_chunk()?;
    Some(u32::from_ne_bytes(*raw))
}

/// Reads a 16-bit number in host byte order.
fn half(bytes: &[u8], at: usize) -> Option<u16> {
    let raw = bytes.get(at..)?.first_chunk()?;
    Some(u16::from_ne_bytes(*raw))
}

/// Returns a query for the interface with this index, or with this name if the index is 0.
pub(super) fn request(index: u32, name: &str) -> Vec<u8> {
    let mut request = vec![0; HEADER + INTERFACE];
    request[4..6].copy_from_slice(&libc::RTM_GETLINK.to_ne_bytes());
    let flags = libc::NLM_F_REQUEST as u16;
    request[6..8].copy_from_slice(&flags.to_ne_bytes());
    request[HEADER + 4..][..4].copy_from_slice(&index.to_ne_bytes());
    if index == 0 {
        let len = (ATTRIBUTE + name.len() + 1) as u16;
        request.extend(len.to_ne_bytes());
        request.extend(libc::IFLA_IFNAME.to_ne_bytes());
        request.extend(name.as_bytes());
        request.push(0);
        request.resize(request.len().next_multiple_of(ALIGNMENT), 0);
    }
    let len = request.len() as u32;
    request[0..4].copy_from_slice(&len.to_ne_bytes());
    request
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_mtu_of_an_interface_is_found_behind_other_attributes() {
        let mut message = request(7, "");
        message[4..6].copy_from_slice(&libc::RTM_NEWLINK.to_ne_bytes());
        message[HEADER + 8..][..4].copy_from_slice(&0x1003_u32.to_ne_bytes());
        let expected = |mtu| Interface {
            index: 7,
            flags: 0x1003,
            mtu,
        };
        assert_eq!(interface(&message), Some(expected(None)));
        for (kind, value) in [
            (libc::IFLA_IFNAME, &b"eth0\0"[..]),
            (libc::IFLA_MTU, &1500_u32.to_ne_bytes()),
        ] {
            message.extend((ATTRIBUTE as u16 + value.len() as u16).to_ne_bytes());
            message.extend(kind.to_ne_bytes());
            message.extend(value);
            message.resize(message.len().next_multiple_of(ALIGNMENT), 0);
        }
        let len = message.len() as u32;
        message[0..4].copy_from_slice(&len.to_ne_bytes());
        assert_eq!(interface(&message), Some(expected(Some(1500))));
        message[4..6].copy_from_slice(&libc::RTM_DELLINK.to_ne_bytes());
        assert_eq!(interface(&message), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(
            mut bytes in prop::collection::vec(any::<u8>(), 0..200),
        ) {
            let _read = interface(&bytes);
            if bytes.len() >= HEADER {
                let len = bytes.len() as u32;
                bytes[0..4].copy_from_slice(&len.to_ne_bytes());
                bytes[4..6].copy_from_slice(&libc::RTM_NEWLINK.to_ne_bytes());
                let _read = interface(&bytes);
            }
        }
    }
}
