//! Patterns of bytes to write and to expect.

use gdr_copy::Mapping;
use gdr_cuda::{DeviceBuffer, pattern_word};

use super::outcome::{Outcome, require};
use crate::error::compare;

/// Returns the first `len` bytes of the pattern of `seed`, as a kernel writes it.
pub(super) fn bytes(seed: u32, len: u64) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..len.div_ceil(4))
        .flat_map(|i| pattern_word(seed, i).to_le_bytes())
        .collect();
    bytes.truncate(len as usize);
    bytes
}

/// Returns what `cuMemcpy` reads from the whole of `buffer`.
pub(super) fn contents(buffer: &DeviceBuffer) -> Outcome<Vec<u8>> {
    let mut found = vec![0; usize::try_from(buffer.len())?];
    buffer.read(0, &mut found)?;
    Ok(found)
}

/// Checks that `cuMemcpy` finds `expected` in `buffer`.
pub(super) fn require_contents(what: &str, buffer: &DeviceBuffer, expected: &[u8]) -> Outcome {
    Ok(compare(what, expected, &contents(buffer)?)?)
}

/// Checks that the CPU finds `expected` at `offset` of `mapping`.
pub(super) fn require_mapped(
    what: &str,
    mapping: &Mapping,
    offset: u64,
    expected: &[u8],
) -> Outcome {
    // Poison the buffer, so that a read which transfers nothing does not pass.
    let mut found: Vec<u8> = expected.iter().map(|byte| !byte).collect();
    mapping.read_at(offset, &mut found)?;
    Ok(compare(what, expected, &found)?)
}

/// Checks that `mapping` shows all of `buffer` to the CPU, and the CPU's bytes to the GPU.
pub(super) fn require_same_memory(mapping: &Mapping, buffer: &DeviceBuffer, seed: u32) -> Outcome {
    require!(
        mapping.len() == buffer.len(),
        "{} bytes are mapped of {}",
        mapping.len(),
        buffer.len()
    );
    let written = bytes(seed, buffer.len());
    mapping.write_at(0, &written)?;
    require_contents("cuMemcpy of what the CPU wrote", buffer, &written)?;
    let copied = bytes(!seed, buffer.len());
    buffer.write(0, &copied)?;
    require_mapped("the CPU's view of what cuMemcpy wrote", mapping, 0, &copied)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_are_the_words_of_the_kernels_pattern() {
        let expected: Vec<u8> = [
            pattern_word(9, 0).to_le_bytes(),
            pattern_word(9, 1).to_le_bytes(),
        ]
        .concat();
        assert_eq!(bytes(9, 8), expected);
        assert_eq!(bytes(9, 7), expected[..7]);
        assert!(bytes(9, 0).is_empty());
    }
}
