//! SSE4.1: a line as four quarters of 16 bytes, back to back.

use core::arch::asm;

use crate::cpu::isa::{Access, LineGroup};

/// Non-temporal stores and streaming loads of 16 bytes.
pub(super) struct Sse41;

/// Like the macro of the AVX-512 level, with four registers for a line.
macro_rules! load_lines {
    ($n:ident, $group:ident;
     $a0:tt $b0:tt $c0:tt $d0:tt $(, $i:literal $a:tt $b:tt $c:tt $d:tt)+) => {
        asm!(
            concat!("movntdqa ", $a0, ", [{window}]"),
            concat!("movntdqa ", $b0, ", [{window} + 16]"),
            concat!("movntdqa ", $c0, ", [{window} + 32]"),
            concat!("movntdqa ", $d0, ", [{window} + 48]"),
            $(concat!(
                ".if {n} > ", $i, "\n",
                "movntdqa ", $a, ", [{window} + 64*", $i, "]\n",
                "movntdqa ", $b, ", [{window} + 64*", $i, " + 16]\n",
                "movntdqa ", $c, ", [{window} + 64*", $i, " + 32]\n",
                "movntdqa ", $d, ", [{window} + 64*", $i, " + 48]\n",
                ".endif"
            ),)+
            concat!(
                ".if {n} == 1\n",
                "movdqu [{last}], ", $a0, "\n",
                "movdqu [{last} + 16], ", $b0, "\n",
                "movdqu [{last} + 32], ", $c0, "\n",
                "movdqu [{last} + 48], ", $d0, "\n",
                ".else\n",
                "movdqu [{first}], ", $a0, "\n",
                "movdqu [{first} + 16], ", $b0, "\n",
                "movdqu [{first} + 32], ", $c0, "\n",
                "movdqu [{first} + 48], ", $d0, "\n",
                ".endif"
            ),
            $(concat!(
                ".if {n} == ", $i, " + 1\n",
                "movdqu [{last}], ", $a, "\n",
                "movdqu [{last} + 16], ", $b, "\n",
                "movdqu [{last} + 32], ", $c, "\n",
                "movdqu [{last} + 48], ", $d, "\n",
                ".elseif {n} > ", $i, "\n",
                "movdqu [{host} + 64*", $i, "], ", $a, "\n",
                "movdqu [{host} + 64*", $i, " + 16], ", $b, "\n",
                "movdqu [{host} + 64*", $i, " + 32], ", $c, "\n",
                "movdqu [{host} + 64*", $i, " + 48], ", $d, "\n",
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

impl Sse41 {
    /// # Safety
    /// Same as [`Access::load_lines`] of `N` lines.
    #[inline(always)]
    unsafe fn load_exactly<const N: usize>(group: LineGroup) {
        // SAFETY: the caller's promise; all registers written are declared.
        unsafe {
            load_lines!(N, group;
                "xmm0" "xmm1" "xmm2" "xmm3", 1 "xmm4" "xmm5" "xmm6" "xmm7",
                2 "xmm8" "xmm9" "xmm10" "xmm11", 3 "xmm12" "xmm13" "xmm14" "xmm15");
        }
    }
}

impl Access for Sse41 {
    const LINES_IN_FLIGHT: usize = 4;

    #[inline(always)]
    unsafe fn store_16(window: *mut u8, host: *const u8) {
        // SAFETY: the trait's contract; the register written is declared.
        unsafe {
            asm!("movdqu xmm0, [{host}]", "movntdq [{window}], xmm0",
                host = in(reg) host, window = in(reg) window, out("xmm0") _,
                options(nostack, preserves_flags));
        }
    }

    #[inline(always)]
    unsafe fn store_32(window: *mut u8, host: *const u8) {
        // SAFETY: the trait's contract; the registers written are declared.
        unsafe {
            asm!("movdqu xmm0, [{host}]", "movdqu xmm1, [{host} + 16]",
                "movntdq [{window}], xmm0", "movntdq [{window} + 16], xmm1",
                host = in(reg) host, window = in(reg) window, out("xmm0") _, out("xmm1") _,
                options(nostack, preserves_flags));
        }
    }

    #[inline(always)]
    unsafe fn store_line(window: *mut u8, host: *const u8) {
        // SAFETY: the trait's contract; the registers written are declared.
        unsafe {
            asm!("movdqu xmm0, [{host}]", "movdqu xmm1, [{host} + 16]",
                "movdqu xmm2, [{host} + 32]", "movdqu xmm3, [{host} + 48]",
                "movntdq [{window}], xmm0", "movntdq [{window} + 16], xmm1",
                "movntdq [{window} + 32], xmm2", "movntdq [{window} + 48], xmm3",
                host = in(reg) host, window = in(reg) window,
                out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
                options(nostack, preserves_flags));
        }
    }

    #[inline(always)]
    unsafe fn load_16(host: *mut u8, window: *const u8) {
        // SAFETY: the trait's contract; the register written is declared.
        unsafe {
            asm!("movntdqa xmm0, [{window}]", "movdqu [{host}], xmm0",
                host = in(reg) host, window = in(reg) window, out("xmm0") _,
                options(nostack, preserves_flags));
        }
    }

    #[inline(always)]
    unsafe fn load_32(host: *mut u8, window: *const u8) {
        // SAFETY: the trait's contract; the registers written are declared.
        unsafe {
            asm!("movntdqa xmm0, [{window}]", "movntdqa xmm1, [{window} + 16]",
                "movdqu [{host}], xmm0", "movdqu [{host} + 16], xmm1",
                host = in(reg) host, window = in(reg) window, out("xmm0") _, out("xmm1") _,
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
                _ => Self::load_exactly::<4>(group),
            }
        }
    }
}
