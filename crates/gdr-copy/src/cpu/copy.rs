//! Stores and loads of any range, for every CPU feature level: which accesses are made, and in which order.

use core::mem::MaybeUninit;

use super::isa::{Access, LineGroup};
use super::split::{LINE, LoadSpan, StoreSplit, enclosing_block};

/// Room for one line in host memory.
#[repr(C, align(64))]
struct LineBuffer(MaybeUninit<[u8; LINE]>);

impl LineBuffer {
    const fn new() -> Self {
        Self(MaybeUninit::uninit())
    }

    fn as_mut_ptr(&mut self) -> *mut u8 {
        self.0.as_mut_ptr().cast()
    }
}

/// Stores exactly `len` bytes, in ascending order, each once: whole lines by whole-line stores, the rest by as few
/// naturally aligned powers of two as possible.
///
/// # Safety
/// The CPU has `A`'s features; the window is mapped and `host` valid for `len` bytes; they do not overlap.
#[inline(always)]
pub(crate) unsafe fn store<A: Access>(mut window: *mut u8, mut host: *const u8, len: usize) {
    let split = StoreSplit::of(window.addr(), len);
    macro_rules! step {
        ($store:expr, $size:expr, $left:ident) => {{
            // SAFETY: at least `$size` bytes are left on both sides, and the window is aligned to `$size`: in the head
            // because every smaller step that its address needs is done; in the tail because it starts at a line and
            // only larger steps come before; in a head that ends before the line does because a step that does not fit
            // ends the ascending steps.
            unsafe {
                $store(window, host);
                window = window.add($size);
                host = host.add($size);
            }
            $left -= $size;
        }};
    }

    let mut left = split.head;
    if left != 0 {
        if window.addr() & 1 != 0 {
            step!(A::store_word::<u8>, 1, left);
        }
        if window.addr() & 2 != 0 && left >= 2 {
            step!(A::store_word::<u16>, 2, left);
        }
        if window.addr() & 4 != 0 && left >= 4 {
            step!(A::store_word::<u32>, 4, left);
        }
        if window.addr() & 8 != 0 && left >= 8 {
            step!(A::store_word::<u64>, 8, left);
        }
        if window.addr() & 16 != 0 && left >= 16 {
            step!(A::store_16, 16, left);
        }
        if window.addr() & 32 != 0 && left >= 32 {
            step!(A::store_32, 32, left);
        }
    }
    // A head that ends inside its line descends like a tail, and there is then no tail.
    let mut lines = split.lines;
    while lines != 0 {
        // SAFETY: a whole line is left on both sides and the window is at a line boundary.
        unsafe {
            A::store_line(window, host);
            window = window.add(LINE);
            host = host.add(LINE);
        }
        lines -= 1;
    }
    left += split.tail;
    if left != 0 {
        if left & 32 != 0 {
            step!(A::store_32, 32, left);
        }
        if left & 16 != 0 {
            step!(A::store_16, 16, left);
        }
        if left & 8 != 0 {
            step!(A::store_word::<u64>, 8, left);
        }
        if left & 4 != 0 {
            step!(A::store_word::<u32>, 4, left);
        }
        if left & 2 != 0 {
            step!(A::store_word::<u16>, 2, left);
        }
        if left != 0 {
            // SAFETY: one byte is left on both sides.
            unsafe { A::store_word::<u8>(window, host) };
        }
    }
    A::finish();
}

/// Loads `len` bytes. Reads each line of the range once, and within a single line only the smallest aligned block that
/// contains the range.
///
/// # Safety
/// The CPU has `A`'s features; the lines that contain the range are mapped; `host` is valid for `len` bytes; they do
/// not overlap.
#[inline(always)]
pub(crate) unsafe fn load<A: Access>(host: *mut u8, window: *const u8, len: usize) {
    if len == 0 {
        return;
    }
    match enclosing_block(window.addr(), len) {
        // SAFETY: the caller's promise; the block that contains the range was just computed.
        Some(block) => unsafe { load_block::<A>(host, window, len, block) },
        // SAFETY: the caller's promise; a range that is not in a single line touches at least two.
        None => unsafe { load_span::<A>(host, window, len) },
    }
}

/// Loads a range that lies in one aligned block of 16, 32 or 64 bytes: one access.
///
/// # Safety
/// Same as [`load`]; `block` is the result of [`enclosing_block`] for the range.
#[inline(always)]
unsafe fn load_block<A: Access>(host: *mut u8, window: *const u8, len: usize, block: usize) {
    let skip = window.addr() % block;
    let start = window.wrapping_sub(skip);
    let mut whole = LineBuffer::new();
    // If only a part of the block is wanted, the rest must not overwrite the memory after `host`.
    let to = if len == block {
        host
    } else {
        whole.as_mut_ptr()
    };
    // SAFETY: the block is aligned to its size and inside one mapped line; `to` holds at least `block` bytes, because
    // it is the host range itself only if that is the whole block.
    unsafe {
        match block {
            16 => A::load_16(to, start),
            32 => A::load_32(to, start),
            _ => A::load_lines(
                1,
                LineGroup {
                    window: start,
                    host: to,
                    first: to,
                    last: to,
                },
            ),
        }
    }
    A::finish();
    if len != block {
        // SAFETY: the whole block was loaded into the buffer, the range is inside it, and `host` holds `len` bytes.
        unsafe {
            whole
                .as_mut_ptr()
                .add(skip)
                .copy_to_nonoverlapping(host, len)
        };
    }
}

/// Loads a range that touches several lines by groups of whole-line loads. The first and the last line go through a
/// buffer if only a part of them is wanted.
///
/// # Safety
/// Same as [`load`]; the range touches at least two lines.
#[inline(always)]
unsafe fn load_span<A: Access>(host: *mut u8, window: *const u8, len: usize) {
    let span = LoadSpan::of(window.addr(), len);
    let (mut first_line, mut last_line) = (LineBuffer::new(), LineBuffer::new());

    let mut line = window.wrapping_sub(span.skip);
    let mut to = host.wrapping_sub(span.skip);
    let mut first = if span.head == 0 {
        to
    } else {
        first_line.as_mut_ptr()
    };
    let mut left = span.lines;
    // Runs while more lines are left than fit in one group, so that the last line, which has its own address, is always
    // in the group below.
    while left > A::LINES_IN_FLIGHT {
        let lines = A::LINES_IN_FLIGHT;
        let last = to.wrapping_add((lines - 1) * LINE);
        // SAFETY: these lines contain bytes of the range, so they are mapped. All lines of the span except the first
        // are wanted whole, so their destinations are inside the host range; the first line's destination is inside it
        // or is the buffer.
        unsafe {
            A::load_lines(
                lines,
                LineGroup {
                    window: line,
                    host: to,
                    first,
                    last,
                },
            )
        };
        line = line.wrapping_add(lines * LINE);
        to = to.wrapping_add(lines * LINE);
        first = to;
        left -= lines;
    }
    let last = match span.tail {
        0 => to.wrapping_add((left - 1) * LINE),
        _ => last_line.as_mut_ptr(),
    };
    // SAFETY: as above; the last line's destination is inside the host range or is the other buffer.
    unsafe {
        A::load_lines(
            left,
            LineGroup {
                window: line,
                host: to,
                first,
                last,
            },
        )
    };
    A::finish();

    if span.head != 0 {
        // SAFETY: the whole line was loaded into the buffer, `skip + head` is its size, and the host range starts with
        // these bytes.
        unsafe {
            first_line
                .as_mut_ptr()
                .add(span.skip)
                .copy_to_nonoverlapping(host, span.head);
        }
    }
    if span.tail != 0 {
        // SAFETY: the whole line was loaded into the buffer; the tail is shorter than a line and ends the host range.
        unsafe {
            let end = host.add(len - span.tail);
            last_line
                .as_mut_ptr()
                .copy_to_nonoverlapping(end, span.tail);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    /// Copies like a real feature level and records every window access.
    struct Recorder;

    thread_local! {
        static ACCESSES: RefCell<Vec<(usize, usize)>> = const { RefCell::new(Vec::new()) };
    }

    impl Recorder {
        unsafe fn copy(dst: *mut u8, src: *const u8, window: usize, size: usize) {
            assert!(
                window.is_multiple_of(size),
                "an access of {size} at {window:#x}"
            );
            ACCESSES.with_borrow_mut(|accesses| accesses.push((window, size)));
            // SAFETY: the contract of `Access`.
            unsafe { src.copy_to_nonoverlapping(dst, size) };
        }

        fn take() -> Vec<(usize, usize)> {
            ACCESSES.with_borrow_mut(std::mem::take)
        }
    }

    impl Access for Recorder {
        const LINES_IN_FLIGHT: usize = 3;

        unsafe fn store_word<T: Copy>(window: *mut u8, host: *const u8) {
            // SAFETY: the contract of `Access`, as in the methods below.
            unsafe { Self::copy(window, host, window.addr(), size_of::<T>()) };
        }
        unsafe fn store_16(window: *mut u8, host: *const u8) {
            // SAFETY: see `store_word`.
            unsafe { Self::copy(window, host, window.addr(), 16) };
        }
        unsafe fn store_32(window: *mut u8, host: *const u8) {
            // SAFETY: see `store_word`.
            unsafe { Self::copy(window, host, window.addr(), 32) };
        }
        unsafe fn store_line(window: *mut u8, host: *const u8) {
            // SAFETY: see `store_word`.
            unsafe { Self::copy(window, host, window.addr(), LINE) };
        }
        unsafe fn load_16(host: *mut u8, window: *const u8) {
            // SAFETY: see `store_word`.
            unsafe { Self::copy(host, window, window.addr(), 16) };
        }
        unsafe fn load_32(host: *mut u8, window: *const u8) {
            // SAFETY: see `store_word`.
            unsafe { Self::copy(host, window, window.addr(), 32) };
        }
        unsafe fn load_lines(lines: usize, group: LineGroup) {
            assert!((1..=Self::LINES_IN_FLIGHT).contains(&lines));
            for at in 0..lines {
                let from = group.window.wrapping_add(at * LINE);
                let to = match at {
                    _ if at + 1 == lines => group.last,
                    0 => group.first,
                    _ => group.host.wrapping_add(at * LINE),
                };
                // SAFETY: see `store_word`.
                unsafe { Self::copy(to, from, from.addr(), LINE) };
            }
        }
    }

    #[repr(align(64))]
    struct Memory([u8; 640]);

    fn pattern() -> Memory {
        Memory(std::array::from_fn(|at| (at * 7 + at / 64) as u8))
    }

    /// Returns the smallest number of naturally aligned powers of two, up to a line, that cover a range.
    fn fewest_accesses(mut addr: usize, mut len: usize) -> usize {
        let mut count = 0;
        while len > 0 {
            let fits = 1 << len.ilog2();
            let aligned = if addr == 0 {
                LINE
            } else {
                1 << addr.trailing_zeros()
            };
            let size = fits.min(aligned).min(LINE);
            addr += size;
            len -= size;
            count += 1;
        }
        count
    }

    #[test]
    fn a_store_writes_every_byte_once_ascending_in_the_fewest_accesses() {
        let host = pattern();
        for offset in 0..LINE {
            for len in 0..=260 {
                let mut window = Memory([0xEE; 640]);
                let base = window.0.as_mut_ptr().wrapping_add(LINE + offset);
                // SAFETY: both ranges are inside their arrays.
                unsafe { store::<Recorder>(base, host.0.as_ptr().add(5), len) };
                let accesses = Recorder::take();
                let mut next = base.addr();
                for &(at, size) in &accesses {
                    assert_eq!(at, next, "{len} bytes at {offset}");
                    next = at + size;
                }
                assert_eq!(next, base.addr() + len);
                assert_eq!(accesses.len(), fewest_accesses(base.addr(), len));
                let range = LINE + offset..LINE + offset + len;
                assert_eq!(window.0[range.clone()], host.0[5..5 + len]);
                assert!(window.0[..range.start].iter().all(|&byte| byte == 0xEE));
                assert!(window.0[range.end..].iter().all(|&byte| byte == 0xEE));
            }
        }
    }

    #[test]
    fn a_load_inside_a_line_is_one_access_and_otherwise_one_for_each_line() {
        let window = pattern();
        for offset in 0..LINE {
            for len in 0..=500 {
                let mut host = [0xEE; 502];
                let start = window.0.as_ptr().wrapping_add(LINE + offset);
                // SAFETY: the range is inside `window`, which is whole lines, and `host` holds two more than the
                // largest `len`.
                unsafe { load::<Recorder>(host.as_mut_ptr().add(1), start, len) };
                let accesses = Recorder::take();
                let lines = if len == 0 {
                    0
                } else {
                    (offset + len - 1) / LINE + 1
                };
                assert_eq!(accesses.len(), lines, "{len} bytes at {offset}");
                for (index, &(at, size)) in accesses.iter().enumerate() {
                    let line = window.0.as_ptr().addr() + LINE + index * LINE;
                    assert!((line..line + LINE).contains(&at));
                    assert!(size == LINE || lines == 1);
                }
                let from = LINE + offset;
                assert_eq!(host[1..=len], window.0[from..from + len]);
                assert!(host[0] == 0xEE && host[len + 1..].iter().all(|&byte| byte == 0xEE));
            }
        }
    }
}
