//! `gdr get`: the content of an object.

use std::fs::{self, File, OpenOptions};
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use gdr_object::{Epoch, Error, LocalMemory, RemoteObject};
use tempfile::NamedTempFile;

use crate::exit::{EXIT_STATUS, Exit, UsageError};
use crate::global::Global;
use crate::interrupt::{self, FirstSignal};
use crate::object_link::{Expectation, LinkArguments, ObjectAddress};
use crate::object_report::Transferred;
use crate::output::Output;

const EXAMPLES: &str = "\
Examples:
  gdr get 127.0.0.1/weights > weights.bin          the newest epoch
  gdr get node1/weights -o w.bin --key-file key    from another host; prints what was moved
  gdr get node1/weights --shape 1024x768 --element f32 --key-file key | ./consume
  gdr get node1/weights --wait 60 -o w.bin --json  wait until something is published";

/// Bytes that are written at a time.
const CHUNK: u64 = 1 << 20;

/// Write the newest content of an object to standard output or a file
///
/// The bytes are those of one epoch, whole, except of objects in live mode. They arrive before the
/// first one is written: a transfer that fails writes nothing.
#[derive(Debug, clap::Args)]
#[command(after_help = format!("{EXAMPLES}\n\n{EXIT_STATUS}"))]
pub(crate) struct Options {
    /// The object: its owner, a slash, and its name [default port: 4791]
    #[arg(value_name = "HOST[:PORT]/NAME")]
    object: ObjectAddress,

    /// Write to this file, which is replaced once everything has arrived, and print what was moved
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// If nothing has been published, wait for it up to so many seconds
    #[arg(long, value_name = "SECONDS", value_parser = crate::units::count)]
    wait: Option<u32>,

    #[command(flatten)]
    expectation: Expectation,

    #[command(flatten)]
    link: LinkArguments,
}

pub(crate) fn run(global: &Global, options: &Options, output: &mut Output) -> Result<Exit> {
    if options.output.is_none() {
        let usage = |what: &str| Err(UsageError(what.to_owned()).into());
        if global.json {
            return usage("standard output has the content: give -o FILE with --json");
        }
        if io::stdout().is_terminal() {
            return usage("standard output is a terminal: redirect it, or give -o FILE");
        }
    }
    interrupt::flag(FirstSignal::Terminates)?;
    let link = options.link.connect(&options.object.owner)?;
    let object = link.open(options.object.name.clone(), options.link.deadline(0))?;
    options.expectation.check(&object.info())?;
    let memory = link.host_memory(object.info().bytes)?;
    let (epoch, time) = get(options, &object, &memory)?;
    // It may have changed since it was opened.
    let info = object.info();
    options.expectation.check(&info)?;
    let Some(path) = &options.output else {
        write(&memory, info.bytes, |bytes| Ok(output.content(bytes)?))?;
        return Ok(Exit::Fine);
    };
    save(path, &memory, info.bytes)
        .with_context(|| format!("{} cannot be written", path.display()))?;
    let moved = Transferred::new("gdr.get", link.owner().to_string(), &info, epoch, time);
    if global.json {
        output.json(&moved)?;
    } else {
        output.paragraph("", "  ", &moved.sentence("got"))?;
    }
    Ok(Exit::Fine)
}

/// Gets the newest epoch; waits for the first one where that is asked for.
fn get(
    options: &Options,
    object: &RemoteObject,
    memory: &LocalMemory,
) -> Result<(Epoch, Duration)> {
    let attempt = || {
        let began = Instant::now();
        let epoch = object.get_into(memory, options.link.deadline(memory.len()))?;
        Ok((epoch, began.elapsed()))
    };
    match (attempt(), options.wait) {
        (Err(Error::Empty { .. }), Some(seconds)) => {
            let limit = Duration::from_secs(seconds.into());
            object.wait_newer(None, gdr_object::Deadline::after(limit))?;
            Ok(attempt()?)
        }
        (got, _) => Ok(got?),
    }
}

/// Passes the first `len` bytes of `memory` on, part by part.
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

/// Writes a file. A regular one is replaced in one step.
fn save(path: &Path, memory: &LocalMemory, len: u64) -> Result<()> {
    let into = |file: &mut File| write(memory, len, |bytes| Ok(file.write_all(bytes)?));
    if fs::metadata(path).is_ok_and(|it| !it.is_file()) {
        // A pipe or a device.
        return into(&mut OpenOptions::new().write(true).open(path)?);
    }
    let folder = match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    let mut file = NamedTempFile::new_in(folder)?;
    into(file.as_file_mut())?;
    file.persist(path)?;
    Ok(())
}
