//! `cargo xtask docs`: the API's pages, and the links between the Markdown pages.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::results::{Outcome, Results};
use crate::workspace::{cargo, root, target};

pub(crate) fn run() -> anyhow::Result<ExitCode> {
    let mut results = Results::default();
    results.check("list of checks in docs/checks.md", list_of_checks);
    results.check("documentation", rustdoc);
    results.check("links in the documentation", links);
    println!(
        "open {}",
        target().join("doc/gdr_copy/index.html").display()
    );
    Ok(results.close())
}

/// Writes the tables of docs/checks.md from the checks themselves.
fn list_of_checks() -> anyhow::Result<Outcome> {
    let test = [
        "--test",
        "devices_and_ports",
        "the_documentation_lists_every_check",
    ];
    let mut command = cargo(&["test", "--quiet", "--package", "gdr-doctor"]);
    command.args(test).env("GDR_WRITE_DOCS", "1");
    Outcome::of(command)
}

/// Builds the API's pages. A broken link is an error.
pub(crate) fn rustdoc() -> anyhow::Result<Outcome> {
    let mut command = cargo(&["doc", "--workspace", "--no-deps"]);
    command.env("RUSTDOCFLAGS", "-D warnings");
    Outcome::of(command)
}

/// Checks every relative link of the pages in the root, in `docs/` and `fuzz/`, and of each crate.
pub(crate) fn links() -> anyhow::Result<Outcome> {
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

/// Returns the file that a link names; `None` for an address, or an anchor in the same page.
fn file(page: &Path, target: &str) -> Option<PathBuf> {
    let path = target.split('#').next().unwrap_or(target);
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
}
