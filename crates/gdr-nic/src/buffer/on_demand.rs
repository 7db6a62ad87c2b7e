//! Memory of this process that need not be mapped: an access to unmapped pages fails the request instead of crashing
//! the program.

use std::ptr;
use std::sync::atomic::AtomicU64;

use gdr_roce::AtomicOp;

use super::check_range;
use super::host::apply;
use crate::error::{Error, Result};

/// `MADV_POPULATE_WRITE`, since Linux 5.14.
const POPULATE_WRITE: i32 = 23;

/// A range of addresses. The kernel copies, as between two processes: it faults pages in, and reports unmapped ones.
#[derive(Debug)]
pub(super) struct OnDemand {
    address: u64,
    len: u64,
}

/// The direction of a copy.
#[derive(Clone, Copy)]
enum Copy {
    ToMemory,
    FromMemory,
}

impl OnDemand {
    pub(super) fn new(address: u64, len: u64) -> Result<Self> {
        check_range(address, len, u64::MAX)?;
        Ok(Self { address, len })
    }

    pub(super) fn len(&self) -> u64 {
        self.len
    }

    pub(super) fn address(&self) -> u64 {
        self.address
    }

    pub(super) fn store(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let from = bytes.as_ptr().cast_mut();
        // SAFETY: the bytes are readable, and are not written in this direction.
        unsafe { self.copy(Copy::ToMemory, offset, from, bytes.len()) }
    }

    pub(super) fn load(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        // SAFETY: the bytes are writable.
        unsafe { self.copy(Copy::FromMemory, offset, bytes.as_mut_ptr(), bytes.len()) }
    }

    /// # Safety
    /// `own` is valid for `len` bytes: for reads, and for writes if the copy is from the memory.
    unsafe fn copy(&self, to: Copy, offset: u64, own: *mut u8, len: usize) -> Result<()> {
        check_range(offset, len as u64, self.len)?;
        let own = libc::iovec {
            iov_base: own.cast(),
            iov_len: len,
        };
        let other = libc::iovec {
            iov_base: ptr::without_provenance_mut((self.address + offset) as usize),
            iov_len: len,
        };
        // SAFETY: getpid(2) takes no arguments and cannot fail.
        let process = unsafe { libc::getpid() };
        let copied = match to {
            // SAFETY: the contract of this function; the kernel checks the other range, which the program
            // has registered.
            Copy::ToMemory => unsafe { libc::process_vm_writev(process, &own, 1, &other, 1, 0) },
            // SAFETY: as above.
            Copy::FromMemory => unsafe { libc::process_vm_readv(process, &own, 1, &other, 1, 0) },
        };
        match usize::try_from(copied) {
            Ok(copied) if copied == len => Ok(()),
            _ => Err(self.not_mapped(offset)),
        }
    }

    /// Applies an atomic operation to the word at `offset`; returns its previous value.
    pub(super) fn atomic(&self, offset: u64, operation: AtomicOp) -> Result<u64> {
        check_range(offset, 8, self.len)?;
        let address = self.address + offset;
        let page = rustix::param::page_size();
        let start = ptr::without_provenance_mut(address as usize & !(page - 1));
        // SAFETY: the advice changes no contents, and fails for what is not mapped.
        if unsafe { libc::madvise(start, page, POPULATE_WRITE) } != 0 {
            return Err(self.not_mapped(offset));
        }
        let word = ptr::with_exposed_provenance_mut::<u64>(address as usize);
        if !word.is_aligned() {
            let alignment = 8;
            return Err(Error::Misaligned { offset, alignment });
        }
        // SAFETY: the word is aligned, and its page was mapped for writing just now. A program that unmaps it
        // concurrently gets a signal, as with memory registered without paging.
        let word = unsafe { AtomicU64::from_ptr(word) };
        Ok(apply(word, operation))
    }

    fn not_mapped(&self, offset: u64) -> Error {
        Error::NotMapped {
            address: self.address + offset,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_of_the_address_space_is_accessed_where_something_is_mapped() {
        let all = OnDemand::new(0, u64::MAX).unwrap();
        let mut memory = Box::new([7_u64, 0]);
        let address = memory.as_mut_ptr().expose_provenance() as u64;
        all.store(address + 8, &[1, 2]).unwrap();
        let mut bytes = [0; 2];
        all.load(address + 8, &mut bytes).unwrap();
        assert_eq!(bytes, [1, 2]);
        let before = all.atomic(address, AtomicOp::FetchAdd { add: 5 });
        assert_eq!(before.unwrap(), 7);
        // SAFETY: a word of this test.
        assert_eq!(unsafe { memory.as_ptr().read_volatile() }, 12);
        for address in [0x10, u64::MAX - 8] {
            let absent = all.load(address, &mut bytes);
            assert!(matches!(absent, Err(Error::NotMapped { .. })), "{absent:?}");
            assert!(all.store(address, &bytes).is_err());
        }
        assert!(matches!(
            all.atomic(0x10, AtomicOp::FetchAdd { add: 1 }),
            Err(Error::NotMapped { .. })
        ));
    }
}
