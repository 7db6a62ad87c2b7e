//! Window accesses by general registers: volatile, naturally aligned accesses of 1, 2, 4 and 8 bytes.

/// Stores a `T` by one store of its size.
///
/// # Safety
/// `window` is mapped and aligned for `T`, `host` is valid for reading a `T` at any alignment.
#[inline(always)]
pub(crate) unsafe fn store_word<T: Copy>(window: *mut u8, host: *const u8) {
    // SAFETY: the caller's promise.
    unsafe {
        window
            .cast::<T>()
            .write_volatile(host.cast::<T>().read_unaligned())
    }
}

/// Loads a `T` by one load of its size.
///
/// # Safety
/// `window` is mapped and aligned for `T`, `host` is valid for writing a `T` at any alignment.
#[inline(always)]
pub(crate) unsafe fn load_word<T: Copy>(host: *mut u8, window: *const u8) {
    // SAFETY: the caller's promise.
    unsafe {
        host.cast::<T>()
            .write_unaligned(window.cast::<T>().read_volatile())
    }
}

/// Returns whether `len` bytes at `addr` are one naturally aligned word of 1, 2, 4 or 8 bytes.
#[inline(always)]
pub(crate) fn is_word(addr: usize, len: usize) -> bool {
    matches!(len, 1 | 2 | 4 | 8) && addr & (len - 1) == 0
}

/// Returns whether `len` bytes at `addr` lie in one aligned 8-byte word; `len` is not 0.
#[inline(always)]
pub(crate) fn is_within_word(addr: usize, len: usize) -> bool {
    len.wrapping_sub(1) < 8 && addr % 8 + len <= 8
}

/// Stores a range for which [`is_word`] holds, by exactly one store.
///
/// # Safety
/// `window` is mapped and `host` valid for `len` bytes; [`is_word`] holds for `window` and `len`.
#[inline(always)]
pub(crate) unsafe fn store_one(window: *mut u8, host: *const u8, len: usize) {
    // SAFETY: the caller's promise: both sides hold `len` bytes and the window is aligned to it.
    unsafe {
        match len {
            1 => store_word::<u8>(window, host),
            2 => store_word::<u16>(window, host),
            4 => store_word::<u32>(window, host),
            _ => store_word::<u64>(window, host),
        }
    }
}

/// Loads a range for which [`is_word`] holds, by exactly one load.
///
/// # Safety
/// `window` is mapped and `host` valid for `len` bytes; [`is_word`] holds for `window` and `len`.
#[inline(always)]
pub(crate) unsafe fn load_one(host: *mut u8, window: *const u8, len: usize) {
    // SAFETY: the caller's promise: both sides hold `len` bytes and the window is aligned to it.
    unsafe {
        match len {
            1 => load_word::<u8>(host, window),
            2 => load_word::<u16>(host, window),
            4 => load_word::<u32>(host, window),
            _ => load_word::<u64>(host, window),
        }
    }
}

/// Loads a range for which [`is_within_word`] holds, by exactly one 8-byte load, and keeps the requested bytes.
///
/// # Safety
/// The aligned word around `window` is mapped, `host` is valid for `len` bytes and [`is_within_word`] holds.
#[inline(never)] // Keeps the inlined copy calls small.
pub(crate) unsafe fn load_within_word(host: *mut u8, window: *const u8, len: usize) {
    let skip = window.addr() % 8;
    // SAFETY: the word that contains the range is mapped, and is aligned by construction.
    let word = unsafe { window.wrapping_sub(skip).cast::<u64>().read_volatile() }.to_ne_bytes();
    // SAFETY: `skip + len` is at most 8, and `host` holds `len` bytes.
    unsafe { word.as_ptr().add(skip).copy_to_nonoverlapping(host, len) };
}

/// Copies a range by as few naturally aligned words as possible, in ascending order: up to the alignment of the largest
/// word, then by the largest word, then down to the end. `$aligned` is the pointer into the window.
macro_rules! by_words {
    ($word_move:ident, $dst:ident, $src:ident, $len:ident, aligned: $aligned:ident) => {
        // An ascending step that does not fit is skipped together with all larger ones, because less than its size is
        // left; the descending steps then start from a sufficiently aligned address.
        by_words!(@step $word_move u8, $dst, $src, $len, if $aligned.addr() & 1 != 0);
        by_words!(@step $word_move u16, $dst, $src, $len, if $aligned.addr() & 2 != 0);
        by_words!(@step $word_move u32, $dst, $src, $len, if $aligned.addr() & 4 != 0);
        while $len >= 8 {
            by_words!(@step $word_move u64, $dst, $src, $len, if true);
        }
        by_words!(@step $word_move u32, $dst, $src, $len, if true);
        by_words!(@step $word_move u16, $dst, $src, $len, if true);
        by_words!(@step $word_move u8, $dst, $src, $len, if true);
        debug_assert_eq!($len, 0, "the steps cover the range");
    };
    (@step $word_move:ident $word:ty, $dst:ident, $src:ident, $len:ident, if $when:expr) => {
        if $when && $len >= size_of::<$word>() {
            // SAFETY: a whole word is left on both sides, and the window is aligned to it: in the ascending steps by
            // the steps before, in the descending ones because only larger words came before.
            unsafe {
                $word_move::<$word>($dst, $src);
                $dst = $dst.add(size_of::<$word>());
                $src = $src.add(size_of::<$word>());
            }
            $len -= size_of::<$word>();
        }
    };
}

/// Stores exactly the range, in ascending order, by as few naturally aligned words as possible.
///
/// # Safety
/// `window` is mapped and `host` valid for `len` bytes; they do not overlap.
#[inline(never)] // Keeps the inlined copy calls small.
pub(crate) unsafe fn store(window: *mut u8, host: *const u8, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { store_here(window, host, len) }
}

/// Like [`store`] for less than 16 bytes, without a function call.
///
/// # Safety
/// Same as [`store`].
#[inline(always)]
pub(crate) unsafe fn store_few(window: *mut u8, host: *const u8, len: usize) {
    if !window.addr().is_multiple_of(8) {
        // SAFETY: the caller's promise.
        return unsafe { store_here(window, host, len) };
    }
    macro_rules! step {
        ($word:ty) => {
            if len & size_of::<$word>() != 0 {
                // The larger words precede this one.
                let at = len & !(2 * size_of::<$word>() - 1);
                // SAFETY: `at` and the word are in the range, and `at` is a multiple of a larger word.
                unsafe { store_word::<$word>(window.add(at), host.add(at)) };
            }
        };
    }
    step!(u64);
    step!(u32);
    step!(u16);
    step!(u8);
}

/// Like [`store`], without a function call.
///
/// # Safety
/// Same as [`store`].
#[allow(unused_assignments)] // The last step moves pointers that are not read again.
#[inline(always)]
unsafe fn store_here(mut window: *mut u8, mut host: *const u8, mut len: usize) {
    by_words!(store_word, window, host, len, aligned: window);
}

/// Loads exactly the range by as few naturally aligned words as possible, for memory whose other bytes must not be
/// read.
///
/// # Safety
/// `window` is mapped and `host` valid for `len` bytes; they do not overlap.
#[allow(unused_assignments)] // As in `store`.
#[inline(never)] // Keeps the inlined copy calls small.
pub(crate) unsafe fn load_exact(mut host: *mut u8, mut window: *const u8, mut len: usize) {
    by_words!(load_word, host, window, len, aligned: window);
}

/// Loads the range by whole aligned 8-byte words, each once, and also reads the rest of the first and the last word:
/// the fewest round trips that general registers allow.
///
/// # Safety
/// The lines that contain the range are mapped, `host` is valid for `len` bytes, and they do not overlap.
pub(crate) unsafe fn load_words(mut host: *mut u8, mut window: *const u8, mut len: usize) {
    // First up to a word boundary: from there on each load reads an aligned word, which is one transaction.
    let before = window.addr().wrapping_neg() % 8;
    if before != 0 && len != 0 {
        let head = before.min(len);
        // SAFETY: the range's first `head` bytes end at or before the next word boundary, so they lie in one word,
        // which is inside a mapped line; `head` is at most `len`.
        unsafe {
            load_within_word(host, window, head);
            window = window.add(head);
            host = host.add(head);
        }
        len -= head;
    }
    while len >= 8 {
        // SAFETY: eight bytes are left on both sides and the window is at a word boundary.
        unsafe {
            load_word::<u64>(host, window);
            window = window.add(8);
            host = host.add(8);
        }
        len -= 8;
    }
    if len != 0 {
        // SAFETY: fewer than eight bytes from a word boundary lie in that word, which is inside a mapped line.
        unsafe { load_within_word(host, window, len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(align(64))]
    struct Aligned([u8; 128]);

    #[test]
    fn a_word_is_a_naturally_aligned_power_of_two_up_to_eight() {
        assert!(is_word(0, 8) && is_word(4, 4) && is_word(6, 2) && is_word(7, 1));
        assert!(!is_word(0, 0) && !is_word(0, 3) && !is_word(0, 16));
        assert!(!is_word(4, 8) && !is_word(2, 4) && !is_word(1, 2));
    }

    #[test]
    fn a_range_within_a_word_neither_crosses_it_nor_is_empty() {
        assert!(is_within_word(0, 8) && is_within_word(5, 3) && is_within_word(1, 4));
        assert!(!is_within_word(5, 4) && !is_within_word(0, 9) && !is_within_word(0, 0));
        assert!(!is_within_word(8, usize::MAX));
    }

    #[test]
    fn every_small_range_arrives_whole_and_alone() {
        let window = Aligned(std::array::from_fn(|at| at as u8));
        for offset in 0..24 {
            for len in 0..=40 {
                for load in [load_exact, load_words] {
                    let mut host = [0xEE; 48];
                    // SAFETY: the range is inside `window`, which is whole lines, and `host` holds one more than `len`
                    // bytes.
                    unsafe { load(host.as_mut_ptr().add(1), window.0.as_ptr().add(offset), len) };
                    assert_eq!(host[1..=len], window.0[offset..offset + len]);
                    assert!(host[0] == 0xEE && host[len + 1..].iter().all(|&byte| byte == 0xEE));
                }
                let mut stored = Aligned([0xEE; 128]);
                // SAFETY: both ranges are inside their arrays.
                unsafe {
                    store(
                        stored.0.as_mut_ptr().add(offset),
                        window.0.as_ptr().add(3),
                        len,
                    );
                }
                assert_eq!(stored.0[offset..offset + len], window.0[3..3 + len]);
                assert!(stored.0[..offset].iter().all(|&byte| byte == 0xEE));
                assert!(stored.0[offset + len..].iter().all(|&byte| byte == 0xEE));
            }
        }
    }
}
