//! Bytes to move.

use gdr_rdma::MemoryRegion;

/// Returns bytes that differ from place to place.
#[must_use]
pub fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len)
        .map(|i| (i as u8).wrapping_mul(31).wrapping_add((i >> 8) as u8) ^ seed)
        .collect()
}

/// Fills a region with a pattern, and returns it.
pub fn fill(region: &MemoryRegion, seed: u8) -> Vec<u8> {
    let bytes = pattern(region.len() as usize, seed);
    region.buffer().write_at(0, &bytes).unwrap();
    bytes
}

/// Returns what a region holds.
#[must_use]
pub fn bytes(region: &MemoryRegion) -> Vec<u8> {
    let mut bytes = vec![0; region.len() as usize];
    region.buffer().read_at(0, &mut bytes).unwrap();
    bytes
}
