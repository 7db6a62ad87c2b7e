//! The window accesses of one CPU feature level.

/// A group of consecutive window lines to load, and their destinations in host memory.
///
/// Line `i` goes to `host + 64 i`, except the first and the last of the group, which have addresses of their own
/// because the caller may want only a part of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LineGroup {
    /// The first line, 64-byte aligned.
    pub(crate) window: *const u8,
    /// The destination of the group's first line if it is wanted whole. Not used for the first and the last line, so it
    /// may point before the destination.
    pub(crate) host: *mut u8,
    /// The destination of the first line, unless it is also the last.
    pub(crate) first: *mut u8,
    /// The destination of the last line.
    pub(crate) last: *mut u8,
}

/// The window accesses of one CPU feature level.
///
/// Every method performs exactly the accesses in its name, by volatile accesses or assembly, so that a compiler cannot
/// split, merge, repeat or omit them.
///
/// # Safety
///
/// Common to all methods: the CPU has the feature level; the window side is mapped and naturally aligned to the size of
/// the access; the host side is valid for that many bytes, at any alignment; the two do not overlap.
pub(crate) trait Access {
    /// The maximum number of lines for [`Self::load_lines`]: as many as registers can hold at once.
    const LINES_IN_FLIGHT: usize;

    /// Copies from host to window, by one store of the size of `T`: 1, 2, 4 or 8 bytes.
    ///
    /// # Safety
    /// See the trait.
    #[inline(always)]
    unsafe fn store_word<T: Copy>(window: *mut u8, host: *const u8) {
        // SAFETY: the trait's contract: aligned and mapped window side, valid host side.
        unsafe { super::scalar::store_word::<T>(window, host) }
    }

    /// Copies 16 bytes from host to window.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn store_16(window: *mut u8, host: *const u8);

    /// Copies 32 bytes from host to window.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn store_32(window: *mut u8, host: *const u8);

    /// Copies one whole line from host to window.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn store_line(window: *mut u8, host: *const u8);

    /// Copies 16 bytes from window to host.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn load_16(host: *mut u8, window: *const u8);

    /// Copies 32 bytes from window to host.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn load_32(host: *mut u8, window: *const u8);

    /// Copies `lines` lines (1 to [`Self::LINES_IN_FLIGHT`]) from window to host. All window loads are issued before
    /// the first host store.
    ///
    /// # Safety
    /// See the trait; `first` and `last` of the group are valid for one line each.
    unsafe fn load_lines(lines: usize, group: LineGroup);

    /// Leaves the vector registers as the calling convention requires, after any of the methods above.
    #[inline(always)]
    fn finish() {}
}
