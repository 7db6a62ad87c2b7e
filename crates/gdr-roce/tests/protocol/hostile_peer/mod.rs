//! A peer that breaks every rule: no byte is placed, nothing panics, and the NAK states the reason.

mod error_state;
mod flood;
mod gaps;
mod repeated_reads;
mod requests;
mod responses;
mod target;
