//! The soft provider against the kernel's rxe in one guest: each with itself in one host, and each
//! with the other over a wire. `cargo xtask vm --bench` runs it.
#![allow(
    clippy::unwrap_used,
    reason = "what fails here is the guest, and there is nothing to clean up"
)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use gdr_rdma::{Deadline, Device, Mtu, SoftOptions};
use gdr_vm_tests::kernel::{self, Backing, KernelEnd};
use gdr_vm_tests::own::OwnEnd;
use gdr_vm_tests::{End, Outcome, Settings, Work, soft};

const MEMORY: usize = 4 << 20;
/// 64 KiB, as many outstanding as perftest has by half.
const LEN: u32 = 64 << 10;
const OUTSTANDING: u64 = 64;
const MESSAGES: u64 = 400;
const SHORT: u32 = 2;
const ROUND_TRIPS: usize = 500;
/// Whoever waits polls, as with rxe: under translation even a round trip takes longer than the
/// usual 50 us, after which the soft provider sleeps.
const AWAKE: Duration = Duration::from_millis(5);
/// Of each measurement, in turns, so that what else the machine does meets all alike.
const ROUNDS: usize = 7;

fn main() {
    let Some(accelerator) = std::env::var_os("GDR_VM") else {
        println!("SKIPPED: runs in the VM: cargo xtask vm --bench");
        return;
    };
    let rxe = kernel::Device::open("rxe0").unwrap();
    let device = |ip| soft::device_with(SoftOptions::new(ip).busy_poll(AWAKE)).unwrap();
    let [near, neighbour, beside] = [soft::V4, soft::LOOPBACK, soft::SECOND_LOOPBACK].map(device);
    let mut subjects = [
        Subject::new("soft with itself", soft_end(&neighbour), soft_end(&beside)),
        Subject::new("rxe with itself", rxe_end(&rxe), rxe_end(&rxe)),
        Subject::new("soft asks rxe", soft_end(&near), rxe_end(&rxe)),
        Subject::new("rxe asks soft", rxe_end(&rxe), soft_end(&near)),
    ];
    for _ in 0..ROUNDS {
        for subject in &mut subjects {
            subject.measure();
        }
    }

    let [soft, rxe, ..] = &subjects;
    let faster = soft.bandwidth() / rxe.bandwidth();
    let sooner = rxe.latency().as_secs_f64() / soft.latency().as_secs_f64();
    println!("soft against rxe, each with itself:");
    println!("  {faster:.2} times the bandwidth of 64 KiB WRITEs");
    println!("  {sooner:.2} times as fast from posting a 2 B WRITE to its completion");
    println!("medians of {ROUNDS} rounds, path MTU 4096, host memory:");
    for subject in &subjects {
        println!(
            "  {:16} {:8.1} MB/s {:8.1} us",
            subject.name,
            subject.bandwidth() / 1e6,
            subject.latency().as_secs_f64() * 1e6,
        );
    }
    if accelerator == "tcg" {
        println!("under TCG: QEMU translated every instruction, so only ratios mean anything");
    }
}

fn soft_end(device: &Device) -> Box<dyn End> {
    Box::new(OwnEnd::new(device, MEMORY).unwrap())
}

fn rxe_end(device: &Arc<kernel::Device>) -> Box<dyn End> {
    let end = KernelEnd::new(device, kernel::V4, Backing::Anonymous, MEMORY);
    Box::new(end.unwrap())
}

/// Two connected sides and what was measured of them.
struct Subject {
    name: &'static str,
    asks: Box<dyn End>,
    /// Answers as long as it lives.
    _answers: Box<dyn End>,
    /// Bytes a second.
    bandwidths: Vec<f64>,
    latencies: Vec<Duration>,
}

impl Subject {
    fn new(name: &'static str, mut asks: Box<dyn End>, mut answers: Box<dyn End>) -> Self {
        let settings = Settings::new(Mtu::B4096);
        asks.connect(&answers.peer(), &settings);
        answers.connect(&asks.peer(), &settings);
        Self {
            name,
            asks,
            _answers: answers,
            bandwidths: Vec::new(),
            latencies: Vec::new(),
        }
    }

    fn write(&self, id: u64, len: u32) {
        let at = id % (MEMORY as u64 / u64::from(LEN)) * u64::from(LEN);
        let write = Work::Write {
            local: at,
            len,
            remote: at,
            immediate: None,
        };
        self.asks.post(id, write);
    }

    fn done(&self) {
        let deadline = Deadline::after(Duration::from_secs(60));
        let done = self.asks.wait(deadline).expect("a completion");
        assert_eq!(done.outcome, Outcome::Success, "{}", self.name);
    }

    fn measure(&mut self) {
        let start = Instant::now();
        for id in 0..MESSAGES {
            if id >= OUTSTANDING {
                self.done();
            }
            self.write(id, LEN);
        }
        for _ in 0..OUTSTANDING {
            self.done();
        }
        let bytes = (MESSAGES * u64::from(LEN)) as f64;
        self.bandwidths.push(bytes / start.elapsed().as_secs_f64());

        let trips = (0..ROUND_TRIPS).map(|id| {
            let start = Instant::now();
            self.write(id as u64, SHORT);
            self.done();
            start.elapsed()
        });
        let mut trips: Vec<_> = trips.collect();
        trips.sort_unstable();
        self.latencies.push(trips[ROUND_TRIPS / 2]);
    }

    fn bandwidth(&self) -> f64 {
        let mut sorted = self.bandwidths.clone();
        sorted.sort_unstable_by(f64::total_cmp);
        sorted[ROUNDS / 2]
    }

    fn latency(&self) -> Duration {
        let mut sorted = self.latencies.clone();
        sorted.sort_unstable();
        sorted[ROUNDS / 2]
    }
}
