//! How fast a log is explained.
//!
//! `cargo bench -p gdr-doctor` reads a log of NCCL of many ranks, made here, and one long line;
//! `-- write FILE` writes the log instead, for a measurement of the whole command. It proves
//! nothing; the tests do.
#![allow(clippy::unwrap_used, reason = "a measurement that fails is over")]

use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::time::{Duration, Instant};

use gdr_doctor::explain::read;

/// The size of what is read, in bytes.
const SIZE: usize = 100 << 20;
/// Ranks of the job.
const RANKS: usize = 1000;

/// What each rank logs, over and over: what logs of NCCL_DEBUG=INFO consist of.
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

fn log() -> Vec<u8> {
    let mut log = Vec::with_capacity(SIZE + 4096);
    let mut round = 0;
    while log.len() < SIZE {
        for number in 0..RANKS {
            rank(number, round, &mut log);
        }
        round += 1;
    }
    log.truncate(SIZE);
    log
}

fn measure(name: &str, text: impl Read, length: usize) {
    let start = Instant::now();
    let answer = read(text).unwrap();
    let took = start.elapsed().max(Duration::from_nanos(1));
    println!(
        "{name:<24} {:>8.1} MB/s   {:?}, {} causes",
        length as f64 / 1e6 / took.as_secs_f64(),
        answer.gpudirect.in_use,
        answer.causes.len()
    );
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let Some(place) = arguments.iter().position(|argument| argument == "write") {
        let path = &arguments[place + 1];
        BufWriter::new(File::create(path).unwrap())
            .write_all(&log())
            .unwrap();
        return;
    }
    let log = log();
    measure("log of 1000 ranks", log.as_slice(), log.len());
    let line = 60 << 20;
    measure(
        "one line of 60 MB",
        std::io::repeat(b'x').take(line as u64),
        line,
    );
    let storm = "[ 12.5] pcieport 0000:37:02.0: AER: Corrected error received: 0000:38:00.0\n";
    let storm = storm.repeat((50 << 20) / storm.len());
    measure("storm of kernel messages", storm.as_bytes(), storm.len());
}
