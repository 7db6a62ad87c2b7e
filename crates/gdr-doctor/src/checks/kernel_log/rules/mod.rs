//! The checks that are rules about messages of the kernel.

pub(super) mod gpu;
pub(super) mod nic;
pub(super) mod peer_memory;
pub(super) mod platform;
#[cfg(test)]
mod tests;

/// What all of them read.
const INPUTS: &str = "The kernel's log from /dev/kmsg, which many systems show to root only.";
