//! The layouts of rdma_user_cm.h, ABI 4: fields by their places in commands and answers.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

/// A command after its header. What it is too short for is zero, as in the structures of librdmacm.
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl Fields<'_> {
    pub(super) fn bytes<const N: usize>(&self, at: usize) -> [u8; N] {
        let mut bytes = [0; N];
        let there = self.0.get(at..).unwrap_or_default();
        let len = there.len().min(N);
        bytes[..len].copy_from_slice(&there[..len]);
        bytes
    }

    pub(super) fn u8(&self, at: usize) -> u8 {
        u8::from_ne_bytes(self.bytes(at))
    }

    pub(super) fn u16(&self, at: usize) -> u16 {
        u16::from_ne_bytes(self.bytes(at))
    }

    pub(super) fn u32(&self, at: usize) -> u32 {
        u32::from_ne_bytes(self.bytes(at))
    }

    pub(super) fn u64(&self, at: usize) -> u64 {
        u64::from_ne_bytes(self.bytes(at))
    }

    /// A socket address of IP; `None` for another family.
    pub(super) fn address(&self, at: usize) -> Option<SocketAddr> {
        let port = u16::from_be_bytes(self.bytes(at + 2));
        match i32::from(self.u16(at)) {
            libc::AF_INET => {
                let v4 = Ipv4Addr::from(self.bytes::<4>(at + 4));
                Some(SocketAddr::new(v4.into(), port))
            }
            libc::AF_INET6 => {
                let v6 = Ipv6Addr::from(self.bytes::<16>(at + 8));
                let scope = self.u32(at + 24);
                Some(SocketAddrV6::new(v6, port, 0, scope).into())
            }
            _ => None,
        }
    }
}

/// An answer. It has a fixed length.
pub(super) struct Answer<const N: usize>(pub(super) [u8; N]);

impl<const N: usize> Answer<N> {
    pub(super) fn new() -> Self {
        Self([0; N])
    }

    /// Stores bytes at a place that the layout has.
    pub(super) fn put(&mut self, at: usize, bytes: &[u8]) -> &mut Self {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
        self
    }

    pub(super) fn u32(&mut self, at: usize, value: u32) -> &mut Self {
        self.put(at, &value.to_ne_bytes())
    }

    pub(super) fn u16(&mut self, at: usize, value: u16) -> &mut Self {
        self.put(at, &value.to_ne_bytes())
    }

    /// Stores a socket address, and returns its length.
    pub(super) fn address(&mut self, at: usize, address: SocketAddr) -> u16 {
        match address {
            SocketAddr::V4(v4) => {
                self.u16(at, libc::AF_INET as u16);
                self.put(at + 2, &v4.port().to_be_bytes());
                self.put(at + 4, &v4.ip().octets());
                16
            }
            SocketAddr::V6(v6) => {
                self.u16(at, libc::AF_INET6 as u16);
                self.put(at + 2, &v6.port().to_be_bytes());
                self.put(at + 8, &v6.ip().octets());
                self.u32(at + 24, v6.scope_id());
                28
            }
        }
    }

    /// Stores an address vector (`ib_uverbs_ah_attr`) to a peer.
    pub(super) fn vector(&mut self, at: usize, peer: IpAddr) {
        self.put(at, &gid(peer).octets());
        self.put(at + 21, &[HOP_LIMIT]);
        // The address is global, through port 1.
        self.put(at + 29, &[1, 1]);
    }
}

/// The hop limit of paths.
pub(super) const HOP_LIMIT: u8 = 64;
/// The only partition, in the byte order of the network.
pub(super) const PARTITION: [u8; 2] = [0xff; 2];
/// The most private data of a command.
pub(super) const MOST_PRIVATE: usize = 256;

/// The GID of an address.
pub(super) fn gid(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}

/// `struct rdma_ucm_conn_param`.
#[derive(Clone, Copy)]
pub(super) struct ConnectionParameters {
    pub(super) qpn: u32,
    pub(super) private_data: [u8; MOST_PRIVATE],
    pub(super) private_len: u8,
    pub(super) has_shared_receives: bool,
    pub(super) responder_resources: u8,
    pub(super) initiator_depth: u8,
    pub(super) has_flow_control: bool,
    pub(super) retry_count: u8,
    pub(super) rnr_retry_count: u8,
    pub(super) is_valid: bool,
}

impl ConnectionParameters {
    pub(super) const LEN: usize = 272;

    pub(super) fn parse(fields: &Fields<'_>, at: usize) -> Self {
        Self {
            qpn: fields.u32(at),
            private_data: fields.bytes(at + 8),
            private_len: fields.u8(at + 264),
            has_shared_receives: fields.u8(at + 265) != 0,
            responder_resources: fields.u8(at + 266),
            initiator_depth: fields.u8(at + 267),
            has_flow_control: fields.u8(at + 268) != 0,
            retry_count: fields.u8(at + 269).min(7),
            rnr_retry_count: fields.u8(at + 270).min(7),
            is_valid: fields.u8(at + 271) != 0,
        }
    }

    /// The private data, in the room of a message after what is there already; `None` if it does not fit.
    pub(super) fn private_in<const N: usize>(
        &self,
        mut room: [u8; N],
        at: usize,
    ) -> Option<[u8; N]> {
        let data = &self.private_data[..self.private_len.into()];
        room.get_mut(at..at + data.len())?.copy_from_slice(data);
        Some(room)
    }
}

/// `struct rdma_ucm_event_resp`.
pub(super) type EventAnswer = Answer<336>;

/// The place of the parameters of an event.
const PARAMETERS: usize = 20;

impl EventAnswer {
    pub(super) fn event(uid: u64, handle: u32, event: Event, status: i32) -> Self {
        let mut answer = Self::new();
        answer.put(0, &uid.to_ne_bytes());
        answer.u32(8, handle).u32(12, event as u32);
        answer.put(16, &status.to_ne_bytes());
        answer
    }

    /// The parameters of a connection: its private data, and the eight bytes after their length.
    pub(super) fn connection(&mut self, qpn: u32, private_data: &[u8], terms: [u8; 6]) {
        self.u32(PARAMETERS, qpn);
        self.put(PARAMETERS + 8, private_data);
        self.put(PARAMETERS + 264, &[private_data.len() as u8]);
        self.put(PARAMETERS + 265, &terms);
    }

    /// The argument of an event that the program has written.
    pub(super) fn argument(&mut self, argument: [u8; 8]) {
        self.put(PARAMETERS, &argument);
    }

    /// The parameters of a datagram service.
    pub(super) fn datagrams(&mut self, peer: IpAddr, (qpn, qkey): (u32, u32), private_data: &[u8]) {
        self.u32(PARAMETERS, qpn).u32(PARAMETERS + 4, qkey);
        self.vector(PARAMETERS + 8, peer);
        self.put(PARAMETERS + 40, private_data);
        self.put(PARAMETERS + 296, &[private_data.len() as u8]);
    }
}

/// `enum rdma_cm_event_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    AddrResolved = 0,
    AddrError = 1,
    RouteResolved = 2,
    ConnectRequest = 4,
    ConnectResponse = 5,
    Unreachable = 7,
    Rejected = 8,
    Established = 9,
    Disconnected = 10,
    MulticastJoin = 12,
    TimewaitExit = 15,
    User = 18,
    Internal = 19,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_data_that_does_not_fit_is_refused() {
        let mut bytes = [0; ConnectionParameters::LEN];
        bytes[8..8 + MOST_PRIVATE].fill(5);
        let placed = |len: u8| {
            let mut bytes = bytes;
            bytes[264] = len;
            ConnectionParameters::parse(&Fields(&bytes), 0).private_in([0; 92], 36)
        };
        assert_eq!(placed(57), None);
        assert_eq!(placed(255), None);
        let room = placed(56).unwrap();
        assert_eq!((room[35], room[36], room[91]), (0, 5, 5));
        assert_eq!(placed(1).unwrap()[37], 0);
    }

    #[test]
    fn a_command_that_is_too_short_has_zeros() {
        let fields = Fields(&[1, 2, 3]);
        assert_eq!(fields.bytes::<4>(1), [2, 3, 0, 0]);
        assert_eq!(fields.u32(usize::MAX), 0);
        assert_eq!(fields.address(0), None);
    }
}
