//! The protocol's part of a queue pair, whatever its service.

use std::net::SocketAddr;

use gdr_roce::{
    Completion, Event, PostError, Qpn, QueuePair, RecvRequest, State, Statistics, Time, UdQueuePair,
};
use smallvec::SmallVec;

/// The segments of a request as the protocol knows them.
pub(super) type RawSegments = SmallVec<[gdr_roce::Segment; 2]>;

/// The protocol's part of a queue pair.
#[expect(
    clippy::large_enum_variant,
    reason = "the engine boxes each queue pair, and connections are the frequent and fast ones"
)]
pub(super) enum Transport {
    /// One end of a reliable connection (RC).
    Connection(QueuePair),
    /// Unreliable datagrams (UD).
    Datagrams(UdQueuePair<SocketAddr>),
}

impl Transport {
    /// The reliable connection, if it is one.
    pub(super) fn connection(&mut self) -> Option<&mut QueuePair> {
        match self {
            Self::Connection(roce) => Some(roce),
            Self::Datagrams(_) => None,
        }
    }

    /// The datagram service, if it is that.
    pub(super) fn datagrams(&mut self) -> Option<&mut UdQueuePair<SocketAddr>> {
        match self {
            Self::Connection(_) => None,
            Self::Datagrams(roce) => Some(roce),
        }
    }

    pub(super) fn qpn(&self) -> Qpn {
        match self {
            Self::Connection(roce) => roce.qpn(),
            Self::Datagrams(roce) => roce.qpn(),
        }
    }

    pub(super) fn state(&self) -> State {
        match self {
            Self::Connection(roce) => roce.state(),
            Self::Datagrams(roce) => roce.state(),
        }
    }

    /// What the connection counted. Datagrams count nothing.
    pub(super) fn statistics(&self) -> Statistics {
        match self {
            Self::Connection(roce) => roce.statistics(),
            Self::Datagrams(_) => Statistics::default(),
        }
    }

    /// Changes the state to ERR.
    pub(super) fn enter_error(&mut self) {
        match self {
            Self::Connection(roce) => roce.to_error(),
            Self::Datagrams(roce) => roce.to_error(),
        }
    }

    /// Changes the state to RESET.
    pub(super) fn enter_reset(&mut self) {
        match self {
            Self::Connection(roce) => roce.to_reset(),
            Self::Datagrams(roce) => roce.to_reset(),
        }
    }

    pub(super) fn post_recv(&mut self, request: &RecvRequest<'_>) -> Result<(), PostError> {
        match self {
            Self::Connection(roce) => roce.post_recv(request),
            Self::Datagrams(roce) => roce.post_recv(request),
        }
    }

    /// Whether packets were sent that are not acknowledged. Datagrams never are.
    pub(super) fn has_outstanding(&self) -> bool {
        match self {
            Self::Connection(roce) => roce.has_outstanding(),
            Self::Datagrams(_) => false,
        }
    }

    pub(super) fn next_deadline(&self) -> Option<Time> {
        match self {
            Self::Connection(roce) => roce.next_deadline(),
            Self::Datagrams(_) => None,
        }
    }

    pub(super) fn handle_deadline(&mut self, now: Time) {
        if let Self::Connection(roce) = self {
            roce.handle_deadline(now);
        }
    }

    pub(super) fn poll_completion(&mut self) -> Option<Completion> {
        match self {
            Self::Connection(roce) => roce.poll_completion(),
            Self::Datagrams(roce) => roce.poll_completion(),
        }
    }

    pub(super) fn poll_event(&mut self) -> Option<Event> {
        match self {
            Self::Connection(roce) => roce.poll_event(),
            Self::Datagrams(roce) => roce.poll_event(),
        }
    }
}
