//! Orders window accesses relative to all other accesses.
//!
//! Write-combined memory is weakly ordered: stores wait in combining buffers and may leave them in any order, and loads
//! may be reordered. Only these fences order them; the copy functions of [`cpu`](super) already contain the right ones.
//!
//! | function | x86-64 | aarch64 | elsewhere |
//! |---|---|---|---|
//! | [`store_fence`] | `sfence` | `dsb st` | sequentially consistent fence |
//! | [`load_fence`] | `lfence` | `dmb ld` | the same |
//! | [`fresh_load_fence`] | `mfence` | `dmb ld` | the same |
//! | [`full_fence`] | `mfence` | `dsb sy` | the same |
//!
//! All of them also prevent the compiler from moving memory accesses across them.

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use core::arch::asm;

/// Executes the barrier instruction with this name. Tests read which ones were executed.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
macro_rules! barrier {
    ($instruction:literal) => {{
        super::trace::step!($instruction);
        // SAFETY: a barrier instruction reads and writes no register and no memory.
        unsafe { asm!($instruction, options(nostack, preserves_flags)) };
    }};
}

/// Executes the language's barrier, on other CPUs.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn barrier() {
    super::trace::step!("fence");
    core::sync::atomic::fence(core::sync::atomic::Ordering::SeqCst);
}

/// Makes earlier window stores visible before any later store.
///
/// On x86-64, `sfence` also empties the write-combining buffers, so that the stores are in flight to the GPU when the
/// next store leaves the CPU (Intel SDM volume 3, "Buffering of Write Combining Memory Locations"). It does not order
/// loads. On aarch64, `dsb st` waits until earlier stores to Normal non-cacheable and Device memory are complete; a
/// `dmb` would only order them.
#[inline(always)]
pub fn store_fence() {
    #[cfg(target_arch = "x86_64")]
    barrier!("sfence");
    #[cfg(target_arch = "aarch64")]
    barrier!("dsb st");
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    barrier();
}

/// Performs later loads after earlier loads.
///
/// This suffices before *plain* loads from the window: the CPU may execute those early (write-combined memory allows
/// speculative reads), but never returns older data from a buffer.
#[inline(always)]
pub fn load_fence() {
    #[cfg(target_arch = "x86_64")]
    barrier!("lfence");
    #[cfg(target_arch = "aarch64")]
    barrier!("dmb ld");
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    barrier();
}

/// Makes later window loads, including streaming ones, return data no older than this call.
///
/// A streaming load (`movntdqa`) of write-combined memory fetches the whole line into a buffer, and the CPU may serve a
/// later streaming load from that buffer, without a bus transaction. Intel SDM volume 1, 12.10.3 "Streaming Load Hint
/// Instruction": these buffers "are not required to be snooped by operations from other agents". The page of `MOVNTDQA`
/// in volume 2 requires `mfence` if such reads have to be synchronized with writes by other agents, and mentions no
/// weaker fence. Without one, repeated loads of a line from a GPU were measured to take 0.15 us, less than any PCIe
/// round trip: they had not left the CPU.
#[inline(always)]
pub fn fresh_load_fence() {
    #[cfg(target_arch = "x86_64")]
    barrier!("mfence");
    #[cfg(not(target_arch = "x86_64"))]
    load_fence();
}

/// Performs every earlier access before any later access, loads and stores alike.
///
/// For a caller that mixes kinds of mapping of the same memory, or must not read before its own earlier stores have
/// left the CPU.
#[inline(always)]
pub fn full_fence() {
    #[cfg(target_arch = "x86_64")]
    barrier!("mfence");
    #[cfg(target_arch = "aarch64")]
    barrier!("dsb sy");
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    barrier();
}
