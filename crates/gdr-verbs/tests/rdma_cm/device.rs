//! `/dev/infiniband/rdma_cm` as librdmacm uses it, with the layouts of rdma_user_cm.h.

use std::ffi::c_int;
use std::io;
use std::net::SocketAddrV4;

const CREATE_ID: u32 = 0;
const DESTROY_ID: u32 = 1;
const RESOLVE_ROUTE: u32 = 4;
const CONNECT: u32 = 6;
const LISTEN: u32 = 7;
const ACCEPT: u32 = 8;
const DISCONNECT: u32 = 10;
const GET_EVENT: u32 = 12;
const SET_OPTION: u32 = 14;
const LEAVE_MCAST: u32 = 17;
const BIND: u32 = 20;
const RESOLVE_ADDR: u32 = 21;
const JOIN_MCAST: u32 = 22;

/// Port spaces (`RDMA_PS_TCP`).
pub(crate) const TCP: u64 = 0x0106;
pub(crate) const UDP: u64 = 0x0111;
/// The InfiniBand port space, combined with a queue pair type (`IBV_QPT_RC`).
pub(crate) const RC_OF_ANY: u64 = 0x013f | 2 << 16;
pub(crate) const XRC_SEND: u64 = 0x013f | 9 << 16;
pub(crate) const XRC_RECV: u64 = 0x013f | 10 << 16;

pub(crate) const ADDR_RESOLVED: u32 = 0;
pub(crate) const ROUTE_RESOLVED: u32 = 2;
pub(crate) const CONNECT_REQUEST: u32 = 4;
pub(crate) const CONNECT_RESPONSE: u32 = 5;
pub(crate) const REJECTED: u32 = 8;
pub(crate) const ESTABLISHED: u32 = 9;
pub(crate) const DISCONNECTED: u32 = 10;
pub(crate) const MULTICAST_JOIN: u32 = 12;
pub(crate) const TIMEWAIT_EXIT: u32 = 15;

/// An event of an identifier.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Event {
    pub(crate) id: u32,
    pub(crate) kind: u32,
    /// The program's own name for the object of the event.
    pub(crate) uid: u32,
    /// The queue pair number and, for datagrams, the queue key and the destination GID.
    pub(crate) datagrams: (u32, u32, [u8; 16]),
}

/// An open device.
pub(crate) struct Cm(c_int);

impl Cm {
    pub(crate) fn open() -> Self {
        // SAFETY: a C string.
        let fd = unsafe {
            libc::open(
                c"/dev/infiniband/rdma_cm".as_ptr(),
                libc::O_RDWR | libc::O_CLOEXEC,
            )
        };
        assert!(fd >= 0, "{}", io::Error::last_os_error());
        Self(fd)
    }

    /// Executes a command, which must succeed; `answer` is as long as its result.
    fn execute(&self, number: u32, payload: &[u8], answer: &[u8]) {
        let errno = self.try_execute(number, payload, answer);
        assert_eq!(errno, 0, "command {number}");
    }

    /// Executes a command; returns an error number, or 0.
    fn try_execute(&self, number: u32, payload: &[u8], answer: &[u8]) -> i32 {
        let mut command = number.to_ne_bytes().to_vec();
        command.extend((payload.len() as u16).to_ne_bytes());
        command.extend((answer.len() as u16).to_ne_bytes());
        command.extend(payload);
        // SAFETY: a readable range; pointers in the command come from a function of this module.
        let written = unsafe { libc::write(self.0, command.as_ptr().cast(), command.len()) };
        match written == command.len() as isize {
            true => 0,
            false => io::Error::last_os_error().raw_os_error().unwrap(),
        }
    }

    /// Creates an identifier for connections.
    pub(crate) fn create(&self) -> u32 {
        self.create_in(TCP)
    }

    /// Creates an identifier in a port space.
    pub(crate) fn create_in(&self, space: u64) -> u32 {
        let mut id = [0_u8; 4];
        let mut payload = 7_u64.to_ne_bytes().to_vec();
        payload.extend(address_of(&mut id));
        payload.extend(space.to_ne_bytes());
        self.execute(CREATE_ID, &payload, &id.clone());
        u32::from_ne_bytes(id)
    }

    pub(crate) fn destroy(&self, id: u32) {
        let mut reported = [0_u8; 4];
        let mut payload = address_of(&mut reported).to_vec();
        payload.extend(u64::from(id).to_ne_bytes());
        self.execute(DESTROY_ID, &payload, &reported.clone());
    }

    /// Binds an identifier; returns an error number, or 0.
    pub(crate) fn bind(&self, id: u32, address: SocketAddrV4) -> i32 {
        let mut payload = id.to_ne_bytes().to_vec();
        payload.extend(16_u32.to_ne_bytes());
        payload.extend(storage(address));
        self.try_execute(BIND, &payload, &[])
    }

    /// Lets other identifiers that do the same share its address and port.
    pub(crate) fn share(&self, id: u32) {
        let mut value = 1_u32.to_ne_bytes();
        let mut payload = address_of(&mut value).to_vec();
        payload.extend(words(&[id, 0, 1, 4]));
        self.execute(SET_OPTION, &payload, &[]);
    }

    /// Listens for connections; returns an error number, or 0.
    pub(crate) fn listen(&self, id: u32) -> i32 {
        self.try_execute(LISTEN, &words(&[id, 8]), &[])
    }

    /// Joins a group; returns the number of the membership, or `None` if that is refused.
    pub(crate) fn join(&self, id: u32, group: SocketAddrV4) -> Option<u32> {
        let mut membership = [0_u8; 4];
        let mut payload = address_of(&mut membership).to_vec();
        payload.extend(8_u64.to_ne_bytes());
        payload.extend(words(&[id, 16]));
        payload.extend(storage(group));
        let joined = self.try_execute(JOIN_MCAST, &payload, &membership.clone());
        (joined == 0).then(|| u32::from_ne_bytes(membership))
    }

    /// Leaves a group; returns how many events of the membership were fetched, or `None` if it does not exist.
    pub(crate) fn leave(&self, membership: u32) -> Option<u32> {
        let mut reported = [0_u8; 4];
        let mut payload = address_of(&mut reported).to_vec();
        payload.extend(words(&[membership, 0]));
        let left = self.try_execute(LEAVE_MCAST, &payload, &reported.clone());
        (left == 0).then(|| u32::from_ne_bytes(reported))
    }

    /// Requests a connection for a queue pair.
    pub(crate) fn ask(&self, space: u64, to: SocketAddrV4, qpn: u32) -> u32 {
        let id = self.create_in(space);
        let mut payload = words(&[id, 2000]);
        payload.extend([0, 16_u16].iter().flat_map(|len| len.to_ne_bytes()));
        payload.extend([0; 4 + 128]);
        payload.extend(storage(to));
        self.execute(RESOLVE_ADDR, &payload, &[]);
        self.expect(id, ADDR_RESOLVED);
        self.execute(RESOLVE_ROUTE, &words(&[id, 2000]), &[]);
        self.expect(id, ROUTE_RESOLVED);
        let mut payload = parameters(qpn);
        payload.extend(words(&[id, 0]));
        self.execute(CONNECT, &payload, &[]);
        id
    }

    /// Requests a connection for a queue pair, and waits until it is established.
    pub(crate) fn connect(&self, to: SocketAddrV4, qpn: u32) -> u32 {
        let id = self.ask(TCP, to, qpn);
        self.expect(id, CONNECT_RESPONSE);
        // Without parameters, this confirms the connection.
        let mut payload = vec![0; 8 + 272];
        payload.extend(words(&[id, 0]));
        self.execute(ACCEPT, &payload, &[]);
        id
    }

    /// Accepts a connection; returns an error number, or 0.
    pub(crate) fn accept(&self, id: u32, qpn: u32) -> i32 {
        let mut payload = 9_u64.to_ne_bytes().to_vec();
        payload.extend(parameters(qpn));
        payload.extend(words(&[id, 0]));
        self.try_execute(ACCEPT, &payload, &[])
    }

    pub(crate) fn disconnect(&self, id: u32) {
        self.execute(DISCONNECT, &words(&[id, 0]), &[]);
    }

    /// Waits for the next event.
    pub(crate) fn event(&self) -> Event {
        let mut answer = [0_u8; 336];
        let payload = address_of(&mut answer);
        self.execute(GET_EVENT, &payload, &answer.clone());
        let word = |at: usize| u32::from_ne_bytes([0, 1, 2, 3].map(|byte| answer[at + byte]));
        Event {
            id: word(8),
            kind: word(12),
            uid: word(0),
            datagrams: (
                word(20),
                word(24),
                std::array::from_fn(|at| answer[28 + at]),
            ),
        }
    }

    /// Waits for an event, which must be the next one except for the ends of earlier connections.
    pub(crate) fn expect(&self, id: u32, kind: u32) {
        loop {
            let event = self.event();
            if event.kind == TIMEWAIT_EXIT {
                continue;
            }
            assert_eq!((event.id, event.kind), (id, kind));
            return;
        }
    }
}

/// Returns the address of an answer, in the form that commands contain.
fn address_of(answer: &mut [u8]) -> [u8; 8] {
    (answer.as_mut_ptr().expose_provenance() as u64).to_ne_bytes()
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// `struct sockaddr_storage`.
fn storage(address: SocketAddrV4) -> [u8; 128] {
    let mut bytes = [0; 128];
    bytes[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
    bytes[2..4].copy_from_slice(&address.port().to_be_bytes());
    bytes[4..8].copy_from_slice(&address.ip().octets());
    bytes
}

/// `struct rdma_ucm_conn_param`.
fn parameters(qpn: u32) -> Vec<u8> {
    let mut bytes = vec![0; 272];
    bytes[..4].copy_from_slice(&qpn.to_ne_bytes());
    bytes[271] = 1;
    bytes
}
