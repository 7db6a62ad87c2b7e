//! Connection set-up over TCP: how two sides tell each other what RDMA needs.
//!
//! 1. Both greet: protocol, version, whether a key is asked for, a challenge.
//! 2. With a key, the client proves that it knows it, then the server does; every later message
//!    carries a tag that only the two could make.
//! 3. Both introduce themselves ([`Introduction`]), connect their queue pairs, and meet at a
//!    barrier. Programs may exchange messages of their own at any time after.
//!
//! Every step ends by a deadline. The set-up can be protected; RDMA itself cannot: its packets are
//! neither encrypted nor authenticated, and whoever can read them knows the keys of regions.

mod message;
mod secret;
mod session;
mod stream;

pub use message::Introduction;
pub use secret::SharedKey;
pub use session::{Listener, Security, Session};
