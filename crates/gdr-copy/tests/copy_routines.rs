//! Every copy routine that this CPU supports, on ordinary memory between two inaccessible pages: an invalid store or
//! load either faults or shows in the bytes around the range.

use std::cmp::min;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use gdr_copy::cpu::{Caching, Routine, copy_from, copy_to};
use proptest::prelude::*;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

const PAGE: usize = 4096;
const LINE: usize = 64;

/// Pages of memory with an inaccessible page before and after them, filled with a pattern.
struct Arena {
    start: *mut u8,
    /// The contents of the memory before any copy into it.
    pattern: Vec<u8>,
}

/// The position of a range: as near to one of the inaccessible pages as its alignment allows.
#[derive(Clone, Copy, Debug)]
enum Side {
    Low,
    High,
}

impl Arena {
    /// Allocates the pages. `tag` is 0 or 0x80: arenas with different tags differ in every byte, at all offsets.
    fn new(pages: usize, tag: u8) -> Self {
        let size = pages * PAGE;
        // SAFETY: the kernel chooses the address, so no other mapping is replaced.
        let all = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                size + 2 * PAGE,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        }
        .expect("map memory");
        let start = all.cast::<u8>().wrapping_add(PAGE);
        for page in [all, start.wrapping_add(size).cast()] {
            // SAFETY: the page is the first or the last of the mapping just made.
            unsafe { mprotect(page, PAGE, MprotectFlags::empty()) }.expect("protect a page");
        }
        // 127 is coprime to the line and page sizes, so misplaced copies are detected.
        let pattern: Vec<u8> = (0..size).map(|at| (at % 127) as u8 | tag).collect();
        // SAFETY: `size` accessible bytes lie at `start`.
        unsafe { pattern.as_ptr().copy_to_nonoverlapping(start, size) };
        Self { start, pattern }
    }

    fn range(&self, side: Side, alignment: usize, len: usize) -> Range<usize> {
        let start = match side {
            Side::Low => alignment,
            Side::High => {
                let last = self.pattern.len() - len;
                last - (last + LINE - alignment) % LINE
            }
        };
        assert_eq!(start % LINE, alignment);
        start..start + len
    }

    fn at(&self, offset: usize) -> *mut u8 {
        assert!(offset <= self.pattern.len());
        self.start.wrapping_add(offset)
    }

    /// Checks that `range` holds `data` and all other bytes the pattern, then restores the pattern.
    #[track_caller]
    fn check_and_restore(&mut self, range: Range<usize>, data: &[u8], what: impl Fn() -> String) {
        // SAFETY: the bytes are mapped, initialised, and not accessed otherwise until the end of this function, which
        // has `&mut self`.
        let bytes = unsafe { std::slice::from_raw_parts_mut(self.start, self.pattern.len()) };
        let checks = [
            (bytes[range.clone()] == *data, "wrong bytes copied"),
            (
                bytes[..range.start] == self.pattern[..range.start],
                "bytes before it changed",
            ),
            (
                bytes[range.end..] == self.pattern[range.end..],
                "bytes after it changed",
            ),
        ];
        let failed = checks.iter().find(|(is_right, _)| !is_right);
        // Restores everything after a failure, so that a test that shrinks its case starts from the pattern.
        let restore = if failed.is_none() {
            range
        } else {
            0..bytes.len()
        };
        bytes[restore.clone()].copy_from_slice(&self.pattern[restore]);
        if let Some((_, failure)) = failed {
            panic!("{failure}: {}", what());
        }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        let all = self.start.wrapping_sub(PAGE).cast();
        // SAFETY: exactly the mapping that `new` made; nothing points into it any more.
        unsafe { munmap(all, self.pattern.len() + 2 * PAGE) }.expect("unmap memory");
    }
}

#[derive(Clone, Copy, Debug)]
enum Direction {
    ToWindow,
    FromWindow,
}

/// Two arenas; every byte of the source differs from every byte of the destination.
struct Bench {
    source: Arena,
    destination: Arena,
}

impl Bench {
    fn new(pages: usize) -> Self {
        Self {
            source: Arena::new(pages, 0),
            destination: Arena::new(pages, 0x80),
        }
    }

    /// Copies once and checks both sides. `window` and `host` are a side and an alignment each.
    #[track_caller]
    fn copy(
        &mut self,
        routine: &Routine,
        direction: Direction,
        window: (Side, usize),
        host: (Side, usize),
        len: usize,
    ) {
        let (to, from) = match direction {
            Direction::ToWindow => (window, host),
            Direction::FromWindow => (host, window),
        };
        let to = self.destination.range(to.0, to.1, len);
        let from = self.source.range(from.0, from.1, len);
        let (dst, src) = (self.destination.at(to.start), self.source.at(from.start));
        // SAFETY: both ranges are in their arenas, which are whole lines and do not overlap.
        unsafe {
            match direction {
                Direction::ToWindow => routine.store(dst, src, len),
                Direction::FromWindow => routine.load(dst, src, len),
            }
        }
        self.destination
            .check_and_restore(to, &self.source.pattern[from], || {
                format!(
                    "{} {direction:?}, window {window:?}, host {host:?}, {len} B",
                    routine.name()
                )
            });
    }
}

/// Returns the routines that work on the ordinary memory of these tests.
fn routines() -> impl Iterator<Item = &'static Routine> {
    Routine::supported()
        .iter()
        .copied()
        .filter(|routine| !routine.needs_uncached_mapping())
}

fn side_of(number: usize) -> Side {
    if number.is_multiple_of(2) {
        Side::Low
    } else {
        Side::High
    }
}

/// Copies every size up to 4200 at every alignment of the window; the host's alignment rotates.
fn every_size(direction: Direction) {
    let mut bench = Bench::new(2);
    for routine in routines() {
        for len in 0..=4200 {
            for alignment in 0..LINE {
                let host = (len * 7 + alignment * 5) % LINE;
                let sides = (side_of(len + alignment), side_of((len + alignment) / 2));
                bench.copy(
                    routine,
                    direction,
                    (sides.0, alignment),
                    (sides.1, host),
                    len,
                );
            }
        }
    }
}

/// Copies at every pair of alignments, for every size up to ten lines and for the sizes around each multiple of the
/// line up to 34 lines, which is more than twice what any routine holds in flight: over a million copies for each
/// routine.
fn every_pair_of_alignments(direction: Direction) {
    let around = (11..=34).flat_map(|lines| lines * LINE - 1..=lines * LINE + 1);
    let sizes = (0..=10 * LINE).chain(around);
    let mut bench = Bench::new(2);
    for routine in routines() {
        for len in sizes.clone() {
            for alignment in 0..LINE {
                for host in 0..LINE {
                    let sides = (side_of(len + host), side_of(alignment + host / 2));
                    let (window, host) = ((sides.0, alignment), (sides.1, host));
                    bench.copy(routine, direction, window, host, len);
                }
            }
        }
    }
}

#[test]
fn every_size_at_every_window_alignment_is_stored_exactly() {
    every_size(Direction::ToWindow);
}

#[test]
fn every_size_at_every_window_alignment_is_loaded_exactly() {
    every_size(Direction::FromWindow);
}

#[test]
fn every_pair_of_alignments_is_stored_exactly() {
    every_pair_of_alignments(Direction::ToWindow);
}

#[test]
fn every_pair_of_alignments_is_loaded_exactly() {
    every_pair_of_alignments(Direction::FromWindow);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn any_larger_copy_arrives_whole_and_alone(
        len in 4200usize..200_000,
        window in 0..LINE,
        host in 0..LINE,
        sides in (any::<bool>(), any::<bool>()),
    ) {
        thread_local! {
            static BENCH: std::cell::RefCell<Bench> = std::cell::RefCell::new(Bench::new(50));
        }
        let side = |high| if high { Side::High } else { Side::Low };
        let len = min(len, 50 * PAGE - LINE);
        BENCH.with_borrow_mut(|bench| {
            for routine in routines() {
                for direction in [Direction::ToWindow, Direction::FromWindow] {
                    let (window, host) = ((side(sides.0), window), (side(sides.1), host));
                    bench.copy(routine, direction, window, host, len);
                }
            }
        });
    }
}

#[test]
fn a_complete_copy_of_the_last_bytes_before_an_inaccessible_page_does_not_leave_it() {
    let window = Arena::new(1, 0);
    for routine in routines() {
        for caching in [Caching::WriteCombined, Caching::Cached, Caching::Device] {
            for len in 0..=300 {
                for start in [0, PAGE - len] {
                    let expected = &window.pattern[start..start + len];
                    let mut bytes = vec![0xFF; len];
                    // SAFETY: the range is inside the arena; `bytes` has `len` bytes.
                    unsafe {
                        copy_from(routine, caching, bytes.as_mut_ptr(), window.at(start), len);
                        copy_to(routine, caching, window.at(start), bytes.as_ptr(), len);
                    }
                    assert_eq!(bytes, expected, "{} {caching:?}", routine.name());
                }
            }
        }
    }
}

/// Stores words of equal bytes repeatedly while this thread loads them: a torn value would show as unequal bytes.
fn is_never_seen_in_parts(len: usize) {
    struct Word(*mut u8);
    // SAFETY: only the copy routines use the pointer, and their word accesses are atomic, which is what this test
    // checks.
    unsafe impl Sync for Word {}

    const ROUNDS: usize = 20_000;
    let arena = Arena::new(1, 0);
    for routine in routines() {
        // The last word of a line, so that a store beyond the word is detected, too.
        let place = Word(arena.at(LINE - len));
        // SAFETY: the word is inside the arena.
        unsafe { routine.store(place.0, [0u8; 8].as_ptr(), len) };
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (place, stop) = (&place, &stop);
            scope.spawn(move || {
                let mut value = 0u8;
                while !stop.load(Ordering::Relaxed) {
                    value = value.wrapping_add(1);
                    // SAFETY: as above.
                    unsafe { routine.store(place.0, [value; 8].as_ptr(), len) };
                }
            });
            let torn = (0..ROUNDS).find_map(|_| {
                let mut seen = [0u8; 8];
                // SAFETY: as above.
                unsafe { routine.load(seen.as_mut_ptr(), place.0, len) };
                seen[..len]
                    .iter()
                    .any(|&byte| byte != seen[0])
                    .then_some(seen)
            });
            // Before the assertion, so that a failure does not leave the writer running.
            stop.store(true, Ordering::Relaxed);
            assert_eq!(torn, None, "{} {len} B", routine.name());
        });
    }
}

#[test]
fn a_naturally_aligned_word_is_never_seen_in_parts() {
    for len in [2, 4, 8] {
        is_never_seen_in_parts(len);
    }
}
