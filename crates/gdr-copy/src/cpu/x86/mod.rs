//! x86-64 feature levels.
//!
//! All accesses to the window are assembly with fixed registers. The vector intrinsics are not volatile: a compiler may
//! merge, split, repeat or drop them, and functions that use them can be inlined only into functions with the same
//! target features. The compiler neither changes nor moves assembly, which accesses memory exactly as written.

mod avx2;
mod avx512;
mod movdir64b;
mod sse41;

use super::copy;
use super::isa::Access;
use super::routine::{Loads, MappingRequirement, Parts, Routine};
use core::arch::x86_64::{__cpuid, __cpuid_count};

/// Defines the two functions that a [`Routine`] points to for an implementor of `Access`.
macro_rules! functions {
    ($store:ident, $load:ident, $access:ty) => {
        unsafe fn $store(window: *mut u8, host: *const u8, len: usize) {
            // SAFETY: the routine's contract; the routine is supported only if the CPU has the features.
            unsafe { copy::store::<$access>(window, host, len) }
        }
        unsafe fn $load(host: *mut u8, window: *const u8, len: usize) {
            // SAFETY: as above.
            unsafe { copy::load::<$access>(host, window, len) }
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

/// Stores 16 bytes by one store, as every level does.
///
/// # Safety
/// `window` is mapped and a multiple of 16, `host` is valid for reading 16 bytes.
#[inline(always)]
pub(super) unsafe fn store_16(window: *mut u8, host: *const u8) {
    // SAFETY: `window` and `host` are valid for 16 bytes, which the caller guarantees; SSE2 is part of x86-64.
    unsafe { sse41::Sse41::store_16(window, host) }
}

fn has_avx512() -> bool {
    // F alone is not enough: byte masks need BW, and the forms of 16 and 32 bytes need VL.
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
}

fn has_avx2() -> bool {
    is_x86_feature_detected!("avx2")
}

/// Returns CPUID leaf 7, subleaf 0, ECX bit 28 (Intel SDM volume 2, CPUID). The operating system does not have to
/// enable the instruction.
fn has_movdir64b() -> bool {
    #[allow(unused_unsafe)] // Safe functions from Rust 1.94 on.
    // SAFETY: CPUID exists on every x86-64 CPU; leaf 7 is read only if it exists.
    unsafe {
        __cpuid(0).eax >= 7 && __cpuid_count(7, 0).ecx & (1 << 28) != 0
    }
}

/// The routines, best first.
pub(super) static ROUTINES: [Routine; 7] = [
    Routine::new(Parts {
        name: "avx512",
        store: store_avx512,
        load: load_avx512,
        loads: Loads::Streaming,
        requires: MappingRequirement::Any,
        detect: has_avx512,
    }),
    Routine::new(Parts {
        name: "avx512-masked",
        store: avx512::store_masked,
        load: load_avx512,
        loads: Loads::Streaming,
        requires: MappingRequirement::Any,
        detect: has_avx512,
    }),
    Routine::new(Parts {
        name: "movdir64b",
        store: store_movdir64b,
        load: load_movdir64b,
        loads: Loads::Streaming,
        requires: MappingRequirement::Any,
        detect: || has_movdir64b() && has_avx512(),
    }),
    Routine::new(Parts {
        name: "avx512-plain",
        store: store_avx512_plain,
        load: load_avx512_plain,
        loads: Loads::Plain,
        requires: MappingRequirement::Any,
        detect: has_avx512,
    }),
    Routine::new(Parts {
        name: "movdir64b-avx2",
        store: store_movdir64b_avx2,
        load: load_movdir64b_avx2,
        loads: Loads::Streaming,
        requires: MappingRequirement::Any,
        detect: || has_movdir64b() && has_avx2(),
    }),
    Routine::new(Parts {
        name: "avx2",
        store: store_avx2,
        load: load_avx2,
        loads: Loads::Streaming,
        requires: MappingRequirement::Any,
        detect: has_avx2,
    }),
    Routine::new(Parts {
        name: "sse41",
        store: store_sse41,
        load: load_sse41,
        loads: Loads::Streaming,
        requires: MappingRequirement::Any,
        detect: || is_x86_feature_detected!("sse4.1"),
    }),
];

#[cfg(test)]
mod tests {
    use core::arch::asm;

    use super::*;

    #[repr(align(64))]
    struct Lines([u8; 1024]);

    /// Calls `copy` with clean registers and returns the upper halves of ymm0 to ymm15 afterwards.
    ///
    /// # Safety
    /// The CPU has AVX; the arguments satisfy the contract of `copy`.
    unsafe fn upper_halves_after(
        copy: unsafe fn(*mut u8, *const u8, usize),
        to: *mut u8,
        from: *const u8,
        len: usize,
    ) -> [[u8; 16]; 16] {
        let mut registers = Lines([0xEE; 1024]);
        // SAFETY: `vzeroall` leaves the registers in a state that a function may be called with. Baseline code between
        // the call and the stores uses only lower halves, and writing those leaves the upper ones unchanged;
        // `registers` has room for all sixteen.
        unsafe {
            asm!("vzeroall", clobber_abi("sysv64"));
            copy(to, from, len);
            asm!(
                "vmovups [{at}], ymm0", "vmovups [{at} + 32], ymm1",
                "vmovups [{at} + 64], ymm2", "vmovups [{at} + 96], ymm3",
                "vmovups [{at} + 128], ymm4", "vmovups [{at} + 160], ymm5",
                "vmovups [{at} + 192], ymm6", "vmovups [{at} + 224], ymm7",
                "vmovups [{at} + 256], ymm8", "vmovups [{at} + 288], ymm9",
                "vmovups [{at} + 320], ymm10", "vmovups [{at} + 352], ymm11",
                "vmovups [{at} + 384], ymm12", "vmovups [{at} + 416], ymm13",
                "vmovups [{at} + 448], ymm14", "vmovups [{at} + 480], ymm15",
                at = in(reg) registers.0.as_mut_ptr(),
                options(nostack, preserves_flags),
            );
        }
        std::array::from_fn(|n| {
            let upper = 32 * n + 16..32 * n + 32;
            registers.0[upper].try_into().unwrap()
        })
    }

    #[test]
    fn no_routine_leaves_a_dirty_upper_half_of_a_register_behind() {
        if !is_x86_feature_detected!("avx") {
            return;
        }
        let from = Lines([0xA5; 1024]);
        for routine in Routine::supported() {
            for len in [9, 16, 20, 32, 33, 40, 64, 100, 128, 200, 600, 1000] {
                for offset in [0, 1, 17] {
                    let mut to = Lines([0; 1024]);
                    let (to, from) = (to.0.as_mut_ptr(), from.0.as_ptr());
                    for copy in [routine.0.store, routine.0.load] {
                        let len = len.min(1024 - offset);
                        // SAFETY: both arrays hold the range, in whole lines of ordinary memory, and the CPU has the
                        // routine's features.
                        let upper = unsafe {
                            let (to, from) = (to.add(offset), from.add(offset));
                            upper_halves_after(copy, to, from, len)
                        };
                        let name = routine.name();
                        assert_eq!(upper, [[0; 16]; 16], "{len} B at {offset} by {name}");
                    }
                }
            }
        }
    }
}
