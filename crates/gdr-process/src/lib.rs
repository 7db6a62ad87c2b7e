//! Helps a library cope with the process that has loaded it.
//!
//! A library that is loaded without the program's knowledge, such as a replacement for libibverbs, runs in processes
//! that may fork at any moment. [`PerProcess`] is state that starts fresh in a forked child, so that the child never
//! waits for a lock that a thread of its parent held. [`LoadedLibrary`] checks whether another library is loaded,
//! without leaving a loader lock held in such a child.
//!
//! In a process with more rights than its caller, who controls the environment, [`variable`] ignores the environment.
//! [`WholeFile`] and [`create_new`] create files safely in directories where others may have placed links.
//! [`BiasedLock`] protects what is read all the time and seldom changed, at hardly any cost for its readers, and
//! [`Lending`] lends an object to a call without counting references.
//!
//! [`process_name`] returns a name that is unique among processes sharing such a directory. [`PeerUser`] is the user at
//! the other end of a connection within the host. [`NewNamespaces`] moves a thread into namespaces of its own, so that
//! it acts like a separate host.

#![warn(clippy::disallowed_methods)]

mod biased_lock;
mod environment;
mod fork;
mod lending;
mod loader;
pub mod lock;
mod name;
mod new_namespaces;
mod peer_user;
mod primitives;
mod process_bound;
mod process_fence;
mod reader;
mod signals;
mod this_reader;
mod whole_file;

pub use biased_lock::{BiasedLock, BiasedReadGuard, BiasedWriteGuard};
pub use environment::variable;
pub use fork::{Inherited, PerProcess, ProcessId};
pub use lending::{Lending, Lent};
pub use loader::{LoadedLibrary, visit_loaded};
pub use name::process_name;
pub use new_namespaces::NewNamespaces;
pub use peer_user::PeerUser;
pub use process_bound::ProcessBound;
pub use process_fence::{process_fence, register_process_fence};
pub use signals::block_signals;
pub use whole_file::{WholeFile, create_new};

// Compiles and runs the README's example as a doctest.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
