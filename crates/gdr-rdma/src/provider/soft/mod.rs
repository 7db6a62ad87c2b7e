//! The soft provider: RoCEv2 over a UDP socket of this process.
//!
//! Each device has one or more shards, and each shard an [`engine`], behind a mutex. The thread that
//! needs progress drives it: a thread that posts sends its own packets, a thread that waits for a
//! completion receives them, and a progress thread does both when no other thread does. So a message
//! takes no hand-over between threads if the program is polling anyway, and needs no help of the program
//! if it is not.
//!
//! A thread that waits for queue pairs of several shards drives none of them: their progress threads
//! work at the same time.
//!
//! Under the mutex runs no code of the program (iterators, destructors of what it passed in) and no
//! call that may wait for a GPU's kernels. A thread that polls without success does so without the mutex
//! most of the time: a signal handler or a scheduler that stops it there stops no other thread.

mod address;
mod announced_reads;
mod answers;
mod caller_activity;
mod clock;
mod completion_counting;
mod completion_queue;
mod cpu_contention;
mod cq_entries;
mod device;
mod device_ops;
mod device_state;
mod engine;
mod filter;
mod flows;
mod link;
mod memory;
mod packets;
mod partial_icrc;
mod peer_filter;
mod port_group;
mod process_end;
mod process_fd;
mod progress_thread;
mod protection_domain;
mod qp_context;
mod qp_table;
mod qpn_range;
mod queue_pair;
pub mod raw;
mod raw_socket;
mod region_table;
mod reuseport;
mod rx;
mod shared_engine;
mod shared_receive_queue;
mod single_datagram;
mod slot;
mod socket;
mod srq_context;
mod transport;
mod tx;
mod ud_queue_pair;
mod wakeup;

pub use self::address::SoftAddress;
pub(crate) use self::address::list as addresses;
pub(crate) use self::device::SoftDevice;
