//! Rules about messages: their expressions, their rate and their meaning.

use std::collections::BTreeSet;

use gdr_node::kernel_log::{Record, records};
use gdr_node::{Bdf, virtual_path};
use regex::{Captures, Regex};

use crate::checks::pcie::devices::is_left_out;
use crate::context::Context;
use crate::finding::{Finding, Subject, Verdict};
use crate::runner::{Known, Unjudged};

/// The most findings that one rule gives.
const MOST_FINDINGS: usize = 64;
/// The longest line that is shown, in characters.
const LONGEST_LINE: usize = 300;

/// A kind of message. The group `bdf` of its expression, if it has one, is the address of the
/// function that the message is about.
pub(crate) struct Pattern {
    pub(super) expression: &'static str,
    /// The finding for a message, without evidence.
    pub(super) why: fn(&Captures<'_>) -> Finding,
}

/// The rate of events from which the verdict is more than info.
#[derive(Clone, Copy)]
pub(crate) struct Rate {
    /// The number of events ...
    pub(super) events: usize,
    /// ... within this time in seconds.
    pub(super) seconds: f64,
}

impl Rate {
    /// One event.
    pub(super) const ONCE: Self = Self {
        events: 1,
        seconds: 0.0,
    };
}

/// A rule about messages.
pub(crate) struct Rule {
    /// The first that matches a message counts.
    pub(super) patterns: &'static [Pattern],
    pub(super) rate: Rate,
    /// Messages of one kind within this time in seconds are one event.
    pub(super) window: f64,
    /// Whether messages about other functions than GPUs, NICs and the bridges above them are info
    /// only.
    pub(super) on_path_only: bool,
    /// The reason why the messages no longer matter, if there is one.
    pub(super) unless: fn(&Context<'_>) -> Option<&'static str>,
}

impl Rule {
    /// What most rules have in common, for struct update.
    pub(super) const DEFAULT: Self = Self {
        patterns: &[],
        rate: Rate::ONCE,
        window: 60.0,
        on_path_only: false,
        unless: |_| None,
    };
}

/// Messages of one kind about one subject.
struct Kind<'a> {
    subject: Subject,
    meaning: Finding,
    first: Record<'a>,
    last: Record<'a>,
    /// The number of messages, and the time of each event.
    messages: usize,
    events: Vec<Option<f64>>,
}

/// Returns the findings of a rule in the kernel log.
pub(crate) fn judge(context: &Context<'_>, rule: &Rule) -> Result<Vec<Finding>, Unjudged> {
    let log = context
        .text(virtual_path::KERNEL_LOG)
        .known("the kernel log")?;
    let expressions: Vec<(Regex, &Pattern)> = rule
        .patterns
        .iter()
        .filter_map(|pattern| Some((Regex::new(pattern.expression).ok()?, pattern)))
        .collect();
    let way = rule.on_path_only.then(|| on_path(context));
    let mut kinds: Vec<Kind<'_>> = Vec::new();
    for message in records(&log) {
        let found = expressions
            .iter()
            .find_map(|(expression, pattern)| Some((expression.captures(&message.text)?, pattern)));
        let Some((captures, pattern)) = found else {
            continue;
        };
        let bdf = (captures.name("bdf"))
            .or_else(|| captures.name("bdf2"))
            .and_then(|address| address_of(address.as_str()));
        if bdf.is_some_and(|bdf| is_left_out(context, bdf)) {
            continue;
        }
        let subject = bdf.map_or(Subject::Node, |bdf| subject(context, bdf));
        let mut meaning = (pattern.why)(&captures);
        let is_elsewhere = |bdf: &Bdf| way.as_ref().is_some_and(|way| !way.contains(bdf));
        // A log alone does not tell the devices; the driver that speaks shows what it is.
        let is_known = context.inventory.tree.is_ok() || !is_of_driver(&message.text);
        if is_known && bdf.as_ref().is_some_and(is_elsewhere) {
            meaning.verdict = meaning.verdict.min(Verdict::Info);
        }
        let known = kinds
            .iter()
            .position(|kind| kind.subject == subject && kind.meaning.summary == meaning.summary);
        if let Some(known) = known {
            kinds[known].add(message, rule.window);
        } else if kinds.len() < MOST_FINDINGS {
            kinds.push(Kind {
                subject,
                meaning,
                events: vec![message.seconds],
                messages: 1,
                first: message.clone(),
                last: message,
            });
        }
    }
    if kinds.is_empty() {
        return Ok(vec![Finding::pass("the kernel has logged no such message")]);
    }
    let unless = (rule.unless)(context);
    let kinds = kinds.into_iter();
    Ok(kinds
        .map(|kind| kind.into_finding(rule.rate, unless))
        .collect())
}

impl<'a> Kind<'a> {
    fn add(&mut self, message: Record<'a>, window: f64) {
        self.messages += 1;
        let close = match (self.last.seconds, message.seconds) {
            (Some(last), Some(now)) => (0.0..window).contains(&(now - last)),
            _ => false,
        };
        if !close {
            self.events.push(message.seconds);
        }
        self.last = message;
    }

    /// Returns whether the events reach a rate. Events without a time may.
    fn reaches(&self, rate: Rate) -> bool {
        if self.events.len() < rate.events {
            return false;
        }
        rate.events <= 1
            || self.events.windows(rate.events).any(|events| {
                match (events[0], events[rate.events - 1]) {
                    (Some(first), Some(last)) => last - first <= rate.seconds,
                    _ => true,
                }
            })
    }

    fn into_finding(self, rate: Rate, unless: Option<&str>) -> Finding {
        let mut verdict = self.meaning.verdict;
        if !self.reaches(rate) || unless.is_some() {
            verdict = verdict.min(Verdict::Info);
        }
        let mut summary = self.meaning.summary;
        if self.messages > 1 {
            summary = format!("{summary} ({} times)", self.messages);
        }
        if let Some(why) = unless {
            summary = format!("{summary}; {why}");
        }
        let mut finding = Finding::new(verdict, summary)
            .about(self.subject)
            .evidence(virtual_path::KERNEL_LOG, cut(self.first.line));
        if self.messages > 1 {
            finding = finding.evidence(virtual_path::KERNEL_LOG, cut(self.last.line));
        }
        if verdict.is_bad() {
            finding.fixes = self.meaning.fixes;
        }
        finding
    }
}

/// Returns an address in the forms of messages: without a function (`0000:9b:00`), or with `0x` before the bus.
fn address_of(text: &str) -> Option<Bdf> {
    let text = text.trim_start_matches("0x");
    if text.contains('.') {
        text.parse().ok()
    } else {
        format!("{text}.0").parse().ok()
    }
}

fn subject(context: &Context<'_>, bdf: Bdf) -> Subject {
    let gpu = context.inventory.gpus.iter().find(|gpu| gpu.bdf == bdf);
    let nic = context.nics().iter().find(|nic| nic.bdf == bdf);
    match (gpu, nic) {
        (Some(gpu), _) => Subject::gpu(gpu),
        (_, Some(nic)) => Subject::nic(nic),
        _ => Subject::Function(bdf),
    }
}

/// Returns whether a driver of GPUs or RDMA NICs logged a message.
fn is_of_driver(text: &str) -> bool {
    const DRIVERS: [&str; 4] = ["nvidia 0", "mlx5_core 0", "bnxt_en 0", "efa 0"];
    DRIVERS.iter().any(|driver| text.starts_with(driver))
}

/// Returns the GPUs, the NICs and the bridges above them; no bridges if the tree is not known.
fn on_path(context: &Context<'_>) -> BTreeSet<Bdf> {
    let mut way = BTreeSet::new();
    let gpus = context.gpus().map(|gpu| gpu.bdf);
    for bdf in gpus.chain(context.nics().iter().map(|nic| nic.bdf)) {
        way.insert(bdf);
        let tree = context.inventory.tree.as_ref().ok();
        if let Some((_, bridges)) = tree.and_then(|tree| tree.chain(bdf)) {
            way.extend(bridges);
        }
    }
    way
}

/// Returns a line, cut to the length that is shown.
pub(super) fn cut(line: &str) -> String {
    line.chars().take(LONGEST_LINE).collect()
}
