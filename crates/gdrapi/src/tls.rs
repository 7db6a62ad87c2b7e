//! The calling thread's [`Record`]: one word per thread holds its address.
//!
//! Every copy reads this word, so access must be fast even in a shared library loaded by `dlopen`. There,
//! `thread_local!` on x86-64 calls `__tls_get_addr`, which takes about 2.5 ns. TLS descriptors (the only model on
//! aarch64) call a function of two instructions if the loader found space in the threads' static block, and
//! `__tls_get_addr` otherwise. The fastest model, *initial-exec*, has no fallback: `dlopen` fails once that space is
//! used up, which happens in processes with many libraries.
//!
//! For the code sequence, which linkers recognize and relax in an executable, see U. Drepper, *ELF Handling For
//! Thread-Local Storage*, and A. Oliva, G. Araújo, *Thread-Local Storage Descriptors for IA32 and AMD64/EM64T*.

use std::ptr;

use crate::ffi_guard::Uncancellable;
use crate::hazard_pointer::{Domain, Record};
use crate::primitives::{AtomicBool, AtomicPtr};
use crate::stack::Range;

/// The records of all threads.
pub(crate) static RECORDS: Domain = Domain {
    records: AtomicPtr::new(ptr::null_mut()),
    symmetric: AtomicBool::new(true),
};

/// Returns the calling thread's record, once it has one.
#[inline(always)]
pub(crate) fn get() -> Option<&'static Record> {
    imp::get()
}

thread_local! {
    static AT_EXIT: ReleaseAtExit = const { ReleaseAtExit };
}

/// Releases the thread's record when the thread ends.
struct ReleaseAtExit;

impl Drop for ReleaseAtExit {
    fn drop(&mut self) {
        if let Some(record) = get() {
            imp::set(None);
            record.release();
        }
    }
}

/// A record for a thread without one. Released on drop unless the thread keeps it.
#[derive(Debug)]
pub(crate) struct FirstRecord {
    record: &'static Record,
    kept: bool,
}

impl FirstRecord {
    /// Claims a record; returns `None` if there is no memory. Does not call `malloc`, so a signal handler may call it.
    pub(crate) fn claim() -> Option<Self> {
        let record = RECORDS.claim()?;
        Some(Self {
            record,
            kept: false,
        })
    }

    pub(crate) fn record(&self) -> &'static Record {
        self.record
    }

    /// Makes the record the thread's own until the thread ends. Allocates.
    pub(crate) fn keep(&mut self) {
        let _uncancellable = Uncancellable::new();
        self.record.set_stack(Range::of_this_thread());
        // A thread whose destructors have run would not release the record later.
        self.kept = AT_EXIT.try_with(|_| imp::set(Some(self.record))).is_ok();
    }
}

impl Drop for FirstRecord {
    fn drop(&mut self) {
        if !self.kept {
            self.record.release();
        }
    }
}

#[cfg(all(target_arch = "x86_64", target_os = "linux", not(miri)))]
mod imp {
    use std::arch::{asm, global_asm};
    use std::ptr;

    use crate::hazard_pointer::Record;

    // Eight zero bytes in every thread. Hidden: invisible outside this library.
    global_asm!(
        ".pushsection .tbss.gdrapi_thread_record, \"awT\", @nobits",
        ".balign 8",
        ".globl gdrapi_thread_record",
        ".hidden gdrapi_thread_record",
        ".type gdrapi_thread_record, @object",
        ".size gdrapi_thread_record, 8",
        "gdrapi_thread_record:",
        ".zero 8",
        ".popsection",
    );

    /// Returns the offset of the word from the thread pointer, which is constant in a thread.
    #[inline(always)]
    fn offset() -> usize {
        let offset: usize;
        // SAFETY: the documented sequence for a TLS descriptor. The function changes rax and the
        // flags only; some versions of glibc also change vector registers (bug 31372), so they are
        // declared as clobbered.
        unsafe {
            asm!(
                "leaq gdrapi_thread_record@TLSDESC(%rip), %rax",
                "call *gdrapi_thread_record@TLSCALL(%rax)",
                out("rax") offset,
                out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
                out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
                out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
                out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
                options(att_syntax),
            );
        }
        offset
    }

    #[inline(always)]
    pub(super) fn get() -> Option<&'static Record> {
        let record: *const Record;
        // SAFETY: reads this thread's word, which is eight aligned bytes.
        unsafe {
            asm!(
                "movq %fs:({offset}), {record}",
                offset = in(reg) offset(),
                record = lateout(reg) record,
                options(att_syntax, nostack, preserves_flags, readonly),
            );
        }
        // SAFETY: null, or the reference to a record that `set` stored. Records are never freed.
        unsafe { record.as_ref() }
    }

    pub(super) fn set(record: Option<&'static Record>) {
        let record = record.map_or(ptr::null(), ptr::from_ref);
        // SAFETY: writes this thread's word, which is eight aligned bytes that only `get` reads.
        unsafe {
            asm!(
                "movq {record}, %fs:({offset})",
                offset = in(reg) offset(),
                record = in(reg) record,
                options(att_syntax, nostack, preserves_flags),
            );
        }
    }
}

#[cfg(not(all(target_arch = "x86_64", target_os = "linux", not(miri))))]
mod imp {
    use std::cell::Cell;

    use crate::hazard_pointer::Record;

    thread_local! {
        // Has no destructor, so it is readable until the thread ends.
        static OWN: Cell<Option<&'static Record>> = const { Cell::new(None) };
    }

    #[inline(always)]
    pub(super) fn get() -> Option<&'static Record> {
        OWN.get()
    }

    pub(super) fn set(record: Option<&'static Record>) {
        OWN.set(record);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;
    use std::time::Duration;

    use super::*;
    use crate::hazard_pointer::Quiet;
    use crate::stack::Depth;

    /// As copies do it.
    fn look(entry: &AtomicPtr<u64>) -> u64 {
        let here = Depth::here();
        if let Some(record) = get() {
            return *RECORDS.protect(record, here, entry).unwrap();
        }
        let mut first = FirstRecord::claim().unwrap();
        let seen = RECORDS.protect(first.record(), here, entry).unwrap();
        first.keep();
        *seen
    }

    fn free(number: *mut u64) {
        let limit = Duration::from_secs(60);
        let quiet = RECORDS.wait_for(number.cast(), get(), Depth::here(), limit);
        assert_eq!(quiet, Quiet::Yes);
        // SAFETY: from `Box::into_raw`, unreachable and, after the wait above, not in use.
        drop(unsafe { Box::from_raw(number) });
    }

    #[test]
    fn a_thread_keeps_its_record_and_releases_it_at_its_end() {
        let entry = AtomicPtr::new(Box::into_raw(Box::new(7)));
        let look_twice = || {
            assert!(get().is_none());
            assert_eq!(look(&entry), 7);
            let record = get().unwrap();
            assert_eq!(look(&entry), 7);
            assert!(ptr::eq(get().unwrap(), record));
            ptr::from_ref(record).addr()
        };
        let records: std::collections::HashSet<_> = (0..200)
            .map(|_| std::thread::scope(|scope| scope.spawn(look_twice).join().unwrap()))
            .collect();
        assert!(records.len() < 50, "{} records", records.len());
        free(entry.load(Ordering::Relaxed));
    }

    #[test]
    fn a_first_copy_that_is_refused_keeps_nothing() {
        let entry = AtomicPtr::<u64>::new(ptr::null_mut());
        let refused = || {
            let first = FirstRecord::claim().unwrap();
            assert!(
                RECORDS
                    .protect(first.record(), Depth::here(), &entry)
                    .is_err()
            );
            drop(first);
            get().is_none()
        };
        assert!(std::thread::scope(|scope| scope
            .spawn(refused)
            .join()
            .unwrap()));
    }

    #[test]
    fn a_thread_may_copy_in_its_destructors() {
        static ENTRY: AtomicPtr<u64> = AtomicPtr::new(ptr::null_mut());
        struct LooksAtTheEnd;
        impl Drop for LooksAtTheEnd {
            fn drop(&mut self) {
                assert_eq!(look(&ENTRY), 7);
            }
        }
        thread_local! {
            static LAST: LooksAtTheEnd = const { LooksAtTheEnd };
        }
        ENTRY.store(Box::into_raw(Box::new(7)), Ordering::SeqCst);
        let thread = std::thread::spawn(|| {
            LAST.with(|_| ());
            assert_eq!(look(&ENTRY), 7);
        });
        thread.join().unwrap();
        free(ENTRY.swap(ptr::null_mut(), Ordering::SeqCst));
    }
}
