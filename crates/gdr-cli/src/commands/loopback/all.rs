//! `gdr loopback --all`: proves the transfer into each GPU, one after another.

use std::ops::ControlFlow;
use std::sync::atomic::Ordering;

use anyhow::Result;
use gdr_cuda::Gpu;
use gdr_perf::loopback::{DevicePair, Event, Report, Verdict};
use gdr_perf::report::Schema;
use serde::Serialize;

use super::text::Lines;
use super::{Devices, Options, Setup, name, spell_remedies, within};
use crate::commands::say_simulated;
use crate::counted::Counted;
use crate::exit::Exit;
use crate::global::Global;
use crate::gpu_context::GpuContext;
use crate::host_source;
use crate::interrupt::{self, FirstSignal};
use crate::output::{Output, flow};
use crate::progress::Progress;
use crate::rdma_peer::{nearest_nics, provider_in_words};

/// The proofs of all GPUs: `gdr.loopback.all`.
#[derive(Serialize)]
struct Proofs {
    #[serde(flatten)]
    schema: Schema,
    simulated: bool,
    /// GPUs whose proof passed.
    passed: usize,
    gpus: Vec<Proof>,
}

/// The proof of one GPU.
#[derive(Serialize)]
struct Proof {
    gpu: String,
    pci: String,
    /// Why there is no report.
    error: Option<String>,
    report: Option<Report>,
}

impl Proof {
    fn verdict(&self) -> Option<Verdict> {
        self.report.as_ref().map(|report| report.verdict)
    }
}

/// Proves the transfer into each GPU through its nearest NIC. A failing GPU does not end the run.
pub(super) fn run(
    global: &Global,
    options: &Options,
    context: &GpuContext,
    pair: &DevicePair,
    output: &mut Output,
) -> Result<Exit> {
    if !global.json {
        say_simulated(context, output)?;
    }
    let stop = interrupt::flag(FirstSignal::RequestsStop)?;
    let mut gpus = Vec::new();
    for (number, gpu) in context.gpus.iter().enumerate() {
        if stop.load(Ordering::Relaxed) {
            return Ok(Exit::Undecided);
        }
        let info = gpu.info();
        if !global.json {
            let space = if number > 0 { "\n" } else { "" };
            output.line(format_args!(
                "{space}== GPU {number}: {} ({})",
                info.name, info.bdf
            ))?;
        }
        let mut is_stopped = || stop.load(Ordering::Relaxed);
        let report = one(global, options, context, gpu, pair, &mut is_stopped, output);
        if let (Err(error), false) = (&report, global.json) {
            output.paragraph("FAIL      ", "          ", &crate::words(error))?;
        }
        gpus.push(Proof {
            gpu: info.name.clone(),
            pci: info.bdf.to_string(),
            error: report.as_ref().err().map(crate::words),
            report: report.ok(),
        });
    }
    let passed = gpus
        .iter()
        .filter(|it| it.verdict() == Some(Verdict::Pass))
        .count();
    let is_undecided = gpus
        .iter()
        .any(|it| it.verdict() == Some(Verdict::Undecided));
    let exit = match (passed == gpus.len(), is_undecided) {
        (true, _) => Exit::Fine,
        (false, true) => Exit::Undecided,
        (false, false) => Exit::Failure,
    };
    if global.json {
        output.json(&Proofs {
            schema: Schema::first("gdr.loopback.all"),
            simulated: context.simulated.is_some(),
            passed,
            gpus,
        })?;
    } else {
        let word = if exit == Exit::Fine { "PASS" } else { "FAIL" };
        output.line(format_args!(
            "\n{word}: {passed} of {}",
            Counted(gpus.len(), "GPU")
        ))?;
    }
    Ok(exit)
}

/// Proves the transfer into one GPU.
fn one(
    global: &Global,
    options: &Options,
    context: &GpuContext,
    gpu: &Gpu,
    pair: &DevicePair,
    is_stopped: &mut dyn FnMut() -> bool,
    output: &mut Output,
) -> Result<Report> {
    let mut pair = pair.clone();
    if context.simulated.is_none() {
        pair.nearest = nearest_nics(gpu, &host_source::this_node());
    }
    let chosen = pair.choose()?;
    if !global.json {
        let words = provider_in_words(&chosen, global);
        output.paragraph("provider  ", "          ", &words)?;
    }
    let setup = Setup {
        devices: Devices { pair, chosen },
        source: context.second(options.from_gpu.as_ref())?,
        settings: options.settings(),
        destination: options.destination(),
    };
    let mut lines = Lines::new(global, setup.settings.iterations);
    lines.simulation_is_known();
    let progress = Progress::on_stderr();
    let mut observe = |event: Event<'_>| {
        if is_stopped() {
            return ControlFlow::Break(());
        }
        if let Event::Step { number, step } = event {
            progress.at(number as usize - 1, lines.iterations(), name(step));
        }
        flow(lines.event(&event, output))
    };
    let report = within(&context.target.on(gpu.clone()), &setup, &mut observe);
    drop(progress);
    let mut report = report?;
    spell_remedies(&mut report);
    if !global.json {
        lines.verdict(&report, output)?;
    }
    Ok(report)
}
