//! The checks that are rules about messages of the kernel.

pub(super) mod gpu;
pub(super) mod nic;
pub(super) mod peer_memory;
pub(super) mod platform;
#[cfg(test)]
mod tests;
