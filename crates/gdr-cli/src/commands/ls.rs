//! `gdr ls`: lists the objects of an owner.

use std::collections::BTreeMap;
use std::str::FromStr;

use anyhow::Result;
use gdr_object::TensorEntry;
use gdr_perf::loopback::HostPort;
use gdr_perf::report::Schema;
use gdr_render::Table;
use serde::Serialize;

use super::layout::Layout;
use crate::command::{CommandSpec, Group, Run};
use crate::exit::{Exit, STOPPED, Statuses};
use crate::global::Global;
use crate::interrupt::{self, FirstSignal};
use crate::object_link::{LinkArguments, ObjectAddress};
use crate::object_report::{ObjectRow, table};
use crate::output::Output;

/// List the objects that a process offers, or the tensors in one of them
///
/// The owner is `gdr serve` or a program that uses the gdr-object library. Objects that this host may
/// not read are not listed.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The owner: name or address, and TCP port [default port: 4791]; with the name of an object, that
    #[arg(value_name = "HOST[:PORT][/NAME]")]
    what: Listed,

    #[command(flatten)]
    layout: Layout,

    #[command(flatten)]
    link: LinkArguments,
}

/// What is listed.
#[derive(Clone, Debug)]
enum Listed {
    Objects(HostPort),
    Tensors(ObjectAddress),
}

impl FromStr for Listed {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.contains('/') {
            return text.parse().map(Self::Tensors);
        }
        let owner = text.parse::<HostPort>();
        owner.map(Self::Objects).map_err(|error| error.to_string())
    }
}

/// `gdr.ls-tensors`.
#[derive(Serialize)]
struct TensorListing<'a> {
    #[serde(flatten)]
    schema: Schema,
    owner: String,
    object: ObjectRow,
    attributes: &'a BTreeMap<String, String>,
    tensors: Vec<TensorRow<'a>>,
}

/// A tensor in a document.
#[derive(Serialize)]
struct TensorRow<'a> {
    name: &'a str,
    /// Element type, as safetensors names it.
    dtype: String,
    shape: &'a [u64],
    /// The offset of its first byte in the object.
    offset: u64,
    bytes: u64,
}

impl<'a> From<&'a TensorEntry> for TensorRow<'a> {
    fn from(tensor: &'a TensorEntry) -> Self {
        Self {
            name: &tensor.name,
            dtype: tensor.dtype.to_string(),
            shape: &tensor.shape,
            offset: tensor.offset,
            bytes: tensor.bytes,
        }
    }
}

/// `gdr.ls`.
#[derive(Serialize)]
struct Listing {
    #[serde(flatten)]
    schema: Schema,
    owner: String,
    /// The run of the owner.
    generation: String,
    simulated: bool,
    objects: Vec<ObjectRow>,
}

impl CommandSpec for Options {
    const GROUP: Group = Group::ShareMemory;
    const STATUSES: Statuses = &[
        (Exit::Fine, "listed"),
        (Exit::Failure, "the owner could not be reached, or is gone"),
        (Exit::Undecided, STOPPED),
    ];
    const EXAMPLES: &'static str = "\
Examples:
  gdr ls 127.0.0.1                      list the objects of an owner on this machine
  gdr ls node1:7000 --key-file key      list those on another host
  gdr ls node1/model --key-file key     list the tensors in an object
  gdr ls node1 --key-file key --json | jq -r '.objects[].name'";
    const RUN: Run<Self> = run;
}

fn run(global: &Global, options: &Options, output: &mut Output) -> Result<Exit> {
    options.layout.check(global)?;
    options.link.prepare();
    interrupt::flag(FirstSignal::Terminates)?;
    match &options.what {
        Listed::Objects(owner) => list_objects(global, options, owner, output)?,
        Listed::Tensors(object) => list_tensors(global, options, object, output)?,
    }
    Ok(Exit::Fine)
}

fn list_objects(
    global: &Global,
    options: &Options,
    owner: &HostPort,
    output: &mut Output,
) -> Result<()> {
    let link = options.link.connect(owner)?;
    let objects = link.list(options.link.deadline(0))?;
    if global.json {
        let rows: Vec<_> = objects.iter().map(ObjectRow::from).collect();
        output.json(&Listing {
            schema: Schema::first("gdr.ls"),
            owner: link.owner().to_string(),
            generation: link.generation(options.link.deadline(0))?.to_string(),
            simulated: rows.iter().any(ObjectRow::is_simulated),
            objects: rows,
        })?;
    } else {
        options.layout.show(&table(&objects), output)?;
    }
    Ok(())
}

fn list_tensors(
    global: &Global,
    options: &Options,
    address: &ObjectAddress,
    output: &mut Output,
) -> Result<()> {
    let link = options.link.connect(&address.owner)?;
    let object = link.open(address.name.clone(), options.link.deadline(0))?;
    let index = object.tensors(options.link.deadline(0))?;
    if global.json {
        return Ok(output.json(&TensorListing {
            schema: Schema::first("gdr.ls-tensors"),
            owner: link.owner().to_string(),
            object: ObjectRow::from(&object.info()),
            attributes: index.attributes(),
            tensors: index.tensors().iter().map(TensorRow::from).collect(),
        })?);
    }
    let mut table = Table::new(&["tensor", "type", "shape", "bytes"]).keep_whole(&[3]);
    for tensor in index.tensors() {
        let shape: Vec<_> = tensor.shape.iter().map(u64::to_string).collect();
        table.row(vec![
            tensor.name.clone(),
            tensor.dtype.to_string(),
            format!("[{}]", shape.join(", ")),
            tensor.bytes.to_string(),
        ]);
    }
    options.layout.show(&table, output)
}
