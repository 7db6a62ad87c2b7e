//! Connection set-up over TCP: the exchange of what two sides need to connect by RDMA.
//!
//! 1. Both send a greeting: protocol, version, whether a key is required, the [`Service`] that is spoken
//!    above, and a challenge.
//! 2. With a key, the client proves that it has it, then the server does; every later message
//!    carries an authentication tag.
//! 3. Both send their [`PeerInfo`], connect their queue pairs, and meet at a barrier. Programs may
//!    exchange messages of their own at any time after.
//!
//! A side that cannot go on sends the reason before it closes the connection. Without a key, the
//! RDMA address of a side must be the source address of its TCP connection, so that no peer can
//! direct packets to a third host.
//!
//! A [`Listener`] handles several connections at a time, each with a short limit of its own, and
//! goes on when one of them is not a peer.
//!
//! Every step has a deadline. The set-up can be authenticated; RDMA itself cannot: its packets are
//! neither encrypted nor authenticated, and any host that can read them gets the region keys.

mod auth;
mod handshake;
mod listener;
mod message;
mod service;
mod session;
mod stream;

pub use auth::SharedKey;
pub use listener::Listener;
pub use message::PeerInfo;
pub use service::{Service, Terms};
pub use session::{Security, Session, Watch};
