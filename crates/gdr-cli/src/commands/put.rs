//! `gdr put`: publishes to an object of another process.

use std::time::Instant;

use anyhow::Result;

use crate::command::{CommandSpec, Group, Run};
use crate::exit::{Exit, STOPPED, Statuses};
use crate::global::Global;
use crate::interrupt::{self, FirstSignal};
use crate::object_content::ContentReader;
use crate::object_link::{Expectation, LinkArguments, ObjectAddress};
use crate::object_report::Transferred;
use crate::object_spec::ContentSource;
use crate::output::Output;

/// Publish a file as the next epoch of another process's object
///
/// The file must have exactly as many bytes as the object. Readers see the epoch once all of it has
/// arrived; if the command fails, nothing is published. The owner has to permit it: with `gdr serve`,
/// for objects with access=read-write.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The object, as OWNER/NAME [default port: 4791]
    #[arg(value_name = "HOST[:PORT]/NAME")]
    object: ObjectAddress,

    /// The content; - is standard input
    #[arg(value_name = "FILE", default_value = "-", value_parser = source)]
    file: ContentSource,

    #[command(flatten)]
    expectation: Expectation,

    #[command(flatten)]
    link: LinkArguments,
}

fn source(text: &str) -> Result<ContentSource, std::convert::Infallible> {
    Ok(ContentSource::new(text))
}

impl CommandSpec for Options {
    const GROUP: Group = Group::ShareMemory;
    const STATUSES: Statuses = &[
        (Exit::Fine, "published"),
        (
            Exit::Failure,
            "the owner does not permit it, the sizes differ, or the owner is gone",
        ),
        (Exit::Undecided, STOPPED),
    ];
    const EXAMPLES: &'static str = "\
Examples:
  gdr put 127.0.0.1/weights weights.bin            publish a file as the next epoch
  ./produce | gdr put node1/frame --key-file key   publish what a program writes
  gdr put node1/weights w.bin --element f32 --shape 1024x768 --key-file key --json";
    const RUN: Run<Self> = run;
}

fn run(global: &Global, options: &Options, output: &mut Output) -> Result<Exit> {
    options.link.prepare();
    interrupt::flag(FirstSignal::Terminates)?;
    let mut content = ContentReader::open(&options.file)?;
    let link = options.link.connect(&options.object.owner)?;
    let object = link.open(options.object.name.clone(), options.link.deadline(0))?;
    let info = object.info();
    options.expectation.check(&info)?;
    let memory = link.host_memory(info.bytes)?;
    content.read(info.bytes, |at, part| {
        Ok(memory.buffer().write_at(at, part)?)
    })?;
    content.end(info.bytes)?;
    let began = Instant::now();
    let epoch = object.put_from(&memory, options.link.deadline(info.bytes))?;
    let owner = link.owner().to_string();
    let moved = Transferred::new("gdr.put", owner, &object.info(), epoch, began.elapsed());
    if global.json {
        output.json(&moved)?;
    } else {
        output.paragraph("", "  ", &moved.sentence("put"))?;
    }
    Ok(Exit::Fine)
}
