//! Text output of `gdr loopback`.

use gdr_perf::Result;
use gdr_perf::loopback::{
    Checks, Difference, Ended, Event, Iteration, Memory, Outcome, Path, Report, Settings,
    Throughput, TransferMode, Verdict,
};
use gdr_perf::transfer::MemoryFacts;
use owo_colors::OwoColorize;

use crate::commands::describe;
use crate::counted::Counted;
use crate::global::Global;
use crate::output::Output;
use crate::progress::print_to_stderr;

/// Iterations of a long run that get their own line: the first ones, and as many of the rest.
const SHOWN: u32 = 10;

/// Indentation of lines below a labeled one.
const INDENT: &str = "          ";

/// The lines of a run.
pub(super) struct Lines {
    json: bool,
    verbose: bool,
    iterations: u32,
    simulation_is_known: bool,
    connected: Option<String>,
    role: Role,
}

/// The ends that are in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Both,
    /// The end with the GPU memory.
    Receiver,
    Sender,
}

impl Role {
    /// Marks what the peer reports.
    fn mark(self, end: Self) -> &'static str {
        if self == Self::Both || self == end {
            ""
        } else {
            " (the peer says)"
        }
    }
}

impl Lines {
    pub(super) fn new(global: &Global, iterations: u32) -> Self {
        Self {
            json: global.json,
            verbose: global.verbose > 0,
            iterations,
            simulation_is_known: false,
            connected: None,
            role: Role::Both,
        }
    }

    /// Records that the line about a simulated GPU has been written.
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
        self.role = match (event, self.role) {
            (Event::Listening(_), _) => Role::Receiver,
            (Event::Connected { .. }, Role::Both) => Role::Sender,
            (_, role) => role,
        };
        match event {
            // Standard output contains only the document.
            Event::Listening(address) if self.json => {
                print_to_stderr(format_args!("listening on {address}"));
                Ok(())
            }
            _ if self.json => Ok(()),
            Event::Listening(address) => {
                output.line(format_args!("listening on {address}"))?;
                output.line("          waiting for a peer; Ctrl-C ends the wait")
            }
            Event::Connected {
                peer,
                authenticated,
                failed_connections,
            } => {
                let trust = if *authenticated {
                    "knows the key"
                } else {
                    "not authenticated"
                };
                // Written later, because the line about a simulated GPU comes first.
                let failed_connections = match failed_connections {
                    0 => String::new(),
                    1 => "; 1 other connection was not from a peer (-v names it)".to_owned(),
                    some => {
                        format!("; {some} other connections were not from a peer (-v names them)")
                    }
                };
                self.connected = Some(format!("peer      {peer}, {trust}{failed_connections}"));
                Ok(())
            }
            Event::Ready {
                settings,
                memory,
                source,
                path,
            } => self.ready(settings, memory, source, path, output),
            Event::Ended(iteration) => self.ended(iteration, output),
            _ => Ok(()),
        }
    }

    fn ready(
        &mut self,
        settings: &Settings,
        memory: &Memory,
        source: &MemoryFacts,
        path: &Path,
        output: &mut Output,
    ) -> Result<()> {
        if memory.subject.simulated && !self.simulation_is_known {
            output.simulated("the peer's GPU is simulated")?;
        }
        if let Some(connected) = self.connected.take() {
            output.line(connected)?;
        }
        if settings.injected.is_some() {
            output.line("REHEARSAL: a fault is injected, so the verdict is about no hardware")?;
        }
        let ends = [
            ("from", &path.from, kind(source), Role::Sender),
            ("to", &path.to, "GPU", Role::Receiver),
        ];
        for (what, end, kind, role) in ends {
            output.line(format_args!(
                "{what:<9} {kind} memory at {}, UDP {}, {}{}",
                end.device,
                end.address,
                end.provider,
                self.role.mark(role)
            ))?;
        }
        self.source(source, output)?;
        let mark = self.role.mark(Role::Receiver);
        output.line(format_args!(
            "GPU       {}, {}{mark}",
            describe(&memory.subject),
            memory.allocated_by
        ))?;
        let how = match memory.reached {
            TransferMode::Direct => {
                "direct: packets are stored into GPU memory through a CPU mapping"
            }
            TransferMode::Device => "direct: the device writes GPU memory itself",
            TransferMode::Staged => {
                "staged: packets go to host memory, and the copy engine copies them to the GPU"
            }
        };
        let reached = format!("{how} ({}){mark}", memory.why);
        output.paragraph("reached   ", INDENT, &reached)?;
        for refusal in &memory.refusals {
            output.paragraph(INDENT, INDENT, &format!("rejected before: {refusal}"))?;
        }
        if let Some(bytes) = memory.long_reads_from {
            output.line(format_args!(
                "          READs of {bytes} bytes and more use the copy engine, which was faster here"
            ))?;
        }
        output.line(format_args!("integrity {}", path.to.integrity))?;
        let over = match path.queue_pairs {
            1 => String::new(),
            several => format!(" over {several} queue pairs"),
        };
        let moving = format!(
            "{} bytes in messages of {}{over}, path MTU {}; {}, seed {}, {} s a step",
            settings.size,
            path.message,
            path.mtu,
            Counted(settings.iterations, "iteration"),
            settings.seed,
            settings.timeout.as_secs()
        );
        output.paragraph("moving    ", INDENT, &moving)
    }

    /// Writes which GPU's memory is sent, and how it is reached.
    fn source(&self, source: &MemoryFacts, output: &mut Output) -> Result<()> {
        let Some(gpu) = &source.gpu else {
            return Ok(());
        };
        let mark = self.role.mark(Role::Sender);
        let allocated_by = source.allocated_by.as_deref().unwrap_or_default();
        output.line(format_args!(
            "from GPU  {}, {allocated_by}{mark}",
            describe(gpu)
        ))?;
        let how = match source.reached {
            Some(TransferMode::Direct) => {
                "direct: packets are loaded from GPU memory, and stored into it, through a CPU mapping"
            }
            Some(TransferMode::Device) => "direct: the device reads and writes GPU memory itself",
            Some(TransferMode::Staged) | None => {
                "staged: packets come from and go to host memory, and the copy engine copies them"
            }
        };
        let why = source.why.as_deref().unwrap_or("for an unknown reason");
        output.paragraph("reached   ", INDENT, &format!("{how} ({why}){mark}"))?;
        for refusal in &source.refusals {
            output.paragraph(INDENT, INDENT, &format!("rejected before: {refusal}"))?;
        }
        match source.long_reads_from {
            Some(bytes) => output.line(format_args!(
                "          WRITEs of {bytes} bytes and more use the copy engine, which was faster here"
            )),
            None => Ok(()),
        }
    }

    fn ended(&self, iteration: &Iteration, output: &mut Output) -> Result<()> {
        let (number, all) = (iteration.number, self.iterations);
        let fine = is_fine(iteration);
        if number == 1 || self.verbose || !fine {
            output.line(format_args!("iteration {number} of {all}"))?;
            return steps(iteration, output);
        }
        let step = (all / SHOWN).max(1);
        if number <= SHOWN || number.is_multiple_of(step) {
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

    /// Writes the verdict, and the cause of a failure.
    pub(super) fn verdict(&self, report: &Report, output: &mut Output) -> Result<()> {
        if let Some(wire) = report.wire {
            output.paragraph("wire      ", INDENT, &wire.to_string())?;
        }
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
            // A single line, however long, because scripts read it.
            Verdict::Pass => output.line(format_args!(
                "{}: {passed} of {}, {size} bytes arrived in {simulated}GPU \
                 memory, seen by {}",
                "PASS".green().bold(),
                Counted(*iterations, "time"),
                witnesses(report.last.as_ref())
            )),
            Verdict::Undecided => output.line(format_args!(
                "{}: stopped after {passed} of {}, which passed",
                "UNDECIDED".yellow().bold(),
                Counted(*iterations, "iteration")
            )),
            _ => {
                if report.injected.is_some() {
                    output.line("REHEARSAL: the fault was injected after the completions")?;
                }
                let cause = report.cause.as_ref();
                let what = cause.map_or("for an unknown reason", |cause| &cause.what);
                output.paragraph("", "", &format!("{}: {what}", "FAIL".red().bold()))?;
                output.line(format_args!(
                    "iteration: {} of {iterations}",
                    cause.map_or(passed + 1, |cause| cause.iteration)
                ))?;
                match cause {
                    Some(cause) => output.paragraph("what to do: ", "", &cause.remedy),
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
        ("bytes around it", look(&checks.guards, "unchanged")),
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

/// Returns the kind of memory in one word.
fn kind(memory: &MemoryFacts) -> &'static str {
    match memory.gpu {
        Some(_) => "GPU",
        None => "host",
    }
}

/// Returns the comparisons that found the bytes.
fn witnesses(last: Option<&Iteration>) -> &'static str {
    match last.map(|iteration| &iteration.checks.mapping) {
        Some(Outcome::Equal) => "kernel, copy and CPU",
        _ => "kernel and copy",
    }
}

fn speed(what: &str, throughput: &Throughput) -> String {
    let simulated = if throughput.simulated {
        " (simulated GPU: describes no hardware)"
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
