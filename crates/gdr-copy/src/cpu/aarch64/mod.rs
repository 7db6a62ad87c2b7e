//! aarch64 feature levels; assembly for the reasons given at the x86-64 ones.

mod ls64;
mod neon;

use super::routine::{Loads, Parts, Routine, Window};
use super::transfer;

unsafe fn store_neon(window: *mut u8, host: *const u8, len: usize) {
    // SAFETY: the routine's contract; every aarch64 CPU that runs Linux programs has NEON.
    unsafe { transfer::store::<neon::Neon>(window, host, len) }
}

unsafe fn load_neon(host: *mut u8, window: *const u8, len: usize) {
    // SAFETY: as above.
    unsafe { transfer::load::<neon::Neon>(host, window, len) }
}

unsafe fn store_ls64(window: *mut u8, host: *const u8, len: usize) {
    // SAFETY: the routine's contract; it exists only where the CPU has the feature.
    unsafe { transfer::store::<ls64::Ls64>(window, host, len) }
}

unsafe fn load_ls64(host: *mut u8, window: *const u8, len: usize) {
    // SAFETY: as above.
    unsafe { transfer::load::<ls64::Ls64>(host, window, len) }
}

/// `AT_HWCAP3` bit 3, `HWCAP3_LS64` (Linux arch/arm64/include/uapi/asm/hwcap.h).
fn has_ls64() -> bool {
    const AT_HWCAP3: libc::c_ulong = 29;
    const HWCAP3_LS64: libc::c_ulong = 1 << 3;
    // SAFETY: getauxval takes any number and answers 0 for those that it does not know.
    unsafe { libc::getauxval(AT_HWCAP3) & HWCAP3_LS64 != 0 }
}

/// Best first. `ls64` is last because its instructions fault where the memory behind the window
/// does not take them, which no feature bit tells; it is there to be asked for by name.
pub(super) static ROUTINES: [Routine; 2] = [
    Routine::new(Parts {
        name: "neon",
        store: store_neon,
        load: load_neon,
        loads: Loads::Plain,
        window: Window::Any,
        detect: || true,
    }),
    Routine::new(Parts {
        name: "ls64",
        store: store_ls64,
        load: load_ls64,
        loads: Loads::Plain,
        window: Window::Uncached,
        detect: has_ls64,
    }),
];
