//! The licences of the crates that the programs contain.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::{Context, bail};

use crate::dependencies::{Dependencies, Package};

/// The beginnings of names of files that have a licence's text, in upper case.
const NAMES: [&str; 4] = ["LICENSE", "LICENCE", "COPYING", "NOTICE"];

/// The beginning of the page.
const HEADING: &str = "# Third-party licences\n\n\
    The programs and libraries of gdr contain these crates.\n";

/// Returns a page with each crate, its licence, and every text of the licences once.
///
/// # Errors
///
/// Names a crate without a licence.
pub fn licences(dependencies: &Dependencies) -> anyhow::Result<String> {
    let others = dependencies.packages();
    let others: Vec<_> = others
        .into_iter()
        .filter(|package| !package.is_own())
        .collect();
    let mut page = HEADING.to_owned() + "\n| crate | version | licence |\n|---|---|---|\n";
    // By the text: which crates have it.
    let mut texts: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for package in &others {
        let Some(licence) = &package.license else {
            bail!("{} {} names no licence", package.name, package.version);
        };
        // Writing to a string never fails.
        let _ = writeln!(
            page,
            "| {} | {} | {licence} |",
            package.name, package.version
        );
        for text in texts_of(package)? {
            texts.entry(text).or_default().push(&package.name);
        }
    }
    let mut sections: Vec<_> = texts
        .into_iter()
        .map(|(text, names)| (names, text))
        .collect();
    sections.sort();
    for (mut names, text) in sections {
        names.dedup();
        let _ = write!(page, "\n## {}\n\n```text\n{text}\n```\n", names.join(", "));
    }
    Ok(page)
}

/// Returns the texts of a crate's licences, in the order of its files' names.
fn texts_of(package: &Package) -> anyhow::Result<Vec<String>> {
    let folder = package.manifest_path.parent().unwrap_or(Path::new("/"));
    let entries = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    let mut files = Vec::new();
    for entry in entries {
        let path = entry?.path();
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .to_uppercase();
        if path.is_file() && NAMES.iter().any(|beginning| name.starts_with(beginning)) {
            files.push(path);
        }
    }
    files.sort();
    let texts = files.into_iter().map(|file| {
        let bytes = fs::read(&file).with_context(|| file.display().to_string())?;
        let text = String::from_utf8_lossy(&bytes).replace("\r\n", "\n");
        let lines: Vec<_> = text.lines().map(str::trim_end).collect();
        Ok(lines.join("\n").trim_matches('\n').to_owned())
    });
    texts.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::package::PUBLISHED;

    #[test]
    fn every_crate_in_the_programs_has_a_licence_and_its_text_is_printed_once() {
        let dependencies = Dependencies::of(&PUBLISHED, &[]).unwrap();
        let page = licences(&dependencies).unwrap();
        assert!(page.contains("| libc | "), "{page}");
        assert!(!page.contains("| gdr-copy | "), "{page}");
        let apache = "\n                                 Apache License\n";
        assert!(
            page.matches(apache).count() < 10,
            "one text for many crates"
        );
    }
}
