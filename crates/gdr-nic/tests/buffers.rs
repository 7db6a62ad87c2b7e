//! Buffers of every kind, compared with a plain vector that takes the same operations.
#![allow(
    clippy::unwrap_used,
    reason = "a fixture that fails is a test that fails"
)]

use gdr_copy::{BackendKind, Context};
use gdr_cuda::{Gpu, MemoryKind, Ordinal, SimDriver};
use gdr_nic::{Buffer, BufferKind, Error};
use proptest::prelude::*;

const LEN: usize = 5000;

fn buffer(kind: BufferKind) -> Buffer {
    let driver = SimDriver::new(1);
    let gpu = Gpu::open(driver.clone(), Ordinal(0)).unwrap();
    let allocate = || gpu.allocate(MemoryKind::Plain, LEN as u64).unwrap();
    match kind {
        BufferKind::Direct => {
            let builder = Context::builder().simulated(driver.clone());
            let context = builder.backend(BackendKind::Sim).open().unwrap();
            let device = allocate();
            let pinned = context.pin(device.ptr(), device.len()).unwrap();
            Buffer::direct(pinned.map().unwrap()).unwrap()
        }
        BufferKind::Staged => Buffer::staged(allocate()).unwrap(),
        _ => Buffer::host(LEN).unwrap(),
    }
}

fn kinds() -> impl Strategy<Value = BufferKind> {
    prop::sample::select(vec![
        BufferKind::Host,
        BufferKind::Direct,
        BufferKind::Staged,
    ])
}

proptest! {
    #[test]
    fn a_write_changes_exactly_the_bytes_of_its_range(
        kind in kinds(),
        copies in prop::collection::vec((0..LEN, 0..600_usize, any::<u8>()), 1..12),
        look in (0..LEN, 0..LEN),
    ) {
        let buffer = buffer(kind);
        let mut model = vec![0; LEN];
        buffer.write_at(0, &model).unwrap();
        for (offset, len, value) in copies {
            let bytes: Vec<u8> = (0..len).map(|i| value.wrapping_add(i as u8)).collect();
            let copied = buffer.write_at(offset as u64, &bytes);
            if offset + len <= LEN {
                copied.unwrap();
                model[offset..offset + len].copy_from_slice(&bytes);
            } else {
                let refused = matches!(copied, Err(Error::OutOfRange { .. }));
                prop_assert!(refused);
            }
        }
        let (from, to) = (look.0.min(look.1), look.0.max(look.1));
        let mut seen = vec![0xff; to - from];
        buffer.read_at(from as u64, &mut seen).unwrap();
        prop_assert!(seen == model[from..to]);
        let word = from & !7;
        if word + 8 <= LEN {
            let expected = u64::from_ne_bytes(model[word..][..8].try_into().unwrap());
            prop_assert_eq!(buffer.load_u64(word as u64).unwrap(), expected);
            let expected = u32::from_ne_bytes(model[word..][..4].try_into().unwrap());
            prop_assert_eq!(buffer.load_u32(word as u64).unwrap(), expected);
        }
        prop_assert_eq!(buffer.load_u8(from as u64).unwrap(), model[from]);
    }

    #[test]
    fn a_range_beyond_the_end_of_a_buffer_is_refused(kind in kinds(), offset: u64, len in 1..100_usize) {
        let buffer = buffer(kind);
        let offset = offset.max(LEN as u64 - len as u64 + 1);
        let written = matches!(buffer.write_at(offset, &vec![1; len]), Err(Error::OutOfRange { .. }));
        let read = matches!(buffer.read_at(offset, &mut vec![1; len]), Err(Error::OutOfRange { .. }));
        prop_assert!(written && read);
        let aligned = offset & !7;
        if aligned + 8 > LEN as u64 {
            prop_assert!(buffer.load_u64(aligned).is_err());
        }
    }
}

#[test]
fn an_empty_buffer_is_refused() {
    assert!(matches!(Buffer::host(0), Err(Error::EmptyBuffer)));
}

#[test]
fn misaligned_words_are_refused() {
    for kind in [BufferKind::Host, BufferKind::Direct, BufferKind::Staged] {
        let buffer = buffer(kind);
        assert!(matches!(buffer.load_u32(2), Err(Error::Misaligned { .. })));
        assert!(matches!(buffer.load_u64(4), Err(Error::Misaligned { .. })));
    }
}

#[test]
fn a_reader_that_loads_the_last_byte_of_a_copy_sees_all_of_it() {
    const PIECE: usize = 4096;
    let buffer = Buffer::host(PIECE).unwrap();
    std::thread::scope(|scope| {
        let writer = buffer.clone();
        scope.spawn(move || {
            for round in 1..=200_u8 {
                // Waits until the reader has seen the previous round.
                while writer.load_u8(0).unwrap() != 0 {
                    std::thread::yield_now();
                }
                writer.write_at(0, &[round; PIECE]).unwrap();
            }
        });
        for round in 1..=200_u8 {
            while buffer.load_u8(PIECE as u64 - 1).unwrap() != round {
                std::thread::yield_now();
            }
            let mut seen = [0; PIECE];
            buffer.read_at(0, &mut seen).unwrap();
            assert!(seen == [round; PIECE]);
            buffer.write_at(0, &[0]).unwrap();
        }
    });
}

#[test]
fn a_buffer_shares_its_page_locked_memory_and_keeps_it_allocated() {
    let gpu = Gpu::open(SimDriver::new(1), Ordinal(0)).unwrap();
    let locked = std::sync::Arc::new(gpu.allocate_host(LEN).unwrap());
    let buffer = Buffer::page_locked(locked.clone()).unwrap();
    assert_eq!(
        (buffer.kind(), buffer.len()),
        (BufferKind::Host, locked.len() as u64)
    );
    assert_eq!(buffer.address(), locked.cpu_ptr().addr() as u64);
    buffer.write_at(100, b"from the network").unwrap();
    let mut seen = [0; 16];
    locked.read(100, &mut seen).unwrap();
    assert_eq!(&seen, b"from the network");
    drop((locked, gpu));
    buffer.read_at(100, &mut seen).unwrap();
    assert_eq!(&seen, b"from the network");
    let beyond = buffer.write_at(buffer.len() - 1, &seen);
    assert!(matches!(beyond, Err(Error::OutOfRange { .. })));
}
