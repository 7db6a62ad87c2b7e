//! Unreliable datagrams (UD).

use std::net::{IpAddr, SocketAddr};
use std::result;

use gdr_roce::{Capabilities, Mtu, PostError, Psn, Qkey, State, UdQueuePair, UdSendRequest};

use crate::device::Device;
use crate::error::Result;
use crate::queue_pair::{QueuePair, Queues};
use crate::send_queue::SendQueue;
use crate::service::Service;
use crate::shard::transport::Transport;
use crate::types::Domain;

/// The service of unreliable datagrams (UD): a [`QueuePair<Datagrams>`](QueuePair) sends single-packet messages to any
/// other UD queue pair, and receives from any host.
///
/// A header of 40 bytes precedes each received message ([`Grh`](gdr_roce::wire::Grh)). A request whose address is
/// not of the device's address family is not sent.
#[derive(Debug)]
pub enum Datagrams {}

impl Service for Datagrams {
    type State = UdQueuePair<SocketAddr>;

    fn of(transport: &mut Transport) -> Option<&mut Self::State> {
        transport.datagrams()
    }

    fn withdraw_sends(protocol: &mut Self::State, count: usize) {
        protocol.withdraw_sends(count);
    }
}

impl SendQueue<'_, Datagrams> {
    /// Posts a request.
    ///
    /// # Errors
    /// [`PostError`]; the request was not posted.
    pub fn push(
        &mut self,
        request: &UdSendRequest<'_, SocketAddr>,
    ) -> result::Result<(), PostError> {
        let requests = &mut *self.requests;
        self.protocol.post_send(&UdSendRequest {
            id: requests.next(),
            flags: requests.flags(request.flags),
            ..*request
        })?;
        requests.payload.send += requests.add_send(request.id, request.data, request.flags);
        Ok(())
    }
}

impl Device {
    /// Creates a queue pair for datagrams of at most `mtu` bytes, in RESET.
    ///
    /// # Errors
    /// Same as [`Device::queue_pair`].
    pub fn ud_queue_pair(
        &self,
        domain: Domain,
        queues: Queues<'_>,
        capabilities: Capabilities,
        mtu: Mtu,
    ) -> Result<QueuePair<Datagrams>> {
        let parts = queues.parts(self, domain, capabilities)?;
        let shard = self.shards().assign(&parts);
        let qpn = shard.create_qp(parts, |qpn, capabilities, shared| {
            Transport::Datagrams(match shared {
                Some(shared) => UdQueuePair::with_shared_receives(qpn, capabilities, mtu, shared),
                None => UdQueuePair::new(qpn, capabilities, mtu),
            })
        })?;
        Ok(QueuePair::of(self, qpn))
    }
}

impl QueuePair<Datagrams> {
    /// Moves the queue pair from RESET to INIT.
    ///
    /// # Errors
    /// [`Error::State`](crate::Error::State), [`Error::ForkedChild`](crate::Error::ForkedChild).
    pub fn to_init(&self, qkey: Qkey) -> Result<()> {
        let engine = self.engine()?;
        engine.change_qp::<Datagrams>(self.qpn(), State::Init, |protocol| protocol.to_init(qkey))
    }

    /// Changes the queue key, in any state.
    ///
    /// # Errors
    /// [`Error::ForkedChild`](crate::Error::ForkedChild).
    pub fn set_qkey(&self, qkey: Qkey) -> Result<()> {
        let engine = self.engine()?;
        engine.change_qp::<Datagrams>(self.qpn(), State::Init, |protocol| {
            protocol.set_qkey(qkey);
            Ok(())
        })
    }

    /// Attaches the queue pair to a multicast group: in every state that receives, it gets datagrams sent to the group
    /// and [`Qpn::MULTICAST`](gdr_roce::Qpn::MULTICAST) with its queue key, including those sent by this host and by
    /// the queue pair itself.
    ///
    /// # Errors
    /// [`SocketError::NotMulticast`](crate::SocketError::NotMulticast),
    /// [`SocketError::AddressFamily`](crate::SocketError::AddressFamily),
    /// [`SocketError::Os`](crate::SocketError::Os); [`Error::TooManyGroups`](crate::Error::TooManyGroups),
    /// [`Error::TooManyAttached`](crate::Error::TooManyAttached),
    /// [`Error::ForkedChild`](crate::Error::ForkedChild).
    pub fn attach_multicast(&self, group: IpAddr) -> Result<()> {
        self.device().check_process()?;
        let groups = self.device().shards().multicast()?;
        groups.attach(self.qpn(), group)
    }

    /// Reverses [`QueuePair::attach_multicast`]: once this has returned, no datagram sent to the group arrives.
    ///
    /// # Errors
    /// [`Error::NotAttached`](crate::Error::NotAttached), [`Error::ForkedChild`](crate::Error::ForkedChild).
    pub fn detach_multicast(&self, group: IpAddr) -> Result<()> {
        self.device().check_process()?;
        let groups = self.device().shards().multicast()?;
        groups.detach(self.qpn(), group)
    }

    /// Moves the queue pair from INIT to RTR, in which datagrams are received.
    ///
    /// # Errors
    /// [`Error::State`](crate::Error::State), [`Error::DeviceFailed`](crate::Error::DeviceFailed),
    /// [`Error::ForkedChild`](crate::Error::ForkedChild); [`SocketError::Os`](crate::SocketError::Os) if the kernel
    /// accepts no filter for it.
    pub fn to_rtr(&self) -> Result<()> {
        self.engine()?.ud_to_rtr(self.qpn())
    }

    /// Moves the queue pair from RTR to RTS, in which requests can be posted.
    ///
    /// # Errors
    /// [`Error::State`](crate::Error::State), [`Error::DeviceFailed`](crate::Error::DeviceFailed),
    /// [`Error::ForkedChild`](crate::Error::ForkedChild).
    pub fn to_rts(&self, sq_psn: Psn) -> Result<()> {
        let engine = self.engine()?;
        engine.advance_qp::<Datagrams>(self.qpn(), State::ReadyToSend, |protocol| {
            protocol.to_rts(sq_psn)
        })
    }
}
