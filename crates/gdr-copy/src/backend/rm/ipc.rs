//! The RM client and object in a CUDA IPC handle.
//!
//! `cuIpcGetMemHandle` of a `cuMemAlloc` allocation returns 64 opaque bytes for another process. On the drivers
//! measured (580.159) they contain, as 32-bit words: [2] process id, [4] and [5] the allocation's size, [6] the size of
//! the memory object in 4 KiB pages, [7] the allocation's offset in that object, [12] the RM client, [13] the RM
//! object. The layout is not documented, so every word that can be checked is checked, and the route is used only after
//! its self-test ([`selftest`](super::selftest)) on memory of this library.

use super::abi::Handle;
use super::extents::ObjectRange;

/// The contents of a handle, if the undocumented layout applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct IpcHint {
    pub(super) source: ObjectRange,
    /// The size of the memory object in bytes.
    pub(super) object_size: u64,
}

/// The first handle of clients that user space created (`rs_server.c`, RS_CLIENT_HANDLE_BASE).
const CLIENT_BASE: u32 = 0xc1d0_0000;
const CLIENT_MASK: u32 = 0xfff0_0000;

/// Why a handle does not have the expected contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum IpcError {
    #[error("the handle names process {found}, not this one ({this})")]
    Process { found: u32, this: u32 },
    #[error("{client:#x} is not an RM client, or {object:#x} is not an object")]
    Object { client: u32, object: u32 },
    #[error("the handle describes {handle} bytes, but CUDA reports {cuda}")]
    Size { handle: u64, cuda: u64 },
    #[error("{size} bytes at {offset} do not fit into an object of {object_size}")]
    Range {
        size: u64,
        offset: u64,
        object_size: u64,
    },
}

/// Reads a handle for an allocation of `size` bytes.
pub(super) fn parse(handle: &[u8; 64], pid: u32, size: u64) -> Result<IpcHint, IpcError> {
    let word = |i: usize| {
        let at = 4 * i;
        u32::from_le_bytes([handle[at], handle[at + 1], handle[at + 2], handle[at + 3]])
    };
    let allocation = u64::from(word(5)) << 32 | u64::from(word(4));
    let object_size = u64::from(word(6)) << 12;
    let offset = u64::from(word(7));
    let (client, object) = (Handle(word(12)), Handle(word(13)));
    // Each check compares a word whose value is known. With another layout, the words have other values.
    if word(2) != pid {
        return Err(IpcError::Process {
            found: word(2),
            this: pid,
        });
    }
    if client.0 & CLIENT_MASK != CLIENT_BASE || object.0 == 0 {
        return Err(IpcError::Object {
            client: client.0,
            object: object.0,
        });
    }
    if allocation != size {
        return Err(IpcError::Size {
            handle: allocation,
            cuda: size,
        });
    }
    if offset.checked_add(size).is_none_or(|end| end > object_size) {
        return Err(IpcError::Range {
            size,
            offset,
            object_size,
        });
    }
    Ok(IpcHint {
        source: ObjectRange {
            client,
            object,
            offset,
            len: size,
        },
        object_size,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn handle(words: &[(usize, u32)]) -> [u8; 64] {
        let mut bytes = [0; 64];
        for &(i, word) in words {
            bytes[4 * i..4 * i + 4].copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    fn valid() -> Vec<(usize, u32)> {
        vec![
            (2, 77),
            (4, 4096),
            (6, 512),
            (7, 0x1200),
            (12, 0xc1d0_0007),
            (13, 0x5c00_0031),
        ]
    }

    #[test]
    fn a_sub_allocated_buffer_is_found_in_its_block() {
        let hint = parse(&handle(&valid()), 77, 4096).unwrap();
        assert_eq!(hint.object_size, 2 << 20);
        assert_eq!(
            hint.source,
            ObjectRange {
                client: Handle(0xc1d0_0007),
                object: Handle(0x5c00_0031),
                offset: 0x1200,
                len: 4096
            }
        );
    }

    #[test]
    fn every_word_that_contradicts_is_an_error() {
        for (i, word, says) in [
            (2, 78, "process 78"),
            (4, 8192, "8192 bytes, but CUDA reports 4096"),
            (5, 1, "bytes, but CUDA"),
            (6, 1, "do not fit"),
            (7, 0x20_0000, "do not fit"),
            (12, 0x5c00_0031, "not an RM client"),
            (13, 0, "not an object"),
        ] {
            let mut words = valid();
            words.push((i, word));
            let error = parse(&handle(&words), 77, 4096).unwrap_err().to_string();
            assert!(error.contains(says), "word {i}: {error}");
        }
    }

    proptest! {
        #[test]
        fn any_64_bytes_are_an_error_or_a_range_inside_an_object(
            bytes in proptest::array::uniform32(any::<u16>()), pid: u32, size: u64,
        ) {
            let mut handle = [0; 64];
            for (to, from) in handle.chunks_exact_mut(2).zip(bytes) {
                to.copy_from_slice(&from.to_le_bytes());
            }
            if let Ok(hint) = parse(&handle, pid, size) {
                prop_assert!(hint.source.offset + hint.source.len <= hint.object_size);
            }
        }
    }
}
