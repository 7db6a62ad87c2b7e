//! Both ends in this process.

use std::ops::ControlFlow;

use gdr_rdma::Device;

use super::device::mutual_mtu;
use super::event::{Event, Observer, Step};
use super::gpu::GpuSide;
use super::iterations::{Tally, run_all};
use super::report::{End, Iteration, Outcome, PacketCounter, Packets, Path, Report};
use super::requester::Requester;
use super::settings::{Destination, Settings};
use crate::bench_target::BenchTarget;
use crate::error::Result;
use crate::registered_buffer::TransferMemory;

/// Transfers bytes from `source` at `from` into GPU memory at `to`, both in this process. If `observe` breaks, the
/// verdict is [`super::Verdict::Undecided`].
///
/// # Errors
/// [`crate::Error::Settings`], and the errors of setting up a GPU or a device. A later failure is a report with
/// [`super::Verdict::Fail`].
pub fn run(
    target: &BenchTarget,
    from: &Device,
    to: &Device,
    source: TransferMemory<'_>,
    destination: Destination,
    settings: &Settings,
    observe: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
) -> Result<Report> {
    settings.check()?;
    let mut observer = Observer::new(observe);
    let memories = [source, TransferMemory::Gpu(target, destination)];
    let queue_pairs = Requester::queue_pairs(from, settings.size, &memories);
    let mut gpu = GpuSide::new(target, to, destination, settings, queue_pairs)?;
    let requester = Requester::new(from, source, settings, queue_pairs)?;
    let mtu = mutual_mtu(from, to)?;
    gpu.connect(&requester.endpoints(), mtu)?;
    requester.connect(&gpu.endpoints(), mtu)?;
    let (memory, source) = (gpu.memory().clone(), requester.facts().clone());
    source.check_beside(&memory.subject)?;
    let path = Path::new(End::of(from), End::of(to), mtu, settings.size);
    let path = path.over(queue_pairs, settings.size);
    observer.notify(Event::Ready {
        settings,
        memory: &memory,
        source: &source,
        path: &path,
    })?;

    let mut tally = Tally::default();
    let end = run_all(
        settings,
        &mut tally,
        &mut observer,
        |iteration, observer| {
            let (sender, receiver) = (PacketCounter::start(from), PacketCounter::start(to));
            let outcome = round(&mut gpu, &requester, settings, iteration, observer);
            iteration.packets = Packets {
                sender: sender.counted(),
                receiver: receiver.counted(),
            };
            outcome
        },
    );
    Ok(tally.report(settings, memory, source, path, end))
}

fn round(
    gpu: &mut GpuSide,
    requester: &Requester,
    settings: &Settings,
    iteration: &mut Iteration,
    observer: &mut Observer<'_>,
) -> Result<()> {
    let number = iteration.number;
    let seeds = settings.seeds(number);
    let remote = gpu.remote();
    observer.step(number, Step::Fill)?;
    iteration.filled = gpu.fill(number, seeds);
    if iteration.filled != Outcome::Equal {
        return Ok(());
    }
    requester.load(seeds.sent)?;
    observer.step(number, Step::Write)?;
    iteration.sent = requester.write(number, &remote, observer)?;
    if iteration.sent.is_done() {
        iteration.received = gpu.arrived(number, observer)?;
        gpu.inject(seeds)?;
    }
    observer.step(number, Step::Verify)?;
    iteration.checks = gpu.verify(seeds);
    if iteration.sent.is_done() {
        observer.step(number, Step::Read)?;
        iteration.read = requester.read(&remote, observer)?;
        if iteration.read.is_done() {
            iteration.read_back = requester.compare(seeds.sent, seeds.before);
        }
    }
    Ok(())
}
