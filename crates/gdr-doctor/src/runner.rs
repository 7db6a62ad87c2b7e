//! Runs a check: the loops over subjects, and the findings about absent ones.

use gdr_node::pci::Function;
use gdr_node::{Absence, DatumExt, GpuDevice};

use crate::check::Check;
use crate::checks::kernel_log::rule::{self, Rule};
use crate::checks::ports::{Port, Which};
use crate::checks::simple_value::SimpleValue;
use crate::context::{Context, Nic, Pair};
use crate::finding::{Finding, Subject};
pub(crate) use crate::judgement::{Judgement, Known, Unjudged};

/// The subjects of a check, and the function that judges one. A finding without a subject gets the
/// call's.
#[derive(Clone, Copy)]
pub(crate) enum Scope {
    /// The node as a whole.
    Node(fn(&Context<'_>) -> Judgement),
    /// Each GPU.
    Gpu(fn(&Context<'_>, &GpuDevice, &Function) -> Judgement),
    /// Each RDMA NIC.
    Nic(fn(&Context<'_>, &Nic<'_>, &Function) -> Judgement),
    /// Each GPU and each RDMA NIC.
    Function(fn(&Context<'_>, &Function) -> Judgement),
    /// Each port of an RDMA device in this selection.
    Port(Which, fn(&Context<'_>, &Port<'_>) -> Judgement),
    /// The value of one file.
    Value(&'static SimpleValue),
    /// Messages of the kernel log.
    Log(&'static Rule),
    /// Subjects that are judged together, such as ports of one board.
    Several(fn(&Context<'_>) -> Result<Vec<Finding>, Unjudged>),
}

impl Check {
    /// Runs the check on a node; returns at least one finding.
    pub fn run(&self, context: &Context<'_>) -> Vec<Finding> {
        let mut findings = match self.judge(context) {
            Ok(findings) => findings,
            Err(unjudged) => unjudged.finding(Subject::Node).into_iter().collect(),
        };
        if let (true, Some(why)) = (findings.is_empty(), self.otherwise) {
            return vec![Finding::skip(why)];
        }
        if let Some(together) = self.together {
            merge(&mut findings, together);
        }
        findings
    }

    fn judge(&self, context: &Context<'_>) -> Result<Vec<Finding>, Unjudged> {
        Ok(match self.scope {
            Scope::Node(judge) => vec![judge(context)?],
            Scope::Several(judge) => judge(context)?,
            Scope::Value(value) => vec![value.judge(context)?],
            Scope::Log(rule) => rule::judge(context, rule)?,
            Scope::Gpu(judge) => each(gpus(context)?, |(gpu, function)| {
                (Subject::gpu(gpu), judge(context, gpu, function))
            }),
            Scope::Nic(judge) => each(nics(context)?, |(nic, function)| {
                (Subject::nic(nic), judge(context, nic, function))
            }),
            Scope::Function(judge) => each(functions(context)?, |(subject, function)| {
                (subject, judge(context, function))
            }),
            Scope::Port(which, judge) => {
                let ports = crate::checks::ports::ports(context)?;
                let found = each(ports.iter().filter(|port| which.has(port)), |port| {
                    (port.subject(), judge(context, port))
                });
                if found.is_empty() {
                    return Err(Unjudged::skip(which.none()));
                }
                found
            }
        })
    }
}

/// Returns the findings about each subject.
pub(crate) fn each<T>(
    subjects: impl IntoIterator<Item = T>,
    judge: impl Fn(T) -> (Subject, Judgement),
) -> Vec<Finding> {
    let findings = subjects.into_iter().filter_map(|it| {
        let (subject, judgement) = judge(it);
        match judgement {
            Ok(finding) if finding.subject == Subject::Node => Some(finding.about(subject)),
            Ok(finding) => Some(finding),
            Err(unjudged) => unjudged.finding(subject),
        }
    });
    findings.collect()
}

/// If all findings are equal, replaces them by one about the node.
pub(crate) fn merge(findings: &mut Vec<Finding>, together: &str) {
    let mut two = findings.windows(2);
    let alike = |a: &Finding, b: &Finding| (a.verdict, &a.summary) == (b.verdict, &b.summary);
    if findings.len() > 1 && two.all(|two| alike(&two[0], &two[1])) {
        findings.truncate(1);
        findings[0].subject = Subject::Node;
        findings[0].summary = format!("{together}: {}", findings[0].summary);
    }
}

/// Refuses a judgement if the list of PCI functions is not known.
fn every_function(context: &Context<'_>) -> Result<(), Unjudged> {
    let tree = context.inventory.tree.by_ref();
    let what = match tree {
        Err(Absence::Missing) => "sysfs is not mounted at /sys: the list of PCI functions",
        _ => "the list of PCI functions",
    };
    tree.known(what).map(|_| ())
}

/// Returns the reason why a check has no GPU to judge.
pub(crate) fn no_gpu(context: &Context<'_>) -> Unjudged {
    let known = || {
        every_function(context)?;
        context.every_gpu().known("which PCI functions are GPUs")
    };
    known().map_or_else(|why| why, |()| Unjudged::skip("there is no NVIDIA GPU"))
}

/// Returns the reason why a check has no NIC to judge.
pub(crate) fn no_nic(context: &Context<'_>) -> Unjudged {
    let rdma = &context.inventory.rdma;
    let known = || {
        every_function(context)?;
        if rdma.is_unknown() {
            rdma.by_ref().known("the list of RDMA devices")?;
        }
        let every = context.every_nic();
        every.known("which PCI functions are RDMA NICs")
    };
    let none = "there is no RDMA NIC on the PCI bus";
    known().map_or_else(|why| why, |()| Unjudged::skip(none))
}

/// Returns every GPU with its function.
pub(crate) fn gpus<'a>(
    context: &Context<'a>,
) -> Result<Vec<(&'a GpuDevice, &'a Function)>, Unjudged> {
    let gpus: Vec<_> = (context.gpus())
        .filter_map(|gpu| Some((gpu, context.function(gpu.bdf)?)))
        .collect();
    if gpus.is_empty() {
        return Err(no_gpu(context));
    }
    Ok(gpus)
}

/// Returns every NIC with its function.
pub(crate) fn nics<'b, 'a>(
    context: &'b Context<'a>,
) -> Result<Vec<(&'b Nic<'a>, &'a Function)>, Unjudged> {
    let nics: Vec<_> = (context.nics().iter())
        .filter_map(|nic| Some((nic, context.function(nic.bdf)?)))
        .collect();
    if nics.is_empty() {
        return Err(no_nic(context));
    }
    Ok(nics)
}

/// Returns every GPU, then every NIC, each with its subject.
pub(crate) fn functions<'a>(
    context: &Context<'a>,
) -> Result<Vec<(Subject, &'a Function)>, Unjudged> {
    let gpus = gpus(context);
    let nics = nics(context);
    let of_gpus = (gpus.iter().flatten()).map(|(gpu, function)| (Subject::gpu(gpu), *function));
    let of_nics = (nics.iter().flatten()).map(|(nic, function)| (Subject::nic(nic), *function));
    let all: Vec<_> = of_gpus.chain(of_nics).collect();
    match (nics.err(), gpus.err()) {
        // An unknown list of NICs is reported before a missing GPU.
        (Some(why), Some(_)) => Err(why),
        _ => Ok(all),
    }
}

/// Returns the pairs of GPU and NIC that a job would use.
pub(crate) fn pairs<'a, 'b>(context: &'b Context<'a>) -> Result<Vec<&'b Pair<'a>>, Unjudged> {
    let pairs = context.nearest_pairs();
    if !pairs.is_empty() {
        return Ok(pairs);
    }
    Err(if context.gpus().next().is_none() {
        no_gpu(context)
    } else {
        no_nic(context)
    })
}
