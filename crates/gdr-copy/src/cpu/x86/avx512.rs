//! AVX-512: one instruction moves a whole line. Needs F, BW (byte masks) and VL (the EVEX forms of 16 and 32 bytes).
//!
//! Only registers 16 to 31 are used: they leave the upper halves of registers 0 to 15 clean, so that no `vzeroupper` is
//! needed.

use core::arch::asm;

use crate::cpu::isa::{Access, LineGroup};
use crate::cpu::scalar;
use crate::cpu::split::{LINE, StoreSplit};

/// Non-temporal stores, streaming loads (`vmovntdqa`).
pub(super) struct Streaming;

/// Non-temporal stores, plain loads (`vmovdqa64`).
pub(super) struct Plain;

/// Loads `$n` lines into zmm16 onwards and then stores them, as one block of assembly; the assembler's conditionals
/// leave out the lines beyond `$n`.
macro_rules! load_lines {
    ($load:literal, $n:ident, $group:ident; $reg0:tt $(, $i:literal $reg:tt)+) => {
        asm!(
            concat!($load, " ", $reg0, ", [{window}]"),
            $(concat!(
                ".if {n} > ", $i, "\n",
                $load, " ", $reg, ", [{window} + 64*", $i, "]\n",
                ".endif"
            ),)+
            concat!(
                ".if {n} == 1\n",
                "vmovdqu64 [{last}], ", $reg0, "\n",
                ".else\n",
                "vmovdqu64 [{first}], ", $reg0, "\n",
                ".endif"
            ),
            $(concat!(
                ".if {n} == ", $i, " + 1\n",
                "vmovdqu64 [{last}], ", $reg, "\n",
                ".elseif {n} > ", $i, "\n",
                "vmovdqu64 [{host} + 64*", $i, "], ", $reg, "\n",
                ".endif"
            ),)+
            n = const $n,
            window = in(reg) $group.window,
            host = in(reg) $group.host,
            first = in(reg) $group.first,
            last = in(reg) $group.last,
            out($reg0) _, $(out($reg) _,)+
            options(nostack, preserves_flags),
        )
    };
}

macro_rules! access {
    ($name:ty, $load:literal) => {
        impl $name {
            /// # Safety
            /// Same as [`Access::load_lines`] of `N` lines.
            #[inline(always)]
            unsafe fn load_exactly<const N: usize>(group: LineGroup) {
                // SAFETY: the caller's promise; all registers written are declared.
                unsafe {
                    load_lines!($load, N, group;
                        "zmm16", 1 "zmm17", 2 "zmm18", 3 "zmm19",
                        4 "zmm20", 5 "zmm21", 6 "zmm22", 7 "zmm23",
                        8 "zmm24", 9 "zmm25", 10 "zmm26", 11 "zmm27",
                        12 "zmm28", 13 "zmm29", 14 "zmm30", 15 "zmm31");
                }
            }
        }

        impl Access for $name {
            const LINES_IN_FLIGHT: usize = 16;

            #[inline(always)]
            unsafe fn store_16(window: *mut u8, host: *const u8) {
                // SAFETY: the trait's contract; the register written is declared.
                unsafe {
                    asm!("vmovdqu64 xmm16, [{host}]", "vmovntdq [{window}], xmm16",
                        host = in(reg) host, window = in(reg) window, out("xmm16") _,
                        options(nostack, preserves_flags));
                }
            }

            #[inline(always)]
            unsafe fn store_32(window: *mut u8, host: *const u8) {
                // SAFETY: the trait's contract; the register written is declared.
                unsafe {
                    asm!("vmovdqu64 ymm16, [{host}]", "vmovntdq [{window}], ymm16",
                        host = in(reg) host, window = in(reg) window, out("ymm16") _,
                        options(nostack, preserves_flags));
                }
            }

            #[inline(always)]
            unsafe fn store_line(window: *mut u8, host: *const u8) {
                // SAFETY: the trait's contract; the register written is declared.
                unsafe {
                    asm!("vmovdqu64 zmm16, [{host}]", "vmovntdq [{window}], zmm16",
                        host = in(reg) host, window = in(reg) window, out("zmm16") _,
                        options(nostack, preserves_flags));
                }
            }

            #[inline(always)]
            unsafe fn load_16(host: *mut u8, window: *const u8) {
                // SAFETY: the trait's contract; the register written is declared.
                unsafe {
                    asm!(concat!($load, " xmm16, [{window}]"), "vmovdqu64 [{host}], xmm16",
                        host = in(reg) host, window = in(reg) window, out("xmm16") _,
                        options(nostack, preserves_flags));
                }
            }

            #[inline(always)]
            unsafe fn load_32(host: *mut u8, window: *const u8) {
                // SAFETY: the trait's contract; the register written is declared.
                unsafe {
                    asm!(concat!($load, " ymm16, [{window}]"), "vmovdqu64 [{host}], ymm16",
                        host = in(reg) host, window = in(reg) window, out("ymm16") _,
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
                        8 => Self::load_exactly::<8>(group),
                        9 => Self::load_exactly::<9>(group),
                        10 => Self::load_exactly::<10>(group),
                        11 => Self::load_exactly::<11>(group),
                        12 => Self::load_exactly::<12>(group),
                        13 => Self::load_exactly::<13>(group),
                        14 => Self::load_exactly::<14>(group),
                        15 => Self::load_exactly::<15>(group),
                        _ => Self::load_exactly::<16>(group),
                    }
                }
            }
        }
    };
}

access!(Streaming, "vmovntdqa");
access!(Plain, "vmovdqa64");

/// Stores `len` bytes that lie in one line, starting `skip` bytes into it, by one instruction: a byte-masked store of
/// the line, or a store of 16 or 32 bytes if the range is exactly that.
///
/// # Safety
/// Same as [`copy::store`](crate::cpu::copy::store); `len` is 1 to 63 and `skip + len` at most 64.
#[inline(always)]
unsafe fn store_part(window: *mut u8, host: *const u8, skip: usize, len: usize) {
    // SAFETY: the caller's promise; each width is used only if the window is aligned to it. A masked load or store
    // accesses, and faults on, only the bytes whose mask bit is set, which are the range.
    unsafe {
        match len {
            // A word is stored by a store of its own width, as in every routine, so that it is never torn.
            _ if scalar::is_word(skip, len) => scalar::store_one(window, host, len),
            16 if skip.is_multiple_of(16) => Streaming::store_16(window, host),
            32 if skip.is_multiple_of(32) => Streaming::store_32(window, host),
            _ => {
                // `len` is at most 63, so the shift does not overflow.
                let mask = ((1u64 << len) - 1) << skip;
                asm!(
                    "kmovq k1, {mask}",
                    "vmovdqu8 zmm16 {{k1}} {{z}}, [{host}]",
                    "vmovdqu8 [{line}] {{k1}}, zmm16",
                    mask = in(reg) mask,
                    host = in(reg) host.wrapping_sub(skip),
                    line = in(reg) window.wrapping_sub(skip),
                    out("k1") _, out("zmm16") _,
                    options(nostack, preserves_flags),
                );
            }
        }
    }
}

/// Stores any range: whole lines by whole-line stores, the head and the tail by one store each.
///
/// # Safety
/// Same as [`copy::store`](crate::cpu::copy::store).
pub(super) unsafe fn store_masked(mut window: *mut u8, mut host: *const u8, len: usize) {
    let split = StoreSplit::of(window.addr(), len);
    // SAFETY: the split's parts cover the range one after another: the head lies in the line that it starts in, lines
    // start on a boundary, and the tail is less than a line from a boundary.
    unsafe {
        if split.head != 0 {
            store_part(window, host, window.addr() % LINE, split.head);
            window = window.add(split.head);
            host = host.add(split.head);
        }
        let mut lines = split.lines;
        while lines != 0 {
            Streaming::store_line(window, host);
            window = window.add(LINE);
            host = host.add(LINE);
            lines -= 1;
        }
        if split.tail != 0 {
            store_part(window, host, 0, split.tail);
        }
    }
}
