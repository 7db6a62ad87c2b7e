//! `gdr doctor`: why GPUDirect RDMA is off or slow on a node.

mod show;

use anyhow::Result;
use clap::builder::PossibleValue;
use clap::{Subcommand, ValueEnum};
use gdr_doctor::report::text::{Detail, Paint, Style};
use gdr_doctor::report::{html, json, junit, markdown, prometheus, text};
use gdr_doctor::{CheckId, Context, Diagnosis, Group, Outcome, Purpose, Selection, diagnose};
use gdr_node::Bdf;

use crate::args::Global;
use crate::exit::{EXIT_STATUS, Exit, UsageError};
use crate::node::{Node, Which};
use crate::output::Output;

const EXAMPLES: &str = "\
Examples:
  gdr doctor                       judge this node
  gdr doctor --example             see what a report looks like
  gdr doctor --for nccl            only what matters to NCCL
  gdr doctor --pair GPU0,mlx5_3    only one GPU and one NIC
  gdr doctor --only acs.path -v    one check, with its evidence
  gdr doctor --format html > r.html
  gdr doctor list                  every check
  gdr doctor show acs.path         what a check means and how it judges";

/// Say why GPUDirect RDMA is off or slow on this node, and how to fix it
///
/// Reads and changes nothing. Root sees more: without it, PCI registers beyond the first 64 bytes
/// and the kernel log are unknown, and said to be.
#[derive(Debug, clap::Args)]
#[command(
    after_help = format!("{EXAMPLES}\n\n{EXIT_STATUS}"),
    args_conflicts_with_subcommands = true
)]
pub(crate) struct Options {
    #[command(subcommand)]
    about: Option<About>,

    #[command(flatten)]
    which: Which,

    /// Judge for this use only
    #[arg(long = "for", value_name = "USE")]
    purpose: Option<Use>,

    /// Run only these checks
    #[arg(long, value_name = "IDS", value_delimiter = ',')]
    only: Vec<String>,

    /// Leave these checks out
    #[arg(long, value_name = "IDS", value_delimiter = ',')]
    skip: Vec<String>,

    /// Run only the checks of these groups
    #[arg(long, value_name = "GROUPS", value_delimiter = ',')]
    group: Vec<OfGroup>,

    /// Judge only this GPU with this NIC, by name or PCI address
    #[arg(long, value_name = "GPU,NIC", value_parser = Ends::parse)]
    pair: Option<Ends>,

    /// How to write the report
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = Format::Text)]
    format: Format,

    /// Say only what is wrong
    #[arg(short, long)]
    quiet: bool,

    /// What counts as failure for the exit status: at `warn`, a warning ends with 2; at `unknown`,
    /// what cannot be told does too
    #[arg(long, value_enum, value_name = "WHAT", default_value_t = FailOn::Fail)]
    fail_on: FailOn,
}

/// What is asked of the checks themselves.
#[derive(Debug, Subcommand)]
enum About {
    /// List every check
    List,
    /// Say what a check means, what it reads and how it judges
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

/// The two ends of a path, as they were named.
#[derive(Clone, Debug)]
struct Ends {
    gpu: String,
    nic: String,
}

impl Ends {
    fn parse(text: &str) -> Result<Self, String> {
        let (gpu, nic) = text
            .split_once(',')
            .ok_or("a GPU and a NIC, such as GPU0,mlx5_0")?;
        Ok(Self {
            gpu: gpu.trim().to_owned(),
            nic: nic.trim().to_owned(),
        })
    }
}

/// A purpose on the command line.
#[derive(Clone, Copy, Debug)]
struct Use(Purpose);

impl ValueEnum for Use {
    fn value_variants<'a>() -> &'a [Self] {
        const ALL: [Use; Purpose::ALL.len()] = {
            let mut all = [Use(Purpose::Nccl); Purpose::ALL.len()];
            let mut at = 0;
            while at < all.len() {
                all[at] = Use(Purpose::ALL[at]);
                at += 1;
            }
            all
        };
        &ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(self.0.name()))
    }
}

/// A group on the command line.
#[derive(Clone, Copy, Debug)]
struct OfGroup(Group);

impl ValueEnum for OfGroup {
    fn value_variants<'a>() -> &'a [Self] {
        const ALL: [OfGroup; Group::ALL.len()] = {
            let mut all = [OfGroup(Group::Modules); Group::ALL.len()];
            let mut at = 0;
            while at < all.len() {
                all[at] = OfGroup(Group::ALL[at]);
                at += 1;
            }
            all
        };
        &ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(self.0.name()))
    }
}

pub(crate) fn run(global: &Global, options: &Options, output: &mut Output) -> Result<Exit> {
    match &options.about {
        Some(About::List) => return show::list(global, output),
        Some(About::Show { ids }) => return show::documentation(global, &checks(ids)?, output),
        None => {}
    }
    let selection = Selection::all()
        .only(checks(&options.only)?)
        .skip(checks(&options.skip)?)
        .groups(options.group.iter().map(|group| group.0));
    let node = options.which.open()?;
    let mut context = Context::new(node.source.as_ref(), &node.inventory);
    if let Some(purpose) = options.purpose {
        context = context.wanted_for(purpose.0);
    }
    if let Some(Ends { gpu, nic }) = &options.pair {
        context = context.between(gpu_named(&node, gpu)?, nic_named(&node, nic)?);
    }
    let diagnosis = diagnose(&context, &selection);
    write(global, options, &node, &diagnosis, output)?;
    Ok(exit(diagnosis.outcome(), &diagnosis, options.fail_on))
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
        Format::Json => json::render(diagnosis)?,
        Format::Md => markdown::render(diagnosis),
        Format::Html => html::render(diagnosis, Some(&gdr_node::render::svg(&node.inventory))),
        Format::Junit => junit::render(diagnosis),
        Format::Prom => prometheus::render(diagnosis),
        Format::Text => {
            if options.which.is_example() {
                output.line("This is the example node; nothing of it is real.\n")?;
            }
            let detail = match (options.quiet, global.verbose) {
                (true, _) => Detail::Quiet,
                (false, 0) => Detail::Normal,
                (false, _) => Detail::Full,
            };
            // The stream takes colour out where it does not belong.
            let paint = Paint::Ansi;
            text::render(diagnosis, &Style { detail, paint })
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

/// The checks of these names.
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
    let hint = if near.is_empty() {
        "`gdr doctor list` names them all".to_owned()
    } else {
        format!("did you mean {}?", near.join(" or "))
    };
    UsageError(format!("there is no check `{name}`: {hint}"))
}

fn gpu_named(node: &Node, name: &str) -> Result<Bdf> {
    let by_address = name.parse::<Bdf>().ok();
    let gpus = &node.inventory.gpus;
    gpus.iter()
        .find(|gpu| Some(gpu.bdf) == by_address || gpu.index.to_string().eq_ignore_ascii_case(name))
        .map(|gpu| gpu.bdf)
        .ok_or_else(|| {
            let known: Vec<String> = gpus.iter().map(|gpu| gpu.index.to_string()).collect();
            UsageError(format!("there is no GPU `{name}`: {}", these(&known))).into()
        })
}

fn nic_named(node: &Node, name: &str) -> Result<Bdf> {
    let by_address = name.parse::<Bdf>().ok();
    node.inventory
        .rdma_functions()
        .find(|(device, bdf)| Some(*bdf) == by_address || device.name == name)
        .map(|(_, bdf)| bdf)
        .or_else(|| by_address.filter(|bdf| node.inventory.function(*bdf).is_some()))
        .ok_or_else(|| {
            let known: Vec<String> = (node.inventory.rdma_functions())
                .map(|(device, _)| device.name.clone())
                .collect();
            UsageError(format!("there is no NIC `{name}`: {}", these(&known))).into()
        })
}

fn these(known: &[String]) -> String {
    if known.is_empty() {
        "the node shows none".to_owned()
    } else {
        format!("there are {}", known.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_nearly_right_is_answered_with_the_right_one() {
        let error = checks(&["present".to_owned()]).unwrap_err().to_string();
        assert!(error.contains("did you mean gpu.present"), "{error}");
        let error = checks(&["xyz".to_owned()]).unwrap_err().to_string();
        assert!(error.contains("gdr doctor list"), "{error}");
    }
}
