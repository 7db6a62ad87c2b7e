//! Communication identifiers (`rdma_cm_id`).

use std::ffi::c_int;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use gdr_cm::{BoundPort, CommId, Families, PortRequest, Rep, Req, Reuse, ServiceId};
use gdr_nic::{Psn, Qpn, Reliability};
use gdr_verbs_sys::ibv_qp_type as Kind;

use super::abi::ConnectionParameters;
use super::channel::Channel;
use crate::errno::Errno;

/// `RDMA_PS_TCP` and so on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PortSpace(u16);

const IPOIB: u16 = 0x0002;
const TCP: u16 = 0x0106;
const UDP: u16 = 0x0111;
const IB: u16 = 0x013f;

impl PortSpace {
    /// A port space, and the kind of its queue pairs: `asked` in the one that has several. `None` for others.
    pub(super) fn of(number: u16, asked: Kind) -> Option<(Self, Kind)> {
        let kind = match number {
            TCP => Kind::IBV_QPT_RC,
            UDP | IPOIB => Kind::IBV_QPT_UD,
            IB => asked,
            _ => return None,
        };
        Some((Self(number), kind))
    }

    /// The queue key of queue pairs for datagrams (`RDMA_UDP_QKEY`).
    pub(super) const QKEY: u32 = 0x0123_4567;

    pub(super) fn service(self, port: u16) -> ServiceId {
        ServiceId::of_port(self.0, port)
    }
}

/// How far an identifier has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    New,
    AddressResolved,
    RouteResolved,
    /// A connection or exchange exists, or existed.
    Connected,
    Listening,
}

/// An identifier.
pub(super) struct Id {
    pub(super) channel: Arc<Channel>,
    /// What events are reported with: 0 until a program accepts the connection that a peer asked for.
    pub(super) uid: u64,
    pub(super) space: PortSpace,
    pub(super) kind: Kind,
    pub(super) step: Step,
    pub(super) source: Option<SocketAddr>,
    /// `None` also where the port is an ephemeral one that it connects from, which others may have as well.
    pub(super) port: Option<BoundPort>,
    pub(super) reuse: Reuse,
    /// What the program has set.
    pub(super) families: Option<Families>,
    pub(super) destination: Option<SocketAddr>,
    /// The index of its device.
    pub(super) device: Option<c_int>,
    /// Its connection or exchange.
    pub(super) comm: Option<CommId>,
    /// The devices on which it listens.
    pub(super) listens: Vec<c_int>,
    /// How many of its events were fetched.
    pub(super) reported: u32,
    /// The first PSN that its queue pair receives.
    pub(super) psn: Psn,
    /// What its queue pair is connected with.
    pub(super) terms: Option<Terms>,
    /// The timeout of acknowledgements that the program has set.
    pub(super) ack_timeout: Option<u8>,
}

impl Id {
    pub(super) fn new(
        channel: Arc<Channel>,
        uid: u64,
        (space, kind): (PortSpace, Kind),
        psn: Psn,
    ) -> Self {
        Self {
            channel,
            uid,
            space,
            kind,
            step: Step::New,
            source: None,
            port: None,
            reuse: Reuse::Exclusive,
            families: None,
            destination: None,
            device: None,
            comm: None,
            listens: Vec::new(),
            reported: 0,
            psn,
            terms: None,
            ack_timeout: None,
        }
    }
}

impl Id {
    pub(super) fn is_of_datagrams(&self) -> bool {
        self.kind == Kind::IBV_QPT_UD
    }

    /// The service of its queue pair's connection, from either end; `None` if it has none.
    pub(super) fn reliability(&self) -> Option<Reliability> {
        match self.kind {
            Kind::IBV_QPT_RC => Some(Reliability::Reliable),
            Kind::IBV_QPT_UC => Some(Reliability::Unreliable),
            Kind::IBV_QPT_XRC_SEND | Kind::IBV_QPT_XRC_RECV => Some(Reliability::Extended),
            _ => None,
        }
    }

    /// Binds the port of an address, which is unspecified if it stands for all.
    pub(super) fn bind(&mut self, address: SocketAddr) -> Result<SocketAddr, Errno> {
        let mut request = PortRequest::new(self.space.0, address).reuse(self.reuse);
        if let Some(families) = self.families {
            request = request.families(families);
        }
        let port = BoundPort::bind(request)?;
        Ok(self.port.insert(port).address())
    }
}

/// What both sides have agreed on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    pub(super) peer: IpAddr,
    pub(super) qpn: Qpn,
    /// The first PSN that the peer receives.
    pub(super) psn: Psn,
    /// A value of `enum ibv_mtu`.
    pub(super) path_mtu: u8,
    pub(super) ack_timeout: u8,
    pub(super) responder_resources: u8,
    pub(super) initiator_depth: u8,
    pub(super) retry_count: u8,
    pub(super) rnr_retry_count: u8,
}

impl Terms {
    /// What the passive side knows. Each side's requests are what the other one serves.
    pub(super) fn of_req(peer: IpAddr, req: &Req, path_mtu: u8) -> Self {
        Self {
            peer,
            qpn: req.qpn,
            psn: req.starting_psn,
            path_mtu: req.path_mtu.min(path_mtu),
            ack_timeout: req.path.ack_timeout,
            responder_resources: req.initiator_depth,
            initiator_depth: req.responder_resources,
            retry_count: req.retry_count,
            rnr_retry_count: req.rnr_retry_count,
        }
    }

    /// As it accepts.
    pub(super) fn accept(&mut self, parameters: &ConnectionParameters) {
        self.responder_resources = parameters.responder_resources;
        self.initiator_depth = parameters.initiator_depth;
    }

    /// What the active side knows from its request, but for the queue pair of the peer.
    pub(super) fn asking(peer: IpAddr, req: &Req) -> Self {
        Self {
            responder_resources: req.responder_resources,
            initiator_depth: req.initiator_depth,
            ..Self::of_req(peer, req, req.path_mtu)
        }
    }

    /// As the peer accepts.
    pub(super) fn accepted(&mut self, rep: &Rep) {
        self.qpn = rep.qpn;
        self.psn = rep.starting_psn;
        self.responder_resources = rep.initiator_depth;
        self.initiator_depth = rep.responder_resources;
        self.rnr_retry_count = rep.rnr_retry_count;
    }
}
