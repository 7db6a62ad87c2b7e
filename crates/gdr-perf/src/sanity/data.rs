//! Checks that reads and writes by the CPU, by copies and by kernels agree on every byte.

use std::num::NonZeroU64;
use std::thread;

use gdr_copy::{Error, FlagWord};
use gdr_cuda::{DeviceBuffer, MemoryKind, VerifyReport};

use super::WAIT;
use super::outcome::{Outcome, Stop, allocate, require, require_refusal};
use super::pattern;
use crate::bench_target::BenchTarget;
use crate::error::compare;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// The distances that GDRCopy's data validation shifts its copies by, and 0.
const SHIFTS: [usize; 11] = [0, 1, 2, 3, 4, 5, 6, 7, 11, 129, 1023];

/// Copies of odd offsets on either side arrive whole and touch nothing else.
pub(super) fn validation(target: &BenchTarget, kind: MemoryKind) -> Outcome {
    let buffer = allocate(target, kind, 64 * KIB)?;
    let mapping = target.map(&buffer)?;
    let len = buffer.len() as usize - 2 * 1023;
    let background = vec![0xa5; buffer.len() as usize];
    for (seed, shift) in (1..).zip(SHIFTS) {
        for (gpu_shift, host_shift) in [(shift, 0), (0, shift), (shift, shift)] {
            let what = format!("{len} bytes, shifted by {gpu_shift} on the GPU, {host_shift} here");
            let host = pattern::bytes(seed, buffer.len());
            buffer.write(0, &background)?;
            mapping.write_at(gpu_shift as u64, &host[host_shift..host_shift + len])?;
            let mut expected = background.clone();
            expected[gpu_shift..gpu_shift + len]
                .copy_from_slice(&host[host_shift..host_shift + len]);
            pattern::require_contents(&format!("writing {what}"), &buffer, &expected)?;

            let mut back = vec![0x5a; buffer.len() as usize];
            mapping.read_at(gpu_shift as u64, &mut back[host_shift..host_shift + len])?;
            let mut expected = vec![0x5a; buffer.len() as usize];
            expected[host_shift..host_shift + len]
                .copy_from_slice(&host[host_shift..host_shift + len]);
            compare(&format!("reading {what}"), &expected, &back)?;
        }
    }
    Ok(())
}

/// Checks that every small size at every place in a cache line arrives whole and touches nothing else.
pub(super) fn small_sizes(target: &BenchTarget) -> Outcome {
    const AREA: usize = 512;
    let buffer = allocate(target, MemoryKind::Plain, AREA as u64)?;
    let mapping = target.map(&buffer)?;
    let source = pattern::bytes(4, AREA as u64);
    let background = vec![0xc3; AREA];
    for offset in 0..64 {
        for len in (0..=80).chain([96, 127, 128, 129, 191, 192, 193, 255, 256, 257]) {
            buffer.write(0, &background)?;
            mapping.write_at(offset as u64, &source[..len])?;
            let mut expected = background.clone();
            expected[offset..offset + len].copy_from_slice(&source[..len]);
            pattern::require_contents(
                &format!("writing {len} bytes at {offset}"),
                &buffer,
                &expected,
            )?;
            let what = format!("reading {len} bytes at {offset}");
            pattern::require_mapped(&what, &mapping, offset as u64, &source[..len])?;
        }
    }
    Ok(())
}

/// Checks that a kernel launched after a CPU write, and `cuMemcpy`, see what was written.
pub(super) fn kernel_sees_cpu(target: &BenchTarget, kind: MemoryKind) -> Outcome {
    let buffer = allocate(target, kind, 4 * MIB)?;
    let mapping = target.map(&buffer)?;
    let stream = target.gpu().stream()?;
    for seed in [5, 6] {
        let bytes = pattern::bytes(seed, buffer.len());
        mapping.write_at(0, &bytes)?;
        let seen = stream.verify_pattern(&buffer, 0, buffer.len() / 4, seed, WAIT)?;
        require_clean("a kernel", seen)?;
        pattern::require_contents("cuMemcpy of what the CPU wrote", &buffer, &bytes)?;
    }
    // Prove that the kernel can find a mismatch.
    mapping.write_at(1000, &[!pattern::bytes(6, 1001)[1000]])?;
    let seen = stream.verify_pattern(&buffer, 0, buffer.len() / 4, 6, WAIT)?;
    require!(
        (seen.mismatches, seen.first) == (1, 250),
        "one wrong byte in word 250 was reported as {seen:?}"
    );
    Ok(())
}

/// Checks that the CPU reads everything that a kernel and a memset wrote.
pub(super) fn cpu_sees_kernel(target: &BenchTarget, kind: MemoryKind) -> Outcome {
    let buffer = allocate(target, kind, MIB)?;
    let mapping = target.map(&buffer)?;
    let stream = target.gpu().stream()?;
    for seed in [7, 8, 9] {
        stream.fill_pattern(&buffer, 0, buffer.len() / 4, seed, WAIT)?;
        let expected = pattern::bytes(seed, buffer.len());
        pattern::require_mapped("the CPU's view of a kernel's work", &mapping, 0, &expected)?;
    }
    stream.fill(&buffer, 0x5c, WAIT)?;
    let expected = vec![0x5c; buffer.len() as usize];
    pattern::require_mapped("the CPU's view of a memset", &mapping, 0, &expected)
}

/// Writes reach neither the bytes beside them nor the allocations beside theirs.
pub(super) fn neighbours(target: &BenchTarget, kind: MemoryKind) -> Outcome {
    let buffers = (0..3)
        .map(|_| allocate(target, kind, 64 * KIB))
        .collect::<Outcome<Vec<DeviceBuffer>>>()?;
    let mut expected = Vec::new();
    for (seed, buffer) in (10..).zip(&buffers) {
        expected.push(pattern::bytes(seed, buffer.len()));
        buffer.write(0, &pattern::bytes(seed, buffer.len()))?;
    }
    let mapping = target.map(&buffers[1])?;
    for (offset, len) in [(0, 1), (1, 62), (4093, 7), (32_767, 4098), (65_535, 1)] {
        let bytes = vec![0xee; len];
        mapping.write_at(offset as u64, &bytes)?;
        expected[1][offset..offset + len].copy_from_slice(&bytes);
    }
    for (name, (buffer, expected)) in ["before", "written to", "after"]
        .iter()
        .zip(buffers.iter().zip(&expected))
    {
        pattern::require_contents(&format!("the buffer {name}"), buffer, expected)?;
    }
    let refused = mapping.write_at(64 * KIB - 1, &[0; 2]);
    require_refusal("a write past the end", refused, |e| {
        matches!(e, Error::OutOfRange { .. })
    })?;
    let refused = mapping.read_at(u64::MAX, &mut [0; 2]);
    require_refusal("a read past the end", refused, |e| {
        matches!(e, Error::OutOfRange { .. })
    })?;
    pattern::require_contents("the buffer after refused writes", &buffers[1], &expected[1])
}

/// Checks that words of 1, 2, 4 and 8 bytes are stored and read whole, at every aligned place.
pub(super) fn typed_flags(target: &BenchTarget, kind: MemoryKind) -> Outcome {
    let buffer = allocate(target, kind, 4 * KIB)?;
    let mapping = target.map(&buffer)?;
    buffer.write(0, &pattern::bytes(13, buffer.len()))?;

    fn whole<T: FlagWord + Into<u64>>(
        mapping: &gdr_copy::Mapping,
        buffer: &DeviceBuffer,
        value: T,
    ) -> Outcome {
        let size = size_of::<T>();
        let before = pattern::contents(buffer)?;
        for offset in (0..4096 - size).step_by(size * 37) {
            let flag = mapping.flag::<T>(offset as u64)?;
            flag.store(value);
            require!(
                flag.load() == value && flag.load_acquire() == value,
                "a word of {size} bytes at {offset} does not read back"
            );
            let mut expected = before.clone();
            expected[offset..offset + size].copy_from_slice(&value.into().to_le_bytes()[..size]);
            let what = format!("a word of {size} bytes at {offset}");
            pattern::require_contents(&what, buffer, &expected)?;
            buffer.write(0, &before)?;
            let old = u64_of(&before[offset..offset + size]);
            require!(flag.load().into() == old, "{what} does not follow cuMemcpy");
        }
        let unaligned = mapping.flag::<T>(1);
        if size > 1 {
            require_refusal("an unaligned word", unaligned, |e| {
                matches!(e, Error::Unaligned { .. })
            })?;
        }
        Ok(())
    }

    whole(&mapping, &buffer, 0xe1_u8)?;
    whole(&mapping, &buffer, 0xe1e2_u16)?;
    whole(&mapping, &buffer, 0xe1e2_e3e4_u32)?;
    whole(&mapping, &buffer, 0xe1e2_e3e4_e5e6_e7e8_u64)
}

fn u64_of(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .rev()
        .fold(0, |value, byte| value << 8 | u64::from(*byte))
}

/// Checks that four threads can write and read parts of one mapping at once.
pub(super) fn chunks(target: &BenchTarget, kind: MemoryKind) -> Outcome {
    let buffer = allocate(target, kind, MIB)?;
    let mapping = target.map(&buffer)?;
    let expected = pattern::bytes(14, buffer.len());
    let part = NonZeroU64::new(MIB / 4).ok_or_else(|| Stop::failed("parts of no bytes"))?;
    thread::scope(|scope| {
        let workers: Vec<_> = mapping
            .chunks(part)
            .zip(expected.chunks(part.get() as usize))
            .map(|(slice, bytes)| {
                scope.spawn(move || -> Outcome {
                    // Copy in pieces, so that the threads take turns on the bus.
                    for (i, piece) in bytes.chunks(4099).enumerate() {
                        slice.write_at(i as u64 * 4099, piece)?;
                    }
                    let mut back = vec![0; bytes.len()];
                    slice.read_at(0, &mut back)?;
                    Ok(compare("a thread's own part", bytes, &back)?)
                })
            })
            .collect();
        require!(workers.len() == 4, "{} parts instead of 4", workers.len());
        workers.into_iter().try_for_each(|worker| {
            worker
                .join()
                .unwrap_or_else(|_| Err(Stop::failed("a worker thread panicked")))
        })
    })?;
    let seen = target
        .gpu()
        .stream()?
        .verify_pattern(&buffer, 0, MIB / 4, 14, WAIT)?;
    require_clean("a kernel", seen)
}

pub(super) fn require_clean(who: &str, seen: VerifyReport) -> Outcome {
    let VerifyReport {
        mismatches,
        first,
        expected,
        found,
    } = seen;
    require!(
        mismatches == 0,
        "{who} sees {mismatches} wrong words; word {first} is {found:#010x}, not {expected:#010x}"
    );
    Ok(())
}
