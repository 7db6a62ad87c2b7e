//! Descriptors of the device, and the functions of the C library that programs use them with.
//!
//! A call about another descriptor costs one load while the process has none of the device, and a look into a
//! table while it has. It goes on to the next definition of the function, and may be cancelled there as any
//! system call of the C library.

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::os::fd::{BorrowedFd, IntoRawFd, RawFd};
use std::ptr;
use std::slice;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use gdr_copy::PerProcess;
use libc::ssize_t;

use super::channel::Channel;
use super::command::{self, Command, GET_EVENT};
use super::state;
use crate::device::lock;
use crate::files::next;
use crate::ret::{plain, set_errno};

pub(super) const PATH: &CStr = c"/dev/infiniband/rdma_cm";
/// The major and minor number where the kernel has no such device, as of a dynamic misc device.
pub(crate) const NUMBER: (u32, u32) = (10, 122);

/// How many descriptors of the device there are, in this process and in those that it was forked from.
static OPEN: AtomicUsize = AtomicUsize::new(0);

/// The channels of descriptors. The parent's stay its own after a fork.
static CHANNELS: PerProcess<Mutex<HashMap<RawFd, Arc<Channel>>>> = PerProcess::new();

/// Returns whether any descriptor is open on the device.
#[inline(always)]
pub(crate) fn are_any_open() -> bool {
    OPEN.load(Ordering::Relaxed) != 0
}

/// The channel of a descriptor.
#[inline]
pub(super) fn channel(fd: c_int) -> Option<Arc<Channel>> {
    if !are_any_open() || fd < 0 {
        return None;
    }
    find(fd)
}

#[cold]
fn find(fd: RawFd) -> Option<Arc<Channel>> {
    let mut channels = lock(CHANNELS.get_fast());
    let channel = Arc::clone(channels.get(&fd)?);
    // SAFETY: a number that is only asked about; if it is not open, the kernel says so.
    let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
    if rustix::fs::fstat(borrowed).is_ok_and(|status| channel.is_at(&status)) {
        return Some(channel);
    }
    // The descriptor was closed in a way that this library does not see.
    channels.remove(&fd);
    drop(channels);
    forget(channel);
    None
}

fn remember(fd: RawFd, channel: Arc<Channel>) {
    OPEN.fetch_add(1, Ordering::Relaxed);
    let replaced = lock(CHANNELS.get_fast()).insert(fd, channel);
    if let Some(replaced) = replaced {
        forget(replaced);
    }
}

/// Takes note that a descriptor is gone. With the last one of a channel, its identifiers are destroyed.
fn forget(channel: Arc<Channel>) {
    OPEN.fetch_sub(1, Ordering::Relaxed);
    let channels = lock(CHANNELS.get_fast());
    let is_open = channels.values().any(|open| Arc::ptr_eq(open, &channel));
    drop(channels);
    if !is_open {
        state::with(|state| state.close(&channel));
    }
}

/// Removes a descriptor that is about to close.
#[cold]
#[inline(never)]
fn release(fd: c_int) {
    plain((), || {
        if channel(fd).is_some() {
            let removed = lock(CHANNELS.get_fast()).remove(&fd);
            if let Some(channel) = removed {
                forget(channel);
            }
        }
        Ok(())
    });
}

/// Returns whether the kernel says so of a device that it has, and does not let this process open.
#[inline(always)]
pub(crate) fn is_refused(errno: c_int) -> bool {
    matches!(
        errno,
        libc::EACCES | libc::EPERM | libc::ENXIO | libc::ENODEV
    )
}

/// The descriptor of the device, if that is what the program has tried to open with this result: the kernel has opened
/// it, does not have it, or [refuses](is_refused) it.
///
/// # Safety
/// `path` is a C string.
pub(crate) unsafe fn opened(found: c_int, path: *const c_char, flags: c_int) -> c_int {
    // SAFETY: the kernel has read the path: it has a first byte, and one after any but the last. Most paths differ from
    // the device's in these.
    let is_it = unsafe {
        path.read() as u8 == b'/'
            && path.add(1).read() as u8 == b'd'
            && libc::strcmp(path, PATH.as_ptr()) == 0
    };
    if !is_it {
        return found;
    }
    plain(found, || {
        let channel = Channel::new()?;
        let fd = channel.descriptor()?;
        if flags & libc::O_CLOEXEC == 0 {
            rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::empty())?;
        }
        if flags & libc::O_NONBLOCK != 0 {
            rustix::io::ioctl_fionbio(&fd, true)?;
        }
        if found >= 0 {
            // SAFETY: the kernel's device, which was opened above and is used nowhere else.
            unsafe { rustix::io::close(found) };
        }
        let fd = fd.into_raw_fd();
        remember(fd, Arc::new(channel));
        Ok(fd)
    })
}

/// What is done with the bytes that a program writes to a descriptor.
enum Written {
    /// They are for another descriptor.
    Elsewhere,
    /// They ask for an event. The channel, to which this is a counted reference, stays open while the program waits, as
    /// a file of the kernel does: another thread may close the descriptor. A thread that is cancelled leaves it.
    Waits(*const Channel),
    Done(ssize_t),
}

/// # Safety
/// Same as write(2), with answers to where commands say.
unsafe fn written(fd: c_int, bytes: *const c_void, len: usize) -> Written {
    let Some(channel) = channel(fd) else {
        return Written::Elsewhere;
    };
    let mut waits = false;
    let waiting = Arc::clone(&channel);
    let done = plain(-1, || {
        // SAFETY: the contract of this function.
        let bytes = unsafe { slice::from_raw_parts(bytes.cast(), len) };
        let executed = Command::parse(bytes).and_then(|command| {
            if command.number == GET_EVENT {
                command.check_event_room()?;
                waits = true;
                return Ok(());
            }
            let reply = command::execute(&channel, &command)?;
            // SAFETY: the contract of this function.
            unsafe { store(reply) };
            Ok(())
        });
        executed.map_or_else(
            |errno| {
                set_errno(errno);
                Ok(-1)
            },
            |()| Ok(len as ssize_t),
        )
    });
    if waits {
        Written::Waits(Arc::into_raw(waiting))
    } else {
        Written::Done(done)
    }
}

/// Stores an answer.
///
/// # Safety
/// The memory of the answer is writable.
unsafe fn store(reply: command::Reply) {
    if let Some((address, bytes)) = reply {
        let to: *mut u8 = ptr::with_exposed_provenance_mut(address as usize);
        // SAFETY: the contract of this function, for no more bytes than the command said.
        unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }
}

/// Fetches the event whose byte was read; returns `None` if another thread has fetched it.
///
/// # Safety
/// Same as [`written`].
unsafe fn fetched(channel: &Arc<Channel>, bytes: *const c_void, len: usize) -> Option<ssize_t> {
    plain(Some(-1), || {
        // SAFETY: the contract of this function.
        let bytes = unsafe { slice::from_raw_parts(bytes.cast(), len) };
        let fetched = Command::parse(bytes).and_then(|command| {
            let reply = command::get_event(channel, &command)?;
            let is_fetched = reply.is_some();
            // SAFETY: the contract of this function.
            unsafe { store(reply) };
            Ok(is_fetched)
        });
        Ok(match fetched {
            Ok(is_fetched) => is_fetched.then_some(len as ssize_t),
            Err(errno) => {
                set_errno(errno);
                Some(-1)
            }
        })
    })
}

/// # Safety
/// Same as write(2).
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn write(fd: c_int, bytes: *const c_void, len: usize) -> ssize_t {
    if !are_any_open() {
        // SAFETY: the contract of this function.
        return unsafe { next::write(fd, bytes, len) };
    }
    // SAFETY: the contract of this function.
    unsafe { write_any(fd, bytes, len) }
}

/// Like [`write`], for a descriptor that may be of the device.
///
/// # Safety
/// Same as write(2).
#[cold]
#[inline(never)]
unsafe fn write_any(fd: c_int, bytes: *const c_void, len: usize) -> ssize_t {
    // SAFETY: the contract of this function.
    match unsafe { written(fd, bytes, len) } {
        // SAFETY: the contract of this function.
        Written::Elsewhere => unsafe { next::write(fd, bytes, len) },
        Written::Done(done) => done,
        Written::Waits(channel) => loop {
            let mut byte = 0_u8;
            // It waits, is interrupted and is cancelled as the program's call to the kernel's device would be.
            // No object of this library is to be dropped here meanwhile.
            // SAFETY: there is room for a byte.
            let read = unsafe { next::read(fd, (&raw mut byte).cast(), 1) };
            // SAFETY: the reference of `written`.
            let waited_on = unsafe { Arc::from_raw(channel) };
            if read != 1 {
                return -1;
            }
            // SAFETY: the contract of this function.
            if let Some(done) = unsafe { fetched(&waited_on, bytes, len) } {
                return done;
            }
            let _kept = Arc::into_raw(waited_on);
        },
    }
}

/// What fstat(2) says of a descriptor, if it is open on the device.
#[inline]
pub(crate) fn device_of(fd: c_int) -> Option<libc::dev_t> {
    if !are_any_open() {
        return None;
    }
    plain(None, || Ok(channel(fd).map(|_| device_number())))
}

/// The number of the kernel's device, which librdmacm compares where the kernel has one.
pub(crate) fn device_number() -> libc::dev_t {
    let known = std::fs::read_to_string("/sys/class/misc/rdma_cm/dev").ok();
    let known = known
        .as_deref()
        .and_then(|text| text.trim().split_once(':'));
    let known = known.and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
    let (major, minor) = known.unwrap_or(NUMBER);
    libc::makedev(major, minor)
}

/// # Safety
/// Same as close(2).
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn close(fd: c_int) -> c_int {
    if are_any_open() {
        release(fd);
    }
    // SAFETY: the contract of this function.
    unsafe { next::close(fd) }
}

/// Duplicates a descriptor, and notes it, whatever the new one was open on before.
#[cold]
#[inline(never)]
fn duplicated(from: c_int, duplicate: impl FnOnce() -> c_int) -> c_int {
    let to = duplicate();
    if to >= 0 && to != from {
        plain((), || {
            let replaced = lock(CHANNELS.get_fast()).remove(&to);
            if let Some(replaced) = replaced {
                forget(replaced);
            }
            if let Some(channel) = channel(from) {
                remember(to, channel);
            }
            Ok(())
        });
    }
    to
}

/// # Safety
/// Same as dup(2).
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn dup(fd: c_int) -> c_int {
    if !are_any_open() {
        // SAFETY: the contract of this function. As the last step it is a jump: returns that follow one from the kernel are
        // not predicted.
        return unsafe { next::dup(fd) };
    }
    // SAFETY: as above.
    duplicated(fd, || unsafe { next::dup(fd) })
}

/// # Safety
/// Same as dup2(2).
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn dup2(fd: c_int, to: c_int) -> c_int {
    if !are_any_open() {
        // SAFETY: the contract of this function.
        return unsafe { next::dup2(fd, to) };
    }
    // SAFETY: as above.
    duplicated(fd, || unsafe { next::dup2(fd, to) })
}

/// # Safety
/// Same as dup3(2).
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int {
    if !are_any_open() {
        // SAFETY: the contract of this function.
        return unsafe { next::dup3(fd, to, flags) };
    }
    // SAFETY: as above.
    duplicated(fd, || unsafe { next::dup3(fd, to, flags) })
}
