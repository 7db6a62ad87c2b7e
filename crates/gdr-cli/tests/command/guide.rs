//! The commands of the guide in `docs/`.
//!
//! A block of `sh` is run as it stands, each line on its own. One of `sh,hardware` needs hardware, and
//! only its command lines are parsed. One of `sh,setup` installs something, and is not run.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use assert_cmd::cargo_bin;
use snapshot::assert_contains;

use super::{code, isolated, stderr, stdout};

/// A block of commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Block {
    Run,
    Hardware,
    Setup,
}

/// A command of a page.
#[derive(Debug)]
struct Line {
    block: Block,
    page: String,
    text: String,
}

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs")
}

/// Returns the pages of the part of the book of this name.
fn pages(part: &str) -> Vec<String> {
    let summary = fs::read_to_string(docs().join("SUMMARY.md")).unwrap();
    let (_, after) = summary.split_once(&format!("# {part}\n")).unwrap();
    let entries = after.lines().take_while(|line| !line.starts_with('#'));
    entries
        .filter_map(|line| line.split_once("](")?.1.strip_suffix(')'))
        .map(str::to_owned)
        .collect()
}

/// Returns the commands of a page, in order.
fn lines(page: &str) -> Vec<Line> {
    let text = fs::read_to_string(docs().join(page)).unwrap();
    let mut block = None;
    let mut lines = Vec::new();
    for line in text.lines().map(str::trim) {
        if let Some(info) = line.strip_prefix("```") {
            block = match (block, info) {
                (None, "sh") => Some(Block::Run),
                (None, "sh,hardware") => Some(Block::Hardware),
                (None, "sh,setup") => Some(Block::Setup),
                _ => None,
            };
        } else if let Some(block) = block
            && !line.is_empty()
        {
            let (page, text) = (page.to_owned(), line.to_owned());
            lines.push(Line { block, page, text });
        }
    }
    lines
}

/// Runs a line of a shell in a folder, where `gdr` is this command.
fn shell(folder: &Path, line: &str) -> Output {
    let bin = cargo_bin!("gdr").parent().unwrap();
    let path = std::env::var("PATH").unwrap();
    isolated(&mut Command::new("sh"))
        .args(["-c", line])
        .current_dir(folder)
        .env("HOME", folder)
        .env("PATH", format!("{}:{path}", bin.display()))
        .output()
        .unwrap()
}

#[test]
fn every_command_of_the_guide_runs_or_is_marked() {
    let folder = tempfile::tempdir().unwrap();
    let pages = pages("Guide");
    assert!(pages.len() > 5, "{pages:?}");
    for line in pages.iter().flat_map(|page| lines(page)) {
        let Line { block, page, text } = line;
        let (command, reports) = match block {
            Block::Setup => continue,
            // What a report finds depends on this machine.
            Block::Run => (
                text.clone(),
                text.contains("doctor") || text.contains("devices"),
            ),
            Block::Hardware => {
                let Some((_, arguments)) = text.split_once("gdr ") else {
                    continue;
                };
                let own = arguments.split(" -- ").next().unwrap();
                (format!("gdr {own} --help"), false)
            }
        };
        assert_contains!(text, "gdr ", "{page}: {text} is not a command of gdr");
        let output = shell(folder.path(), &command);
        let most = if reports { 3 } else { 0 };
        let status = code(&output);
        let said = format!("{page}: {command}\n{}{}", stdout(&output), stderr(&output));
        assert!((0..=most).contains(&status), "status {status} of {said}");
    }
}

/// The commands of the README that need neither a release build nor an installation.
#[test]
fn what_the_readme_shows_first_works_in_an_empty_folder() {
    let readme = fs::read_to_string(docs().join("../README.md")).unwrap();
    let (first_screen, rest) = readme.split_once("\n## ").unwrap();
    let links = first_screen.matches("](").count() - first_screen.matches("![").count();
    assert!(links <= 8, "{links} links");
    let mut lines = Vec::new();
    for (at, block) in readme.split("```").enumerate() {
        if at % 2 == 1 && block.starts_with("sh\n") {
            lines.extend(block.lines().skip(1));
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let mut loopbacks = 0;
    for line in lines {
        let line = line.split('#').next().unwrap().trim();
        let command = line.replace("cargo run --release --", "gdr");
        if !command.starts_with("gdr ") {
            // xtask's tests have these.
            assert!(command.starts_with("cargo xtask "), "{line}");
            continue;
        }
        let output = shell(folder.path(), &command);
        let most = if command.contains("doctor") { 3 } else { 0 };
        assert!(
            (0..=most).contains(&code(&output)),
            "{line}: {}",
            stderr(&output)
        );
        if command == "gdr loopback" {
            let text = stdout(&output);
            assert_contains!(text, "\nPASS: ");
            loopbacks += 1;
        }
    }
    assert_eq!(loopbacks, 2, "the first command and its short form: {rest}");
}

#[test]
fn a_reader_comes_from_nothing_to_a_pass_by_fewer_than_ten_commands() {
    let lines = lines("guide.md");
    let proof = lines.iter().position(|line| line.text == "gdr loopback");
    let before: usize = lines[..proof.unwrap()]
        .iter()
        .map(|line| line.text.split("&&").count())
        .sum();
    assert!(before + 1 < 10, "{} commands", before + 1);
    let folder = tempfile::tempdir().unwrap();
    let text = stdout(&shell(folder.path(), "gdr loopback"));
    assert_contains!(text, "\nPASS: ");
}
