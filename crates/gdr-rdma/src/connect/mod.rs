//! Connection set-up over TCP: the exchange of what two sides need to connect by RDMA.
//!
//! 1. Both sides send a greeting: protocol, version, whether a key is required, the [`Service`] spoken on top, and a
//!    challenge.
//! 2. With a key, the client proves that it has it, then the server does. Every later message carries an authentication
//!    tag.
//! 3. Both send their [`PeerInfo`], connect their queue pairs, and meet at a barrier. After that, programs may exchange
//!    their own messages at any time.
//!
//! A side that cannot continue sends the reason before it closes the connection. Without a key, the RDMA address of a
//! side must be the source address of its TCP connection, so that no peer can direct packets to a third host.
//!
//! A [`Listener`] handles several connections at a time, each with its own short limit, and continues if one of them is
//! not a peer.
//!
//! Every step has a deadline. The set-up can be authenticated, but RDMA itself cannot: its packets are neither
//! encrypted nor authenticated, and any host that can read them gets the region keys.

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
