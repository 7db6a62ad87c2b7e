//! The device by the functions of the C library, which are this library's in its tests.

use std::ffi::c_int;
use std::io;
use std::mem;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::event::{PollFd, PollFlags, Timespec};

use super::descriptor::PATH;
use crate::device::{Device, ibv_get_device_index};

const CREATE_ID: u32 = 0;
const DESTROY_ID: u32 = 1;
const QUERY_ROUTE: u32 = 5;
const DISCONNECT: u32 = 10;
const GET_EVENT: u32 = 12;
const MIGRATE_ID: u32 = 18;
const QUERY: u32 = 19;
const BIND: u32 = 20;
const RESOLVE_ADDR: u32 = 21;
const WRITE_CM_EVENT: u32 = 24;

fn open() -> c_int {
    let flags = libc::O_RDWR | libc::O_CLOEXEC | libc::O_NONBLOCK;
    // SAFETY: a C string.
    let fd = unsafe { libc::open(PATH.as_ptr(), flags, 0) };
    assert!(fd >= 0);
    fd
}

fn close(fd: c_int) {
    // SAFETY: a descriptor of a test.
    assert_eq!(unsafe { libc::close(fd) }, 0);
}

fn file_type(fd: c_int) -> libc::mode_t {
    // SAFETY: all zero is a valid status, which the call writes.
    unsafe {
        let mut status: libc::stat = mem::zeroed();
        assert_eq!(libc::fstat(fd, &mut status), 0);
        status.st_mode & libc::S_IFMT
    }
}

fn write(fd: c_int, bytes: &[u8]) -> Result<(), c_int> {
    // SAFETY: a readable range; answers go to variables of the tests.
    let written = unsafe { libc::write(fd, bytes.as_ptr().cast(), bytes.len()) };
    match usize::try_from(written) {
        Ok(len) => {
            assert_eq!(len, bytes.len());
            Ok(())
        }
        Err(_) => Err(io::Error::last_os_error().raw_os_error().unwrap_or(0)),
    }
}

/// Writes a command of these fields.
fn send(fd: c_int, number: u32, payload: &[u8], room: u16) -> Result<(), c_int> {
    let mut bytes = number.to_ne_bytes().to_vec();
    bytes.extend((payload.len() as u16).to_ne_bytes());
    bytes.extend(room.to_ne_bytes());
    bytes.extend(payload);
    write(fd, &bytes)
}

/// The address of an answer, as commands have it.
fn address_of(answer: &mut [u8]) -> [u8; 8] {
    (answer.as_mut_ptr().expose_provenance() as u64).to_ne_bytes()
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// Makes an identifier; returns the command's result.
fn create(fd: c_int, room: u16) -> Result<u32, c_int> {
    let mut id = [0; 4];
    let mut payload = 7_u64.to_ne_bytes().to_vec();
    payload.extend(address_of(&mut id));
    payload.extend(0x0106_u64.to_ne_bytes());
    send(fd, CREATE_ID, &payload, room)?;
    Ok(u32::from_ne_bytes(id))
}

/// Destroys an identifier; returns how many events of it were fetched.
fn destroy(fd: c_int, id: u32) -> Result<u32, c_int> {
    let mut reported = [0xff; 4];
    let mut payload = address_of(&mut reported).to_vec();
    payload.extend(words(&[id, 0]));
    send(fd, DESTROY_ID, &payload, 4)?;
    Ok(u32::from_ne_bytes(reported))
}

/// Has an event reported for an identifier: that no device has the address that is to be its own.
fn cause_event(fd: c_int, id: u32) {
    let mut payload = words(&[id, 0, 16 << 16 | 16, 0]);
    for address in [[203, 0, 113, 1], [203, 0, 113, 2]] {
        let mut storage = [0; 128];
        storage[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
        storage[4..8].copy_from_slice(&address);
        payload.extend(storage);
    }
    assert_eq!(send(fd, RESOLVE_ADDR, &payload, 0), Ok(()));
}

/// The identifier of the next event.
fn event(fd: c_int) -> Result<u32, c_int> {
    let mut answer = [0; 336];
    let payload = address_of(&mut answer);
    send(fd, GET_EVENT, &payload, 336)?;
    Ok(u32::from_ne_bytes([8, 9, 10, 11].map(|at| answer[at])))
}

fn is_readable(fd: c_int) -> bool {
    // SAFETY: a descriptor of a test.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    rustix::event::poll(&mut fds, Some(&Timespec::default())).unwrap() > 0
}

#[test]
fn the_device_is_a_character_device_with_identifiers_until_it_is_closed() {
    let fd = open();
    assert_eq!(file_type(fd), libc::S_IFCHR);
    let id = create(fd, 4).unwrap();
    assert_ne!(id, 0);
    assert_eq!(create(fd, 3), Err(libc::ENOSPC));
    // No event; an identifier that does not exist; a command that does not exist.
    assert_eq!(event(fd), Err(libc::EAGAIN));
    assert_eq!(
        send(fd, DISCONNECT, &words(&[u32::MAX]), 0),
        Err(libc::ENOENT)
    );
    assert_eq!(send(fd, 99, &[0; 8], 0), Err(libc::EINVAL));

    // Another descriptor keeps it, and other channels have no part in it.
    // SAFETY: a descriptor of this test.
    let again = unsafe { libc::dup(fd) };
    let other = open();
    close(fd);
    assert_eq!(destroy(other, id), Err(libc::EINVAL));
    // It has no connection.
    assert_eq!(send(again, DISCONNECT, &words(&[id]), 0), Err(libc::EINVAL));
    close(again);
    assert_eq!(destroy(other, id), Err(libc::ENOENT));
    close(other);
}

#[test]
fn a_loopback_address_that_no_device_has_stands_for_any() {
    let fd = open();
    for (address, expected) in [
        ([127, 0, 99, 9], Ok(())),
        ([203, 0, 113, 1], Err(libc::ENODEV)),
    ] {
        let mut payload = words(&[create(fd, 4).unwrap(), 16]);
        let mut storage = [0; 128];
        storage[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
        storage[4..8].copy_from_slice(&address);
        payload.extend(storage);
        assert_eq!(send(fd, BIND, &payload, 0), expected);
    }
    close(fd);
}

#[test]
fn the_device_of_an_identifier_is_named_by_the_index_that_libibverbs_gives() {
    let device = &Device::all()[0];
    let IpAddr::V4(address) = device.nic().address else {
        panic!("the first device is at 127.0.0.1");
    };
    let fd = open();
    let id = create(fd, 4).unwrap();
    let mut payload = words(&[id, 16]);
    let mut storage = [0; 128];
    storage[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
    storage[4..8].copy_from_slice(&address.octets());
    payload.extend(storage);
    assert_eq!(send(fd, BIND, &payload, 0), Ok(()));
    for (command, len, at) in [(QUERY_ROUTE, 208, 200), (QUERY, 280, 272)] {
        let mut answer = vec![0_u8; len];
        let mut payload = address_of(&mut answer).to_vec();
        payload.extend(words(&[id, 0]));
        assert_eq!(send(fd, command, &payload, len as u16), Ok(()));
        let index = ibv_get_device_index(device.as_ptr());
        assert_eq!(answer[at..at + 4], index.to_ne_bytes(), "{command}");
    }
    close(fd);
}

#[test]
fn a_number_that_is_of_another_file_now_is_not_of_the_device() {
    let fd = open();
    let (reader, _writer) = std::io::pipe().unwrap();
    // SAFETY: descriptors of this test. It is replaced by a way that this library does not see.
    let moved = unsafe { libc::syscall(libc::SYS_dup3, reader.as_raw_fd(), fd, libc::O_CLOEXEC) };
    assert_eq!(moved, libc::c_long::from(fd));
    assert_eq!(file_type(fd), libc::S_IFIFO);
    close(fd);
}

#[test]
fn a_command_has_the_bytes_that_its_header_says() {
    let fd = open();
    let id = create(fd, 4).unwrap();
    let header = |len: u16| [words(&[DISCONNECT]), words(&[u32::from(len)])].concat();
    let with_id = |len| [header(len), words(&[id])].concat();
    // It exists, and has no connection.
    assert_eq!(write(fd, &with_id(4)), Err(libc::EINVAL));
    // The bytes after the command do not belong to it, and the identifier 0 does not exist.
    assert_eq!(write(fd, &with_id(0)), Err(libc::ENOENT));
    for short in [
        &with_id(5)[..],
        &header(1),
        &header(u16::MAX),
        &header(0)[..7],
        &[],
    ] {
        assert_eq!(write(fd, short), Err(libc::EINVAL), "{short:?}");
    }
    close(fd);
}

#[test]
fn an_answer_takes_the_room_that_the_program_has() {
    let fd = open();
    let id = create(fd, 4).unwrap();
    cause_event(fd, id);
    let mut answer = [0xaa; 336];
    let payload = address_of(&mut answer);
    assert_eq!(send(fd, GET_EVENT, &payload, 323), Err(libc::ENOSPC));
    assert!(is_readable(fd), "the event is there");
    assert_eq!(send(fd, GET_EVENT, &payload, 324), Ok(()));
    assert_eq!(answer[8..12], id.to_ne_bytes());
    assert_eq!(answer[324..], [0xaa; 12]);
    close(fd);
}

#[test]
fn the_device_is_readable_while_events_wait() {
    let fd = open();
    let ids = [create(fd, 4).unwrap(), create(fd, 4).unwrap()];
    for id in ids {
        cause_event(fd, id);
        cause_event(fd, id);
    }
    for fetched in [ids[0], ids[0], ids[1]] {
        assert!(is_readable(fd));
        assert_eq!(event(fd), Ok(fetched));
    }
    assert_eq!(destroy(fd, ids[0]), Ok(2));
    assert!(is_readable(fd), "one event belongs to the other");
    // With it, the last event goes.
    assert_eq!(destroy(fd, ids[1]), Ok(1));
    assert!(!is_readable(fd));
    assert_eq!(event(fd), Err(libc::EAGAIN));
    close(fd);
}

#[test]
fn an_identifier_moves_to_another_channel_with_its_events() {
    let (from, to) = (open(), open());
    let ids = [create(from, 4).unwrap(), create(from, 4).unwrap()];
    for id in [ids[0], ids[1], ids[0]] {
        cause_event(from, id);
    }
    assert_eq!(event(from), Ok(ids[0]));
    let mut reported = [0xff; 4];
    let mut payload = address_of(&mut reported).to_vec();
    payload.extend(words(&[ids[0], from as u32]));
    assert_eq!(send(to, MIGRATE_ID, &payload, 4), Ok(()));
    assert_eq!(u32::from_ne_bytes(reported), 1);
    assert_eq!(event(to), Ok(ids[0]));
    assert_eq!(event(to), Err(libc::EAGAIN));
    assert_eq!(event(from), Ok(ids[1]));
    assert_eq!(event(from), Err(libc::EAGAIN));
    assert_eq!(destroy(from, ids[0]), Err(libc::EINVAL));
    // The channel that it came from does not end it.
    close(from);
    assert_eq!(destroy(to, ids[0]), Ok(2));
    close(to);
}

#[test]
fn an_event_that_the_program_writes_comes_with_its_status_and_argument() {
    const USER: u32 = 18;
    const INTERNAL: u32 = 19;
    let (fd, other) = (open(), open());
    let id = create(fd, 4).unwrap();
    let write = |fd, id, event| {
        let mut payload = words(&[id, 0, event, 5]);
        payload.extend(0x1122_3344_5566_7788_u64.to_ne_bytes());
        payload.resize(16 + 304, 0);
        send(fd, WRITE_CM_EVENT, &payload, 0)
    };
    for kind in [USER, INTERNAL] {
        assert_eq!(write(fd, id, kind), Ok(()));
        let mut answer = [0; 336];
        let payload = address_of(&mut answer);
        assert_eq!(send(fd, GET_EVENT, &payload, 336), Ok(()));
        assert_eq!(answer[..8], 7_u64.to_ne_bytes());
        assert_eq!(answer[8..20], words(&[id, kind, 5])[..]);
        assert_eq!(answer[20..28], 0x1122_3344_5566_7788_u64.to_ne_bytes());
    }
    // The events of connections are not the program's to write.
    assert_eq!(write(fd, id, 9), Err(libc::EINVAL));
    assert_eq!(write(fd, u32::MAX, USER), Err(libc::ENOENT));
    assert_eq!(write(other, id, USER), Err(libc::EINVAL));
    assert!(!is_readable(fd));
    close(fd);
    close(other);
}
