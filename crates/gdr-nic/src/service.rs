//! Transport services.

use crate::shard::transport::Transport;

/// The transport service of a queue pair: [`Connection`](crate::Connection) (RC, UC),
/// [`Datagrams`](crate::Datagrams) (UD) or [`RawPackets`](crate::RawPackets). No other crate can implement it.
pub trait Service: 'static {
    /// The state machine of a queue pair.
    #[doc(hidden)]
    type State;

    #[doc(hidden)]
    fn of(transport: &mut Transport) -> Option<&mut Self::State>;

    /// Withdraws the sends that were posted last.
    #[doc(hidden)]
    fn withdraw_sends(protocol: &mut Self::State, count: usize);
}
