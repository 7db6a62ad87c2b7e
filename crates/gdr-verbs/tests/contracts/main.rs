//! The manual pages of libibverbs as tests: one module for each page, with tests of its sections CONCURRENCY, RETURN
//! VALUE and NOTES. Concurrency is tested with two threads.

#![allow(clippy::unwrap_used)]

#[path = "../library/built.rs"]
mod built;
#[allow(dead_code, reason = "the other test binaries use the rest")]
#[path = "../library/side.rs"]
mod side;

mod ah;
mod async_event;
mod cq;
mod cq_event;
mod cq_ex;
mod import;
mod mcast;
mod modify_qp;
mod mr;
mod pd;
mod post_recv;
mod post_send;
mod qp;
mod query;
mod srq;
mod strings;
#[allow(dead_code, reason = "the other test binaries use the rest")]
mod verbs;
mod wr_post;
mod xrc;
