//! The sockets that programs open for `NETLINK_RDMA`, and the functions of the C library that they send by.
//!
//! A call about another socket costs one load while the process has none of these.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::slice;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use gdr_copy::PerProcess;
use gdr_nic::LinkWatch;
use libc::{socklen_t, ssize_t};
use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt,
};

use super::message::{Message, Scope};
use super::nldev::{self, Answerer, CharacterDevice};
use crate::device::{Device, lock};
use crate::device_use::{self, Step};
use crate::errno::Errno;
use crate::files::{self, next};
use crate::port_state::PortState;
use crate::rdma_cm;
use crate::ret::{plain, set_errno};

/// How long the kernel may take to answer.
const KERNEL_TIMEOUT: Duration = Duration::from_secs(1);
/// The version of the interface of a device's character device, as in sysfs.
const NODE_ABI: u64 = 1;
/// The most bytes of a request, and of an answer of the kernel.
const MOST_BYTES: usize = 64 << 10;

/// Which file a descriptor was when the program opened it: the device and the number of the inode.
type Identity = (u64, u64);

/// How many sockets are remembered.
static OPEN: AtomicUsize = AtomicUsize::new(0);

/// The sockets by their descriptors.
static SOCKETS: PerProcess<Mutex<HashMap<RawFd, Identity>>> = PerProcess::new();

/// # Safety
/// Same as socket(2).
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    if domain == libc::AF_NETLINK && protocol == libc::NETLINK_RDMA {
        // SAFETY: the contract of this function.
        return unsafe { opened(kind) };
    }
    // SAFETY: the contract of this function.
    unsafe { next::socket(domain, kind, protocol) }
}

/// # Safety
/// Same as send(2).
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn send(
    fd: c_int,
    bytes: *const c_void,
    len: usize,
    flags: c_int,
) -> ssize_t {
    if is_one(fd) {
        // SAFETY: the contract of this function.
        return unsafe { answered(fd, bytes, len) };
    }
    // SAFETY: the contract of this function.
    unsafe { next::send(fd, bytes, len, flags) }
}

/// # Safety
/// Same as sendto(2).
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sendto(
    fd: c_int,
    bytes: *const c_void,
    len: usize,
    flags: c_int,
    to: *const libc::sockaddr,
    to_len: socklen_t,
) -> ssize_t {
    if is_one(fd) {
        // SAFETY: the contract of this function.
        return unsafe { answered(fd, bytes, len) };
    }
    // SAFETY: the contract of this function.
    unsafe { next::sendto(fd, bytes, len, flags, to, to_len) }
}

/// # Safety
/// Same as sendmsg(2).
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sendmsg(
    fd: c_int,
    message: *const libc::msghdr,
    flags: c_int,
) -> ssize_t {
    if is_one(fd) {
        // SAFETY: the contract of this function.
        return unsafe { answered_parts(fd, message) };
    }
    // SAFETY: the contract of this function.
    unsafe { next::sendmsg(fd, message, flags) }
}

/// Opens a socket that stands for one of `NETLINK_RDMA`, unless there is no device to show.
///
/// # Safety
/// Same as socket(2).
#[cold]
#[inline(never)]
unsafe fn opened(kind: c_int) -> c_int {
    let is_shown = !files::are_hidden() && plain(false, || Ok(!Device::all().is_empty()));
    if is_shown {
        // SAFETY: the contract of this function.
        let fd = unsafe { next::socket(libc::AF_NETLINK, kind, libc::NETLINK_USERSOCK) };
        if fd >= 0 {
            plain((), || {
                let identity = identity(fd).ok_or(Errno::BADF)?;
                OPEN.fetch_add(1, Ordering::Relaxed);
                lock(SOCKETS.get_fast()).insert(fd, identity);
                Ok(())
            });
            return fd;
        }
    }
    // SAFETY: the contract of this function.
    unsafe { next::socket(libc::AF_NETLINK, kind, libc::NETLINK_RDMA) }
}

fn identity(fd: RawFd) -> Option<Identity> {
    if fd < 0 {
        return None;
    }
    // SAFETY: a number that is only asked about; if it is not open, the kernel says so.
    let status = rustix::fs::fstat(unsafe { BorrowedFd::borrow_raw(fd) }).ok()?;
    Some((status.st_dev, status.st_ino))
}

/// Returns whether a descriptor is a socket of this module.
#[inline(always)]
fn is_one(fd: c_int) -> bool {
    OPEN.load(Ordering::Relaxed) != 0 && is_remembered(fd)
}

#[cold]
#[inline(never)]
fn is_remembered(fd: RawFd) -> bool {
    plain(false, || {
        let mut sockets = lock(SOCKETS.get_fast());
        let Some(remembered) = sockets.get(&fd) else {
            return Ok(false);
        };
        let is_same = identity(fd).as_ref() == Some(remembered);
        if !is_same {
            // The program has closed it.
            sockets.remove(&fd);
            OPEN.fetch_sub(1, Ordering::Relaxed);
        }
        Ok(is_same)
    })
}

/// Answers the requests in these bytes.
///
/// # Safety
/// Same as send(2).
unsafe fn answered(fd: RawFd, bytes: *const c_void, len: usize) -> ssize_t {
    sent(len, || {
        if len > MOST_BYTES {
            return Err(Errno::MSGSIZE);
        }
        // SAFETY: the contract of this function.
        answer(fd, unsafe { array(bytes.cast(), len) })
    })
}

/// # Safety
/// Same as sendmsg(2).
unsafe fn answered_parts(fd: RawFd, message: *const libc::msghdr) -> ssize_t {
    // SAFETY: the contract of this function, or null.
    let Some(message) = (unsafe { message.as_ref() }) else {
        set_errno(Errno::FAULT);
        return -1;
    };
    // SAFETY: the contract of this function.
    let parts = unsafe { array(message.msg_iov, message.msg_iovlen) };
    let len = parts
        .iter()
        .fold(0_usize, |sum, part| sum.saturating_add(part.iov_len));
    sent(len, || {
        if len > MOST_BYTES {
            return Err(Errno::MSGSIZE);
        }
        let mut bytes = Vec::with_capacity(len);
        for part in parts {
            // SAFETY: the contract of this function.
            bytes.extend(unsafe { array(part.iov_base.cast::<u8>(), part.iov_len) });
        }
        answer(fd, &bytes)
    })
}

/// The elements of an array, which has no address if it is empty.
///
/// # Safety
/// Unless `len` is 0, the array is readable for `'a`.
unsafe fn array<'a, T>(first: *const T, len: usize) -> &'a [T] {
    if len == 0 {
        return &[];
    }
    // SAFETY: the contract of this function.
    unsafe { slice::from_raw_parts(first, len) }
}

fn sent(len: usize, send: impl FnOnce() -> Result<(), Errno>) -> ssize_t {
    plain(-1, || {
        Ok(send().map_or_else(
            |errno| {
                set_errno(errno);
                -1
            },
            |()| len as ssize_t,
        ))
    })
}

fn answer(fd: RawFd, bytes: &[u8]) -> Result<(), Errno> {
    // SAFETY: the program's socket, which it keeps open while it sends.
    let program = unsafe { BorrowedFd::borrow_raw(fd) };
    let to = bound(program)?;
    let own = new_socket(netlink::USERSOCK)?;
    for request in Message::split(bytes)? {
        for answer in answers(&request) {
            let bytes = answer.bytes(to.pid());
            match rustix::net::sendto(&own, &bytes, SendFlags::DONTWAIT, &to) {
                Ok(_) => {}
                // The program has not read earlier answers.
                Err(rustix::io::Errno::AGAIN) => return Err(Errno::NOBUFS),
                Err(errno) => return Err(errno.into()),
            }
        }
    }
    Ok(())
}

/// The address of the program's socket. A program that has not bound it is bound by its first request.
fn bound(program: BorrowedFd<'_>) -> Result<SocketAddrNetlink, Errno> {
    let name = || {
        let name = rustix::net::getsockname(program)?;
        SocketAddrNetlink::try_from(name)
    };
    let bound = name()?;
    if bound.pid() != 0 {
        return Ok(SocketAddrNetlink::new(bound.pid(), 0));
    }
    rustix::net::bind(program, &SocketAddrNetlink::new(0, bound.groups()))?;
    Ok(SocketAddrNetlink::new(name()?.pid(), 0))
}

fn new_socket(protocol: Protocol) -> Result<OwnedFd, Errno> {
    let family = AddressFamily::NETLINK;
    let opened = rustix::net::socket_with(
        family,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        Some(protocol),
    );
    Ok(opened?)
}

/// All answers to a request, the one that ends them included.
fn answers(request: &Message) -> Vec<Message> {
    let kernel = new_socket(netlink::RDMA).ok();
    let devices = devices();
    let answerer = Answerer::of(request, &devices);
    let mut answers = Vec::new();
    if let (Some(kernel), Answerer::Kernel | Answerer::Both) = (&kernel, answerer) {
        match asked(kernel, request) {
            Ok(known) => answers = known,
            Err(errno) => return vec![request.result(Some(errno))],
        }
        let is_failure = answers.iter().any(Message::is_failure);
        if answerer == Answerer::Kernel || is_failure {
            return ended(request, answers);
        }
    }
    device_use::reached(Step::Seen);
    match nldev::answers(request, &devices, &connections()) {
        Ok(known) => {
            answers.extend(known);
            ended(request, answers)
        }
        Err(errno) => vec![request.result(Some(errno))],
    }
}

/// Adds the answer that ends the others, unless the request has failed.
fn ended(request: &Message, mut answers: Vec<Message>) -> Vec<Message> {
    if answers.iter().any(Message::is_failure) {
        return answers;
    }
    match request.scope() {
        Scope::All => answers.push(request.done()),
        Scope::One if request.wants_acknowledgement() => answers.push(request.result(None)),
        Scope::One => {}
    }
    answers
}

/// What the kernel answers, without the answer that ends it.
fn asked(kernel: &OwnedFd, request: &Message) -> Result<Vec<Message>, Errno> {
    sockopt::set_socket_timeout(kernel, sockopt::Timeout::Recv, Some(KERNEL_TIMEOUT))?;
    let to = SocketAddrNetlink::new(0, 0);
    let bytes = request.acknowledged().bytes(0);
    rustix::net::sendto(kernel, &bytes, SendFlags::empty(), &to)?;
    let mut answers = Vec::new();
    let mut room = vec![0; MOST_BYTES];
    loop {
        let (len, _) = rustix::net::recv(kernel, room.as_mut_slice(), RecvFlags::empty())?;
        for answer in Message::split(&room[..len])? {
            if answer.is_failure() || !answer.is_last() {
                answers.push(answer.clone());
            }
            if answer.is_last() {
                return Ok(answers);
            }
        }
    }
}

/// The character device of rdma_cm.
fn connections() -> CharacterDevice {
    CharacterDevice {
        name: "rdma_cm".to_owned(),
        abi: rdma_cm::ABI_VERSION,
        number: rdma_cm::device_number(),
    }
}

/// What netlink says of the devices now.
fn devices() -> Vec<nldev::Device> {
    let devices = Device::all().iter();
    devices
        .map(|device| {
            let nic = device.nic();
            let link = LinkWatch::new(nic).poll(&mut |_| {});
            let port = PortState::from(link.condition);
            nldev::Device {
                index: device.netlink_index() as u32,
                name: device.name(),
                guid: device.guid(),
                interface: nic.interface.clone(),
                interface_index: link.interface,
                state: port.state.0 as u8,
                physical_state: port.physical,
                node: CharacterDevice {
                    name: device.node(),
                    abi: NODE_ABI,
                    number: device.node_number(),
                },
            }
        })
        .collect()
}
