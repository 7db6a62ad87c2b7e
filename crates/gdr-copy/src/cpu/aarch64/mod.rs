//! aarch64 feature levels. They use assembly, for the reasons given for x86-64.

mod ls64;
mod neon;

use super::copy;
use super::routine::{Loads, MappingRequirement, Parts, Routine};

unsafe fn store_neon(window: *mut u8, host: *const u8, len: usize) {
    // SAFETY: the routine's contract; every aarch64 CPU that runs Linux programs has NEON.
    unsafe { copy::store::<neon::Neon>(window, host, len) }
}

unsafe fn load_neon(host: *mut u8, window: *const u8, len: usize) {
    // SAFETY: as above.
    unsafe { copy::load::<neon::Neon>(host, window, len) }
}

unsafe fn store_ls64(window: *mut u8, host: *const u8, len: usize) {
    // SAFETY: the routine's contract; the routine is supported only if the CPU has the feature.
    unsafe { copy::store::<ls64::Ls64>(window, host, len) }
}

unsafe fn load_ls64(host: *mut u8, window: *const u8, len: usize) {
    // SAFETY: as above.
    unsafe { copy::load::<ls64::Ls64>(host, window, len) }
}

/// Returns bit 3 of `AT_HWCAP3`, `HWCAP3_LS64` (Linux arch/arm64/include/uapi/asm/hwcap.h).
fn has_ls64() -> bool {
    const AT_HWCAP3: libc::c_ulong = 29;
    const HWCAP3_LS64: libc::c_ulong = 1 << 3;
    // SAFETY: getauxval takes any number and returns 0 for unknown ones.
    unsafe { libc::getauxval(AT_HWCAP3) & HWCAP3_LS64 != 0 }
}

/// Returns the routine that every aarch64 CPU supports.
pub(super) fn neon() -> &'static Routine {
    let [neon, _] = &ROUTINES;
    neon
}

/// The routines, best first. `ls64` is last because its instructions fault if the memory of the window does not support
/// them, which no feature bit shows; it is used only by name.
pub(super) static ROUTINES: [Routine; 2] = [
    Routine::new(Parts {
        name: "neon",
        store: store_neon,
        load: load_neon,
        loads: Loads::Plain,
        requires: MappingRequirement::Any,
        detect: || true,
    }),
    Routine::new(Parts {
        name: "ls64",
        store: store_ls64,
        load: load_ls64,
        loads: Loads::Plain,
        requires: MappingRequirement::Uncached,
        detect: has_ls64,
    }),
];
