//! Interfaces, addresses and queueing disciplines, through rtnetlink(7).

use std::fs::File;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with,
};

// linux/netlink.h and linux/rtnetlink.h.
const REQUEST: u16 = 0x1;
const ACKNOWLEDGED: u16 = 0x4;
const EXCLUSIVE: u16 = 0x200;
const CREATE: u16 = 0x400;
const NEW_LINK: u16 = 16;
const NEW_ADDRESS: u16 = 20;
const NEW_QDISC: u16 = 36;
const AF_INET: u8 = 2;

/// Index of an interface in its network namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Index(pub(super) u32);

impl Index {
    /// The loopback interface, the first one of every namespace.
    pub(super) const LOOPBACK: Self = Self(1);
}

/// Both ends of a virtual cable: a port of a bridge here, and an interface in another namespace.
#[derive(Debug)]
pub(super) struct Cable<'a> {
    pub(super) port: (Index, String),
    pub(super) bridge: Index,
    pub(super) peer: (Index, String),
    pub(super) peer_namespace: &'a File,
    pub(super) mtu: u32,
}

/// What a link does to the packets sent over it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Impairment {
    pub(super) latency: Option<Duration>,
    /// Bits in a second.
    pub(super) rate: Option<u64>,
    /// Share of lost packets, 0 to 1.
    pub(super) loss: Option<f64>,
}

impl Impairment {
    pub(super) fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

/// A socket for requests about the network namespace in which it was opened.
#[derive(Debug)]
pub(super) struct RouteSocket(OwnedFd);

impl RouteSocket {
    pub(super) fn open() -> Result<Self, Errno> {
        let (family, kind) = (AddressFamily::NETLINK, SocketType::RAW);
        // The default protocol is NETLINK_ROUTE.
        socket_with(family, kind, SocketFlags::CLOEXEC, None).map(Self)
    }

    pub(super) fn add_bridge(&self, index: Index, name: &str) -> Result<(), Errno> {
        let mut message = Message::new(NEW_LINK, CREATE | EXCLUSIVE);
        message.interface(index, IS_UP);
        message.named(name);
        message.attribute(LINK_INFO, |it| it.text(INFO_KIND, "bridge"));
        self.request(message)
    }

    pub(super) fn add_cable(&self, cable: &Cable<'_>) -> Result<(), Errno> {
        let mut message = Message::new(NEW_LINK, CREATE | EXCLUSIVE);
        message.interface(cable.port.0, IS_UP);
        message.named(&cable.port.1);
        message.number(LINK_MASTER, cable.bridge.0);
        message.number(LINK_MTU, cable.mtu);
        message.attribute(LINK_INFO, |info| {
            info.text(INFO_KIND, "veth");
            info.attribute(INFO_DATA, |data| {
                data.attribute(PEER_OF_VETH, |peer| {
                    peer.interface(cable.peer.0, 0);
                    peer.named(&cable.peer.1);
                    peer.number(LINK_MTU, cable.mtu);
                    let namespace = cable.peer_namespace.as_raw_fd();
                    peer.attribute(LINK_NAMESPACE, |it| it.bytes(&namespace.to_ne_bytes()));
                });
            });
        });
        self.request(message)
    }

    pub(super) fn set_up(&self, index: Index) -> Result<(), Errno> {
        let mut message = Message::new(NEW_LINK, 0);
        message.interface(index, IS_UP);
        self.request(message)
    }

    /// Adds an address of a network of 256.
    pub(super) fn add_address(&self, index: Index, address: Ipv4Addr) -> Result<(), Errno> {
        let mut message = Message::new(NEW_ADDRESS, CREATE | EXCLUSIVE);
        // `struct ifaddrmsg`: family, prefix length, flags, scope, interface.
        message.bytes(&[AF_INET, 24, 0, 0]);
        message.bytes(&index.0.to_ne_bytes());
        let [a, b, c, _] = address.octets();
        for (kind, address) in [
            (1, address.octets()),
            (2, address.octets()),
            (4, [a, b, c, 255]),
        ] {
            message.attribute(kind, |it| it.bytes(&address));
        }
        self.request(message)
    }

    /// Makes netem (tc-netem(8)) the queueing discipline of an interface.
    pub(super) fn add_netem(&self, index: Index, impairment: &Impairment) -> Result<(), Errno> {
        let mut message = Message::new(NEW_QDISC, CREATE | EXCLUSIVE);
        // `struct tcmsg`: family, interface, handle, parent (the root), info.
        message.bytes(&[0; 4]);
        for word in [index.0, 0, u32::MAX, 0] {
            message.bytes(&word.to_ne_bytes());
        }
        message.text(1, "netem");
        message.attribute(2, |it| it.netem(impairment));
        self.request(message)
    }

    /// Makes a request. The kernel has answered when it is sent.
    fn request(&self, message: Message) -> Result<(), Errno> {
        let bytes = message.finished();
        sendto(
            &self.0,
            &bytes,
            SendFlags::empty(),
            &SocketAddrNetlink::new(0, 0),
        )?;
        let mut answer = [0_u8; 4096];
        let (len, _) = recv(&self.0, &mut answer[..], RecvFlags::DONTWAIT)?;
        // `struct nlmsgerr` after the header: a negative error number, or 0.
        let error = answer[..len].get(16..20).and_then(|it| it.try_into().ok());
        match error.map(i32::from_ne_bytes) {
            Some(0) => Ok(()),
            Some(error) => Err(Errno::from_raw_os_error(-error)),
            None => Err(Errno::PROTO),
        }
    }
}

// linux/if.h, linux/if_link.h and linux/veth.h.
const IS_UP: u32 = 1;
const LINK_NAME: u16 = 3;
const LINK_MTU: u16 = 4;
const LINK_MASTER: u16 = 10;
const LINK_INFO: u16 = 18;
const LINK_NAMESPACE: u16 = 28;
const INFO_KIND: u16 = 1;
const INFO_DATA: u16 = 2;
const PEER_OF_VETH: u16 = 1;

/// A request that the kernel acknowledges: attributes, possibly nested.
struct Message(Vec<u8>);

impl Message {
    fn new(kind: u16, flags: u16) -> Self {
        let mut message = Self(Vec::new());
        // `struct nlmsghdr`: length, kind, flags, sequence number, port.
        message.bytes(&[0; 4]);
        message.bytes(&kind.to_ne_bytes());
        message.bytes(&(flags | REQUEST | ACKNOWLEDGED).to_ne_bytes());
        message.bytes(&[0; 8]);
        message
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend(bytes);
    }

    /// Adds an attribute whose value is what `add` adds.
    fn attribute(&mut self, kind: u16, add: impl FnOnce(&mut Self)) {
        let start = self.0.len();
        self.bytes(&[0, 0]);
        self.bytes(&kind.to_ne_bytes());
        add(self);
        let len = (self.0.len() - start) as u16;
        self.0[start..start + 2].copy_from_slice(&len.to_ne_bytes());
        self.0.resize(self.0.len().next_multiple_of(4), 0);
    }

    fn text(&mut self, kind: u16, text: &str) {
        self.attribute(kind, |it| {
            it.bytes(text.as_bytes());
            it.bytes(&[0]);
        });
    }

    fn number(&mut self, kind: u16, number: u32) {
        self.attribute(kind, |it| it.bytes(&number.to_ne_bytes()));
    }

    fn named(&mut self, name: &str) {
        self.text(LINK_NAME, name);
    }

    /// Appends `struct ifinfomsg`: family and type, interface, flags, and the mask of changed flags.
    fn interface(&mut self, index: Index, flags: u32) {
        self.bytes(&[0; 4]);
        for word in [index.0, flags, flags] {
            self.bytes(&word.to_ne_bytes());
        }
    }

    /// Appends `struct tc_netem_qopt` and its attributes (linux/pkt_sched.h).
    fn netem(&mut self, impairment: &Impairment) {
        /// More packets than a fast link delays. A slow link drops what exceeds this.
        const LIMIT: u32 = 10_000;
        const RATE: u16 = 6;
        const RATE64: u16 = 8;
        const LATENCY64: u16 = 10;
        let loss = impairment.loss.unwrap_or(0.0) * f64::from(u32::MAX);
        // Latency in ticks (0, as it is in an attribute), limit, loss, gap, duplicates, jitter.
        for word in [0, LIMIT, loss as u32, 0, 0, 0] {
            self.bytes(&word.to_ne_bytes());
        }
        if let Some(latency) = impairment.latency {
            let nanoseconds = i64::try_from(latency.as_nanos()).unwrap_or(i64::MAX);
            self.attribute(LATENCY64, |it| it.bytes(&nanoseconds.to_ne_bytes()));
        }
        if let Some(bits) = impairment.rate {
            let bytes = bits / 8;
            let short = u32::try_from(bytes).unwrap_or(u32::MAX);
            if short == u32::MAX {
                self.attribute(RATE64, |it| it.bytes(&bytes.to_ne_bytes()));
            }
            // Packet overhead and cell sizes are 0.
            self.attribute(RATE, |it| {
                for word in [short, 0, 0, 0] {
                    it.bytes(&word.to_ne_bytes());
                }
            });
        }
    }

    fn finished(mut self) -> Vec<u8> {
        let len = self.0.len() as u32;
        self.0[..4].copy_from_slice(&len.to_ne_bytes());
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn netem_has_the_layout_of_the_kernel() {
        let mut message = Message(Vec::new());
        message.netem(&Impairment {
            latency: Some(Duration::from_millis(1)),
            rate: Some(80_000_000_000),
            loss: Some(0.5),
        });
        let words: Vec<_> = message
            .0
            .chunks(4)
            .map(|word| u32::from_ne_bytes(word.try_into().unwrap()))
            .collect();
        let attribute = |len: u32, kind: u32| {
            u32::from_ne_bytes(
                [(len as u16).to_ne_bytes(), (kind as u16).to_ne_bytes()]
                    .concat()
                    .try_into()
                    .unwrap(),
            )
        };
        let (low, high) = match cfg!(target_endian = "little") {
            true => (1_000_000, 0),
            false => (0, 1_000_000),
        };
        assert_eq!(
            words[..9],
            [
                0,
                10_000,
                u32::MAX / 2,
                0,
                0,
                0,
                attribute(12, 10),
                low,
                high
            ]
        );
        assert_eq!(words[9], attribute(12, 8));
        assert_eq!(words[12..], [attribute(20, 6), u32::MAX, 0, 0, 0]);
    }

    #[test]
    fn attributes_are_padded_to_words_and_their_lengths_are_not() {
        let mut message = Message::new(NEW_LINK, 0);
        message.named("abcd");
        let bytes = message.finished();
        assert_eq!(bytes.len(), 16 + 12);
        assert_eq!(bytes[..4], 28_u32.to_ne_bytes());
        assert_eq!(bytes[16..18], 9_u16.to_ne_bytes());
    }
}
