//! The soft provider and rxe in one guest: each with itself on one host, and each with the other over
//! the network. `cargo xtask vm --bench` runs it.
#![allow(clippy::unwrap_used, reason = "a failure aborts the benchmark")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use gdr_rdma::{Deadline, Device, Mtu, SoftOptions};
use gdr_vm_tests::gdr_endpoint::GdrEndpoint;
use gdr_vm_tests::rxe_endpoint::{self, Backing, RxeEndpoint};
use gdr_vm_tests::{Endpoint, Settings, Status, Work, near};

const MEMORY: usize = 4 << 20;
/// 64 KiB.
const LEN: u32 = 64 << 10;
const OUTSTANDING: u64 = 64;
const MESSAGES: u64 = 400;
const SHORT: u32 = 2;
const ROUND_TRIPS: usize = 500;
/// Polls while it waits, as with rxe. Under TCG a round trip takes longer than the default of 50 us,
/// after which the soft provider sleeps.
const BUSY_POLL: Duration = Duration::from_millis(5);
/// Rounds of measurements, which alternate, so that other load affects all subjects alike.
const ROUNDS: usize = 7;

fn main() {
    let Some(accelerator) = std::env::var_os("GDR_VM") else {
        println!("SKIPPED: runs in the VM: cargo xtask vm --bench");
        return;
    };
    let rxe = rxe_endpoint::Device::open("rxe0").unwrap();
    let device = |ip| near::device_with(SoftOptions::new(ip).busy_poll(BUSY_POLL)).unwrap();
    let [near, neighbour, beside] = [near::V4, near::LOOPBACK, near::SECOND_LOOPBACK].map(device);
    let mut subjects = [
        Subject::new(
            "soft with itself",
            soft_endpoint(&neighbour),
            soft_endpoint(&beside),
        ),
        Subject::new("rxe with itself", rxe_endpoint(&rxe), rxe_endpoint(&rxe)),
        Subject::new("soft to rxe", soft_endpoint(&near), rxe_endpoint(&rxe)),
        Subject::new("rxe to soft", rxe_endpoint(&rxe), soft_endpoint(&near)),
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

fn soft_endpoint(device: &Device) -> Box<dyn Endpoint> {
    Box::new(GdrEndpoint::new(device, MEMORY).unwrap())
}

fn rxe_endpoint(device: &Arc<rxe_endpoint::Device>) -> Box<dyn Endpoint> {
    let end = RxeEndpoint::new(device, rxe_endpoint::V4, Backing::Anonymous, MEMORY);
    Box::new(end.unwrap())
}

/// Two connected endpoints and their measurements.
struct Subject {
    name: &'static str,
    requester: Box<dyn Endpoint>,
    /// Responds as long as it lives.
    _responder: Box<dyn Endpoint>,
    /// In bytes per second.
    bandwidths: Vec<f64>,
    latencies: Vec<Duration>,
}

impl Subject {
    fn new(
        name: &'static str,
        mut requester: Box<dyn Endpoint>,
        mut responder: Box<dyn Endpoint>,
    ) -> Self {
        let settings = Settings::new(Mtu::B4096);
        requester.connect(&responder.peer(), &settings);
        responder.connect(&requester.peer(), &settings);
        Self {
            name,
            requester,
            _responder: responder,
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
        self.requester.post(id, write);
    }

    fn done(&self) {
        let deadline = Deadline::after(Duration::from_secs(60));
        let done = self.requester.wait(deadline).expect("a completion");
        assert_eq!(done.status, Status::Success, "{}", self.name);
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
