//! Descriptors that forked children do not inherit.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, Ordering};

/// A descriptor of the process that opened it.
///
/// A forked child inherits descriptors, and an open socket keeps its port, its name and its place in a
/// group for as long as any process has it: after the parent closed it, no thread would receive from it.
/// So in a child made by `fork` the number refers to an empty eventfd instead. It stays taken, as
/// objects of the parent that the child has copies of may still close it. A child made by a bare
/// `clone` system call inherits the socket, and so does one that another thread makes between the
/// opening of the socket and its conversion to this type.
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
        // Before the descriptor closes: its number may then belong to another file.
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

/// No descriptor has this number.
const FREE: RawFd = -1;

/// The place of one descriptor in the list that a forked child reads. It is never freed, as a child
/// cannot wait for a lock that another thread of its parent holds, and it is used again.
#[derive(Debug)]
struct Entry {
    fd: AtomicI32,
    next: *const Entry,
}

// SAFETY: `next` is written before the entry is published, and what it points to is never freed.
unsafe impl Sync for Entry {}

/// The last entry.
static LAST: AtomicPtr<Entry> = AtomicPtr::new(ptr::null_mut());
/// Not a `Once`, which a child would wait for if its parent's thread was in it.
static REGISTERED: AtomicBool = AtomicBool::new(false);

impl Entry {
    /// Takes a free entry, or adds one.
    fn claim(fd: RawFd) -> &'static Self {
        if !REGISTERED.swap(true, Ordering::AcqRel) {
            // SAFETY: `in_child` is async-signal-safe. It is never called after it was unloaded: the C
            // library removes the handlers of an unloaded object. After a failure (no memory) children
            // inherit the descriptors.
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

/// All entries, the latest first.
fn entries() -> impl Iterator<Item = &'static Entry> {
    let mut next = LAST.load(Ordering::Acquire).cast_const();
    std::iter::from_fn(move || {
        // SAFETY: null, or an entry that was published and is never freed or changed but for its atomic.
        let entry = unsafe { next.as_ref() }?;
        next = entry.next;
        Some(entry)
    })
}

/// Replaces every listed descriptor. It allocates nothing, takes no lock, and calls only what may be
/// called in a forked child of a process with threads.
extern "C" fn in_child() {
    // SAFETY: the call takes only numbers.
    let empty = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    for entry in entries() {
        let fd = entry.fd.load(Ordering::Relaxed);
        if fd == FREE {
            continue;
        }
        // SAFETY: the number belongs to a descriptor of the parent which no code of this process uses:
        // what the parent opened fails in a child. Where there is no eventfd (too many descriptors) it
        // closes, and the first to be closed makes room.
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

    /// A process that was forked and has its parent's descriptors, until it is dropped.
    struct Child {
        pid: libc::pid_t,
        /// The child ends when this closes.
        _end: UnixStream,
    }

    impl Child {
        fn fork() -> Self {
            let (end, of_child) = UnixStream::pair().unwrap();
            // SAFETY: the child only calls what may be called there.
            match unsafe { libc::fork() } {
                0 => {
                    drop(end);
                    let mut byte = [0_u8];
                    (&of_child).write_all(&byte).unwrap();
                    // SAFETY: waits for the end of the stream, or for a limit, and ends the process.
                    unsafe {
                        libc::alarm(60);
                        libc::read(of_child.as_raw_fd(), byte.as_mut_ptr().cast(), 1);
                        libc::_exit(0)
                    }
                }
                pid => {
                    assert!(pid > 0);
                    // The handler of the child has run.
                    (&end).read_exact(&mut [0]).unwrap();
                    Self { pid, _end: end }
                }
            }
        }
    }

    impl Drop for Child {
        fn drop(&mut self) {
            // SAFETY: a child of this process that was not waited for.
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
            // Other tests of the process have less than the rest of them at once.
            let some: Vec<_> = (0..10).map(|_| open()).collect();
            assert!(
                some.iter()
                    .all(|fd| fd.entry.fd.load(Ordering::Relaxed) == fd.as_raw_fd())
            );
        }
        assert!(entries().count() < before + 100);
    }
}
