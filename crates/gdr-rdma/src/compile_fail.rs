//! Code that must not compile, as doctests. Each has a twin that differs in the marked line and compiles, so that a
//! failure cannot merely be due to a renamed function.
//!
//! # A request names memory of a region only
//!
//! ```
//! use gdr_rdma::{MemoryRegion, Segment};
//! fn f(region: MemoryRegion) -> Segment {
//!     region.segment(0, 64).unwrap() // here
//! }
//! ```
//! ```compile_fail,E0451
//! use gdr_rdma::{MemoryRegion, Segment};
//! fn f(region: MemoryRegion) -> Segment {
//!     Segment { region, addr: 0x1000, len: 64 } // here
//! }
//! ```
//!
//! # A posted request belongs to the queue pair
//!
//! ```
//! use gdr_rdma::{QueuePair, SendRequest};
//! fn f(pair: &QueuePair, request: SendRequest) {
//!     pair.post_send(request).unwrap(); // here
//! }
//! ```
//! ```compile_fail,E0382
//! use gdr_rdma::{QueuePair, SendRequest};
//! fn f(pair: &QueuePair, request: SendRequest) {
//!     pair.post_send(request).unwrap(); // here
//!     pair.post_send(request).unwrap();
//! }
//! ```
//!
//! # A queue pair has one owner, whose end destroys it
//!
//! ```
//! use gdr_rdma::{CompletionQueue, QueuePair};
//! fn f(queue: &CompletionQueue, pair: &QueuePair) -> CompletionQueue {
//!     CompletionQueue::clone(queue) // here
//! }
//! ```
//! ```compile_fail,E0277
//! use gdr_rdma::{CompletionQueue, QueuePair};
//! fn f(queue: &CompletionQueue, pair: &QueuePair) -> QueuePair {
//!     QueuePair::clone(pair) // here
//! }
//! ```
//!
//! # A local key is not a remote one
//!
//! ```
//! fn f(region: &gdr_rdma::MemoryRegion) -> gdr_rdma::Rkey {
//!     region.rkey() // here
//! }
//! ```
//! ```compile_fail,E0308
//! fn f(region: &gdr_rdma::MemoryRegion) -> gdr_rdma::Rkey {
//!     region.lkey() // here
//! }
//! ```
