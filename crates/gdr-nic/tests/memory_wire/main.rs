//! Devices of one host that send to each other through shared memory.

#![allow(
    clippy::unwrap_used,
    reason = "a fixture that fails is a test that fails"
)]

mod captured;
mod device;
mod references;

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{env, fs};

use gdr_nic::{
    Access, AckTimeout, Capabilities, Completion, CompletionQueue, Connection, Data, Deadline,
    Device, Domain, Lkey, Memory, Mtu, Operation, Psn, Qkey, QueuePair, Queues, RecvRequest,
    Reliability, Remote, RetryCount, RetryLimit, Rkey, RnrRetry, RnrTimer, RtrAttributes,
    RtsAttributes, Segment, SendFlags, SendRequest, SoftOptions, UdSendRequest, WcStatus, Wires,
    WrId,
};

const CAPABILITIES: Capabilities = Capabilities {
    max_send_wr: 64,
    max_recv_wr: 64,
    max_inline: 64,
};

/// Returns a deadline that only a stuck test reaches.
fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(60))
}

/// Half a second per attempt, so that an end that gets no CPU for a while has not failed. Lost packets are
/// retransmitted earlier, after a measured round-trip time.
const PATIENT: AckTimeout = AckTimeout::new(17);

/// Serialises the tests, because some count resources of the whole process.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the number of mapped rings.
fn mapped() -> usize {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    maps.matches("memfd:gdr-wire").count()
}

/// A device with one queue pair.
struct Side {
    device: Device,
    domain: Domain,
    queue: CompletionQueue,
    pair: QueuePair<Connection>,
}

impl Side {
    fn new(wires: Wires) -> Self {
        let options = SoftOptions::new(IpAddr::from([127, 0, 0, 1])).port(0);
        let device = Device::open(&options.wires(wires), None).unwrap();
        let queue = device.completion_queue(256, None);
        let queues = Queues::completing_in(&queue);
        let domain = Domain::new();
        let made = device.queue_pair(domain, queues, CAPABILITIES, Reliability::Reliable);
        let pair = made.unwrap();
        pair.to_init(Access::all()).unwrap();
        Self {
            device,
            domain,
            queue,
            pair,
        }
    }

    fn endpoint(&self) -> (SocketAddr, u32) {
        (self.device.address(), self.pair.qpn().get())
    }

    fn connect(&self, endpoint: (SocketAddr, u32)) {
        self.connect_with(endpoint, PATIENT);
    }

    fn connect_with(&self, endpoint: (SocketAddr, u32), timeout: AckTimeout) {
        connect(&self.pair, endpoint, timeout);
    }

    fn send(&self) {
        let request = SendRequest {
            id: WrId(1),
            operation: Operation::Send { immediate: None },
            data: Data::Inline(&[]),
            flags: SendFlags::SIGNALLED,
        };
        let posted = self.pair.post_sends(|queue| queue.push(&request));
        posted.unwrap().unwrap();
    }

    /// Posts a zero-length WRITE, which needs no receive at the other end.
    fn write(&self) {
        let remote = Remote {
            rkey: Rkey(0),
            addr: 0,
        };
        let request = SendRequest {
            id: WrId(3),
            operation: Operation::Write {
                remote,
                immediate: None,
            },
            data: Data::Inline(&[]),
            flags: SendFlags::SIGNALLED,
        };
        let posted = self.pair.post_sends(|queue| queue.push(&request));
        posted.unwrap().unwrap();
    }

    fn post_receive(&self) {
        let request = RecvRequest {
            id: WrId(2),
            segments: &[],
        };
        let posted = self.pair.post_recvs(|queue| queue.push(&request));
        posted.unwrap().unwrap();
    }

    fn completion(&self) -> Completion {
        self.queue.wait(soon()).unwrap().unwrap()
    }

    /// Sends one message to `to` and waits for both completions.
    fn pass_to(&self, to: &Self) {
        to.post_receive();
        self.send();
        for side in [self, to] {
            assert_eq!(side.completion().status, WcStatus::Success);
        }
    }
}

fn connect(pair: &QueuePair<Connection>, (address, qpn): (SocketAddr, u32), timeout: AckTimeout) {
    let attributes = RtrAttributes {
        dest_qpn: gdr_nic::Qpn::new(qpn),
        rq_psn: Psn::new(7),
        path_mtu: Mtu::B4096,
        max_dest_rd_atomic: 1,
        min_rnr_timer: RnrTimer::new(1),
    };
    pair.to_rtr(address, &attributes).unwrap();
    let attributes = RtsAttributes {
        sq_psn: Psn::new(7),
        timeout,
        retry_limit: RetryLimit::Count(RetryCount::new(7)),
        rnr_retry: RnrRetry::FOREVER,
        max_rd_atomic: 1,
    };
    pair.to_rts(&attributes).unwrap();
}

fn connected(one: Wires, other: Wires) -> [Side; 2] {
    let sides = [Side::new(one), Side::new(other)];
    sides[0].connect(sides[1].endpoint());
    sides[1].connect(sides[0].endpoint());
    sides
}

#[test]
fn packets_to_a_device_of_the_host_go_by_memory_if_both_ends_permit() {
    let _alone = alone();
    for (one, other, by_memory) in [
        (Wires::All, Wires::All, true),
        (Wires::All, Wires::Udp, false),
        (Wires::Udp, Wires::All, false),
    ] {
        let [a, b] = connected(one, other);
        a.pass_to(&b);
        b.pass_to(&a);
        for side in [&a, &b] {
            let counters = side.device.counters();
            let memory = (counters.sent_by_memory, counters.received_by_memory);
            let all = (counters.packets_sent, counters.packets_received);
            assert_eq!(memory, if by_memory { all } else { (0, 0) });
            assert!(all.0 > 0 && all.1 > 0);
        }
        // Each message has been acknowledged, so no packet is outstanding.
        let [a, b] = [a, b].map(|side| side.device.counters());
        assert_eq!(a.packets_sent, b.packets_received);
        assert_eq!(a.bytes_sent, b.bytes_received);
        assert!(a.bytes_sent > 0);
    }
}

#[test]
fn a_thread_that_sleeps_is_woken_for_a_packet() {
    let _alone = alone();
    let [a, b] = connected(Wires::All, Wires::All);
    for _ in 0..3 {
        // Far longer than a thread polls without a packet.
        let nothing = b.queue.wait(Deadline::after(Duration::from_millis(20)));
        assert_eq!(nothing.unwrap(), None);
        b.post_receive();
        a.send();
        assert_eq!(a.completion().status, WcStatus::Success);
        assert_eq!(b.completion().status, WcStatus::Success);
    }
}

/// Calls `check` until it returns `true`.
fn wait_until(check: impl Fn() -> bool) {
    let deadline = soon();
    while !check() {
        assert!(!deadline.has_passed());
        std::thread::yield_now();
    }
}

#[test]
fn a_thread_that_slept_before_the_ring_was_made_is_woken() {
    let _alone = alone();
    let [a, b] = [Side::new(Wires::All), Side::new(Wires::All)];
    b.connect(a.endpoint());
    // The engine's thread checks its timers for a while after the last packet.
    let nothing = b.queue.wait(Deadline::after(Duration::from_millis(200)));
    assert_eq!(nothing.unwrap(), None);
    a.connect(b.endpoint());
    a.write();
    assert_eq!(a.completion().status, WcStatus::Success);
    assert!(b.device.counters().received_by_memory > 0);
}

#[test]
fn a_process_of_another_user_is_reached_by_udp() {
    let _alone = alone();
    // SAFETY: has no preconditions.
    if unsafe { libc::geteuid() } != 0 {
        return skip::skip("only root can start a process of another user");
    }
    let mut other = Other::start(Some(1));
    let side = Side::new(Wires::All);
    other.connect(&side);
    side.send();
    assert_eq!(side.completion().status, WcStatus::Success);
    let counters = side.device.counters();
    assert_eq!(
        (counters.sent_by_memory, counters.received_by_memory),
        (0, 0)
    );
}

#[test]
fn datagrams_follow_a_ring_once_there_is_one_and_bring_their_network_header() {
    let _alone = alone();
    const QKEY: Qkey = Qkey(7);
    let sides = [Side::new(Wires::All), Side::new(Wires::All)];
    let [from, to] = sides.each_ref().map(|side| {
        let queues = Queues::completing_in(&side.queue);
        let domain = Domain::new();
        let made = side
            .device
            .ud_queue_pair(domain, queues, CAPABILITIES, Mtu::B1024);
        let pair = made.unwrap();
        pair.to_init(QKEY).unwrap();
        pair.to_rtr().unwrap();
        pair.to_rts(Psn::new(3)).unwrap();
        (pair, domain)
    });
    let [a, b] = &sides;
    let send = || {
        let request = UdSendRequest {
            id: WrId(4),
            to: b.device.address(),
            dest_qpn: to.0.qpn(),
            qkey: QKEY,
            immediate: None,
            data: Data::Inline(b"datagram"),
            flags: SendFlags::empty(),
        };
        let posted = from.0.post_sends(|queue| queue.push(&request));
        posted.unwrap().unwrap();
    };
    // The first datagrams go over UDP and find no receive.
    wait_until(|| {
        send();
        a.device.progress();
        b.device.counters().received_by_memory > 0
    });
    let bytes: &mut [u8] = Box::leak(Box::new([0; 48]));
    let at = bytes.as_mut_ptr();
    let memory = Memory {
        address: at.expose_provenance(),
        len: 48,
        iova: 0,
    };
    // SAFETY: the bytes are never freed, and are read only after the completion.
    let region = unsafe { b.device.register(to.1, memory, Access::LOCAL_WRITE) }.unwrap();
    let segment = Segment {
        lkey: Lkey(region.key()),
        addr: 0,
        len: 48,
    };
    let receive = RecvRequest {
        id: WrId(5),
        segments: &[segment],
    };
    let posted = to.0.post_recvs(|queue| queue.push(&receive));
    posted.unwrap().unwrap();
    send();
    let completion = b.completion();
    assert_eq!(
        (completion.status, completion.byte_len),
        (WcStatus::Success, 48)
    );
    // SAFETY: the memory is valid, and no request uses it any more.
    let bytes = unsafe { std::slice::from_raw_parts(at, 48) };
    // The IPv4 header is the last 20 of the GRH's 40 bytes, and ends with source and destination address.
    assert_eq!(bytes[32..], *b"\x7f\0\0\x01\x7f\0\0\x01datagram");
}

#[test]
fn a_device_that_closes_takes_its_memory_and_descriptors_with_it() {
    let _alone = alone();
    let open = || fs::read_dir("/proc/self/fd").unwrap().count();
    let a = Side::new(Wires::All);
    let cycle = || {
        let b = Side::new(Wires::All);
        let pair = {
            let queues = Queues::completing_in(&a.queue);
            let made =
                a.device
                    .queue_pair(Domain::new(), queues, CAPABILITIES, Reliability::Reliable);
            made.unwrap()
        };
        pair.to_init(Access::all()).unwrap();
        b.connect((a.device.address(), pair.qpn().get()));
        connect(&pair, b.endpoint(), AckTimeout::NEVER);
        assert!(mapped() > 0);
        // Only this end is destroyed; the other end and its process remain.
        drop(b);
    };
    cycle();
    wait_until(|| mapped() == 0);
    let before = open();
    for _ in 0..20 {
        cycle();
    }
    wait_until(|| mapped() == 0 && open() <= before);
}

/// The environment variable with the TCP port at which the parent listens.
const PARENT: &str = "MEMORY_WIRE_PARENT";

/// A process with a device and a connected queue pair; dropping this kills it.
struct Other {
    process: Child,
    stream: TcpStream,
}

impl Other {
    /// Starts the process, as this user or with the given user ID.
    fn start(user: Option<u32>) -> Self {
        let mut command = Command::new(env::current_exe().unwrap());
        if let Some(user) = user {
            command.uid(user);
        }
        Self::of(&mut command)
    }

    /// Starts the process, which captures its packets to a file.
    fn capturing(path: &Path) -> Self {
        Self::of(Command::new(env::current_exe().unwrap()).env("GDR_PCAP", path))
    }

    fn of(command: &mut Command) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let process = command
            .args(["--exact", "other_process", "--ignored"])
            .env(PARENT, port.to_string())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let stream = listener.accept().unwrap().0;
        Self { process, stream }
    }

    /// Connects both sides; returns the address of the other one's memory.
    fn connect(&mut self, side: &Side) -> Remote {
        self.connect_with(side, PATIENT)
    }

    fn connect_with(&mut self, side: &Side, timeout: AckTimeout) -> Remote {
        let theirs = receive(&mut self.stream);
        send(&mut self.stream, side.endpoint());
        receive(&mut self.stream);
        side.connect_with(theirs, timeout);
        let line = receive_line(&mut self.stream);
        let (addr, rkey) = line.split_once(' ').unwrap();
        Remote {
            addr: addr.parse().unwrap(),
            rkey: Rkey(rkey.parse().unwrap()),
        }
    }

    /// Resumes the process after [`Other::stop`].
    fn resume(&self) {
        let id = self.process.id().cast_signed();
        // SAFETY: the process is a child that has not been waited for, so its ID is still valid.
        assert_eq!(unsafe { libc::kill(id, libc::SIGCONT) }, 0);
    }

    /// Stops the process; returns when none of its threads runs.
    fn stop(&self) {
        let id = self.process.id().cast_signed();
        // SAFETY: the process is a child that has not been waited for, so its ID is still valid; no status is written.
        let waited = unsafe {
            assert_eq!(libc::kill(id, libc::SIGSTOP), 0);
            libc::waitpid(id, std::ptr::null_mut(), libc::WUNTRACED)
        };
        assert_eq!(waited, id);
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

fn send(stream: &mut TcpStream, (address, qpn): (SocketAddr, u32)) {
    writeln!(stream, "{address} {qpn}").unwrap();
}

fn receive(stream: &mut TcpStream) -> (SocketAddr, u32) {
    let line = receive_line(stream);
    let (address, qpn) = line.split_once(' ').unwrap();
    (address.parse().unwrap(), qpn.parse().unwrap())
}

/// Reads one line and no byte beyond it.
fn receive_line(stream: &mut TcpStream) -> String {
    let (mut line, mut byte) = (Vec::new(), [0]);
    loop {
        stream.read_exact(&mut byte).unwrap();
        match byte {
            [b'\n'] => return String::from_utf8(line).unwrap(),
            [other] => line.push(other),
        }
    }
}

/// Opens a device, connects it as its parent requests, and polls until the parent closes the stream.
#[test]
#[ignore = "runs in a process of its own"]
fn other_process() {
    let port: u16 = env::var(PARENT).unwrap().parse().unwrap();
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let side = Side::new(Wires::All);
    send(&mut stream, side.endpoint());
    side.connect(receive(&mut stream));
    (0..64).for_each(|_| side.post_receive());
    let ((buffer, _region), remote) = references::zeros(&side);
    send(&mut stream, side.endpoint());
    writeln!(stream, "{} {}", remote.addr, remote.rkey.0).unwrap();
    stream.set_nonblocking(true).unwrap();
    loop {
        match stream.read(&mut [0]) {
            Ok(0) => return,
            // The parent asks for the largest byte in memory after all packets that it has sent.
            Ok(_) => {
                while side.device.progress() {}
                writeln!(stream, "{}", references::largest_byte(&buffer)).unwrap();
            }
            Err(_) => {
                side.device.progress();
            }
        }
    }
}

#[test]
fn a_process_that_is_killed_ends_the_requests_to_it_and_leaves_nothing() {
    let _alone = alone();
    let mut other = Other::start(None);
    let side = Side::new(Wires::All);
    // With no time-out, only the end of the process can end the requests.
    other.connect_with(&side, AckTimeout::NEVER);
    side.send();
    assert_eq!(side.completion().status, WcStatus::Success);
    assert_eq!(
        side.device.counters().sent_by_memory,
        side.device.counters().packets_sent
    );
    // The stopped process does not take these packets, so they stay in the ring.
    other.stop();
    (0..8).for_each(|_| side.send());
    drop(other);
    assert_eq!(side.completion().status, WcStatus::RetryExceeded);
    for _ in 1..8 {
        assert_eq!(side.completion().status, WcStatus::WrFlushed);
    }
    wait_until(|| mapped() == 0);
}
