//! x86-64 feature levels.
//!
//! Everything that touches the window is assembly with fixed registers. The vector intrinsics are
//! not volatile: a compiler may merge, split, repeat or drop them, and functions that use them can
//! only be inlined into functions with the same target features. A line of assembly is neither
//! touched nor moved, and reads memory exactly as written.

mod avx2;
mod avx512;
mod movdir64b;
mod sse41;

use super::routine::{Loads, Parts, Routine, Window};
use super::transfer;
use core::arch::x86_64::{__cpuid, __cpuid_count};

/// Defines the two functions that a [`Routine`] points to for an implementor of `Access`.
macro_rules! functions {
    ($store:ident, $load:ident, $access:ty) => {
        unsafe fn $store(window: *mut u8, host: *const u8, len: usize) {
            // SAFETY: the routine's contract; it exists only where the CPU has the features.
            unsafe { transfer::store::<$access>(window, host, len) }
        }
        unsafe fn $load(host: *mut u8, window: *const u8, len: usize) {
            // SAFETY: as above.
            unsafe { transfer::load::<$access>(host, window, len) }
        }
    };
}

functions!(store_avx512, load_avx512, avx512::Streaming);
functions!(store_avx512_plain, load_avx512_plain, avx512::Plain);
functions!(
    store_movdir64b,
    load_movdir64b,
    movdir64b::Direct<avx512::Streaming>
);
functions!(
    store_movdir64b_avx2,
    load_movdir64b_avx2,
    movdir64b::Direct<avx2::Avx2>
);
functions!(store_avx2, load_avx2, avx2::Avx2);
functions!(store_sse41, load_sse41, sse41::Sse41);

fn has_avx512() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
}

fn has_avx2() -> bool {
    is_x86_feature_detected!("avx2")
}

/// CPUID leaf 7, subleaf 0, ECX bit 28 (Intel SDM volume 2, CPUID). The instruction needs no
/// enabling by the operating system.
fn has_movdir64b() -> bool {
    #[allow(unused_unsafe)] // Safe functions from Rust 1.94 on.
    // SAFETY: CPUID exists on every x86-64 CPU; leaf 7 is asked for only where it exists.
    unsafe {
        __cpuid(0).eax >= 7 && __cpuid_count(7, 0).ecx & (1 << 28) != 0
    }
}

/// Best first.
pub(super) static ROUTINES: [Routine; 7] = [
    Routine::new(Parts {
        name: "avx512",
        store: store_avx512,
        load: load_avx512,
        loads: Loads::Streaming,
        window: Window::Any,
        detect: has_avx512,
    }),
    Routine::new(Parts {
        name: "avx512-masked",
        store: avx512::store_masked,
        load: load_avx512,
        loads: Loads::Streaming,
        window: Window::Any,
        detect: has_avx512,
    }),
    Routine::new(Parts {
        name: "movdir64b",
        store: store_movdir64b,
        load: load_movdir64b,
        loads: Loads::Streaming,
        window: Window::Any,
        detect: || has_movdir64b() && has_avx512(),
    }),
    Routine::new(Parts {
        name: "avx512-plain",
        store: store_avx512_plain,
        load: load_avx512_plain,
        loads: Loads::Plain,
        window: Window::Any,
        detect: has_avx512,
    }),
    Routine::new(Parts {
        name: "movdir64b-avx2",
        store: store_movdir64b_avx2,
        load: load_movdir64b_avx2,
        loads: Loads::Streaming,
        window: Window::Any,
        detect: || has_movdir64b() && has_avx2(),
    }),
    Routine::new(Parts {
        name: "avx2",
        store: store_avx2,
        load: load_avx2,
        loads: Loads::Streaming,
        window: Window::Any,
        detect: has_avx2,
    }),
    Routine::new(Parts {
        name: "sse41",
        store: store_sse41,
        load: load_sse41,
        loads: Loads::Streaming,
        window: Window::Any,
        detect: || is_x86_feature_detected!("sse4.1"),
    }),
];
