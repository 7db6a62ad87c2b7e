//! Shards of a device: an engine behind a mutex, and its progress thread.
//!
//! A device has one or more shards, each with an [`engine`] behind a mutex. The thread that needs progress drives it: a
//! thread that posts sends its own packets, a thread that waits for a completion receives them, and a progress thread
//! does both when no other thread does. So a message needs no hand-over between threads while the program polls, and no
//! help from the program when it does not.
//!
//! A thread that waits for queue pairs of several shards drives none of them; their progress threads work in parallel.
//!
//! A thread that posts a short request on a connection while another thread holds the mutex leaves it to that thread
//! ([`intake`]).
//!
//! No code of the program (iterators, destructors of what it passed in) runs under the mutex, nor any call that may
//! wait for GPU kernels. A thread that polls without success does so mostly without holding the mutex, so a signal
//! handler or scheduler that suspends it there blocks no other thread.

pub(crate) mod announced_reads;
pub(crate) mod answers;
pub(crate) mod caller_activity;
mod captured_rings;
pub(crate) mod clock;
pub(crate) mod completion_counting;
pub(crate) mod cpu_contention;
pub(crate) mod cq_entries;
pub(crate) mod engine;
pub(crate) mod intake;
pub(crate) mod left_send;
mod memory;
pub(crate) mod pending_copies;
pub(crate) mod posted_requests;
mod primitives;
mod process_end;
mod progress_thread;
pub(crate) mod qp_context;
pub(crate) mod qp_table;
pub(crate) mod region_table;
pub(crate) mod ring_acceptor;
pub(crate) mod ring_writer;
pub(crate) mod send_limit;
pub(crate) mod shared_engine;
pub(crate) mod srq_context;
pub(crate) mod transport;
mod wakeup;
pub(crate) mod window_binding;
pub(crate) mod xrc_context;
