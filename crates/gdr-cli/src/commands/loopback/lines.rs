//! What `gdr loopback` prints.

use gdr_perf::Result;
use gdr_perf::loopback::{
    Checks, Difference, Ended, Event, Iteration, Memory, Outcome, Path, Reached, Report, Settings,
    Throughput, Verdict,
};
use owo_colors::OwoColorize;

use crate::args::Global;
use crate::commands::describe;
use crate::output::Output;

/// Iterations that are told of one by one, at either end of a long run or among it.
const TOLD: u32 = 10;

/// The lines of a run.
pub(super) struct Lines {
    json: bool,
    verbose: bool,
    iterations: u32,
    simulation_is_known: bool,
    connected: Option<String>,
}

impl Lines {
    pub(super) fn new(global: &Global, iterations: u32) -> Self {
        Self {
            json: global.json,
            verbose: global.verbose > 0,
            iterations,
            simulation_is_known: false,
            connected: None,
        }
    }

    /// The first line, if it was due, has been written.
    pub(super) fn simulation_is_known(&mut self) {
        self.simulation_is_known = true;
    }

    pub(super) fn iterations(&self) -> usize {
        self.iterations as usize
    }

    pub(super) fn event(&mut self, event: &Event<'_>, output: &mut Output) -> Result<()> {
        if let Event::Ready { settings, .. } = event {
            self.iterations = settings.iterations;
        }
        match event {
            // Standard output is for the document.
            Event::Listening(address) if self.json => {
                anstream::eprintln!("listening on {address}");
                Ok(())
            }
            _ if self.json => Ok(()),
            Event::Listening(address) => output.line(format_args!("listening on {address}")),
            Event::Connected {
                peer,
                authenticated,
            } => {
                let trust = if *authenticated {
                    "knows the key"
                } else {
                    "not authenticated"
                };
                // Told once it is known whether the first line has to say `simulated`.
                self.connected = Some(format!("peer      {peer}, {trust}"));
                Ok(())
            }
            Event::Ready {
                settings,
                memory,
                path,
            } => self.ready(settings, memory, path, output),
            Event::Ended(iteration) => self.ended(iteration, output),
            _ => Ok(()),
        }
    }

    fn ready(
        &mut self,
        settings: &Settings,
        memory: &Memory,
        path: &Path,
        output: &mut Output,
    ) -> Result<()> {
        if memory.subject.simulated && !self.simulation_is_known {
            output.line("simulated: the peer's GPU is")?;
        }
        if let Some(connected) = self.connected.take() {
            output.line(connected)?;
        }
        for (what, end, kind) in [("from", &path.from, "host"), ("to", &path.to, "GPU")] {
            output.line(format_args!(
                "{what:<9} {kind} memory at {}, UDP {}, {}",
                end.device, end.address, end.provider
            ))?;
        }
        output.line(format_args!(
            "GPU       {}, {}",
            describe(&memory.subject),
            memory.allocated_by
        ))?;
        let how = match memory.reached {
            Reached::Direct => "direct: packets are stored into GPU memory through a CPU mapping",
            Reached::Device => "direct: the device writes GPU memory itself",
            Reached::Staged => {
                "staged: packets go to host memory, and the copy engine takes them to the GPU"
            }
        };
        output.line(format_args!("reached   {how} ({})", memory.why))?;
        for refusal in &memory.refusals {
            output.line(format_args!("          refused before: {refusal}"))?;
        }
        if let Some(bytes) = memory.long_reads_from {
            output.line(format_args!(
                "          READs of {bytes} bytes and more are copied by the copy engine, as was \
                 faster here"
            ))?;
        }
        output.line(format_args!("integrity {}", path.to.integrity))?;
        output.line(format_args!(
            "moving    {} bytes in messages of {}, path MTU {}; {} iterations, seed {}, {} s a step",
            settings.size,
            path.message,
            path.mtu,
            settings.iterations,
            settings.seed,
            settings.timeout.as_secs()
        ))
    }

    fn ended(&self, iteration: &Iteration, output: &mut Output) -> Result<()> {
        let (number, all) = (iteration.number, self.iterations);
        let fine = is_fine(iteration);
        if number == 1 || self.verbose || !fine {
            output.line(format_args!("iteration {number} of {all}"))?;
            return steps(iteration, output);
        }
        let step = (all / TOLD).max(1);
        if number <= TOLD || number.is_multiple_of(step) {
            let took = match iteration.sent {
                Ended::Done { ns } => microseconds(ns),
                _ => String::new(),
            };
            output.line(format_args!(
                "iteration {number} of {all}: all steps as before, RDMA WRITE in {took}"
            ))?;
        }
        Ok(())
    }

    /// The last lines: whether the bytes arrived, and if not, why.
    pub(super) fn verdict(&self, report: &Report, output: &mut Output) -> Result<()> {
        for (what, throughput) in [("WRITE", &report.write), ("READ", &report.read)] {
            if let Some(throughput) = throughput {
                output.line(speed(what, throughput))?;
            }
        }
        let Report {
            passed,
            iterations,
            size,
            ..
        } = report;
        let simulated = if report.memory.subject.simulated {
            "simulated "
        } else {
            ""
        };
        match report.verdict {
            Verdict::Pass => output.line(format_args!(
                "{}: {passed} of {iterations} times, {size} bytes arrived in {simulated}GPU memory \
                 and were seen there by {}",
                "PASS".green().bold(),
                witnesses(report.last.as_ref())
            )),
            Verdict::Undecided => output.line(format_args!(
                "{}: stopped after {passed} of {iterations} iterations, which passed",
                "UNDECIDED".yellow().bold()
            )),
            _ => {
                let cause = report.cause.as_ref();
                let what = cause.map_or("for an unknown reason", |cause| &cause.what);
                output.line(format_args!(
                    "{}: {what}\niteration: {} of {iterations}",
                    "FAIL".red().bold(),
                    cause.map_or(passed + 1, |cause| cause.iteration)
                ))?;
                match cause {
                    Some(cause) => output.line(format_args!("what to do: {}", cause.remedy)),
                    None => Ok(()),
                }
            }
        }
    }
}

fn is_fine(iteration: &Iteration) -> bool {
    let Checks {
        kernel,
        copy,
        mapping,
        guards,
    } = &iteration.checks;
    let mapping_is_fine = matches!(mapping, Outcome::Equal | Outcome::NotDone { .. });
    let looks = [
        &iteration.filled,
        kernel,
        copy,
        guards,
        &iteration.read_back,
    ];
    let requests = [&iteration.sent, &iteration.received, &iteration.read];
    mapping_is_fine
        && looks.iter().all(|look| **look == Outcome::Equal)
        && requests.iter().all(|request| request.is_done())
}

fn steps(iteration: &Iteration, output: &mut Output) -> Result<()> {
    let checks = &iteration.checks;
    let before = format!("pattern A (seed {:#010x})", iteration.seed_before);
    let sent = format!("pattern B (seed {:#010x})", iteration.seed_sent);
    let rows = [
        ("fill by a kernel", look(&iteration.filled, &before)),
        ("RDMA WRITE", request(&iteration.sent)),
        ("receiver", request(&iteration.received)),
        ("seen by a kernel", look(&checks.kernel, &sent)),
        ("seen by a copy", look(&checks.copy, &sent)),
        ("seen by the CPU", look(&checks.mapping, &sent)),
        ("around it", look(&checks.guards, "as before")),
        ("RDMA READ", request(&iteration.read)),
        ("read back", look(&iteration.read_back, &sent)),
    ];
    for (what, result) in rows {
        output.line(format_args!("  {what:<17} {result}"))?;
    }
    Ok(())
}

fn look(outcome: &Outcome, expected: &str) -> String {
    match outcome {
        Outcome::Equal => expected.to_owned(),
        Outcome::Differs(Difference {
            words,
            mismatches,
            still_before,
            first_offset,
            expected,
            found,
        }) => {
            let still = match still_before {
                0 => String::new(),
                count if count == words => ", still pattern A everywhere".to_owned(),
                count => format!(", {count} of them still pattern A"),
            };
            let text = format!(
                "{mismatches} of {words} words differ, the first at byte {first_offset}: expected \
                 {expected:#010x}, found {found:#010x}{still}"
            );
            text.red().to_string()
        }
        Outcome::Failed { reason } => format!("failed: {reason}").red().to_string(),
        Outcome::NotDone { reason } => format!("not done: {reason}"),
    }
}

fn request(ended: &Ended) -> String {
    match ended {
        Ended::Done { ns } => format!("completed in {}", microseconds(*ns)),
        Ended::Late {
            waited_ms,
            completions,
            due,
        } => format!("{completions} of {due} completions within {waited_ms} ms")
            .red()
            .to_string(),
        Ended::Error {
            status, meaning, ..
        } => format!("{status}: {meaning}").red().to_string(),
        Ended::Failed { reason } => format!("failed: {reason}").red().to_string(),
        Ended::NotDone { reason } => format!("not done: {reason}"),
    }
}

/// Who saw the bytes.
fn witnesses(last: Option<&Iteration>) -> &'static str {
    match last.map(|iteration| &iteration.checks.mapping) {
        Some(Outcome::Equal) => "a kernel, a copy and the CPU",
        _ => "a kernel and a copy",
    }
}

fn speed(what: &str, throughput: &Throughput) -> String {
    let simulated = if throughput.simulated {
        " (simulated GPU: says nothing of hardware)"
    } else {
        ""
    };
    format!(
        "RDMA {what:<5} {:.3} GB/s, median {}, best {}{simulated}",
        throughput.median_gb_per_s,
        microseconds(throughput.median_ns),
        microseconds(throughput.best_ns)
    )
}

fn microseconds(ns: u64) -> String {
    format!("{:.1} us", ns as f64 / 1000.0)
}
