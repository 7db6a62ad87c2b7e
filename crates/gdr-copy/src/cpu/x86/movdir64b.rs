//! MOVDIR64B: a 64-byte direct store, the only x86 store of a whole line that is guaranteed to arrive in one piece
//! (Intel SDM volume 2, MOVDIR64B: "64-byte write atomicity").

use core::arch::asm;
use core::marker::PhantomData;

use crate::cpu::isa::{Access, LineGroup};

/// Whole lines by MOVDIR64B, all other accesses by `A`.
pub(super) struct Direct<A>(PhantomData<A>);

impl<A: Access> Access for Direct<A> {
    const LINES_IN_FLIGHT: usize = A::LINES_IN_FLIGHT;

    #[inline(always)]
    unsafe fn store_16(window: *mut u8, host: *const u8) {
        // SAFETY: as the trait's contract requires; the same applies to the other methods that call `A`.
        unsafe { A::store_16(window, host) }
    }

    #[inline(always)]
    unsafe fn store_32(window: *mut u8, host: *const u8) {
        // SAFETY: see `store_16`.
        unsafe { A::store_32(window, host) }
    }

    #[inline(always)]
    unsafe fn store_line(window: *mut u8, host: *const u8) {
        // SAFETY: the trait's contract: 64 readable bytes at `host`, a mapped line at `window`.
        unsafe {
            asm!("movdir64b {window}, [{host}]",
                host = in(reg) host, window = in(reg) window,
                options(nostack, preserves_flags));
        }
    }

    #[inline(always)]
    unsafe fn load_16(host: *mut u8, window: *const u8) {
        // SAFETY: see `store_16`.
        unsafe { A::load_16(host, window) }
    }

    #[inline(always)]
    unsafe fn load_32(host: *mut u8, window: *const u8) {
        // SAFETY: see `store_16`.
        unsafe { A::load_32(host, window) }
    }

    #[inline(always)]
    unsafe fn load_lines(lines: usize, group: LineGroup) {
        // SAFETY: see `store_16`.
        unsafe { A::load_lines(lines, group) }
    }

    #[inline(always)]
    fn finish() {
        A::finish();
    }
}
