//! The process that a library runs in, and what such a library must not take for granted.
//!
//! A library that programs load without asking for it, such as a stand-in for libibverbs, runs in
//! processes that may fork at any moment. [`PerProcess`] is state that starts afresh in a forked
//! child, so that the child never waits for a lock that a thread of its parent held.
//! [`LoadedLibrary`] tells whether another library is loaded, without leaving one of the loader's
//! locks held in such a child.
//!
//! Some of these processes have more rights than their caller, who chose their environment:
//! [`variable`] returns no values there. [`WholeFile`] and [`create_new`] make files in folders
//! where others may have put links. [`process_name`] returns a name that is unique among the
//! processes that share such a folder. [`PeerUser`] is the user at the other end of a connection
//! within the host. [`NewNamespaces`] gives a thread its own host.

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
