//! `cargo xtask docs`: the API's pages, and the links between the Markdown pages; `cargo xtask guide`:
//! the guide of `docs/` as a book.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::book;
use crate::results::{Outcome, Results};
use crate::workspace::{cargo, root, target};

/// The list of the book's pages.
const SUMMARY: &str = "SUMMARY.md";
/// The address of the repository.
const REPOSITORY: &str = "https://github.com/gdr-rs/gdr/";

pub fn run() -> anyhow::Result<ExitCode> {
    let mut results = Results::default();
    results.check("list of checks in docs/checks.md", list_of_checks);
    results.check("docs/faq.md", list_of_causes);
    results.check("list of rules in docs/check.md", list_of_rules);
    results.check("list of programs in docs/run.md", list_of_programs);
    results.check("documentation", rustdoc);
    results.check("links in the documentation", links);
    results.check("pages of the guide", pages);
    println!(
        "open {}",
        target().join("doc/gdr_copy/index.html").display()
    );
    Ok(results.close())
}

/// Writes the tables of docs/checks.md from the checks themselves.
fn list_of_checks() -> anyhow::Result<Outcome> {
    let name = "the_documentation_lists_every_check";
    written_by("gdr-doctor", &["--test", "devices_and_ports", "--", name])
}

/// Writes docs/faq.md from what `gdr explain` knows.
fn list_of_causes() -> anyhow::Result<Outcome> {
    written_by("gdr-explain", &["--test", "guide"])
}

/// Writes the table of docs/check.md from the rules themselves.
fn list_of_rules() -> anyhow::Result<Outcome> {
    written_by("gdr-check", &["--test", "documentation"])
}

/// Writes the tables of docs/run.md from the lists of programs and of other projects' tests.
fn list_of_programs() -> anyhow::Result<Outcome> {
    let one_by_one = ["--lib", "the_page_lists_every", "--", "--test-threads", "1"];
    written_by("suites", &one_by_one)
}

/// Has tests write what they otherwise compare.
fn written_by(package: &str, tests: &[&str]) -> anyhow::Result<Outcome> {
    let mut command = cargo(&["test", "--quiet", "--package", package]);
    command.args(tests).env("GDR_WRITE_DOCS", "1");
    Outcome::of(command)
}

/// `cargo xtask guide`: checks the pages, and builds the book.
pub fn guide() -> anyhow::Result<ExitCode> {
    let mut results = Results::default();
    results.check("links in the documentation", links);
    results.check("pages of the guide", pages);
    results.check("the guide as a book", book::check);
    println!("open {}", book::folder().join("index.html").display());
    Ok(results.close())
}

/// Checks that the book has every page of `docs/`, and that no page links to a file outside the book, where the link
/// would be dead.
pub fn pages() -> anyhow::Result<Outcome> {
    let docs = root().join("docs");
    let summary = std::fs::read_to_string(docs.join(SUMMARY))?;
    let listed: Vec<&str> = targets(&summary).collect();
    let mut outcome = Outcome::Passed;
    for entry in std::fs::read_dir(&docs)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if !name.ends_with(".md") || name == SUMMARY {
            continue;
        }
        if !listed.contains(&name.as_str()) {
            println!("docs/{name} is not in docs/{SUMMARY}: add a line for it");
            outcome = Outcome::Failed;
        }
        let text = std::fs::read_to_string(docs.join(&name))?;
        let outside = |target: &&str| target.starts_with("../");
        for target in targets(&text).filter(outside) {
            println!("docs/{name}: {target} is not in the book: link to {REPOSITORY}blob/main/...");
            outcome = Outcome::Failed;
        }
    }
    Ok(outcome)
}

/// Builds the API's pages. A broken link is an error.
pub fn rustdoc() -> anyhow::Result<Outcome> {
    Outcome::of(rustdoc_command())
}

/// Returns the command that builds the API's pages.
pub fn rustdoc_command() -> Command {
    let mut command = cargo(&["doc", "--workspace", "--no-deps"]);
    command.env("RUSTDOCFLAGS", "-D warnings");
    command
}

/// Checks every relative link of the pages in the root, in `docs/` and `fuzz/`, and of each crate.
pub fn links() -> anyhow::Result<Outcome> {
    let mut folders = vec![root().to_owned(), root().join("docs"), root().join("fuzz")];
    for entry in std::fs::read_dir(root().join("crates"))? {
        folders.push(entry?.path());
    }
    let mut pages = Vec::new();
    for folder in folders {
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "md") {
                pages.push(path);
            }
        }
    }
    pages.sort();
    let mut outcome = Outcome::Passed;
    for page in pages {
        let text = std::fs::read_to_string(&page)?;
        for target in targets(&text).filter_map(|target| file(&page, target)) {
            if !target.exists() {
                println!("{}: {} does not exist", page.display(), target.display());
                outcome = Outcome::Failed;
            }
        }
    }
    Ok(outcome)
}

/// Returns the targets of all links: the text between `](` and `)`.
fn targets(text: &str) -> impl Iterator<Item = &str> {
    text.split("](")
        .skip(1)
        .filter_map(|rest| rest.split_once(')'))
        .map(|(target, _)| target)
}

/// Returns the file that a link names; `None` for an address, or an anchor in the same page. The address of a file in
/// the repository names that file.
fn file(page: &Path, target: &str) -> Option<PathBuf> {
    let path = target.split('#').next().unwrap_or(target);
    if let Some(inside) = path.strip_prefix(REPOSITORY) {
        let inside = inside
            .strip_prefix("blob/main/")
            .or(inside.strip_prefix("tree/main/"));
        return inside.map(|inside| root().join(inside));
    }
    let is_outside = path.is_empty() || path.contains("://") || path.starts_with("mailto:");
    if is_outside {
        return None;
    }
    Some(page.parent().unwrap_or(root()).join(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_links_to_files_are_followed() {
        let text = "[a](docs/a.md#part) [b](https://example.org/b) [c](#here) `x](y`";
        let files: Vec<_> = targets(text)
            .filter_map(|target| file(Path::new("/r/README.md"), target))
            .collect();
        assert_eq!(files, [Path::new("/r/docs/a.md")]);
    }

    #[test]
    fn the_address_of_a_file_of_the_repository_is_that_file() {
        let page = Path::new("/r/docs/a.md");
        let of = |rest: &str| file(page, &format!("{REPOSITORY}{rest}"));
        assert_eq!(
            of("blob/main/README.md#gdr"),
            Some(root().join("README.md"))
        );
        assert_eq!(of("tree/main/docs"), Some(root().join("docs")));
        assert_eq!(of("issues"), None);
    }
}
