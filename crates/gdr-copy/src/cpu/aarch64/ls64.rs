//! LS64: one instruction moves a whole line, in one piece (Arm ARM, FEAT_LS64: LD64B and ST64B are single-copy atomic
//! 64-byte accesses).
//!
//! The memory must be Normal non-cacheable or Device and must support the instructions; otherwise they fault.

use core::arch::asm;

use super::neon::Neon;
use crate::cpu::isa::{Access, LineGroup};
use crate::cpu::split::LINE;

/// Whole lines by LD64B and ST64B, all other accesses as with NEON.
pub(super) struct Ls64;

/// Loads one line by LD64B. The destination is host memory.
///
/// # Safety
/// Same as [`Access::load_lines`] of one line.
#[inline(always)]
unsafe fn load_line(host: *mut u8, window: *const u8) {
    // SAFETY: the caller's promise; all registers written are declared.
    unsafe {
        asm!(".arch_extension ls64", "ld64b x0, [{window}]", ".arch_extension nols64",
            "stp x0, x1, [{host}]", "stp x2, x3, [{host}, #16]",
            "stp x4, x5, [{host}, #32]", "stp x6, x7, [{host}, #48]",
            host = in(reg) host, window = in(reg) window,
            out("x0") _, out("x1") _, out("x2") _, out("x3") _,
            out("x4") _, out("x5") _, out("x6") _, out("x7") _,
            options(nostack, preserves_flags));
    }
}

/// Loads two lines by LD64B, both before the first host store.
///
/// # Safety
/// Same as [`Access::load_lines`] of two lines.
#[inline(always)]
unsafe fn load_two_lines(group: LineGroup) {
    // SAFETY: the caller's promise; all registers written are declared.
    unsafe {
        asm!(".arch_extension ls64", "ld64b x0, [{window}]", "ld64b x8, [{next}]",
            ".arch_extension nols64",
            "stp x0, x1, [{first}]", "stp x2, x3, [{first}, #16]",
            "stp x4, x5, [{first}, #32]", "stp x6, x7, [{first}, #48]",
            "stp x8, x9, [{last}]", "stp x10, x11, [{last}, #16]",
            "stp x12, x13, [{last}, #32]", "stp x14, x15, [{last}, #48]",
            window = in(reg) group.window, next = in(reg) group.window.wrapping_add(LINE),
            first = in(reg) group.first, last = in(reg) group.last,
            out("x0") _, out("x1") _, out("x2") _, out("x3") _,
            out("x4") _, out("x5") _, out("x6") _, out("x7") _,
            out("x8") _, out("x9") _, out("x10") _, out("x11") _,
            out("x12") _, out("x13") _, out("x14") _, out("x15") _,
            options(nostack, preserves_flags));
    }
}

impl Access for Ls64 {
    const LINES_IN_FLIGHT: usize = 2;

    #[inline(always)]
    unsafe fn store_16(window: *mut u8, host: *const u8) {
        // SAFETY: as the trait's contract requires.
        unsafe { Neon::store_16(window, host) }
    }

    #[inline(always)]
    unsafe fn store_32(window: *mut u8, host: *const u8) {
        // SAFETY: as the trait's contract requires.
        unsafe { Neon::store_32(window, host) }
    }

    #[inline(always)]
    unsafe fn store_line(window: *mut u8, host: *const u8) {
        // SAFETY: the trait's contract; all registers written are declared.
        unsafe {
            asm!("ldp x0, x1, [{host}]", "ldp x2, x3, [{host}, #16]",
                "ldp x4, x5, [{host}, #32]", "ldp x6, x7, [{host}, #48]",
                ".arch_extension ls64", "st64b x0, [{window}]", ".arch_extension nols64",
                host = in(reg) host, window = in(reg) window,
                out("x0") _, out("x1") _, out("x2") _, out("x3") _,
                out("x4") _, out("x5") _, out("x6") _, out("x7") _,
                options(nostack, preserves_flags));
        }
    }

    #[inline(always)]
    unsafe fn load_16(host: *mut u8, window: *const u8) {
        // SAFETY: as the trait's contract requires.
        unsafe { Neon::load_16(host, window) }
    }

    #[inline(always)]
    unsafe fn load_32(host: *mut u8, window: *const u8) {
        // SAFETY: as the trait's contract requires.
        unsafe { Neon::load_32(host, window) }
    }

    #[inline(always)]
    unsafe fn load_lines(lines: usize, group: LineGroup) {
        debug_assert!((1..=Self::LINES_IN_FLIGHT).contains(&lines));
        // SAFETY: the trait's contract.
        unsafe {
            match lines {
                // The only line of a group has the address `last`.
                1 => load_line(group.last, group.window),
                _ => load_two_lines(group),
            }
        }
    }
}
