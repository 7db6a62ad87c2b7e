//! What one CPU feature level offers for touching the window.

/// A group of consecutive window lines to be loaded, and where each goes in host memory.
///
/// Line `i` goes to `host + 64 i`, except the first and the last of the group, which have
/// addresses of their own because the caller may want only a part of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LineGroup {
    /// First line, 64-byte aligned.
    pub(crate) window: *const u8,
    /// Where the group's first line would go if it was wanted whole. Not used for the first and
    /// the last line, so it may point before the destination.
    pub(crate) host: *mut u8,
    /// Where the first line goes, unless it is also the last.
    pub(crate) first: *mut u8,
    /// Where the last line goes.
    pub(crate) last: *mut u8,
}

/// The window accesses of one CPU feature level.
///
/// Every method performs exactly the accesses that its name says: volatile accesses or assembly,
/// never something that a compiler may split, merge, repeat or leave out.
///
/// # Safety
///
/// Common to all methods: the CPU has the feature level; the window side is naturally aligned to
/// the size moved and mapped; the host side is valid for that many bytes, at any alignment; the
/// two do not overlap.
pub(crate) trait Access {
    /// The most lines that [`Self::load_lines`] takes: as many as registers can hold at once.
    const LINES_IN_FLIGHT: usize;

    /// Host to window, one store of the size of `T`: 1, 2, 4 or 8 bytes.
    ///
    /// # Safety
    /// See the trait.
    #[inline(always)]
    unsafe fn store_word<T: Copy>(window: *mut u8, host: *const u8) {
        // SAFETY: the trait's contract: aligned and mapped window side, valid host side.
        unsafe { super::scalar::store_word::<T>(window, host) }
    }

    /// Host to window, 16 bytes.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn store_16(window: *mut u8, host: *const u8);

    /// Host to window, 32 bytes.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn store_32(window: *mut u8, host: *const u8);

    /// Host to window, one whole line.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn store_line(window: *mut u8, host: *const u8);

    /// Window to host, 16 bytes.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn load_16(host: *mut u8, window: *const u8);

    /// Window to host, 32 bytes.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn load_32(host: *mut u8, window: *const u8);

    /// Window to host, `lines` lines (1 to [`Self::LINES_IN_FLIGHT`]): all window loads are issued
    /// before the first host store.
    ///
    /// # Safety
    /// See the trait; `first` and `last` of the group are valid for one line each.
    unsafe fn load_lines(lines: usize, group: LineGroup);

    /// Leaves the vector registers as the calling convention wants them, after any of the above.
    #[inline(always)]
    fn finish() {}
}
