//! `gdr doctor`: finds out why GPUDirect RDMA does not work or is slow on a node.

mod show;

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Result;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Subcommand, ValueEnum};
use gdr_doctor::report::text::{Paint, Style, Verbosity};
use gdr_doctor::report::{html, json, junit, markdown, prometheus, text};
use gdr_doctor::{CheckId, Context, Diagnosis, Group, Outcome, Selection, Workload, diagnose};
use gdr_doctor::{Timestamp, distances};
use gdr_node::import::nccl_xml::NcclTopology;
use gdr_node::import::topo_matrix::TopoMatrix;
use gdr_node::{Bdf, DeviceKind};
use owo_colors::OwoColorize;

use crate::command::{self, CommandSpec, Run};
use crate::exit::{Exit, INPUT, InputError, Statuses, UsageError};
use crate::global::Global;
use crate::node_args::{Known, Node, Which};
use crate::output::Output;
use crate::spelling::nearest;

/// Find out why GPUDirect RDMA is off or slow on this node, and how to fix it
///
/// The doctor changes nothing. Run it as root for a full report: other users cannot read the kernel
/// log or PCI registers beyond the first 64 bytes, and these are then reported as unknown.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Options {
    #[command(subcommand)]
    about: Option<About>,

    #[command(flatten)]
    which: Which,

    /// Run only the checks that matter for this use
    #[arg(long = "for", value_name = "USE", value_parser = one_of(Workload::ALL, Workload::name))]
    purpose: Option<Workload>,

    /// Run only these checks
    #[arg(long, value_name = "IDS", value_delimiter = ',')]
    only: Vec<String>,

    /// Skip these checks
    #[arg(long, value_name = "IDS", value_delimiter = ',')]
    skip: Vec<String>,

    /// Run only the checks in these groups
    #[arg(
        long,
        value_name = "GROUPS",
        value_delimiter = ',',
        value_parser = one_of(Group::ALL, Group::name)
    )]
    group: Vec<Group>,

    /// Check only this GPU and NIC, named in either order by name or PCI address
    #[arg(long, value_name = "GPU,NIC", value_parser = PairNames::parse)]
    pair: Option<PairNames>,

    /// Format of the report
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = Format::Text)]
    format: Format,

    /// Show only problems
    #[arg(short, long)]
    quiet: bool,

    /// Which results make the exit status 2: failures; with `warn`, also warnings; with `unknown`, also
    /// unknown results
    #[arg(long, value_enum, value_name = "WHAT", default_value_t = FailOn::Fail)]
    fail_on: FailOn,

    /// Exit with status 2 if no GPU is usable, whatever else is found; for job prologs
    #[arg(long)]
    require_gpu: bool,

    /// Report these checks as failed, marked REHEARSAL, to test an alarm
    #[arg(long, value_name = "IDS", value_delimiter = ',')]
    inject: Vec<String>,
}

/// What is asked of the checks themselves.
#[derive(Debug, Subcommand)]
enum About {
    /// List every check
    List,
    /// Show what a check means, what it reads and how it decides
    Show {
        /// The check
        #[arg(value_name = "ID", required = true)]
        ids: Vec<String>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    Text,
    Json,
    Md,
    Html,
    Junit,
    Prom,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum FailOn {
    Fail,
    Warn,
    Unknown,
}

/// The value of `--pair`.
#[derive(Clone, Debug)]
struct PairNames {
    first: String,
    second: String,
}

impl PairNames {
    fn parse(text: &str) -> Result<Self, String> {
        let (first, second) = text
            .split_once(',')
            .ok_or("give a GPU and a NIC, such as GPU0,mlx5_0")?;
        Ok(Self {
            first: first.trim().to_owned(),
            second: second.trim().to_owned(),
        })
    }
}

/// Parses the name of one of `all`, and lists the names in the help.
fn one_of<T: Copy + Send + Sync + 'static, const N: usize>(
    all: [T; N],
    name: fn(T) -> &'static str,
) -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(all.map(name)).try_map(move |text| {
        let named = all.into_iter().find(|value| name(*value) == text);
        named.ok_or("unknown value")
    })
}

impl CommandSpec for Options {
    const GROUP: command::Group = command::Group::Diagnose;
    const STATUSES: Statuses = &[
        (Exit::Fine, "no problems found"),
        (Exit::Warning, "warnings found"),
        (
            Exit::Failure,
            "failures found, or results that --fail-on selects",
        ),
        (
            Exit::Undecided,
            "not enough is known, or standard output was closed",
        ),
        (Exit::Input, INPUT),
    ];
    const EXAMPLES: &'static str = "\
Examples:
  gdr doctor                       check this node
  gdr doctor --example             see what a report looks like
  gdr doctor --for nccl            check only what matters for NCCL
  gdr doctor --pair GPU0,mlx5_3    check one GPU and one NIC
  gdr doctor --only acs.path -v    run one check, and show its evidence
  gdr doctor -q --require-gpu      run in a job prolog
  gdr doctor --inject acs.path     test an alarm with a marked, artificial failure
  gdr doctor --format html > r.html
  gdr doctor list                  list every check
  gdr doctor show acs.path         show what a check means and how it decides";
    const RUN: Run<Self> = run;
}

fn run(global: &Global, options: &Options, output: &mut Output) -> Result<Exit> {
    match &options.about {
        Some(About::List) => return show::list(global, output),
        Some(About::Show { ids }) => return show::documentation(global, &checks(ids)?, output),
        None => {}
    }
    let selection = Selection::all()
        .only(checks(&options.only)?)
        .skip(checks(&options.skip)?)
        .groups(options.group.iter().copied())
        .rehearse(checks(&options.inject)?);
    let (node, distances) = match options.which.look()? {
        Known::Node(node) => (node, None),
        Known::Devices(inventory) => (Node::of_devices(inventory), None),
        Known::Distances(matrices, nccl, node) => {
            let distances = Distances::of(matrices.all, nccl)?;
            (node, Some(distances))
        }
    };
    let mut context = Context::new(node.source.as_ref(), &node.inventory);
    if let Some(purpose) = options.purpose {
        context = context.for_workload(purpose);
    }
    if let Some(ends) = &options.pair {
        let (gpu, nic) = pair(&node, ends)?;
        context = context.between(gpu, nic);
    }
    // The example does not change.
    if !options.which.is_example() {
        context = context.made(now());
    }
    if let Some(file) = options.which.file() {
        let collected = node.collected.map(Timestamp);
        context = context.captured(gdr_doctor::Capture { file, collected });
    }
    let diagnosis = match &distances {
        None => diagnose(&context, &selection),
        Some(distances) => distances.diagnose(&context, &selection),
    };
    write(global, options, &node, &diagnosis, output)?;
    if let (true, Err(why)) = (options.require_gpu, context.usable_gpus()) {
        // Standard output contains only the report.
        anstream::eprintln!("{} --require-gpu: {why}", "error:".red().bold());
        return Ok(Exit::Failure);
    }
    Ok(exit(diagnosis.outcome(), &diagnosis, options.fail_on))
}

/// Distances from another tool, without a PCI tree.
enum Distances {
    Matrix(TopoMatrix),
    Nccl(NcclTopology),
}

impl Distances {
    /// Returns the only matrix or topology among captures.
    fn of(mut matrices: Vec<TopoMatrix>, mut nccl: Vec<NcclTopology>) -> Result<Self> {
        let (tables, topologies) = (matrices.len(), nccl.len());
        match (matrices.pop(), nccl.pop()) {
            (Some(matrix), None) if tables == 1 => Ok(Self::Matrix(matrix)),
            (None, Some(topology)) if topologies == 1 => Ok(Self::Nccl(topology)),
            (None, None) => Err(InputError(
                "the file contains no distance matrix; pass the output of `nvidia-smi topo -m`"
                    .to_owned(),
            )
            .into()),
            _ => Err(InputError(format!(
                "the file contains {tables} matrices and {topologies} NCCL topologies: put each into a \
                 separate file"
            ))
            .into()),
        }
    }

    fn diagnose(&self, context: &Context<'_>, selection: &Selection) -> Diagnosis {
        match self {
            Self::Nccl(topology) => distances::of_nccl(context, selection, topology),
            Self::Matrix(matrix) => distances::of_matrix(context, selection, matrix),
        }
    }
}

fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    Timestamp(since.map_or(0, |since| since.as_secs()))
}

fn write(
    global: &Global,
    options: &Options,
    node: &Node,
    diagnosis: &Diagnosis,
    output: &mut Output,
) -> Result<()> {
    let format = if global.json {
        Format::Json
    } else {
        options.format
    };
    let report = match format {
        Format::Json => {
            output.document(&json::render(diagnosis)?)?;
            return Ok(());
        }
        Format::Md => markdown::render(diagnosis),
        Format::Html => {
            let title = options.which.title(node);
            let picture = gdr_node::render::svg_titled(&node.inventory, &title);
            html::render(diagnosis, Some(&picture))
        }
        Format::Junit => junit::render(diagnosis),
        Format::Prom => prometheus::render(diagnosis),
        Format::Text => {
            if options.which.is_example() {
                output.line("This is the example node: it does not exist.\n")?;
            }
            let detail = match (options.quiet, global.verbose) {
                (true, _) => Verbosity::Quiet,
                (false, 0) => Verbosity::Normal,
                (false, _) => Verbosity::Full,
            };
            // The stream strips colors where needed.
            let paint = Paint::Ansi;
            output.text(&text::render(diagnosis, &Style { detail, paint }))?;
            return Ok(());
        }
    };
    output.bytes(report.as_bytes())?;
    Ok(())
}

fn exit(outcome: Outcome, diagnosis: &Diagnosis, fail_on: FailOn) -> Exit {
    let counts = diagnosis.counts();
    match fail_on {
        FailOn::Warn if counts.warn > 0 => return Exit::Failure,
        FailOn::Unknown if counts.warn + counts.unknown > 0 => return Exit::Failure,
        _ => {}
    }
    match outcome {
        Outcome::Healthy => Exit::Fine,
        Outcome::Warning => Exit::Warning,
        Outcome::Failure => Exit::Failure,
        Outcome::Undecided => Exit::Undecided,
    }
}

/// Returns the checks of these names.
pub(super) fn checks(names: &[String]) -> Result<Vec<CheckId>> {
    names
        .iter()
        .map(|name| {
            gdr_doctor::find(name)
                .map(|check| check.id)
                .ok_or_else(|| unknown_check(name).into())
        })
        .collect()
}

fn unknown_check(name: &str) -> UsageError {
    let near: Vec<&str> = gdr_doctor::all()
        .map(|check| check.id.0)
        .filter(|id| id.contains(name) || name.contains(id))
        .collect();
    let hint = if !near.is_empty() {
        format!("did you mean {}?", near.join(" or "))
    } else if let Some(near) = nearest(name, gdr_doctor::all().map(|check| check.id.0)) {
        format!("did you mean {near}?")
    } else {
        "`gdr doctor list` shows all of them".to_owned()
    };
    UsageError(format!("`{name}` is not a check: {hint}"))
}

/// Returns the GPU and the NIC of a pair, in whatever order they were named.
fn pair(node: &Node, ends: &PairNames) -> Result<(Bdf, Bdf)> {
    let device = |name: &str| {
        let device = node.inventory.device(name);
        device.map_err(|error| UsageError(format!("--pair: {error}")))
    };
    let (first, second) = (device(&ends.first)?, device(&ends.second)?);
    let (gpu, nic) = match (first.kind, second.kind) {
        (DeviceKind::Gpu, DeviceKind::Nic) => (first, second),
        (DeviceKind::Nic, DeviceKind::Gpu) => (second, first),
        (kind, _) => {
            let both = match kind {
                DeviceKind::Gpu => "GPUs",
                DeviceKind::Nic => "NICs",
            };
            return Err(UsageError(format!(
                "--pair: {first} and {second} are both {both}: give a GPU and a NIC; `gdr topo why \
                 {first} {second}` shows how far apart two devices are"
            ))
            .into());
        }
    };
    let is_nic = node.inventory.nics().iter().any(|it| it.bdf == nic.bdf);
    let function = node.inventory.function(nic.bdf);
    if !is_nic && !function.is_some_and(|function| function.identity.is_network()) {
        return Err(UsageError(format!("--pair: {nic} is not a NIC: give a GPU and a NIC")).into());
    }
    Ok((gpu.bdf, nic.bdf))
}

#[cfg(test)]
mod tests {
    use snapshot::assert_contains;

    use super::*;

    #[test]
    fn a_name_that_is_nearly_right_is_answered_with_the_right_one() {
        let error = checks(&["present".to_owned()]).unwrap_err().to_string();
        assert_contains!(error, "did you mean gpu.present");
        let error = checks(&["xyz".to_owned()]).unwrap_err().to_string();
        assert_contains!(error, "gdr doctor list");
    }
}
