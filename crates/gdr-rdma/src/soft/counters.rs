//! What the engine has counted.

/// What the soft provider has sent, received and dropped since it started, packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Handed to the kernel.
    pub packets_sent: u64,
    /// Taken from the kernel, good and bad.
    pub packets_received: u64,
    /// Not packets of a reliable connection.
    pub malformed: u64,
    /// Changed on the way.
    pub icrc_mismatches: u64,
    /// For queue pairs that do not exist, or from another address than the queue pair's peer.
    pub unknown_queue_pair: u64,
    /// System calls by which the kernel refused to send (no route, no such interface).
    pub sends_failed: u64,
}
