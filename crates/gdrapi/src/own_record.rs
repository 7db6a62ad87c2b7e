//! One word for each thread: the address of its [`Record`].
//!
//! A copy reads it, so it must be fast also in a shared library that was loaded with `dlopen`.
//! There, `thread_local!` on x86-64 calls `__tls_get_addr`, some 2.5 ns. TLS descriptors (the
//! only way there is on aarch64) take a call of two instructions where the loader found room in
//! the threads' static block, and fall back to the former where it did not. The fastest
//! model of all, *initial-exec*, has no fallback: `dlopen` fails when that room is used up, which
//! happens in processes with many libraries.
//!
//! See U. Drepper, *ELF Handling For Thread-Local Storage*, and A. Oliva, G. Araújo, *Thread-Local
//! Storage Descriptors for IA32 and AMD64/EM64T*, for the code sequence, which linkers know and
//! shorten in an executable.

use crate::hazard::Record;

/// The calling thread's record, once it has one.
#[inline(always)]
pub(crate) fn get() -> Option<&'static Record> {
    imp::get()
}

/// Makes `record` the calling thread's.
pub(crate) fn set(record: Option<&'static Record>) {
    imp::set(record);
}

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod imp {
    use std::arch::{asm, global_asm};
    use std::ptr;

    use crate::hazard::Record;

    // Eight zero bytes in every thread. Hidden: known to this library alone.
    global_asm!(
        ".pushsection .tbss.gdrapi_own_record, \"awT\", @nobits",
        ".balign 8",
        ".globl gdrapi_own_record",
        ".hidden gdrapi_own_record",
        ".type gdrapi_own_record, @object",
        ".size gdrapi_own_record, 8",
        "gdrapi_own_record:",
        ".zero 8",
        ".popsection",
    );

    /// Where the word is, counted from the thread pointer: the same all through a thread.
    #[inline(always)]
    fn offset() -> usize {
        let offset: usize;
        // SAFETY: the documented sequence for a TLS descriptor. The function called changes rax
        // and the flags alone; some versions of glibc lose vector registers in it (bug 31372), so
        // they are given up, too.
        unsafe {
            asm!(
                "leaq gdrapi_own_record@TLSDESC(%rip), %rax",
                "call *gdrapi_own_record@TLSCALL(%rax)",
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
        // SAFETY: null, or what `set` stored: a reference to a record, which is never freed.
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

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
mod imp {
    use std::cell::Cell;

    use crate::hazard::Record;

    thread_local! {
        // Without a destructor, so that it is readable as long as the thread runs.
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
