//! The process that a library is in, and what such a library must not take for granted.
//!
//! A library that programs load without asking for it, such as a stand-in for libibverbs, runs in
//! processes that fork at any moment. [`PerProcess`] is state that a forked child begins again, so that it
//! never waits for a lock that a thread of its parent held. [`LoadedLibrary`] asks whether another library is
//! loaded without leaving a lock of the loader behind in such a child.
//!
//! Some of these processes have more rights than their caller, who chose their environment: [`variable`] has
//! no values there. [`WholeFile`] and [`create_new`] make files in folders where others may have put links.
//! [`process_name`]
//! returns a name in which processes that share such a folder differ. [`PeerUser`] is the user at the other end of
//! a connection within the host. [`NewNamespaces`] gives a thread a host of its own.

#![warn(clippy::disallowed_methods)]

mod environment;
mod fork;
mod loader;
pub mod lock;
mod name;
mod new_namespaces;
mod peer_user;
mod process_bound;
mod signals;
mod whole_file;

pub use environment::variable;
pub use fork::{PerProcess, ProcessId};
pub use loader::{LoadedLibrary, visit_loaded};
pub use name::process_name;
pub use new_namespaces::NewNamespaces;
pub use peer_user::PeerUser;
pub use process_bound::ProcessBound;
pub use signals::block_signals;
pub use whole_file::{WholeFile, create_new};

// The example of the README is a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
