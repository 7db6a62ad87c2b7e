//! The driver's names in a CUDA IPC handle.
//!
//! `cuIpcGetMemHandle` of a `cuMemAlloc` allocation returns 64 opaque bytes for another process.
//! On the drivers measured (580.159) they hold, as 32-bit words: [2] process id, [4] and [5] the
//! allocation's size, [6] the size of the memory object in 4 KiB pages, [7] the allocation's
//! offset in that object, [12] the RM client, [13] the RM object. That layout is documented
//! nowhere, so it is a hint: every word that can be checked is, and the route is used only after
//! it proved itself on memory of our own (`selftest`).

use super::abi::Handle;
use super::source::Source;

/// What a handle seems to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct IpcHint {
    pub(super) source: Source,
    /// Bytes in the memory object.
    pub(super) object_size: u64,
}

/// Clients that user space made are numbered from here (`rs_server.c`, RS_CLIENT_HANDLE_BASE).
const CLIENT_BASE: u32 = 0xc1d0_0000;
const CLIENT_MASK: u32 = 0xfff0_0000;

/// Reads a handle for an allocation of `size` bytes; the error tells which word is off.
pub(super) fn parse(handle: &[u8; 64], pid: u32, size: u64) -> Result<IpcHint, String> {
    let word = |i: usize| {
        let at = 4 * i;
        u32::from_le_bytes([handle[at], handle[at + 1], handle[at + 2], handle[at + 3]])
    };
    let allocation = u64::from(word(5)) << 32 | u64::from(word(4));
    let object_size = u64::from(word(6)) << 12;
    let offset = u64::from(word(7));
    let (client, object) = (Handle(word(12)), Handle(word(13)));
    if word(2) != pid {
        return Err(format!(
            "the handle names process {}, not this one ({pid})",
            word(2)
        ));
    }
    if client.0 & CLIENT_MASK != CLIENT_BASE || object.0 == 0 {
        return Err(format!(
            "{:#x} is no RM client, or {:#x} no object",
            client.0, object.0
        ));
    }
    if allocation != size {
        return Err(format!(
            "the handle tells {allocation} bytes where CUDA tells {size}"
        ));
    }
    if offset.checked_add(size).is_none_or(|end| end > object_size) {
        return Err(format!(
            "{size} bytes at {offset} do not fit an object of {object_size}"
        ));
    }
    Ok(IpcHint {
        source: Source {
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

    fn sound() -> Vec<(usize, u32)> {
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
        let hint = parse(&handle(&sound()), 77, 4096).unwrap();
        assert_eq!(hint.object_size, 2 << 20);
        assert_eq!(
            hint.source,
            Source {
                client: Handle(0xc1d0_0007),
                object: Handle(0x5c00_0031),
                offset: 0x1200,
                len: 4096
            }
        );
    }

    #[test]
    fn every_word_that_does_not_fit_is_refused() {
        for (i, word, says) in [
            (2, 78, "process 78"),
            (4, 8192, "8192 bytes where CUDA tells 4096"),
            (5, 1, "bytes where CUDA"),
            (6, 1, "do not fit"),
            (7, 0x20_0000, "do not fit"),
            (12, 0x5c00_0031, "no RM client"),
            (13, 0, "no object"),
        ] {
            let mut words = sound();
            words.push((i, word));
            let error = parse(&handle(&words), 77, 4096).unwrap_err();
            assert!(error.contains(says), "word {i}: {error}");
        }
    }

    proptest! {
        #[test]
        fn no_64_bytes_make_it_panic_or_reach_past_an_object(
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
