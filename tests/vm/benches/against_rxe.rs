//! Measures the soft provider, and rxe with the verbs provider, in one guest: each with itself on one host, and each
//! with the other over the network. `cargo xtask vm --bench` runs it.
#![allow(clippy::unwrap_used, reason = "a failure aborts the benchmark")]

use std::time::{Duration, Instant};

use conformance::{Side, connect};
use gdr_rdma::{
    AckTimeout, ConnectionOptions, Device, MemoryRegion, Mtu, SendRequest, SoftOptions, WrId,
};
use gdr_vm_tests::{near, rxe_endpoint};

const MEMORY: usize = 4 << 20;
/// 64 KiB.
const LEN: u64 = 64 << 10;
const OUTSTANDING: u64 = 64;
const MESSAGES: u64 = 400;
const SHORT: u64 = 2;
const ROUND_TRIPS: usize = 500;
/// Poll while waiting, as with rxe. Under TCG, a round trip takes longer than the default of 50 us, after which the
/// soft provider sleeps.
const BUSY_POLL: Duration = Duration::from_millis(5);
/// Rounds of measurements, which alternate, so that other load affects all subjects alike.
const ROUNDS: usize = 7;

fn main() {
    let Some(accelerator) = std::env::var_os("GDR_VM") else {
        println!("SKIPPED: runs in the VM: cargo xtask vm --bench");
        return;
    };
    let rxe = rxe_endpoint::verbs_device("rxe0", rxe_endpoint::V4).unwrap();
    let device = |ip| near::device_with(SoftOptions::new(ip).busy_poll(BUSY_POLL)).unwrap();
    let [near, neighbour, beside] = [near::V4, near::LOOPBACK, near::SECOND_LOOPBACK].map(device);
    let mut subjects = [
        Subject::new("soft with itself", &neighbour, &beside),
        Subject::new("rxe with itself", &rxe, &rxe),
        Subject::new("soft to rxe", &near, &rxe),
        Subject::new("rxe to soft", &rxe, &near),
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
    println!("  {sooner:.2} times as fast from the post of a 2 B WRITE to its completion");
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
        println!("under TCG QEMU translates every instruction, so only the ratios are meaningful");
    }
}

/// Two connected sides and their measurements.
struct Subject {
    name: &'static str,
    requester: Side,
    /// Responds as long as it lives.
    _responder: Side,
    source: MemoryRegion,
    target: MemoryRegion,
    /// In bytes per second.
    bandwidths: Vec<f64>,
    latencies: Vec<Duration>,
}

impl Subject {
    fn new(name: &'static str, near: &Device, far: &Device) -> Self {
        let [requester, responder] = [near, far].map(|device| Side::on(device.clone()));
        // Under TCG a vCPU may not run for tens of milliseconds.
        let options = ConnectionOptions {
            timeout: AckTimeout::new(15),
            ..ConnectionOptions::new(Mtu::B4096)
        };
        connect(&requester, &responder, &options);
        Self {
            name,
            source: requester.memory(MEMORY),
            target: responder.memory(MEMORY),
            requester,
            _responder: responder,
            bandwidths: Vec::new(),
            latencies: Vec::new(),
        }
    }

    fn write(&self, id: u64, len: u64) {
        let at = id % (MEMORY as u64 / LEN) * LEN;
        let write = SendRequest::write(WrId(id), self.target.remote().at(at));
        let write = write.segment(self.source.segment(at, len).unwrap());
        self.requester.pair.post_send(write).unwrap();
    }

    fn measure(&mut self) {
        let start = Instant::now();
        for id in 0..MESSAGES {
            if id >= OUTSTANDING {
                self.requester.done();
            }
            self.write(id, LEN);
        }
        for _ in 0..OUTSTANDING {
            self.requester.done();
        }
        let bytes = (MESSAGES * LEN) as f64;
        self.bandwidths.push(bytes / start.elapsed().as_secs_f64());

        let trips = (0..ROUND_TRIPS).map(|id| {
            let start = Instant::now();
            self.write(id as u64, SHORT);
            self.requester.done();
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
