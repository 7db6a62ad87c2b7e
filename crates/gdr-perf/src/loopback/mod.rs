//! Moving bytes from one RDMA device into GPU memory, and proving that they arrived.
//!
//! Each iteration:
//!
//! 1. a kernel fills the target with *pattern A*, and another looks whether it is there;
//! 2. host memory of the other device gets *pattern B*, and RDMA WRITE brings it to the target;
//!    the last message carries an immediate, so that both ends get a completion;
//! 3. the target is looked at by a kernel launched after the completion, by a copy to the host,
//!    and by loads through a CPU mapping; the bytes around it must be as they were;
//! 4. RDMA READ brings it back into other host memory, where it is compared.
//!
//! Success needs every part of it: that calls succeed proves nothing. Every wait has a deadline.
//! What fails is [judged](Cause): whether nothing arrived, a part, other bytes, or a completion is
//! missing, and what to do.
//!
//! [`sweep`] measures instead, by size, direct against staged.
//!
//! [`run`] has both ends in one process; [`listen`] and [`connect`] have one each. The end that
//! listens owns the GPU memory.

mod choice;
mod compare;
mod device;
mod gpu;
mod host;
mod judge;
mod link;
mod message;
mod peers;
mod place;
mod registered;
mod report;
mod settings;
mod stage;
mod sweep;

use std::net::SocketAddr;
use std::ops::ControlFlow;

use gdr_rdma::{Device, Mtu};

use gpu::GpuSide;
use host::HostSide;

use crate::error::{Error, Result};

pub use choice::{Chosen, DeviceName, Ends, Wish};
pub use device::{open_both, open_connector, open_listener};
pub use judge::{Cause, CauseKind};
pub use peers::{Patience, connect, listen};
pub use place::Place;
pub use report::{
    Checks, Difference, End, Ended, Iteration, Memory, Outcome, Path, Reached, Report, Throughput,
    Verdict,
};
pub use settings::{Destination, Reach, Settings};
pub use sweep::{Operation, Row, Sweep, SweepEvent, SweepSettings, Way, sweep};

/// What happens during a run.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A peer may connect.
    Listening(SocketAddr),
    /// The peer is there.
    Connected {
        /// Its TCP address.
        peer: SocketAddr,
        /// Whether it proved that it knows the shared key.
        authenticated: bool,
    },
    /// What is to be moved is settled.
    Ready {
        /// What.
        settings: &'a Settings,
        /// Where to.
        memory: &'a Memory,
        /// By which way.
        path: &'a Path,
    },
    /// A step begins.
    Step {
        /// Of this iteration, from 1.
        number: u32,
        /// Which step.
        step: Step,
    },
    /// Nothing, but for some time; a chance to stop.
    Waiting,
    /// An iteration has ended.
    Ended(&'a Iteration),
}

/// The steps of an iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A kernel fills GPU memory.
    Fill,
    /// RDMA WRITE.
    Write,
    /// GPU memory is looked at.
    Verify,
    /// RDMA READ.
    Read,
}

/// Who is told, and may stop the run.
pub(crate) struct Observer<'a>(&'a mut dyn FnMut(Event<'_>) -> ControlFlow<()>);

impl Observer<'_> {
    fn tell(&mut self, event: Event<'_>) -> Result<()> {
        match (self.0)(event) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(Error::Stopped),
        }
    }

    fn step(&mut self, number: u32, step: Step) -> Result<()> {
        self.tell(Event::Step { number, step })
    }
}

/// Moves bytes from host memory at `from` into GPU memory at `to`, both in this process. A run
/// that `observe` breaks is undecided.
///
/// # Errors
/// What stands against beginning: [`Error::Settings`], a GPU or a device that refuses. From there
/// on, failure is the report's [`Verdict::Fail`].
pub fn run(
    place: &Place,
    from: &Device,
    to: &Device,
    destination: Destination,
    settings: &Settings,
    observe: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
) -> Result<Report> {
    settings.check()?;
    let mut observer = Observer(observe);
    let mut gpu = GpuSide::new(place, to, destination, settings)?;
    let mut host = HostSide::new(from, settings)?;
    let mtu = mutual_mtu(from, to)?;
    gpu.connect(&host.endpoint(), mtu)?;
    host.connect(&gpu.endpoint(), mtu)?;
    let memory = gpu.memory().clone();
    let path = Path::new(End::of(from), End::of(to), mtu, settings.size);
    observer.tell(Event::Ready {
        settings,
        memory: &memory,
        path: &path,
    })?;

    let mut tally = report::Tally::default();
    let end = peers::all(settings, &mut tally, &mut observer, |number, observer| {
        round(&mut gpu, &mut host, settings, number, observer)
    });
    Ok(tally.report(settings, memory, path, end))
}

/// The largest path MTU that both ways carry.
fn mutual_mtu(from: &Device, to: &Device) -> Result<Mtu> {
    let there = from.path_mtu(to.address().ip())?;
    let back = to.path_mtu(from.address().ip())?;
    Ok(if back.bytes() < there.bytes() {
        back
    } else {
        there
    })
}

/// Counts an iteration and tells of it; why it failed, if it did.
fn conclude(
    tally: &mut report::Tally,
    iteration: Iteration,
    observer: &mut Observer<'_>,
) -> Result<Option<Cause>> {
    let told = observer.tell(Event::Ended(&iteration));
    let cause = tally.add(iteration);
    // A failure that was found stays one, whoever wants to stop.
    if cause.is_none() {
        told?;
    }
    Ok(cause)
}

fn round(
    gpu: &mut GpuSide,
    host: &mut HostSide,
    settings: &Settings,
    number: u32,
    observer: &mut Observer<'_>,
) -> Result<Iteration> {
    let seeds = settings.seeds(number);
    let remote = gpu.remote();
    observer.step(number, Step::Fill)?;
    let mut iteration = Iteration::begun(number, seeds);
    iteration.filled = gpu.fill(number, seeds);
    if iteration.filled != Outcome::Equal {
        return Ok(iteration);
    }
    host.load(seeds.sent)?;
    observer.step(number, Step::Write)?;
    iteration.sent = host.write(number, &remote, observer)?;
    if iteration.sent.is_done() {
        iteration.received = gpu.arrived(number, observer)?;
    }
    observer.step(number, Step::Verify)?;
    iteration.checks = gpu.verify(seeds);
    if iteration.sent.is_done() {
        observer.step(number, Step::Read)?;
        iteration.read = host.read(&remote, observer)?;
        if iteration.read.is_done() {
            iteration.read_back = host.compare(seeds.sent, seeds.before);
        }
    }
    Ok(iteration)
}
