//! Sockets of RDMA netlink by the functions of the C library, which are this library's in its tests.

use std::io;
use std::mem;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::ptr;

use rustix::net::{RecvFlags, sockopt};

use super::message::Message;
use crate::device::{Device, ibv_get_device_index};
use crate::files;

/// `NLM_F_REQUEST`, and with it `NLM_F_DUMP`.
const ONE: u16 = 0x001;
const ALL: u16 = 0x301;

/// `RDMA_NLDEV_CMD_GET` without attributes.
fn get(flags: u16) -> Vec<u8> {
    let mut bytes = 16_u32.to_ne_bytes().to_vec();
    for half in [(5 << 10) | 1_u16, flags, 9, 0, 0, 0] {
        bytes.extend(half.to_ne_bytes());
    }
    bytes
}

fn open() -> OwnedFd {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    // SAFETY: numbers.
    let fd = unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_RDMA) };
    assert!(fd >= 0, "{}", io::Error::last_os_error());
    // SAFETY: it was opened above.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// The answers to a request, up to the last one.
fn received(socket: &OwnedFd) -> Vec<Message> {
    let mut answers: Vec<Message> = Vec::new();
    while !answers.last().is_some_and(Message::is_last) {
        let mut room = vec![0; 8192];
        let (len, _) = rustix::net::recv(socket, room.as_mut_slice(), RecvFlags::DONTWAIT).unwrap();
        answers.extend(Message::split(&room[..len]).unwrap());
    }
    answers
}

fn names(answers: &[Message]) -> Vec<&str> {
    answers.iter().filter_map(|answer| answer.text(2)).collect()
}

#[test]
fn every_way_to_send_is_answered() {
    let request = get(ALL);
    let (bytes, len) = (request.as_ptr().cast(), request.len());
    let sent = len as isize;
    let socket = open();
    let fd = socket.as_raw_fd();
    // SAFETY: all zero is a valid address.
    let mut kernel: libc::sockaddr_nl = unsafe { mem::zeroed() };
    kernel.nl_family = libc::AF_NETLINK as u16;
    let size = size_of_val(&kernel) as u32;
    // SAFETY: an address and a request of their lengths.
    unsafe {
        assert_eq!(
            libc::sendto(fd, bytes, len, 0, (&raw const kernel).cast(), size),
            sent
        );
    }
    assert!(names(&received(&socket)).contains(&"gdr0"));
    // SAFETY: a request of its length.
    unsafe { assert_eq!(libc::send(fd, bytes, len, 0), sent) };
    assert!(names(&received(&socket)).contains(&"gdr0"));
    let (first, second) = request.split_at(5);
    let mut parts = [first, second].map(|part| libc::iovec {
        iov_base: part.as_ptr().cast_mut().cast(),
        iov_len: part.len(),
    });
    // SAFETY: all zero is a valid message, without an address.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_iov = parts.as_mut_ptr();
    message.msg_iovlen = parts.len();
    // SAFETY: a message of two parts.
    unsafe { assert_eq!(libc::sendmsg(fd, &raw const message, 0), sent) };
    assert!(names(&received(&socket)).contains(&"gdr0"));
}

#[test]
fn the_index_that_libibverbs_gives_is_asked_for_beside_those_of_the_kernel() {
    let index = ibv_get_device_index(Device::all()[0].as_ptr());
    assert!(index >= 1 << 16, "{index} may be a kernel device");
    let request = Message::split(&get(ONE)).unwrap().remove(0);
    let bytes = request.with(1, &index.to_ne_bytes()).bytes(0);
    let socket = open();
    let (fd, len) = (socket.as_raw_fd(), bytes.len());
    // SAFETY: a request of its length.
    unsafe { assert_eq!(libc::send(fd, bytes.as_ptr().cast(), len, 0), len as isize) };
    let mut room = vec![0; 8192];
    let (len, _) = rustix::net::recv(&socket, room.as_mut_slice(), RecvFlags::DONTWAIT).unwrap();
    assert_eq!(names(&Message::split(&room[..len]).unwrap()), ["gdr0"]);
}

#[test]
fn a_socket_that_took_its_number_sends_as_any_other() {
    let mut number = open();
    let (sender, receiver) = UnixDatagram::pair().unwrap();
    rustix::io::dup2(&sender, &mut number).unwrap();
    // SAFETY: bytes of their length.
    let sent = unsafe { libc::send(number.as_raw_fd(), b"other".as_ptr().cast(), 5, 0) };
    assert_eq!(sent, 5);
    let mut room = [0; 8];
    assert_eq!(receiver.recv(&mut room).unwrap(), 5);
}

#[test]
fn what_is_not_a_request_fails() {
    let socket = open();
    let short = [16_u8, 0, 0, 0];
    // SAFETY: bytes of their length.
    let sent = unsafe { libc::send(socket.as_raw_fd(), short.as_ptr().cast(), 4, 0) };
    assert_eq!(sent, -1);
    assert_eq!(
        io::Error::last_os_error().raw_os_error(),
        Some(libc::EINVAL)
    );
    // SAFETY: no bytes.
    let sent = unsafe { libc::send(socket.as_raw_fd(), ptr::null(), 0, 0) };
    assert_eq!(sent, 0);
    // SAFETY: a message that is refused.
    let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), ptr::null(), 0) };
    assert_eq!(sent, -1);
}

#[test]
fn a_thread_that_looks_for_the_kernels_devices_gets_the_kernels_socket() {
    let protocol = files::hidden(|| {
        // SAFETY: numbers.
        let fd = unsafe { libc::socket(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_RDMA) };
        if fd < 0 {
            return None;
        }
        // SAFETY: it was opened above.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        sockopt::socket_protocol(&socket).unwrap()
    });
    assert!(protocol.is_none_or(|protocol| protocol == rustix::net::netlink::RDMA));
}
