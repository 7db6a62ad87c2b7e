//! Compares a WRITE between two soft devices with the kernel's TCP on the same veth, with the faults of `tc-netem(8)`
//! in both directions. `cargo xtask vm --bench tcp` runs it.
#![allow(clippy::unwrap_used, reason = "a failure aborts the benchmark")]

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use gdr_rdma::{
    Access, Buffer, Capabilities, CompletionQueue, ConnectionOptions, Deadline, Device,
    MemoryRegion, Mtu, QueuePair, QueuePairOptions, SendRequest, SoftOptions, WcStatus, WrId,
};
use gdr_vm_tests::netem::Netem;
use gdr_vm_tests::{near, rxe_endpoint};

/// Bytes per message, and number of outstanding messages: more than any path here holds.
const LEN: u32 = 256 << 10;
const OUTSTANDING: u32 = 64;
/// How long a flow runs before it is measured, and how long it is measured.
const WARM_UP: Duration = Duration::from_secs(1);
const COUNTED: Duration = Duration::from_secs(2);
/// Rounds of measurements, which alternate, so that other load affects all subjects alike.
const ROUNDS: usize = 3;
/// Anything that takes longer has failed. On a path that loses packets, a wait may be long.
const LIMIT: Duration = Duration::from_secs(60);

/// Paths: name and netem parameters. The short queue holds 20 packets of the path MTU in front of a link that is slower
/// than both subjects.
const PATHS: [(&str, &str); 7] = [
    ("no fault", "limit 10000"),
    ("loss 0.1 %", "limit 10000 loss 0.1%"),
    ("loss 1 %", "limit 10000 loss 1%"),
    ("loss 5 %", "limit 10000 loss 5%"),
    ("reordering 1 %", "limit 10000 delay 2ms reorder 99%"),
    ("delay 50 ms", "limit 10000 delay 50ms"),
    ("50 Mbit/s, queue 20", "rate 50mbit limit 20"),
];

fn main() {
    let Some(accelerator) = std::env::var_os("GDR_VM") else {
        println!("SKIPPED: runs in the VM: cargo xtask vm --bench tcp");
        return;
    };
    println!("goodput in MB/s, medians of {ROUNDS} rounds; in parentheses as a part of no fault");
    println!("{:<22} {:>16} {:>16}", "", "soft WRITE", "kernel TCP");
    let mut whole = None;
    for (name, words) in PATHS {
        let mut rates = [const { Vec::new() }; 2];
        for _ in 0..ROUNDS {
            let _faults = Netem::enable(words).unwrap();
            rates[0].push(rdma_rate());
            rates[1].push(tcp_rate());
        }
        let rates = rates.map(median);
        let [soft, tcp] = *whole.get_or_insert(rates);
        let column = |rate: f64, whole: f64| format!("{:.1} ({:.2})", rate / 1e6, rate / whole);
        let [write, stream] = [column(rates[0], soft), column(rates[1], tcp)];
        println!("{name:<22} {write:>16} {stream:>16}");
    }
    if accelerator == "tcg" {
        println!("under TCG QEMU translates every instruction, so only the ratios are meaningful");
    }
}

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_unstable_by(f64::total_cmp);
    rates[ROUNDS / 2]
}

/// A queue pair at an address, and memory for a message.
struct Side {
    queue: CompletionQueue,
    pair: QueuePair,
    memory: MemoryRegion,
    _device: Device,
}

impl Side {
    fn new(device: Device) -> Self {
        let domain = device.protection_domain();
        let queue = device.completion_queue(2 * OUTSTANDING as usize);
        let capabilities = Capabilities {
            max_send_wr: OUTSTANDING,
            max_recv_wr: 1,
            max_inline: 0,
        };
        let options = QueuePairOptions::new(&queue).capabilities(capabilities);
        let pair = domain.queue_pair(&options).unwrap();
        let buffer = Buffer::host(LEN as usize).unwrap();
        let memory = domain.register(&buffer, Access::all()).unwrap();
        Self {
            queue,
            pair,
            memory,
            _device: device,
        }
    }

    fn connect(&self, peer: &Self) {
        let endpoint = peer.pair.endpoint();
        let options = ConnectionOptions {
            // A loaded host may stop the guest for longer than the eight attempts take.
            give_up_after: Some(LIMIT),
            ..ConnectionOptions::new(Mtu::B4096)
        };
        self.pair.connect(&endpoint, &options).unwrap();
    }
}

/// Measures the bytes per second that one flow of WRITEs moves.
fn rdma_rate() -> f64 {
    // At the far address, rxe uses RoCE's port.
    let options = |ip: IpAddr| SoftOptions::new(ip).port(0);
    let near = Side::new(near::device_with(options(near::V4)).unwrap());
    let far = Side::new(Device::soft_with(options(rxe_endpoint::V4)).unwrap());
    near.connect(&far);
    far.connect(&near);
    let post = || {
        let segment = near.memory.segment(0, LEN.into()).unwrap();
        let write = SendRequest::write(WrId(0), far.memory.remote().at(0)).segment(segment);
        near.pair.post_send(write).unwrap();
    };
    (0..OUTSTANDING).for_each(|_| post());
    let rate = counted(|| {
        let done = near.queue.wait(Deadline::after(LIMIT)).unwrap();
        assert_eq!(done.status, WcStatus::Success);
        post();
        LEN as usize
    });
    near.pair.to_error();
    rate
}

/// Measures the bytes per second that one TCP connection moves.
fn tcp_rate() -> f64 {
    let listener = TcpListener::bind(SocketAddr::new(rxe_endpoint::V4, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let mut sender = near::in_near(|| Ok(TcpStream::connect_timeout(&address, LIMIT)?)).unwrap();
    let (mut receiver, _) = listener.accept().unwrap();
    sender.set_write_timeout(Some(LIMIT)).unwrap();
    receiver.set_read_timeout(Some(LIMIT)).unwrap();
    thread::scope(|scope| {
        scope.spawn(move || {
            let message = vec![7; LEN as usize];
            // Ends with the receiver.
            while let Ok(()) = sender.write_all(&message) {}
        });
        let mut message = vec![0; LEN as usize];
        let rate = counted(|| {
            loop {
                match receiver.read(&mut message) {
                    Ok(len) => break len,
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(error) => panic!("no bytes of TCP: {error}"),
                }
            }
        });
        drop(receiver);
        rate
    })
}

/// Repeats `take`, which waits for bytes and returns their number; returns the bytes per second after the warm-up.
fn counted(mut take: impl FnMut() -> usize) -> f64 {
    let begin = Instant::now();
    while begin.elapsed() < WARM_UP {
        take();
    }
    let (counted, mut bytes) = (Instant::now(), 0);
    while counted.elapsed() < COUNTED {
        bytes += take();
    }
    bytes as f64 / counted.elapsed().as_secs_f64()
}
