//! Memory that a program passed to a call that failed.
//!
//! The real library may have refused the call without reading this memory, so it may not be mapped.

use std::mem::MaybeUninit;

/// Reads a value from memory of this process; returns `None` if it cannot be read, or if the process may not ask.
///
/// # Safety
/// Every bit pattern is a valid `T`.
pub(crate) unsafe fn read<T: Copy>(from: *const T) -> Option<T> {
    let mut value = MaybeUninit::<T>::uninit();
    let len = size_of::<T>();
    let local = libc::iovec {
        iov_base: value.as_mut_ptr().cast(),
        iov_len: len,
    };
    let remote = libc::iovec {
        iov_base: from.cast_mut().cast(),
        iov_len: len,
    };
    // SAFETY: the kernel writes to `value`, and fails for source addresses that cannot be read.
    let read = unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) };
    // SAFETY: all bytes were written, and the caller guarantees that they form a valid value.
    (usize::try_from(read) == Ok(len)).then(|| unsafe { value.assume_init() })
}

#[cfg(test)]
mod tests {
    use std::ptr;

    use super::*;

    #[test]
    fn memory_that_is_not_there_is_not_read() {
        // SAFETY: numbers.
        unsafe {
            let value = 7_u64;
            assert_eq!(read(&raw const value), Some(7));
            assert_eq!(read(ptr::null::<u64>()), None);
            assert_eq!(read(ptr::without_provenance::<u64>(0x1000)), None);
        }
    }
}
