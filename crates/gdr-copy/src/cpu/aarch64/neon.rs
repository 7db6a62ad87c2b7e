//! NEON: a line as two register pairs of 32 bytes, back to back.

use core::arch::asm;

use crate::cpu::isa::{Access, LineGroup};

/// Vector register and register pair loads and stores.
pub(super) struct Neon;

/// Like the macro of the AVX-512 level, with four registers for a line.
macro_rules! load_lines {
    ($n:ident, $group:ident;
     $a0:tt $b0:tt $c0:tt $d0:tt $(, $i:literal $a:tt $b:tt $c:tt $d:tt)+) => {
        asm!(
            concat!("ldp ", $a0, ", ", $b0, ", [{window}]"),
            concat!("ldp ", $c0, ", ", $d0, ", [{window}, #32]"),
            $(concat!(
                ".if {n} > ", $i, "\n",
                "ldp ", $a, ", ", $b, ", [{window}, #(64*", $i, ")]\n",
                "ldp ", $c, ", ", $d, ", [{window}, #(64*", $i, " + 32)]\n",
                ".endif"
            ),)+
            concat!(
                ".if {n} == 1\n",
                "stp ", $a0, ", ", $b0, ", [{last}]\n",
                "stp ", $c0, ", ", $d0, ", [{last}, #32]\n",
                ".else\n",
                "stp ", $a0, ", ", $b0, ", [{first}]\n",
                "stp ", $c0, ", ", $d0, ", [{first}, #32]\n",
                ".endif"
            ),
            $(concat!(
                ".if {n} == ", $i, " + 1\n",
                "stp ", $a, ", ", $b, ", [{last}]\n",
                "stp ", $c, ", ", $d, ", [{last}, #32]\n",
                ".elseif {n} > ", $i, "\n",
                "stp ", $a, ", ", $b, ", [{host}, #(64*", $i, ")]\n",
                "stp ", $c, ", ", $d, ", [{host}, #(64*", $i, " + 32)]\n",
                ".endif"
            ),)+
            n = const $n,
            window = in(reg) $group.window,
            host = in(reg) $group.host,
            first = in(reg) $group.first,
            last = in(reg) $group.last,
            out($a0) _, out($b0) _, out($c0) _, out($d0) _,
            $(out($a) _, out($b) _, out($c) _, out($d) _,)+
            options(nostack, preserves_flags),
        )
    };
}

impl Neon {
    /// # Safety
    /// Same as [`Access::load_lines`] of `N` lines.
    #[inline(always)]
    unsafe fn load_exactly<const N: usize>(group: LineGroup) {
        // Registers 8 to 15 are not used, because a function that uses them has to save them.
        // SAFETY: the caller's promise; all registers written are declared.
        unsafe {
            load_lines!(N, group;
                "q0" "q1" "q2" "q3", 1 "q4" "q5" "q6" "q7", 2 "q16" "q17" "q18" "q19",
                3 "q20" "q21" "q22" "q23", 4 "q24" "q25" "q26" "q27",
                5 "q28" "q29" "q30" "q31");
        }
    }
}

impl Access for Neon {
    const LINES_IN_FLIGHT: usize = 6;

    #[inline(always)]
    unsafe fn store_16(window: *mut u8, host: *const u8) {
        // SAFETY: the trait's contract; the register written is declared.
        unsafe {
            asm!("ldr q0, [{host}]", "str q0, [{window}]",
                host = in(reg) host, window = in(reg) window, out("q0") _,
                options(nostack, preserves_flags));
        }
    }

    #[inline(always)]
    unsafe fn store_32(window: *mut u8, host: *const u8) {
        // SAFETY: the trait's contract; the registers written are declared.
        unsafe {
            asm!("ldp q0, q1, [{host}]", "stp q0, q1, [{window}]",
                host = in(reg) host, window = in(reg) window, out("q0") _, out("q1") _,
                options(nostack, preserves_flags));
        }
    }

    #[inline(always)]
    unsafe fn store_line(window: *mut u8, host: *const u8) {
        // SAFETY: the trait's contract; the registers written are declared.
        unsafe {
            asm!("ldp q0, q1, [{host}]", "ldp q2, q3, [{host}, #32]",
                "stp q0, q1, [{window}]", "stp q2, q3, [{window}, #32]",
                host = in(reg) host, window = in(reg) window,
                out("q0") _, out("q1") _, out("q2") _, out("q3") _,
                options(nostack, preserves_flags));
        }
    }

    #[inline(always)]
    unsafe fn load_16(host: *mut u8, window: *const u8) {
        // SAFETY: the trait's contract; the register written is declared.
        unsafe {
            asm!("ldr q0, [{window}]", "str q0, [{host}]",
                host = in(reg) host, window = in(reg) window, out("q0") _,
                options(nostack, preserves_flags));
        }
    }

    #[inline(always)]
    unsafe fn load_32(host: *mut u8, window: *const u8) {
        // SAFETY: the trait's contract; the registers written are declared.
        unsafe {
            asm!("ldp q0, q1, [{window}]", "stp q0, q1, [{host}]",
                host = in(reg) host, window = in(reg) window, out("q0") _, out("q1") _,
                options(nostack, preserves_flags));
        }
    }

    #[inline(always)]
    unsafe fn load_lines(lines: usize, group: LineGroup) {
        debug_assert!((1..=Self::LINES_IN_FLIGHT).contains(&lines));
        // SAFETY: the trait's contract.
        unsafe {
            match lines {
                1 => Self::load_exactly::<1>(group),
                2 => Self::load_exactly::<2>(group),
                3 => Self::load_exactly::<3>(group),
                4 => Self::load_exactly::<4>(group),
                5 => Self::load_exactly::<5>(group),
                _ => Self::load_exactly::<6>(group),
            }
        }
    }
}
