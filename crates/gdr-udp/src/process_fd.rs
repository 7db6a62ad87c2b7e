//! Descriptors that forked children do not inherit.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, Ordering};

/// A descriptor that is usable only in the process that opened it.
///
/// A forked child inherits descriptors, and a socket keeps its port, its name and its place in a group as long as any
/// process has it open. Once the parent closed it, no thread would receive from it. So in a child made by `fork` the
/// number refers to an empty eventfd instead. The number stays taken, because the child's copies of the parent's
/// objects may still close it. Two kinds of children do inherit the socket: those made by a bare `clone` system call,
/// and those that another thread forks between the opening of the socket and its conversion to this type.
#[derive(Debug)]
pub struct ProcessFd {
    fd: OwnedFd,
    entry: &'static Entry,
}

impl From<OwnedFd> for ProcessFd {
    fn from(fd: OwnedFd) -> Self {
        let entry = Entry::claim(fd.as_raw_fd());
        Self { fd, entry }
    }
}

impl Drop for ProcessFd {
    fn drop(&mut self) {
        // Before the descriptor is closed: afterwards the number may be reused for another file.
        self.entry.fd.store(FREE, Ordering::Relaxed);
    }
}

impl AsFd for ProcessFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for ProcessFd {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

/// A number that is never a valid descriptor.
const FREE: RawFd = -1;

/// One descriptor in the list that a forked child walks. Entries are reused but never freed, because a child cannot
/// wait for a lock that another thread of its parent held.
#[derive(Debug)]
struct Entry {
    fd: AtomicI32,
    next: *const Entry,
}

// SAFETY: `next` is written before the entry is published and never changes, and entries are never freed.
unsafe impl Sync for Entry {}

/// The head of the list: the entry added last.
static LAST: AtomicPtr<Entry> = AtomicPtr::new(ptr::null_mut());
/// Not a `Once`: if the parent's thread was inside it at the time of a fork, the child would wait forever.
static REGISTERED: AtomicBool = AtomicBool::new(false);

impl Entry {
    /// Claims a free entry, or adds one.
    fn claim(fd: RawFd) -> &'static Self {
        if !REGISTERED.swap(true, Ordering::AcqRel) {
            // SAFETY: `in_child` is async-signal-safe, and is never called after it was unloaded: the C library drops
            // the handlers of an unloaded object. If registration fails (out of memory), children inherit the
            // descriptors.
            unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        }
        let free = |entry: &&Self| {
            entry
                .fd
                .compare_exchange(FREE, fd, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
        };
        if let Some(entry) = entries().find(free) {
            return entry;
        }
        let new = Box::leak(Box::new(Self {
            fd: AtomicI32::new(fd),
            next: ptr::null(),
        }));
        let mut last = LAST.load(Ordering::Relaxed);
        loop {
            new.next = last;
            match LAST.compare_exchange(last, new, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return new,
                Err(other) => last = other,
            }
        }
    }
}

/// Iterates over all entries, newest first.
fn entries() -> impl Iterator<Item = &'static Entry> {
    let mut next = LAST.load(Ordering::Acquire).cast_const();
    std::iter::from_fn(move || {
        // SAFETY: null, or a published entry, which is never freed and whose only mutable field is atomic.
        let entry = unsafe { next.as_ref() }?;
        next = entry.next;
        Some(entry)
    })
}

/// Replaces every listed descriptor. Runs in a forked child of a multi-threaded process: allocates nothing, takes no
/// lock, and calls only async-signal-safe functions.
extern "C" fn in_child() {
    // SAFETY: `eventfd` takes only integers.
    let empty = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    for entry in entries() {
        let fd = entry.fd.load(Ordering::Relaxed);
        if fd == FREE {
            continue;
        }
        // SAFETY: the number is a descriptor of the parent that no code of this process uses, as operations on the
        // parent's objects fail in a child. If there was no descriptor left for an eventfd, it is closed instead, which
        // makes room.
        unsafe {
            match empty {
                FREE => libc::close(fd),
                empty => libc::dup3(empty, fd, libc::O_CLOEXEC),
            }
        };
    }
    if empty != FREE {
        // SAFETY: opened above, and used nowhere else.
        unsafe { libc::close(empty) };
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::options::{PortUse, Shards, SocketOptions, SourcePort};
    use crate::socket::Socket;

    /// A forked process that holds its parent's descriptors until this is dropped.
    struct Child {
        pid: libc::pid_t,
        /// Closing it ends the child.
        _end: UnixStream,
    }

    impl Child {
        fn fork() -> Self {
            let (end, of_child) = UnixStream::pair().unwrap();
            // SAFETY: the child calls only async-signal-safe functions.
            match unsafe { libc::fork() } {
                0 => {
                    drop(end);
                    let mut byte = [0_u8];
                    (&of_child).write_all(&byte).unwrap();
                    // SAFETY: waits for the end of the stream, up to a limit, and exits.
                    unsafe {
                        libc::alarm(60);
                        libc::read(of_child.as_raw_fd(), byte.as_mut_ptr().cast(), 1);
                        libc::_exit(0)
                    }
                }
                pid => {
                    assert!(pid > 0);
                    // By now the child's fork handler has run.
                    (&end).read_exact(&mut [0]).unwrap();
                    Self { pid, _end: end }
                }
            }
        }
    }

    impl Drop for Child {
        fn drop(&mut self) {
            // SAFETY: an unreaped child of this process.
            unsafe {
                libc::kill(self.pid, libc::SIGKILL);
                libc::waitpid(self.pid, ptr::null_mut(), 0);
            }
        }
    }

    #[test]
    fn a_stream_ends_when_its_process_closes_it_although_a_child_was_forked() {
        let (near, mut far) = UnixStream::pair().unwrap();
        let near = ProcessFd::from(OwnedFd::from(near));
        let limit = std::time::Duration::from_secs(50);
        far.set_read_timeout(Some(limit)).unwrap();
        let child = Child::fork();
        drop(near);
        assert_eq!(far.read(&mut [0]).unwrap(), 0);
        drop(child);
    }

    #[test]
    fn a_port_is_free_when_its_sockets_closed_although_a_child_was_forked() {
        for port_use in [PortUse::Exclusive, PortUse::Shared] {
            let bind = |port_use| {
                let options = SocketOptions {
                    address: "127.0.54.2:4791".parse().unwrap(),
                    port_use,
                    receive_buffer: 1 << 20,
                    source_port: SourcePort::OfAddress,
                };
                Socket::bind_shards(&options, Shards::Exactly(1)).unwrap()
            };
            let sockets = bind(port_use);
            let child = Child::fork();
            drop(sockets);
            drop(bind(PortUse::Exclusive));
            drop(child);
        }
    }

    #[test]
    fn places_in_the_list_are_used_again() {
        let open = || ProcessFd::from(OwnedFd::from(UnixStream::pair().unwrap().0));
        let first: Vec<_> = (0..100).map(|_| open()).collect();
        drop(first);
        let before = entries().count();
        for _ in 0..10 {
            // Other tests in this process hold fewer than these at any time.
            let some: Vec<_> = (0..10).map(|_| open()).collect();
            assert!(
                some.iter()
                    .all(|fd| fd.entry.fd.load(Ordering::Relaxed) == fd.as_raw_fd())
            );
        }
        assert!(entries().count() < before + 100);
    }
}
