//! The protocol's state of a queue pair of any service.

use std::net::SocketAddr;

use gdr_roce::{
    Completion, Event, PostError, Qpn, QueuePair, RawPacketQueuePair, RecvRequest, Served, State,
    StateError, Statistics, Time, UdQueuePair,
};

/// The protocol's state of a queue pair.
#[expect(
    clippy::large_enum_variant,
    reason = "the engine boxes each queue pair, and connections are the frequent and fast ones"
)]
pub enum Transport {
    /// One end of a connection (RC, UC).
    Connection(QueuePair),
    /// Unreliable datagrams (UD).
    Datagrams(UdQueuePair<SocketAddr>),
    /// Whole Ethernet frames.
    RawPackets(RawPacketQueuePair),
}

/// Calls a method common to the state machines of all services.
macro_rules! of_each {
    ($transport:expr, $qp:ident => $call:expr) => {
        match $transport {
            Transport::Connection($qp) => $call,
            Transport::Datagrams($qp) => $call,
            Transport::RawPackets($qp) => $call,
        }
    };
}

impl Transport {
    /// Returns the connection, if it is one.
    pub(crate) fn connection(&mut self) -> Option<&mut QueuePair> {
        match self {
            Self::Connection(roce) => Some(roce),
            Self::Datagrams(_) | Self::RawPackets(_) => None,
        }
    }

    /// Returns the datagram queue pair, if it is one.
    pub(crate) fn datagrams(&mut self) -> Option<&mut UdQueuePair<SocketAddr>> {
        match self {
            Self::Datagrams(roce) => Some(roce),
            Self::Connection(_) | Self::RawPackets(_) => None,
        }
    }

    /// Returns the raw packet queue pair, if it is one.
    pub(crate) fn raw_packets(&mut self) -> Option<&mut RawPacketQueuePair> {
        match self {
            Self::RawPackets(pair) => Some(pair),
            Self::Connection(_) | Self::Datagrams(_) => None,
        }
    }

    pub(crate) fn qpn(&self) -> Qpn {
        of_each!(self, qp => qp.qpn())
    }

    pub(crate) fn state(&self) -> State {
        of_each!(self, qp => qp.state())
    }

    /// Returns the connection's counters; zeros for other services.
    pub(crate) fn statistics(&self) -> Statistics {
        match self {
            Self::Connection(roce) => roce.statistics(),
            Self::Datagrams(_) | Self::RawPackets(_) => Statistics::default(),
        }
    }

    /// Returns what the connection has served; zeros for other services.
    pub(crate) fn served(&self) -> Served {
        match self {
            Self::Connection(roce) => roce.served(),
            Self::Datagrams(_) | Self::RawPackets(_) => Served::default(),
        }
    }

    /// Enters SQD from RTS.
    pub(crate) fn enter_sqd(&mut self) -> Result<(), StateError> {
        of_each!(self, qp => qp.to_sqd())
    }

    /// Enters RTS from SQD or SQE.
    pub(crate) fn resume(&mut self) -> Result<(), StateError> {
        of_each!(self, qp => qp.resume())
    }

    /// Returns whether requests are still being finished in SQD. Datagrams and frames are never half sent.
    pub(crate) fn is_draining(&self) -> bool {
        match self {
            Self::Connection(roce) => roce.is_draining(),
            Self::Datagrams(_) | Self::RawPackets(_) => false,
        }
    }

    /// Enters ERR.
    pub(crate) fn enter_error(&mut self) {
        of_each!(self, qp => qp.to_error())
    }

    /// Enters ERR because bytes did not reach their destination.
    pub(crate) fn fail_placement(&mut self) {
        match self {
            Self::Connection(roce) => roce.fail_placement(),
            Self::Datagrams(_) | Self::RawPackets(_) => self.enter_error(),
        }
    }

    /// Enters RESET.
    pub(crate) fn enter_reset(&mut self) {
        of_each!(self, qp => qp.to_reset())
    }

    pub(crate) fn post_recv(&mut self, request: &RecvRequest<'_>) -> Result<(), PostError> {
        of_each!(self, qp => qp.post_recv(request))
    }

    /// Returns whether any packet is unacknowledged; only connections have acknowledgements.
    pub(crate) fn has_outstanding(&self) -> bool {
        match self {
            Self::Connection(roce) => roce.has_outstanding(),
            Self::Datagrams(_) | Self::RawPackets(_) => false,
        }
    }

    /// Returns whether an acknowledgement is all there is to send.
    pub(crate) fn owes_only_acknowledgement(&self) -> bool {
        match self {
            Self::Connection(roce) => roce.owes_only_acknowledgement(),
            Self::Datagrams(_) | Self::RawPackets(_) => false,
        }
    }

    /// Queues the acknowledgement of what a connection has executed. Returns whether one is queued.
    pub(crate) fn acknowledge(&mut self) -> bool {
        match self {
            Self::Connection(roce) => roce.acknowledge(),
            Self::Datagrams(_) | Self::RawPackets(_) => false,
        }
    }

    /// Returns whether a connection may have requests waiting to be sent.
    pub(crate) fn has_unsent_requests(&self) -> bool {
        match self {
            Self::Connection(roce) => roce.has_unsent_requests(),
            Self::Datagrams(_) | Self::RawPackets(_) => false,
        }
    }

    pub(crate) fn next_deadline(&self) -> Option<Time> {
        match self {
            Self::Connection(roce) => roce.next_deadline(),
            Self::Datagrams(_) | Self::RawPackets(_) => None,
        }
    }

    pub(crate) fn handle_deadline(&mut self, now: Time) {
        if let Self::Connection(roce) = self {
            roce.handle_deadline(now);
        }
    }

    pub(crate) fn poll_completion(&mut self) -> Option<Completion> {
        of_each!(self, qp => qp.poll_completion())
    }

    pub(crate) fn poll_event(&mut self) -> Option<Event> {
        of_each!(self, qp => qp.poll_event())
    }
}
