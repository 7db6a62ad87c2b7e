//! The sentences that every report for people shares.

use gdr_node::Absence;

use crate::check::Group;
use crate::diagnosis::{Counts, Diagnosis, Outcome, REHEARSAL, Reported};
use crate::finding::{Subject, Verdict};
use crate::fix::{Effect, Fix, Persistence, Privilege, Risk, Shown};

/// Returns what to call the node: its name, else the capture's.
pub(super) fn node(diagnosis: &Diagnosis) -> &str {
    let capture = diagnosis.about.capture.as_ref();
    (diagnosis.host.as_deref())
        .or(capture.map(|capture| capture.file.as_str()))
        .unwrap_or("this node")
}

/// Root causes that differ in nothing but their subject, such as one setting of eight GPUs, in the
/// order of the first of each.
pub(super) fn alike(causes: Vec<(usize, &Reported)>) -> Vec<Vec<(usize, &Reported)>> {
    let essence = |judged: &Reported| {
        let finding = &judged.finding;
        let subject = finding.subject.to_string();
        (
            judged.check.id,
            finding.verdict,
            finding.summary.replace(&subject, ""),
        )
    };
    let mut groups: Vec<Vec<(usize, &Reported)>> = Vec::new();
    for cause in causes {
        let same = groups.iter_mut().find(|group| {
            group.first().is_some_and(|(_, first)| {
                essence(first) == essence(cause.1) && first.finding.fixes == cause.1.finding.fixes
            })
        });
        match same {
            Some(group) => group.push(cause),
            None => groups.push(vec![cause]),
        }
    }
    groups
}

/// Summarizes a diagnosis in one sentence that claims no more than was shown. For a rehearsal, the sentence begins by
/// saying so.
pub(super) fn headline(diagnosis: &Diagnosis) -> String {
    let rehearsed: Vec<&str> = diagnosis.rehearsed().iter().map(|check| check.0).collect();
    let outcome = of_outcome(diagnosis);
    if rehearsed.is_empty() {
        return outcome;
    }
    format!("{REHEARSAL} of {}: {outcome}", rehearsed.join(", "))
}

fn of_outcome(diagnosis: &Diagnosis) -> String {
    if let Some(pair) = &diagnosis.pair {
        return of_pair(diagnosis, pair);
    }
    let shown = diagnosis.has_the_essentials();
    match diagnosis.outcome() {
        Outcome::Healthy if shown => "Nothing is wrong.".to_owned(),
        Outcome::Healthy => "Nothing wrong was found in what was checked.".to_owned(),
        Outcome::Warning if shown => {
            "GPUDirect RDMA has what it needs here, but not all is as it should be.".to_owned()
        }
        Outcome::Warning => {
            "Not all is as it should be; whether GPUDirect RDMA works here was not \
                             shown."
                .to_owned()
        }
        Outcome::Failure => match lacks(diagnosis) {
            Some(what) => format!("GPUDirect RDMA cannot work here: {what}."),
            None => "GPUDirect RDMA does not work here as it should.".to_owned(),
        },
        Outcome::Undecided => undecided(diagnosis),
    }
}

fn of_pair(diagnosis: &Diagnosis, (gpu, nic): &(String, String)) -> String {
    match diagnosis.outcome() {
        Outcome::Healthy => format!("Yes: nothing is wrong between {gpu} and {nic}."),
        Outcome::Warning => format!("Not all is as it should be between {gpu} and {nic}."),
        Outcome::Failure => {
            format!("GPUDirect RDMA between {gpu} and {nic} does not work as it should.")
        }
        Outcome::Undecided => format!("{gpu} and {nic}: {}", undecided(diagnosis)),
    }
}

fn undecided(diagnosis: &Diagnosis) -> String {
    let counts = diagnosis.counts();
    let fine = counts.pass + counts.info;
    if fine == 0 {
        return "Too little is known to tell.".to_owned();
    }
    format!(
        "Nothing wrong was found: {fine} {} fine, {} cannot be decided.",
        if fine == 1 {
            "finding is"
        } else {
            "findings are"
        },
        counts.unknown
    )
}

/// Returns what the node needs at least and lacks.
fn lacks(diagnosis: &Diagnosis) -> Option<&str> {
    (diagnosis.findings.iter())
        .filter(|judged| ["gpu.present", "nic.present"].contains(&judged.check.id.0))
        .map(|judged| &judged.finding)
        .find(|finding| finding.verdict == Verdict::Fail && finding.subject == Subject::Node)
        .map(|finding| finding.summary.as_str())
}

/// Returns what cannot be decided and why, one line per reason.
pub(super) fn not_known(diagnosis: &Diagnosis) -> Vec<String> {
    let unknown: Vec<&Reported> = (diagnosis.findings.iter())
        .filter(|judged| judged.finding.verdict == Verdict::Unknown)
        .collect();
    let of = |absence: Absence| {
        let mut names: Vec<&str> = (unknown.iter())
            .filter(|judged| judged.finding.absence == Some(absence))
            .map(|judged| judged.check.id.0)
            .collect();
        names.dedup();
        names
    };
    let mut lines = Vec::new();
    let denied = of(Absence::Denied);
    if !denied.is_empty() {
        let remedy = if diagnosis.about.capture.is_some() {
            "collect as root: sudo gdr collect"
        } else if diagnosis.about.root == Some(true) {
            "root may not read it here: a container, or lockdown"
        } else {
            "sudo gdr doctor"
        };
        lines.push(format!(
            "{} {} root ({remedy}): {}",
            denied.len(),
            if denied.len() == 1 {
                "check needs"
            } else {
                "checks need"
            },
            denied.join(", ")
        ));
    }
    // For a group about which nothing is known, its name is enough.
    let silent: Vec<Group> = (diagnosis.groups().into_iter())
        .filter(|(_, counts)| counts.fine() + counts.warn + counts.fail == 0)
        .map(|(group, _)| group)
        .filter(|group| {
            let mut of_group = unknown.iter().filter(|it| it.check.group == *group);
            of_group.all(|it| it.finding.absence == Some(Absence::NotCollected))
        })
        .collect();
    let left_out: Vec<&str> = (of(Absence::NotCollected).into_iter())
        .filter(|id| {
            let check = unknown.iter().find(|it| it.check.id.0 == *id);
            check.is_some_and(|it| !silent.contains(&it.check.group))
        })
        .collect();
    if !left_out.is_empty() {
        lines.push(format!(
            "{} {} data that was not collected: {}",
            left_out.len(),
            if left_out.len() == 1 {
                "check needs"
            } else {
                "checks need"
            },
            left_out.join(", ")
        ));
    }
    let silent: Vec<&str> = (silent.iter())
        .filter(|group| unknown.iter().any(|it| it.check.group == **group))
        .map(|group| group.title())
        .collect();
    if !silent.is_empty() {
        lines.push(format!("nothing was collected of: {}", silent.join("; ")));
    }
    let said = [Some(Absence::Denied), Some(Absence::NotCollected)];
    let rest = unknown
        .iter()
        .filter(|it| !said.contains(&it.finding.absence));
    let mut of_check: Vec<(&str, Vec<&Reported>)> = Vec::new();
    for judged in rest {
        match of_check.last_mut() {
            Some((id, all)) if *id == judged.check.id.0 => all.push(judged),
            _ => of_check.push((judged.check.id.0, vec![judged])),
        }
    }
    lines.extend(of_check.iter().filter_map(|(id, all)| {
        let finding = &all.first()?.finding;
        let more = match all.len() {
            1 => String::new(),
            count => format!(" (and {} more)", count - 1),
        };
        Some(format!(
            "{id}: {}: {}{more}",
            finding.subject, finding.summary
        ))
    }));
    lines
}

/// Returns the number of findings with each verdict.
pub(super) fn counts(counts: Counts) -> String {
    format!(
        "{} failed, {} warned, {} not known, {} fine, {} do not apply",
        counts.fail,
        counts.warn,
        counts.unknown,
        counts.pass + counts.info,
        counts.skip
    )
}

/// A piece of a sentence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Span<'a> {
    /// Words.
    Words(&'a str),
    /// A command or a name, which stood between back-ticks.
    Code(&'a str),
}

/// Returns the pieces of a sentence. A back-tick without a second one is a character like others.
pub(super) fn spans(text: &str) -> Vec<Span<'_>> {
    let mut spans = Vec::new();
    let mut rest = text;
    while let Some((words, (code, after))) = rest
        .split_once('`')
        .and_then(|(words, behind)| Some((words, behind.split_once('`')?)))
    {
        spans.extend([Span::Words(words), Span::Code(code)]);
        rest = after;
    }
    spans.push(Span::Words(rest));
    let is_empty = |span: &Span<'_>| matches!(span, Span::Words("") | Span::Code(""));
    spans.retain(|span| !is_empty(span));
    spans
}

/// Returns the steps of a fix: commands that follow each other together, sentences one by one.
pub(super) fn steps(fix: &Fix) -> Vec<Shown> {
    let mut steps: Vec<Shown> = Vec::new();
    for shown in fix.actions.iter().map(|action| action.shown()) {
        match (steps.last_mut(), shown) {
            (Some(Shown::Command(before)), Shown::Command(line)) => {
                before.push('\n');
                before.push_str(&line);
            }
            (_, shown) => steps.push(shown),
        }
    }
    steps
}

/// Who may do it, when it helps, for how long, at what risk.
pub(crate) fn terms(fix: &Fix) -> String {
    let who = match fix.privilege {
        Privilege::User => "no root needed",
        Privilege::Root => "as root",
    };
    let when = match fix.effect {
        Effect::Now => "helps at once",
        Effect::AtRestart => "helps what is started after",
        Effect::AtReboot => "helps after a reboot",
    };
    let span = match fix.persistence {
        Persistence::UntilExit => "for that process",
        Persistence::UntilReboot => "until the next reboot",
        Persistence::Permanent => "permanently",
    };
    let risk = match fix.risk {
        Risk::None => "no risk",
        Risk::Low => "low risk",
        Risk::Medium => "some risk",
        Risk::High => "high risk",
    };
    format!("{who}, {when}, {span}, {risk}")
}

/// `1 finding follows`, `4 findings follow`.
pub(super) fn follow(symptoms: usize) -> String {
    if symptoms == 1 {
        "1 finding follows from it".to_owned()
    } else {
        format!("{symptoms} findings follow from it")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fix::Action;

    #[test]
    fn what_stands_between_back_ticks_is_code_and_a_single_one_is_not() {
        let both = [Span::Words("set "), Span::Code("a=b"), Span::Words(" now")];
        assert_eq!(spans("set `a=b` now"), both);
        assert_eq!(spans("it`s"), [Span::Words("it`s")]);
        assert_eq!(spans(""), []);
    }

    #[test]
    fn a_sentence_is_no_command() {
        let command = |line: &str| Action::Command { line: line.into() };
        let fix = Fix::now("x", command("a"))
            .then(command("b"))
            .then(Action::KernelArgument {
                argument: "iommu=pt".into(),
            });
        assert_eq!(
            steps(&fix),
            [
                Shown::Command("a\nb".into()),
                Shown::Prose("boot with the kernel argument `iommu=pt`".into())
            ]
        );
    }
}
