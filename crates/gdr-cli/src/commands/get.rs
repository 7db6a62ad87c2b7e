//! `gdr get`: gets the content of an object.

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use gdr_object::{Deadline, Epoch, Error, LocalMemory, Mode, RemoteObject, TensorSums};
use gdr_process::WholeFile;

use crate::command::{CommandSpec, Group, Run};
use crate::exit::{Exit, Statuses, UsageError};
use crate::global::Global;
use crate::interrupt::{self, FirstSignal};
use crate::object_link::{EpochWait, Expectation, LinkArguments, ObjectAddress};
use crate::object_report::Transferred;
use crate::output::Output;
use crate::units::count;

/// Bytes to write at a time.
const CHUNK: u64 = 1 << 20;

/// Write the newest content of an object to standard output or a file
///
/// Except in live mode, the bytes are from one whole epoch. All of them are received before the first
/// is written, so a failed transfer writes nothing.
///
/// With --follow, gets each newer epoch until Ctrl-C; from a ring, every epoch that is published from
/// now on. A ring with when-full=block waits for this reader.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The object, as OWNER/NAME [default port: 4791]
    #[arg(value_name = "HOST[:PORT]/NAME")]
    object: ObjectAddress,

    /// Write to this file, replacing it once everything has arrived, and print a summary
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Like --output, for an object that holds tensors: fail unless a whole safetensors file arrived.
    /// If its owner is `gdr serve --safetensors`, check the tensors' checksums, and name a wrong one
    #[arg(long, value_name = "FILE", conflicts_with = "output")]
    safetensors: Option<PathBuf>,

    /// If nothing has been published yet, wait up to this many seconds
    #[arg(long, value_name = "SECONDS", value_parser = count, conflicts_with = "follow")]
    wait: Option<u32>,

    /// Keep getting newer epochs; each one replaces the file
    #[arg(long)]
    follow: bool,

    /// Exit after this many epochs
    #[arg(long, value_name = "N", value_parser = count, requires = "follow")]
    count: Option<u32>,

    /// Exit if nothing is published for this many seconds
    #[arg(long, value_name = "SECONDS", value_parser = count, requires = "follow")]
    idle: Option<u32>,

    #[command(flatten)]
    expectation: Expectation,

    #[command(flatten)]
    link: LinkArguments,
}

impl Options {
    /// Returns where the content goes, if not to standard output.
    fn file(&self) -> Option<&Path> {
        self.output.as_deref().or(self.safetensors.as_deref())
    }
}

impl CommandSpec for Options {
    const GROUP: Group = Group::ShareMemory;
    const STATUSES: Statuses = &[
        (Exit::Fine, "every byte was written"),
        (
            Exit::Failure,
            "the object does not exist or is not as expected, or its owner is gone",
        ),
        (
            Exit::Undecided,
            "nothing is published, or the command was interrupted (Ctrl-C, SIGTERM, closed output)",
        ),
    ];
    const EXAMPLES: &'static str = "\
Examples:
  gdr get 127.0.0.1/weights > weights.bin          get the newest epoch
  gdr get node1/weights -o w.bin --key-file key    get it from another host, and print a summary
  gdr get node1/weights --shape 1024x768 --element f32 --key-file key | ./consume
  gdr get node1/weights --wait 60 -o w.bin --json  wait until something is published
  gdr get node1/frames --follow | ./consume        get every frame from now on
  gdr get node1/weights --follow -o w.bin          keep the file up to date
  gdr get node1/model --safetensors m.safetensors  get the tensors of `gdr serve --safetensors`";
    const RUN: Run<Self> = run;
}

fn run(global: &Global, options: &Options, output: &mut Output) -> Result<Exit> {
    if options.file().is_none() {
        let usage = |what: &str| Err(UsageError(what.to_owned()).into());
        if global.json {
            return usage("--json needs -o FILE, because the content goes to standard output");
        }
        if io::stdout().is_terminal() {
            return usage("standard output is a terminal: redirect it, or use -o FILE");
        }
    }
    let signal = match options.follow {
        true => FirstSignal::RequestsStop,
        false => FirstSignal::Terminates,
    };
    options.link.prepare();
    let stop = interrupt::flag(signal)?;
    if global.json && options.follow {
        output.documents_in_lines();
    }
    let link = options.link.connect(&options.object.owner)?;
    let object = link.open(options.object.name.clone(), options.link.deadline(0))?;
    options.expectation.check(&object.info())?;
    let sums = match options.safetensors {
        Some(_) => object.tensor_sums(options.link.deadline(0))?,
        None => None,
    };
    let got = Got {
        options,
        object: &object,
        memory: link.host_memory(object.info().bytes)?,
        sums,
        is_json: global.json,
    };
    match options.follow {
        true => got.follow(&stop, output)?,
        false => {
            let (epoch, time) = got.newest()?;
            got.deliver(epoch, time, None, output)?;
        }
    }
    Ok(Exit::Fine)
}

/// An object to get, and the destination of its content.
struct Got<'a> {
    options: &'a Options,
    object: &'a RemoteObject,
    memory: LocalMemory,
    /// Checksums of the tensors, if the owner offers them.
    sums: Option<TensorSums>,
    is_json: bool,
}

impl Got<'_> {
    /// Gets the newest epoch. Waits for the first one if requested.
    fn newest(&self) -> Result<(Epoch, Duration)> {
        let attempt = || {
            let began = Instant::now();
            let got = (self.object).get_into(&self.memory, self.limit());
            Ok((self.name_damaged(got)?, began.elapsed()))
        };
        match (attempt(), self.options.wait) {
            (Err(Error::Empty { .. }), Some(seconds)) => {
                let limit = Duration::from_secs(seconds.into());
                (self.object).wait_newer(None, Deadline::after(limit))?;
                Ok(attempt()?)
            }
            (got, _) => Ok(got?),
        }
    }

    fn limit(&self) -> Deadline {
        self.options.link.deadline(self.memory.len())
    }

    /// Names the damaged tensor if an epoch is damaged.
    fn name_damaged(&self, got: Result<Epoch, Error>) -> Result<Epoch, Error> {
        if let (Err(Error::Damaged { epoch, .. }), Some(_)) = (&got, &self.sums) {
            self.check_tensors(*epoch)?;
        }
        got
    }

    /// Fails unless the content is a safetensors file with the tensors that its owner read.
    fn check_tensors(&self, epoch: Epoch) -> Result<(), Error> {
        let sums = self.sums.as_ref();
        let checked = (self.object).check_tensors(epoch, &self.memory, sums, self.limit());
        checked.map(drop)
    }

    /// Gets each epoch until a signal arrives.
    fn follow(&self, stop: &AtomicBool, output: &mut Output) -> Result<()> {
        let (options, object) = (self.options, self.object);
        let wait = EpochWait {
            object,
            link: &options.link,
            idle: options.idle,
            stop,
        };
        // Every epoch of a ring, otherwise the newest one.
        let mut follower = match object.info().mode {
            Mode::Ring { .. } => Some(object.follow(self.limit())?),
            _ => None,
        };
        let mut last = follower.as_ref().and_then(|it| it.last());
        let mut got = 0;
        while wait.newer(last)?.is_some() {
            let began = Instant::now();
            let attempt = match &mut follower {
                Some(follower) => {
                    (follower.next_into(&self.memory, self.limit())).map(|it| it.epoch)
                }
                None => object.get_into(&self.memory, self.limit()),
            };
            let epoch = self.name_damaged(attempt)?;
            let before = last.map_or(epoch.get() - 1, Epoch::get);
            let missed = epoch.get().saturating_sub(before + 1);
            self.deliver(epoch, began.elapsed(), Some(missed), output)?;
            last = Some(epoch);
            got += 1;
            if options.count.is_some_and(|most| got >= most) {
                break;
            }
        }
        Ok(())
    }

    /// Writes what was got. `missed` are the epochs since the one before.
    fn deliver(
        &self,
        epoch: Epoch,
        time: Duration,
        missed: Option<u64>,
        output: &mut Output,
    ) -> Result<()> {
        // It may have changed since it was opened.
        let info = self.object.info();
        self.options.expectation.check(&info)?;
        let Some(path) = self.options.file() else {
            write(&self.memory, info.bytes, |bytes| Ok(output.content(bytes)?))?;
            return Ok(output.flush_content()?);
        };
        if self.options.safetensors.is_some() {
            self.check_tensors(epoch)?;
        }
        save(path, &self.memory, info.bytes)
            .with_context(|| format!("{} cannot be written", path.display()))?;
        let owner = self.object.handle().owner().to_string();
        let moved = Transferred::new("gdr.get", owner, &info, epoch, time);
        let moved = match missed {
            Some(missed) => moved.missed(missed),
            None => moved,
        };
        match self.is_json {
            true => output.json(&moved)?,
            false => output.paragraph("", "  ", &moved.sentence("got"))?,
        }
        Ok(())
    }
}

/// Passes on the first `len` bytes of `memory`, piece by piece.
fn write(memory: &LocalMemory, len: u64, mut to: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
    let mut part = vec![0; CHUNK.min(len) as usize];
    let mut done = 0;
    while done < len {
        let part = &mut part[..CHUNK.min(len - done) as usize];
        memory.buffer().read_at(done, part)?;
        to(part)?;
        done += part.len() as u64;
    }
    Ok(())
}

/// Writes a file. A regular file is replaced atomically, and keeps its permissions and its owner.
fn save(path: &Path, memory: &LocalMemory, len: u64) -> Result<()> {
    let mut file = WholeFile::replacing(path)?;
    write(memory, len, |bytes| Ok(file.write_all(bytes)?))?;
    Ok(file.finish()?)
}
