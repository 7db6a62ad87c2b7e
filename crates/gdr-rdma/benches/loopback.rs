//! Measures what the soft provider moves between two devices of this process, over the loopback interface.
//!
//! `cargo bench -p gdr-rdma` prints WRITE and READ bandwidth by size, small messages per second, the time of
//! acknowledged WRITEs of 2 and 4096 bytes and of 2-byte round trips, and the time of the calls alone: a poll without a
//! completion, and a post. `-- latency`, `-- calls`, `-- ipv4` and `-- ipv6` select among them. It asserts nothing; the
//! tests do.
#![allow(clippy::unwrap_used, reason = "a measurement that fails is over")]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use gdr_rdma::{
    Access, Buffer, CompletionQueue, ConnectionOptions, Deadline, Device, MemoryRegion, Mtu,
    QueuePair, QueuePairOptions, RemoteMemory, SendRequest, SoftOptions, WcStatus, WrId,
};

/// How long to measure each bandwidth.
const DURATION: Duration = Duration::from_millis(500);
/// Requests in flight.
const DEPTH: u64 = 32;
/// Round trips.
const ROUNDS: usize = 20_000;

struct Side {
    device: Device,
    queue: CompletionQueue,
    pair: QueuePair,
    memory: MemoryRegion,
}

impl Side {
    fn new(address: IpAddr, len: usize) -> Self {
        let options = SoftOptions::new(address).port(0);
        let device = Device::soft_with(options).unwrap();
        let queue = device.completion_queue(1024);
        let domain = device.protection_domain();
        let pair = domain.queue_pair(&QueuePairOptions::new(&queue)).unwrap();
        let buffer = Buffer::host(len).unwrap();
        let memory = domain.register(&buffer, Access::all()).unwrap();
        Self {
            device,
            queue,
            pair,
            memory,
        }
    }
}

fn sides(a: IpAddr, b: IpAddr, len: usize) -> (Side, Side) {
    let (a, b) = (Side::new(a, len), Side::new(b, len));
    let options = ConnectionOptions::new(Mtu::B4096);
    a.pair.connect(&b.pair.endpoint(), &options).unwrap();
    b.pair.connect(&a.pair.endpoint(), &options).unwrap();
    (a, b)
}

/// Keeps `depth` requests in flight; returns the number of completed requests, and the time they took.
fn flood(side: &Side, depth: u64, request: impl Fn(u64) -> SendRequest) -> (u64, Duration) {
    let limit = Deadline::after(Duration::from_secs(60));
    let start = Instant::now();
    let (mut posted, mut done) = (0, 0);
    while posted < depth {
        side.pair.post_send(request(posted)).unwrap();
        posted += 1;
    }
    while done < posted {
        let completion = side.queue.wait(limit).unwrap();
        assert_eq!(completion.status, WcStatus::Success);
        done += 1;
        if start.elapsed() < DURATION {
            side.pair.post_send(request(posted)).unwrap();
            posted += 1;
        }
    }
    (done, start.elapsed())
}

fn bandwidth(name: &str, a: IpAddr, b: IpAddr) {
    println!("{name}: GB/s by size, {DEPTH} requests in flight");
    let largest = 8 << 20;
    let (a, b) = sides(a, b, largest);
    let remote = b.memory.remote();
    for size in [
        64,
        1024,
        4096,
        16 << 10,
        64 << 10,
        256 << 10,
        1 << 20,
        largest,
    ] {
        let segment = || a.memory.segment(0, size as u64).unwrap();
        let write = |n| SendRequest::write(WrId(n), remote.at(0)).segment(segment());
        let read = |n| SendRequest::read(WrId(n), remote.at(0)).segment(segment());
        let rate =
            |(done, time): (u64, Duration)| (done * size as u64) as f64 / time.as_secs_f64() / 1e9;
        let writes = flood(&a, DEPTH, write);
        let reads = rate(flood(&a, DEPTH, read));
        println!(
            "{size:>9} B  write {:>6.2}  read {reads:>6.2}  {:>9.0} writes/s",
            rate(writes),
            writes.0 as f64 / writes.1.as_secs_f64(),
        );
    }
    println!("  sender {:?}", a.device.counters());
    println!("  receiver {:?}", b.device.counters());
}

/// Measures lists of 64-byte WRITEs with only the last one signalled.
fn message_rate(a: IpAddr, b: IpAddr) {
    /// As many as fit a segmented send.
    const LIST: u64 = 32;
    let (a, b) = sides(a, b, 4096);
    let remote = b.memory.remote();
    let list = || {
        (0..LIST).map(|n| {
            let segment = a.memory.segment(n * 64, 64).unwrap();
            let write = SendRequest::write(WrId(n), remote.at(n * 64)).segment(segment);
            if n + 1 == LIST {
                write
            } else {
                write.unsignalled()
            }
        })
    };
    let limit = Deadline::after(Duration::from_secs(60));
    let start = Instant::now();
    let mut lists = 0_u64;
    a.pair.post_sends(list()).unwrap();
    while start.elapsed() < DURATION {
        a.pair.post_sends(list()).unwrap();
        a.queue.wait(limit).unwrap();
        lists += 1;
    }
    let rate = (lists * LIST) as f64 / start.elapsed().as_secs_f64();
    println!("64 B WRITEs in lists of {LIST}: {rate:.0} a second");
}

/// Measures one WRITE of `len` bytes at a time, until it is acknowledged.
fn acknowledged(a: IpAddr, b: IpAddr, len: u64) {
    let (a, b) = sides(a, b, 4096);
    let remote = b.memory.remote();
    let limit = Deadline::after(Duration::from_secs(60));
    let times = (0..ROUNDS).map(|n| {
        let start = Instant::now();
        let segment = a.memory.segment(0, len).unwrap();
        let write = SendRequest::write(WrId(n as u64), remote.at(0)).segment(segment);
        a.pair.post_send(write).unwrap();
        a.queue.wait(limit).unwrap();
        start.elapsed()
    });
    let name = format!("{len} B WRITE until acknowledged");
    report(&name, times.collect());
}

/// Measures the calls of a program that polls an empty queue, and of one that posts, alone and while another thread
/// polls another queue of the device.
fn calls(a: IpAddr, b: IpAddr) {
    /// Polls that are timed together, because one takes less time than two readings of the clock.
    const POLLS: u32 = 64;
    let (a, b) = sides(a, b, 4096);
    let remote = b.memory.remote();
    let limit = Deadline::after(Duration::from_secs(60));
    let other = a.device.completion_queue(1);
    let stop = AtomicBool::new(false);
    let measure = |name: &str| {
        let polls = (0..ROUNDS).map(|_| {
            let start = Instant::now();
            for _ in 0..POLLS {
                assert!(a.queue.poll().unwrap().is_none());
            }
            start.elapsed() / POLLS
        });
        report(
            &format!("poll without a completion, {name}"),
            polls.collect(),
        );
        let posts = (0..ROUNDS).map(|n| {
            let segment = a.memory.segment(0, 8).unwrap();
            let write = SendRequest::write(WrId(n as u64), remote.at(0)).segment(segment);
            let start = Instant::now();
            a.pair.post_send(write).unwrap();
            let taken = start.elapsed();
            a.queue.wait(limit).unwrap();
            taken
        });
        report(&format!("post of 8 B, {name}"), posts.collect());
    };
    measure("one thread");
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                assert!(other.poll().unwrap().is_none());
            }
        });
        measure("two threads");
        stop.store(true, Ordering::Relaxed);
    });
}

/// Measures two threads that write 2 bytes to each other and watch their own memory, as ib_write_lat does.
fn ping_pong(a: IpAddr, b: IpAddr) {
    let (a, b) = sides(a, b, 4096);
    let (to_a, to_b) = (a.memory.remote(), b.memory.remote());
    let times = thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..ROUNDS {
                watch(&b, round);
                write(&b, to_a, round);
            }
        });
        let times = (0..ROUNDS).map(|round| {
            let start = Instant::now();
            write(&a, to_b, round);
            watch(&a, round);
            start.elapsed()
        });
        times.collect()
    });
    report("2 B WRITE there and back, both polling", times);
}

fn write(side: &Side, remote: RemoteMemory, round: usize) {
    while side.queue.poll().unwrap().is_some() {}
    let bytes = [0, stamp(round)];
    let mut request = SendRequest::write(WrId(0), remote.at(0)).inline(&bytes);
    if !round.is_multiple_of(32) {
        request = request.unsignalled();
    }
    side.pair.post_send(request).unwrap();
}

fn watch(side: &Side, round: usize) {
    while side.memory.buffer().load_u8(1).unwrap() != stamp(round) {
        side.device.progress();
    }
}

fn stamp(round: usize) -> u8 {
    (round % 255) as u8 + 1
}

fn report(name: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let at = |part: f64| times[((times.len() - 1) as f64 * part) as usize];
    println!(
        "{name}: min {:?}  median {:?}  p99 {:?}",
        at(0.0),
        at(0.5),
        at(0.99)
    );
}

fn main() {
    let (a, b) = (Ipv4Addr::new(127, 0, 0, 1), Ipv4Addr::new(127, 0, 0, 2));
    let (a, b) = (IpAddr::from(a), IpAddr::from(b));
    // cargo bench adds its own options.
    let names: Vec<_> = std::env::args().skip(1).collect();
    let names = || names.iter().filter(|name| !name.starts_with('-'));
    let wanted = |name: &str| names().next().is_none() || names().any(|n| n == name);
    if wanted("latency") {
        acknowledged(a, b, 2);
        acknowledged(a, b, 4096);
        ping_pong(a, b);
    }
    if wanted("calls") {
        calls(a, b);
    }
    if wanted("ipv4") {
        message_rate(a, b);
        bandwidth("IPv4", a, b);
    }
    let localhost = IpAddr::from(Ipv6Addr::LOCALHOST);
    if wanted("ipv6") && Device::soft_with(SoftOptions::new(localhost).port(0)).is_ok() {
        bandwidth("IPv6", localhost, localhost);
    }
}
