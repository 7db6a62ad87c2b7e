//! `gdr watch`: watches the epochs of an object.

use std::time::{Duration, Instant};

use anyhow::Result;
use gdr_object::{Epoch, LocalMemory, RemoteObject};
use gdr_perf::report::Schema;
use serde::Serialize;

use crate::command::{CommandSpec, Group, Run};
use crate::document::Document;
use crate::exit::{Exit, Statuses};
use crate::figures::{Cell, Column, FigureOptions, Figures};
use crate::global::Global;
use crate::interrupt::{self, FirstSignal};
use crate::object_link::{EpochWait, Expectation, LinkArguments, ObjectAddress};
use crate::object_report::{ObjectRow, rate};
use crate::output::Output;
use crate::units::count;

/// Watch an object: how often it is published, and how long a get takes
///
/// The owner wakes this command for each epoch, which is its only cost for the owner, and a ring with
/// when-full=block does not wait for it. Epochs published while the command is busy count as skipped;
/// the epoch that is current at the start counts as seen.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The object, as OWNER/NAME [default port: 4791]
    #[arg(value_name = "HOST[:PORT]/NAME")]
    object: ObjectAddress,

    /// Also get the content of each epoch
    #[arg(long)]
    get: bool,

    /// Exit after this many epochs
    #[arg(long, value_name = "N", value_parser = count)]
    count: Option<u32>,

    /// Exit if nothing is published for this many seconds
    #[arg(long, value_name = "SECONDS", value_parser = count)]
    idle: Option<u32>,

    /// Minimum number of seconds between two rows
    #[arg(long, value_name = "SECONDS", value_parser = count, default_value = "1")]
    interval: u32,

    #[command(flatten)]
    figures: FigureOptions,

    #[command(flatten)]
    expectation: Expectation,

    #[command(flatten)]
    link: LinkArguments,
}

/// A line of `gdr.watch`.
#[derive(Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
enum Event<'a> {
    /// It begins.
    Object {
        owner: &'a str,
        simulated: bool,
        object: ObjectRow,
    },
    /// An epoch was seen.
    Epoch(Seen),
    /// It ends.
    End {
        seconds: f64,
        /// Epochs that were seen.
        seen: u64,
        /// Number of epochs that were published but not seen.
        skipped: u64,
    },
}

/// An epoch that was seen.
#[derive(Clone, Copy, Debug, Serialize)]
struct Seen {
    epoch: u64,
    /// Since the beginning.
    seconds: f64,
    /// Number of epochs between this one and the previous one seen.
    skipped: u64,
    bytes: u64,
    /// How long the get took; `None` without one.
    get_seconds: Option<f64>,
    gb_per_s: Option<f64>,
}

impl CommandSpec for Options {
    const GROUP: Group = Group::ShareMemory;
    const STATUSES: Statuses = &[
        (
            Exit::Fine,
            "--count epochs were seen, or a signal ended it (Ctrl-C, SIGTERM)",
        ),
        (
            Exit::Failure,
            "the object does not exist or is not as expected, or its owner is gone",
        ),
        (
            Exit::Undecided,
            "nothing was published within --idle, or standard output was closed",
        ),
    ];
    const EXAMPLES: &'static str = "\
Examples:
  gdr watch 127.0.0.1/weights                     print up to one row per second
  gdr watch node1/weights --get --key-file key    also get each epoch, and show latency and bandwidth
  gdr watch node1/weights --count 1 --key-file key && ./reload     wait for the next epoch
  gdr watch node1/weights --json --key-file key | jq -c '[.epoch, .skipped]'";
    const RUN: Run<Self> = run;
}

fn run(global: &Global, options: &Options, output: &mut Output) -> Result<Exit> {
    options.link.prepare();
    let stop = interrupt::flag(FirstSignal::RequestsStop)?;
    if global.json {
        output.documents_in_lines();
    }
    let link = options.link.connect(&options.object.owner)?;
    let object = link.open(options.object.name.clone(), options.link.deadline(0))?;
    let info = object.info();
    options.expectation.check(&info)?;
    let memory = match options.get {
        true => Some(link.host_memory(info.bytes)?),
        false => None,
    };
    let watch = Watched {
        options,
        object: &object,
        memory,
        began: Instant::now(),
    };
    let wait = EpochWait {
        object: &object,
        link: &options.link,
        idle: options.idle,
        stop: &stop,
    };
    let mut last = object.newest(options.link.deadline(0))?;
    let mut view = View::new(global, options, &object, output)?;
    let (mut seen, mut skipped) = (0, 0);
    let mut ended = Ok(());
    loop {
        let epoch = match wait.newer(last) {
            Ok(Some(epoch)) => epoch,
            Ok(None) => break,
            // Print first what was seen since the last row.
            Err(error) => {
                ended = Err(error);
                break;
            }
        };
        let (one, epoch) = watch.look(epoch, last)?;
        last = Some(epoch);
        (seen, skipped) = (seen + 1, skipped + one.skipped);
        view.seen(one, output)?;
        if options.count.is_some_and(|most| seen >= u64::from(most)) {
            break;
        }
    }
    view.end(watch.began.elapsed(), seen, skipped, output)?;
    ended?;
    Ok(Exit::Fine)
}

/// The object being watched.
struct Watched<'a> {
    options: &'a Options,
    object: &'a RemoteObject,
    /// Where gets go.
    memory: Option<LocalMemory>,
    began: Instant,
}

impl Watched<'_> {
    /// Gets the epoch, or a newer one, if requested.
    fn look(&self, epoch: Epoch, last: Option<Epoch>) -> Result<(Seen, Epoch)> {
        let mut epoch = epoch;
        let mut got = None;
        if let Some(memory) = &self.memory {
            let began = Instant::now();
            epoch = self
                .object
                .get_into(memory, self.options.link.deadline(memory.len()))?;
            got = Some(began.elapsed());
        }
        let info = self.object.info();
        // The owner may have changed its shape.
        self.options.expectation.check(&info)?;
        let seen = Seen {
            epoch: epoch.get(),
            seconds: self.began.elapsed().as_secs_f64(),
            skipped: epoch.get().saturating_sub(last.map_or(0, Epoch::get) + 1),
            bytes: info.bytes,
            get_seconds: got.map(|time| time.as_secs_f64()),
            gb_per_s: got.map(|time| rate(info.bytes, time)),
        };
        Ok((seen, epoch))
    }
}

const COLUMNS: [Column; 7] = [
    Column::new("seconds", "seconds", 10),
    Column::new("epoch", "epoch", 12),
    Column::new("epochs/s", "epochs_per_s", 10),
    Column::new("skipped", "skipped", 9),
    Column::new("bytes", "bytes", 14),
    Column::new("get us", "get_us", 12),
    Column::new("GB/s", "gb_per_s", 9),
];

/// What is printed.
struct View {
    is_json: bool,
    figures: Figures,
    interval: Duration,
    /// When the last row was printed, and for which epoch.
    row: Option<(Instant, u64)>,
    /// The newest epoch that no row covers yet.
    newest: Option<Seen>,
    skipped: u64,
    /// The epoch before the first row, and its time.
    first: (Instant, u64),
}

impl View {
    fn new(
        global: &Global,
        options: &Options,
        object: &RemoteObject,
        output: &mut Output,
    ) -> Result<Self> {
        let info = object.info();
        let row = ObjectRow::from(&info);
        let owner = options.object.owner.to_string();
        let view = Self {
            is_json: global.json,
            figures: Figures::new(options.figures, &[&COLUMNS]),
            interval: Duration::from_secs(options.interval.into()),
            row: None,
            newest: None,
            skipped: 0,
            first: (Instant::now(), info.newest.map_or(0, Epoch::get)),
        };
        if global.json {
            let event = Event::Object {
                owner: &owner,
                simulated: row.is_simulated(),
                object: row,
            };
            view.document(event, output)?;
        } else {
            if !options.figures.csv {
                let (name, mode, path) = (&info.name, info.mode, &info.path);
                let newest = info
                    .newest
                    .map_or("nothing published yet".to_owned(), |epoch| {
                        format!("newest epoch {}", epoch.get())
                    });
                let text = format!(
                    "{name} of {owner}: {}{}, {mode}, {}, {path}, {newest}",
                    info.element, info.shape, info.location
                );
                output.paragraph("", "  ", &text)?;
            }
            output.line(view.figures.head())?;
        }
        Ok(view)
    }

    fn document(&self, event: Event<'_>, output: &mut Output) -> gdr_perf::Result<()> {
        output.json(&Document {
            schema: Schema::first("gdr.watch"),
            content: event,
        })
    }

    fn seen(&mut self, seen: Seen, output: &mut Output) -> gdr_perf::Result<()> {
        if self.is_json {
            return self.document(Event::Epoch(seen), output);
        }
        self.skipped += seen.skipped;
        self.newest = Some(seen);
        let is_due = self.row.is_none_or(|(at, _)| at.elapsed() >= self.interval);
        match is_due {
            true => self.write_row(output),
            false => Ok(()),
        }
    }

    /// Prints a row for what no row covers yet.
    fn write_row(&mut self, output: &mut Output) -> gdr_perf::Result<()> {
        let Some(seen) = self.newest.take() else {
            return Ok(());
        };
        let (since, before) = self.row.unwrap_or(self.first);
        let time = since.elapsed().as_secs_f64().max(1e-9);
        let optional = |value: Option<f64>| value.map_or(Cell::text("-"), Cell::Figure);
        let row = self.figures.row(&[
            Cell::Figure(seen.seconds),
            Cell::Count(seen.epoch),
            Cell::Figure(seen.epoch.saturating_sub(before) as f64 / time),
            Cell::Count(std::mem::take(&mut self.skipped)),
            Cell::Count(seen.bytes),
            optional(seen.get_seconds.map(|seconds| seconds * 1e6)),
            optional(seen.gb_per_s),
        ]);
        self.row = Some((Instant::now(), seen.epoch));
        output.line(row)
    }

    fn end(
        &mut self,
        time: Duration,
        seen: u64,
        skipped: u64,
        output: &mut Output,
    ) -> gdr_perf::Result<()> {
        if self.is_json {
            let seconds = time.as_secs_f64();
            let event = Event::End {
                seconds,
                seen,
                skipped,
            };
            return self.document(event, output);
        }
        self.write_row(output)
    }
}
