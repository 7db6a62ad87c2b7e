//! The protocol between two queue pairs, in virtual time.
#![allow(clippy::unwrap_used, reason = "a test that fails")]

mod acknowledgements;
mod datagrams;
mod extended;
mod fast_path;
mod fixture;
mod hostile_peer;
mod lossy;
mod operations;
mod own_kind;
mod pacing;
mod paths;
mod receive_segments;
mod references;
mod send_queue_states;
mod shared_receives;
mod unreliable;
