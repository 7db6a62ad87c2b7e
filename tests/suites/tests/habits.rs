//! What every commit, every workflow and every published crate of this repository keeps to.
#![allow(
    clippy::unwrap_used,
    reason = "a fixture that fails is a test that fails"
)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use regex::Regex;
use skip::skip;

/// The last commit with a longer subject.
const BEFORE: &str = "528b4671";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn subjects_of_commits_have_at_most_70_characters() {
    let log = Command::new("git")
        .args(["log", "--format=%h %s", &format!("{BEFORE}..HEAD")])
        .current_dir(root())
        .output();
    let output = match log {
        Ok(output) if output.status.success() => output,
        // A source archive, or a clone without history.
        _ => return skip("this is not a clone of the whole repository"),
    };
    let subjects = String::from_utf8(output.stdout).unwrap();
    for line in subjects.lines() {
        let (commit, subject) = line.split_once(' ').unwrap();
        let length = subject.chars().count();
        assert!(length <= 70, "{commit}: {length} characters: {subject}");
    }
}

#[test]
fn actions_are_pinned_by_hash() {
    let pinned = Regex::new(r"^[a-z-]+/[a-z-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$").unwrap();
    let mut count = 0;
    for entry in fs::read_dir(root().join(".github/workflows")).unwrap() {
        let path = entry.unwrap().path();
        let text = fs::read_to_string(&path).unwrap();
        let actions = text.lines().filter_map(|line| line.split_once("uses: "));
        for (_, action) in actions {
            assert!(pinned.is_match(action), "{}: {action}", path.display());
            count += 1;
        }
    }
    assert!(count > 5, "{count} actions");
}

#[test]
fn every_published_crate_has_the_texts_of_its_licences() {
    let mut count = 0;
    for entry in fs::read_dir(root().join("crates")).unwrap() {
        let folder = entry.unwrap().path();
        let manifest = fs::read_to_string(folder.join("Cargo.toml")).unwrap();
        if manifest.contains("publish = false") {
            continue;
        }
        for name in ["LICENSE-APACHE", "LICENSE-MIT"] {
            let text = fs::read_to_string(root().join(name)).unwrap();
            let file = folder.join(name);
            // A link that was stored as a regular file has its target's path as text.
            let is_text = fs::read_to_string(&file).is_ok_and(|found| found == text);
            assert!(is_text, "{} is not a link to ../../{name}", file.display());
        }
        count += 1;
    }
    assert!(count > 20, "{count} crates");
}
