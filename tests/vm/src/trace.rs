//! A trace of the last packets of a failed test.

use std::collections::VecDeque;
use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, Protocol, RecvFlags, SocketFlags, SocketType, recv, socket_with};

use crate::near::in_near;

/// Maximum number of packets in the trace.
const KEPT: usize = 300;
/// `ETH_P_ALL` in network byte order: all packets in both directions.
const EVERY_PACKET: u32 = (3_u16.to_be()) as u32;
const UDP: u8 = 17;

/// Records the packets of the near host. If a test fails, dropping this prints the last ones. A segmented send (GSO) is
/// recorded as one packet.
#[derive(Debug)]
pub struct Trace {
    stop: Arc<AtomicBool>,
    recorder: Option<JoinHandle<anyhow::Result<VecDeque<Seen>>>>,
}

impl Trace {
    /// Starts to record.
    pub fn start() -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let recorder = thread::spawn(move || in_near(|| record(&stopped)));
        Self {
            stop,
            recorder: Some(recorder),
        }
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        let recorded = self.recorder.take().map(JoinHandle::join);
        match recorded {
            Some(Ok(Ok(seen))) if thread::panicking() => {
                for packet in seen {
                    eprintln!("{packet}");
                }
            }
            Some(Ok(Err(error))) => eprintln!("no trace: {error:#}"),
            _ => {}
        }
    }
}

/// The time, the source and the first bytes after the UDP header of a packet.
#[derive(Debug)]
struct Seen {
    at: Duration,
    /// The last byte of the source address: 1 for near, 2 for far.
    from: u8,
    len: usize,
    head: [u8; 28],
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let psn = u32::from_be_bytes([0, self.head[9], self.head[10], self.head[11]]);
        let ack_request = if self.head[8] & 0x80 == 0 { ' ' } else { 'A' };
        write!(
            f,
            "{:10.3} ms from {} opcode {:#04x} PSN {psn:8} {ack_request} {:5} bytes, then",
            self.at.as_secs_f64() * 1e3,
            self.from,
            self.head[0],
            self.len,
        )?;
        self.head[12..]
            .iter()
            .try_for_each(|byte| write!(f, " {byte:02x}"))
    }
}

fn record(stop: &AtomicBool) -> anyhow::Result<VecDeque<Seen>> {
    let start = Instant::now();
    let protocol = NonZeroU32::new(EVERY_PACKET).map(Protocol::from_raw);
    let (family, kind) = (AddressFamily::PACKET, SocketType::DGRAM);
    let socket = socket_with(family, kind, SocketFlags::CLOEXEC, protocol).context("AF_PACKET")?;
    // The interval at which `stop` is checked.
    set_socket_timeout(&socket, Timeout::Recv, Some(Duration::from_millis(20)))?;
    let mut seen = VecDeque::with_capacity(KEPT);
    let mut bytes = [0; 128];
    while !stop.load(Ordering::Acquire) {
        let len = match recv(&socket, &mut bytes, RecvFlags::TRUNC) {
            Ok((_, len)) => len,
            Err(Errno::AGAIN | Errno::INTR) => continue,
            Err(errno) => return Err(errno).context("recv"),
        };
        let (udp, from) = match bytes[0] >> 4 {
            4 if bytes[9] == UDP => (20, bytes[15]),
            6 if bytes[6] == UDP => (40, bytes[23]),
            _ => continue,
        };
        let Some(head) = bytes[udp + 8..].first_chunk() else {
            continue;
        };
        if seen.len() == KEPT {
            seen.pop_front();
        }
        let (at, head) = (start.elapsed(), *head);
        seen.push_back(Seen {
            at,
            from,
            len,
            head,
        });
    }
    Ok(seen)
}
