//! Measures how fast a log is explained.
//!
//! `cargo bench -p gdr-explain` reads generated logs several times each, and prints the median rate in terms of
//! processor time. `-- NAME` reads only the logs whose names contain NAME, and `-- write NAME FILE` writes one instead,
//! to measure the whole command. It asserts nothing; the tests do.
#![allow(clippy::unwrap_used, reason = "a measurement that fails is over")]

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::time::{Duration, Instant};

use gdr_explain::{Answer, read};

/// Size of what is read, in bytes.
const SIZE: usize = 32 << 20;
/// How often each log is read.
const ROUNDS: usize = 5;
/// Ranks of the job.
const RANKS: usize = 1000;

/// Writes one piece of a log.
type Piece = fn(usize, &mut Vec<u8>);

/// The logs, by name.
const LOGS: &[(&str, Piece)] = &[
    ("NCCL, 1000 ranks", nccl),
    ("AER storm, dmesg", aer_storm),
    ("AER storm, one line", aer_line),
    ("AER storm, no prefix", aer_storm_without_prefix),
    ("dmesg mix", dmesg),
    ("random text", random_text),
    ("prose about RDMA", prose),
    ("one long line", long_line),
    ("open parentheses", parentheses),
];

fn nccl(piece: usize, log: &mut Vec<u8>) {
    rank(piece % RANKS, piece / RANKS, log);
}

/// What each rank logs repeatedly, as in logs of NCCL_DEBUG=INFO.
fn rank(number: usize, round: usize, log: &mut Vec<u8>) {
    let host = format!(
        "node{:03}:{}:{} [{}]",
        number / 8,
        4000 + number,
        5000 + number,
        number % 8
    );
    let next = (number + 1) % RANKS;
    let way = if number % 8 == 7 {
        "[send] via NET/IB/0/GDRDMA"
    } else {
        "via P2P/CUMEM/read"
    };
    for channel in 0..8 {
        writeln!(
            log,
            "{host} NCCL INFO Channel {channel:02}/0 : {number}[{}] -> {next}[{}] {way}",
            number % 8,
            next % 8
        )
        .unwrap();
    }
    writeln!(
        log,
        "{host} NCCL INFO Trees [0] {next}/-1/-1->{number}->{round} [1] {next}/-1/-1->{number}->-1"
    )
    .unwrap();
    writeln!(
        log,
        "{host} NCCL INFO NCCL_IB_GID_INDEX set by environment to 3."
    )
    .unwrap();
    writeln!(
        log,
        "{host} NCCL INFO threadThresholds 8/8/64 | 8000/8/64 | 512 | 512"
    )
    .unwrap();
    writeln!(
        log,
        "{host} NCCL INFO comm 0x55f0c8 rank {number} nranks {RANKS} cudaDev {} - Init COMPLETE",
        number % 8
    )
    .unwrap();
    if round == 0 && number == 500 {
        writeln!(log, "{host} misc/ibvwrap.cc:190 NCCL WARN Call to ibv_modify_qp failed with error No route to host").unwrap();
    }
}

/// Messages about one corrected error each, from several devices.
fn aer(piece: usize, prefix: impl Fn(usize) -> String, log: &mut Vec<u8>) {
    let prefix = |line| prefix(piece * 4 + line);
    let (bus, bit) = (0x38 + piece % 7, [0, 6, 12][piece % 3]);
    let name = ["RxErr", "BadTLP", "Timeout"][piece % 3];
    writeln!(
        log,
        "{}pcieport 0000:37:02.0: AER: Corrected error received: 0000:{bus:02x}:00.0\n\
         {}mlx5_core 0000:{bus:02x}:00.0: PCIe Bus Error: severity=Corrected, type=Physical \
         Layer, (Receiver ID)\n\
         {}mlx5_core 0000:{bus:02x}:00.0:   device [15b3:1021] error \
         status/mask={:08x}/0000e000\n\
         {}mlx5_core 0000:{bus:02x}:00.0:    [{bit:2}] {name:<22}",
        prefix(0),
        prefix(1),
        prefix(2),
        1 << bit,
        prefix(3),
    )
    .unwrap();
}

/// Returns the time of a line of the kernel.
fn uptime(line: usize) -> String {
    format!("[{:5}.{:06}] ", 12 + line / 1000, (line * 977) % 1_000_000)
}

fn aer_storm(piece: usize, log: &mut Vec<u8>) {
    aer(piece, uptime, log);
}

fn aer_line(_: usize, log: &mut Vec<u8>) {
    writeln!(
        log,
        "[ 12.5] pcieport 0000:37:02.0: AER: Corrected error received: 0000:38:00.0"
    )
    .unwrap();
}

/// As `journalctl -o cat` prints them.
fn aer_storm_without_prefix(piece: usize, log: &mut Vec<u8>) {
    aer(piece, |_| String::new(), log);
}

/// What the kernel of a node with GPUs logs, with an occasional error.
fn dmesg(piece: usize, log: &mut Vec<u8>) {
    let messages = [
        "mlx5_core 0000:38:00.0: firmware version: 28.39.1002",
        "mlx5_core 0000:38:00.0: 252.048 Gb/s available PCIe bandwidth (32.0 GT/s PCIe x16 link)",
        "mlx5_core 0000:38:00.0 ens3f0np0: Link up",
        "nvidia 0000:1b:00.0: enabling device (0000 -> 0002)",
        "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  550.54.15",
        "nvidia-modeset: Loading NVIDIA UNIX Kernel Mode Setting Driver",
        "pci 0000:38:00.0: BAR 0 [mem 0x22ffc000000-0x22ffdffffff 64bit pref]: assigned",
        "pci 0000:37:02.0: PCI bridge to [bus 38-3a]",
        "pci 0000:37:02.0:   bridge window [mem 0x22ffc000000-0x22fffffffff 64bit pref]",
        "iommu: Default domain type: Passthrough (set via kernel command line)",
        "systemd[1]: Started Session 1234 of User root.",
        "EXT4-fs (nvme0n1p2): mounted filesystem with ordered data mode. Quota mode: none.",
        "audit: type=1400 audit(1731.5:2): apparmor=\"STATUS\" operation=\"profile_load\"",
        "NFS: Registering the id_resolver key type",
        "docker0: port 1(veth1a2b3c) entered blocking state",
        "perf: interrupt took too long (2503 > 2500), lowering kernel.perf_event_max_sample_rate",
        "NVRM: Xid (PCI:0000:1b:00): 31, pid=4242, name=python, Ch 00000008, intr 00000000",
        "IPv6: ADDRCONF(NETDEV_CHANGE): ens3f0np0: link becomes ready",
    ];
    for (place, message) in messages.iter().enumerate() {
        writeln!(log, "{}{message}", uptime(piece * 20 + place)).unwrap();
    }
    if piece.is_multiple_of(8) {
        aer_storm(piece, log);
    }
}

/// Meaningless words, in lines of different lengths.
fn random_text(piece: usize, log: &mut Vec<u8>) {
    let mut state = piece as u64 + 1;
    let mut next = |below: u64| {
        // splitmix64
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % below
    };
    for _ in 0..next(20) + 1 {
        for _ in 0..next(9) + 2 {
            log.push(b'a' + u8::try_from(next(26)).unwrap());
        }
        log.push(b' ');
    }
    log.push(b'\n');
}

/// A page with the vocabulary of the field.
fn prose(_: usize, log: &mut Vec<u8>) {
    log.extend_from_slice(include_bytes!("../../../docs/guide.md"));
}

/// Lists of arguments that never end.
fn parentheses(_: usize, log: &mut Vec<u8>) {
    for _ in 0..1 << 13 {
        log.extend_from_slice(b"call(a=1, ");
    }
    log.push(b'\n');
}

fn long_line(_: usize, log: &mut Vec<u8>) {
    log.extend_from_slice(&[b'x'; 1 << 16]);
}

fn log(piece: Piece) -> Vec<u8> {
    let mut log = Vec::with_capacity(SIZE + (1 << 16));
    for number in 0.. {
        if log.len() >= SIZE {
            break;
        }
        piece(number, &mut log);
    }
    log.truncate(SIZE);
    log
}

/// Returns how long this process has run on a processor, if the system counts that.
fn processor_time() -> Option<Duration> {
    let counted = fs::read_to_string("/proc/self/schedstat").ok()?;
    let nanoseconds = counted.split_whitespace().next()?.parse().ok()?;
    Some(Duration::from_nanos(nanoseconds))
}

/// Returns how long reading takes, and what it says.
fn read_once(log: &[u8]) -> (Duration, Answer) {
    let (start, clock) = (processor_time(), Instant::now());
    let answer = read(log).unwrap();
    let elapsed = clock.elapsed();
    let took = start
        .zip(processor_time())
        .map_or(elapsed, |(start, end)| end - start);
    (took, answer)
}

fn measure(name: &str, log: &[u8]) {
    let mut times: Vec<Duration> = (0..ROUNDS).map(|_| read_once(log).0).collect();
    times.sort_unstable();
    let (_, answer) = read_once(log);
    let took = times[ROUNDS / 2].max(Duration::from_nanos(1));
    println!(
        "{name:<24} {:>8.1} MB/s   {:?}, {} causes",
        log.len() as f64 / 1e6 / took.as_secs_f64(),
        answer.gpudirect.in_use,
        answer.causes.len()
    );
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    // Cargo adds its own options.
    let words: Vec<&str> = (arguments.iter().map(String::as_str))
        .filter(|argument| !argument.starts_with('-'))
        .collect();
    let chosen = |part: &str| {
        let part = part.to_owned();
        LOGS.iter().filter(move |(name, _)| name.contains(&part))
    };
    if let ["write", name, path] = words[..] {
        let (_, piece) = chosen(name).next().unwrap();
        let mut file = BufWriter::new(File::create(path).unwrap());
        file.write_all(&log(*piece)).unwrap();
        return;
    }
    for (name, piece) in chosen(words.first().unwrap_or(&"")) {
        measure(name, &log(*piece));
    }
}
