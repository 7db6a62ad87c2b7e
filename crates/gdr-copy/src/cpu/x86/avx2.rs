//! AVX2: a line as two halves of 32 bytes, back to back.

use core::arch::asm;

use crate::cpu::isa::{Access, LineGroup};

/// Non-temporal stores and streaming loads of 32 bytes.
pub(super) struct Avx2;

/// Like the macro of the AVX-512 level, with two registers for a line.
macro_rules! load_lines {
    ($n:ident, $group:ident; $low0:tt $high0:tt $(, $i:literal $low:tt $high:tt)+) => {
        asm!(
            concat!("vmovntdqa ", $low0, ", [{window}]"),
            concat!("vmovntdqa ", $high0, ", [{window} + 32]"),
            $(concat!(
                ".if {n} > ", $i, "\n",
                "vmovntdqa ", $low, ", [{window} + 64*", $i, "]\n",
                "vmovntdqa ", $high, ", [{window} + 64*", $i, " + 32]\n",
                ".endif"
            ),)+
            concat!(
                ".if {n} == 1\n",
                "vmovdqu [{last}], ", $low0, "\n",
                "vmovdqu [{last} + 32], ", $high0, "\n",
                ".else\n",
                "vmovdqu [{first}], ", $low0, "\n",
                "vmovdqu [{first} + 32], ", $high0, "\n",
                ".endif"
            ),
            $(concat!(
                ".if {n} == ", $i, " + 1\n",
                "vmovdqu [{last}], ", $low, "\n",
                "vmovdqu [{last} + 32], ", $high, "\n",
                ".elseif {n} > ", $i, "\n",
                "vmovdqu [{host} + 64*", $i, "], ", $low, "\n",
                "vmovdqu [{host} + 64*", $i, " + 32], ", $high, "\n",
                ".endif"
            ),)+
            n = const $n,
            window = in(reg) $group.window,
            host = in(reg) $group.host,
            first = in(reg) $group.first,
            last = in(reg) $group.last,
            out($low0) _, out($high0) _, $(out($low) _, out($high) _,)+
            options(nostack, preserves_flags),
        )
    };
}

impl Avx2 {
    /// # Safety
    /// Same as [`Access::load_lines`] of `N` lines.
    #[inline(always)]
    unsafe fn load_exactly<const N: usize>(group: LineGroup) {
        // SAFETY: the caller's promise; all registers written are declared.
        unsafe {
            load_lines!(N, group;
                "ymm0" "ymm1", 1 "ymm2" "ymm3", 2 "ymm4" "ymm5", 3 "ymm6" "ymm7",
                4 "ymm8" "ymm9", 5 "ymm10" "ymm11", 6 "ymm12" "ymm13", 7 "ymm14" "ymm15");
        }
    }
}

impl Access for Avx2 {
    const LINES_IN_FLIGHT: usize = 8;

    #[inline(always)]
    unsafe fn store_16(window: *mut u8, host: *const u8) {
        // SAFETY: the trait's contract; the register written is declared.
        unsafe {
            asm!("vmovdqu xmm0, [{host}]", "vmovntdq [{window}], xmm0",
                host = in(reg) host, window = in(reg) window, out("xmm0") _,
                options(nostack, preserves_flags));
        }
    }

    #[inline(always)]
    unsafe fn store_32(window: *mut u8, host: *const u8) {
        // SAFETY: the trait's contract; the register written is declared.
        unsafe {
            asm!("vmovdqu ymm0, [{host}]", "vmovntdq [{window}], ymm0",
                host = in(reg) host, window = in(reg) window, out("ymm0") _,
                options(nostack, preserves_flags));
        }
    }

    #[inline(always)]
    unsafe fn store_line(window: *mut u8, host: *const u8) {
        // SAFETY: the trait's contract; the registers written are declared.
        unsafe {
            asm!("vmovdqu ymm0, [{host}]", "vmovdqu ymm1, [{host} + 32]",
                "vmovntdq [{window}], ymm0", "vmovntdq [{window} + 32], ymm1",
                host = in(reg) host, window = in(reg) window, out("ymm0") _, out("ymm1") _,
                options(nostack, preserves_flags));
        }
    }

    #[inline(always)]
    unsafe fn load_16(host: *mut u8, window: *const u8) {
        // SAFETY: the trait's contract; the register written is declared.
        unsafe {
            asm!("vmovntdqa xmm0, [{window}]", "vmovdqu [{host}], xmm0",
                host = in(reg) host, window = in(reg) window, out("xmm0") _,
                options(nostack, preserves_flags));
        }
    }

    #[inline(always)]
    unsafe fn load_32(host: *mut u8, window: *const u8) {
        // SAFETY: the trait's contract; the register written is declared.
        unsafe {
            asm!("vmovntdqa ymm0, [{window}]", "vmovdqu [{host}], ymm0",
                host = in(reg) host, window = in(reg) window, out("ymm0") _,
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
                6 => Self::load_exactly::<6>(group),
                7 => Self::load_exactly::<7>(group),
                _ => Self::load_exactly::<8>(group),
            }
        }
    }

    /// Clears the upper register halves, so that later SSE code runs at full speed.
    #[inline(always)]
    fn finish() {
        // SAFETY: the CPU has AVX, and every register changed is declared.
        unsafe {
            asm!("vzeroupper",
                out("ymm0") _, out("ymm1") _, out("ymm2") _, out("ymm3") _,
                out("ymm4") _, out("ymm5") _, out("ymm6") _, out("ymm7") _,
                out("ymm8") _, out("ymm9") _, out("ymm10") _, out("ymm11") _,
                out("ymm12") _, out("ymm13") _, out("ymm14") _, out("ymm15") _,
                options(nomem, nostack, preserves_flags));
        }
    }
}
