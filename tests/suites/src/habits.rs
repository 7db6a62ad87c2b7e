//! `cargo xtask habits`: rules for every commit, every workflow, every published crate and the page of guards.

use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, ensure};
use regex::Regex;

use xtask_build::results::{Outcome, Results};
use xtask_build::workspace::root;

/// The last commit with a longer subject.
const BEFORE: &str = "528b4671";
/// Maximum length of a subject in characters.
const LONGEST: usize = 70;

pub fn run() -> anyhow::Result<ExitCode> {
    let mut results = Results::default();
    record(&mut results);
    Ok(results.close())
}

/// Checks each habit, in less than a second for all.
pub fn record(results: &mut Results) {
    results.check("subjects of commits", subjects);
    results.check("actions of workflows", actions);
    results.check("licences of crates", licences);
    results.check("tests on the page of guards", guards);
}

fn subjects() -> anyhow::Result<Outcome> {
    let log = Command::new("git")
        .args(["log", "--format=%h %s", &format!("{BEFORE}..HEAD")])
        .current_dir(root())
        .output();
    let output = match log {
        Ok(output) if output.status.success() => output,
        // A source archive, or a clone without history.
        _ => {
            let reason = "this is not a clone of the whole repository".to_owned();
            return Ok(Outcome::Skipped { reason });
        }
    };
    let log = String::from_utf8(output.stdout).context("a subject is not valid UTF-8")?;
    Ok(outcome(log.lines().filter_map(too_long)))
}

/// Returns what is wrong with a line `COMMIT SUBJECT` of the log.
fn too_long(line: &str) -> Option<String> {
    let (commit, subject) = line.split_once(' ').unwrap_or((line, ""));
    let length = subject.chars().count();
    (length > LONGEST).then(|| format!("{commit}: {length} characters: {subject}"))
}

/// Checks that every action of a workflow is named by a hash, with its version in a comment.
fn actions() -> anyhow::Result<Outcome> {
    let pinned = Regex::new(r"^[a-z-]+/[a-z-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$")?;
    let mut count = 0;
    let mut wrong = Vec::new();
    for entry in fs::read_dir(root().join(".github/workflows"))? {
        let path = entry?.path();
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let actions = text.lines().filter_map(|line| line.split_once("uses: "));
        for (_, action) in actions {
            count += 1;
            if !pinned.is_match(action) {
                wrong.push(format!("{}: {action}", path.display()));
            }
        }
    }
    ensure!(count > 5, "{count} actions");
    Ok(outcome(wrong))
}

/// Checks that every published crate has the licence texts of the root. A link that was stored as a regular file
/// contains the path of its target.
fn licences() -> anyhow::Result<Outcome> {
    let mut count = 0;
    let mut wrong = Vec::new();
    for entry in fs::read_dir(root().join("crates"))? {
        let folder = entry?.path();
        if fs::read_to_string(folder.join("Cargo.toml"))?.contains("publish = false") {
            continue;
        }
        count += 1;
        for name in ["LICENSE-APACHE", "LICENSE-MIT"] {
            let text = fs::read_to_string(root().join(name)).context(name)?;
            let file = folder.join(name);
            if fs::read_to_string(&file).ok() != Some(text) {
                let file = file.display();
                wrong.push(format!("{file} is not a link to ../../{name}"));
            }
        }
    }
    ensure!(count > 20, "{count} crates");
    Ok(outcome(wrong))
}

/// Checks that the tests that docs/guards.md names exist.
fn guards() -> anyhow::Result<Outcome> {
    let page = fs::read_to_string(root().join("docs/guards.md")).context("docs/guards.md")?;
    let named: Vec<_> = named_tests(&page).collect();
    ensure!(named.len() > 80, "{} tests", named.len());
    let is_missing = |(file, test): &(&str, &str)| {
        let path = root().join("crates").join(Path::new(file));
        let source = fs::read_to_string(path).unwrap_or_default();
        !source.contains(&format!("fn {test}("))
    };
    let missing = named.into_iter().filter(is_missing);
    Ok(outcome(missing.map(|(file, test)| {
        format!("docs/guards.md: {file} has no test {test}")
    })))
}

/// Returns the files and tests of the page's `FILE.rs` `TEST`.
fn named_tests(page: &str) -> impl Iterator<Item = (&str, &str)> {
    page.match_indices(".rs` `").filter_map(|(at, between)| {
        let (before, after) = (&page[..at + ".rs".len()], &page[at + between.len()..]);
        let (test, _) = after.split_once('`')?;
        Some((before.rsplit('`').next()?, test))
    })
}

/// Prints what is wrong.
fn outcome(wrong: impl IntoIterator<Item = String>) -> Outcome {
    let mut outcome = Outcome::Passed;
    for line in wrong {
        println!("{line}");
        outcome = Outcome::Failed;
    }
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subject_of_more_than_70_characters_is_found() {
        let subject = "é".repeat(70);
        assert_eq!(too_long(&format!("1a2b {subject}")), None);
        let found = too_long(&format!("1a2b {subject}s")).unwrap();
        assert!(found.starts_with("1a2b: 71 characters"), "{found}");
    }

    #[test]
    fn the_tests_that_a_page_names_are_found() {
        let page = "| `a/src/b.rs` `one` and `two` |\n| `c.rs` `three` |";
        let named: Vec<_> = named_tests(page).collect();
        assert_eq!(named, [("a/src/b.rs", "one"), ("c.rs", "three")]);
    }

    #[test]
    fn what_is_wrong_fails() {
        assert_eq!(outcome([]), Outcome::Passed);
        assert_eq!(outcome(["a".to_owned()]), Outcome::Failed);
    }
}
