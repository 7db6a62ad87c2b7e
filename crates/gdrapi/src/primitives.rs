//! Primitives of [`hazard_pointer`](crate::hazard_pointer): atomics, fences and memory that is never freed.
//!
//! The model checker compiles `hazard_pointer.rs` with different ones, see `tests/loom.rs`.

use std::ptr::{self, NonNull};

use rustix::mm::{MapFlags, ProtFlags};

pub(crate) use gdr_copy::Lease;
pub(crate) use gdr_process::{process_fence, register_process_fence};
pub(crate) use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, fence};

/// Cells per record. They fill two pages; under Miri, where accesses are slow, there are fewer.
pub(crate) const CELLS: usize = if cfg!(miri) { 8 } else { 250 };

/// Keeps memory accesses before and after it in program order, for signal handlers of this thread and
/// for a thread that runs [`process_fence`].
#[inline(always)]
pub(crate) fn thread_fence() {
    std::sync::atomic::compiler_fence(std::sync::atomic::Ordering::SeqCst);
}

/// Moves `value` to memory that is never freed. Returns `None` if there is no memory.
///
/// Unlike `Box::leak`, it may be called in a signal handler that interrupted `malloc`.
pub(crate) fn forever<T>(value: T) -> Option<&'static T> {
    const { assert!(align_of::<T>() <= 4096 && size_of::<T>() > 0) };
    // SAFETY: the kernel chooses the address, so no other mapping is replaced.
    let memory = unsafe {
        rustix::mm::mmap_anonymous(
            ptr::null_mut(),
            size_of::<T>(),
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE,
        )
    };
    let memory = NonNull::new(memory.ok()?)?.cast::<T>();
    // SAFETY: the mapping is large enough for a `T`, aligned to a page, and never unmapped.
    unsafe {
        memory.write(value);
        Some(memory.as_ref())
    }
}

/// Waits a moment for other threads; `turn` counts the calls of one wait.
pub(crate) fn relax(turn: u32) {
    if turn < 128 {
        std::hint::spin_loop();
    } else {
        std::thread::yield_now();
    }
}
