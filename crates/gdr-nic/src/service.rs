//! Transport services.

use gdr_roce::PostError;

use crate::shard::posted_requests::PostedRequests;
use crate::shard::transport::Transport;

/// The transport service of a queue pair: [`Connection`](crate::Connection) (RC, UC),
/// [`Datagrams`](crate::Datagrams) (UD) or [`RawPackets`](crate::RawPackets).
pub trait Service: Protocol {
    /// A request for the send queue.
    type SendRequest<'a>;

    #[doc(hidden)]
    fn post_send(
        protocol: &mut Self::State,
        requests: &mut PostedRequests,
        request: &Self::SendRequest<'_>,
    ) -> Result<(), PostError>;
}

/// What the protocol has of a queue pair of this service. No other crate can implement it.
pub trait Protocol: 'static {
    /// The state machine of a queue pair.
    type State;

    fn of(transport: &mut Transport) -> Option<&mut Self::State>;

    /// Takes back the sends that were posted last.
    fn withdraw_sends(protocol: &mut Self::State, count: usize);
}
