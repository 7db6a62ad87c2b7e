//! The memory of the process at the other end of a ring.

use std::sync::atomic::{Ordering, fence};

use gdr_cuda::volatile;
use rustix::io::Errno;
use rustix::process::Pid;

use super::peer_process::PeerProcess;
use crate::buffer::volatile_copy::last_word;

/// A secret number in the memory of a process. Another process of the same user checks by it that it reads the right
/// memory, and that the kernel permits it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Token {
    /// The address of the number.
    pub(super) addr: u64,
    pub(super) value: u64,
}

/// The memory of another process of this host and user, or of this one.
///
/// It can be read where the kernel permits a debugger to attach, see `PTRACE_MODE_ATTACH_REALCREDS` in `ptrace(2)`: the
/// other process must run as the same user and be dumpable, and no security module may forbid it, as Yama does by
/// default on Ubuntu.
#[derive(Debug)]
pub(crate) struct ProcessMemory(PeerProcess);

impl ProcessMemory {
    /// Opens the memory of a process, if the kernel permits this process to read it and it holds the token.
    pub(super) fn open(process: PeerProcess, token: Token) -> Result<Self, Errno> {
        let memory = Self(process);
        let mut value = [0; 8];
        // SAFETY: the destination is a local array.
        unsafe { memory.read(token.addr, value.as_mut_ptr(), value.len()) }?;
        match u64::from_ne_bytes(value) == token.value && memory.was_read() {
            true => Ok(memory),
            false => Err(Errno::SRCH),
        }
    }

    /// Copies `len` bytes at address `from` of that process to `to`, the last word after all others.
    ///
    /// # Safety
    /// `to` must be valid for writes of `len` bytes, to which there are no references.
    pub(crate) unsafe fn read(&self, from: u64, to: *mut u8, len: usize) -> Result<(), Errno> {
        let last = last_word(to, len);
        let body = len - last;
        // A program may poll the last byte, but the kernel stores bytes in any order.
        let mut word = [0; size_of::<u64>()];
        let mut done = 0;
        while done < len {
            let in_word = done.saturating_sub(body);
            let parts = [
                // SAFETY: the pointer is inside the caller's range, or one past the end of its first part.
                part(unsafe { to.add(done.min(body)) }, body - done.min(body)),
                // SAFETY: the offset is less than the length of the word.
                part(unsafe { word.as_mut_ptr().add(in_word) }, last - in_word),
            ];
            // SAFETY: the parts are inside the caller's range and the word.
            done += unsafe { read_some(self.0.pid(), from.wrapping_add(done as u64), &parts) }?;
        }
        fence(Ordering::Release);
        // SAFETY: this is the rest of the caller's range.
        unsafe { volatile::write(to.add(body), &word[..last]) };
        Ok(())
    }

    /// Returns whether everything read so far came from that process: it has not ended, so its PID was not reused.
    pub(crate) fn was_read(&self) -> bool {
        !self.0.has_ended()
    }
}

/// Returns whether another process can read the bytes at both ends of a range of this process. Device memory cannot be
/// read.
pub(crate) fn can_be_read(addr: u64, len: usize) -> bool {
    let own = rustix::process::getpid();
    let ends = [addr, addr.wrapping_add(len.saturating_sub(1) as u64)];
    ends.into_iter().all(|end| {
        let mut byte = 0_u8;
        // SAFETY: the destination is a local byte.
        unsafe { read_some(own, end, &[part(&raw mut byte, 1)]) }.is_ok()
    })
}

fn part(to: *mut u8, len: usize) -> libc::iovec {
    libc::iovec {
        iov_base: to.cast(),
        iov_len: len,
    }
}

/// Fills the parts, which must not all be empty, with bytes from address `from`, possibly not completely. Returns how
/// many bytes were copied.
///
/// # Safety
/// The parts must be valid for writes, without references to them.
unsafe fn read_some(pid: Pid, from: u64, parts: &[libc::iovec]) -> Result<usize, Errno> {
    let remote = libc::iovec {
        iov_base: std::ptr::without_provenance_mut(from as usize),
        iov_len: parts.iter().map(|part| part.iov_len).sum(),
    };
    let (pid, count) = (pid.as_raw_nonzero().get(), parts.len() as libc::c_ulong);
    // SAFETY: the kernel writes only to the parts, and checks the address in the other process.
    let copied = unsafe { libc::process_vm_readv(pid, parts.as_ptr(), count, &remote, 1, 0) };
    match usize::try_from(copied) {
        // The first page cannot be read: the request was not empty, so 0 does not mean the end.
        Ok(0) => Err(Errno::FAULT),
        Ok(copied) => Ok(copied),
        Err(_) => {
            let error = std::io::Error::last_os_error();
            Err(Errno::from_io_error(&error).unwrap_or(Errno::IO))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    fn own() -> PeerProcess {
        let (one, _other) = UnixStream::pair().unwrap();
        PeerProcess::of_unix(one.as_fd()).unwrap()
    }

    #[test]
    fn only_a_process_that_has_the_token_is_read() {
        let value = 0x1234_5678_9abc_def0_u64;
        let addr = (&raw const value).expose_provenance() as u64;
        let opened = |addr, value| ProcessMemory::open(own(), Token { addr, value }).map(drop);
        assert_eq!(opened(addr, value), Ok(()));
        assert_eq!(opened(addr, value + 1), Err(Errno::SRCH));
        assert_eq!(opened(8, value), Err(Errno::FAULT));
    }

    #[test]
    fn any_range_is_copied_to_any_address() {
        let from: Vec<u8> = (0..5000).map(|at| (at * 7) as u8).collect();
        let memory = ProcessMemory(own());
        for len in [1, 7, 8, 9, 63, 4096, 4999] {
            for at in 0..9 {
                let mut to = vec![0; len + at + 1];
                let source = from[1..].as_ptr().expose_provenance() as u64;
                // SAFETY: the range is inside the vector, to which there is no other reference.
                unsafe { memory.read(source, to.as_mut_ptr().add(at), len) }.unwrap();
                assert_eq!(to[at..at + len], from[1..=len], "{len} at {at}");
                assert_eq!(
                    (to[..at].iter().max(), to[at + len]),
                    ([0].iter().take(at).max(), 0)
                );
            }
        }
    }

    #[test]
    fn memory_that_is_not_there_cannot_be_read() {
        let bytes = [0_u8; 64];
        let addr = bytes.as_ptr().expose_provenance() as u64;
        assert!(can_be_read(addr, bytes.len()));
        assert!(!can_be_read(8, 8));
        assert!(!can_be_read(addr, usize::MAX / 2));
    }
}
