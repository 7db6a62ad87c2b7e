//! `cargo xtask words`: checks that sources and pages do not use the words of `tests/suites/words.txt`.

use std::fs;
use std::path::Path;

use anyhow::{Context, bail, ensure};
use regex::Regex;

use xtask_build::results::Outcome;
use xtask_build::workspace::root;

const LIST: &str = "tests/suites/words.txt";

/// Extensions of the files to search.
const EXTENSIONS: [&str; 6] = ["rs", "md", "toml", "sh", "c", "h"];

/// Folders that hold no source: build output, bundles and the inputs of fuzzing.
const SKIPPED: [&str; 4] = ["target", "dist", "corpus", "artifacts"];

/// The change log, and the page that says which word to use instead of another.
const NOT_SEARCHED: [&str; 2] = ["CHANGELOG.md", "docs/GLOSSARY.md"];

/// Places where a word is a name: the user without privileges.
const NAMES: [(&str, &str); 4] = [
    ("tests/suites/src/words.rs", "nobody"),
    ("tests/suites/bundle/run.sh", "nobody"),
    ("tests/suites/src/gpu_steps.rs", "nobody"),
    ("xtask/src/test.rs", "nobody"),
];

/// Prints where the words occur; fails if there are any.
pub fn check() -> anyhow::Result<Outcome> {
    let list = fs::read_to_string(root().join(LIST)).context(LIST)?;
    let words = parse(&list)?;
    let mut found = 0;
    search_folder(&words, root(), &mut |line| {
        println!("{line}");
        found += 1;
    })?;
    Ok(match found {
        0 => Outcome::Passed,
        _ => Outcome::Failed,
    })
}

/// A word or phrase.
#[derive(Debug)]
struct Word {
    name: String,
    /// Contained in the lower-case form of every text that has the word or phrase.
    parts: Vec<String>,
    pattern: Regex,
    instead: String,
}

/// Reads the lines `word: what to use instead`.
fn parse(list: &str) -> anyhow::Result<Vec<Word>> {
    let entries = list.lines().filter(|line| !line.starts_with('#'));
    entries
        .map(|entry| {
            let split = entry.split_once(": ");
            let (name, instead) =
                split.with_context(|| format!("{LIST}: `{entry}` has no `: `"))?;
            Word::new(name, instead)
        })
        .collect()
}

impl Word {
    fn new(name: &str, instead: &str) -> anyhow::Result<Self> {
        ensure!(!name.is_empty(), "{LIST}: an entry without a word");
        let pattern = match name.contains(' ') {
            // Across a line break in a comment.
            true => {
                let words: Vec<_> = name.split(' ').map(regex::escape).collect();
                format!(r"(?i)\b{}\b", words.join(r"[\s/!*#>\\]*\s[\s/!*#>\\]*"))
            }
            false => Self::as_part(&regex::escape(name)),
        };
        Ok(Self {
            name: name.to_owned(),
            parts: name.split(' ').map(str::to_lowercase).collect(),
            pattern: Regex::new(&pattern)?,
            instead: instead.to_owned(),
        })
    }

    /// Returns a word alone, or as a part of a name: `nak_word`, `NakWord`, `RDMAWord`.
    fn as_part(word: &str) -> String {
        let (first, rest) = word.split_at(1);
        let capital = format!("{}{rest}", first.to_uppercase());
        format!(
            r"(?:^|[^A-Za-z])(?i:{word})(?:[^A-Za-z]|$)|(?:^|[^A-Za-z]){word}(?:[^a-z]|$)|{capital}(?:[^a-z]|$)"
        )
    }
}

fn search_folder(
    words: &[Word],
    folder: &Path,
    report: &mut impl FnMut(String),
) -> anyhow::Result<()> {
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let entry = entry?;
        let (path, name) = (entry.path(), entry.file_name());
        let name = name.to_string_lossy();
        if entry.file_type()?.is_dir() {
            if !name.starts_with('.') && !SKIPPED.contains(&&*name) {
                search_folder(words, &path, report)?;
            }
        } else if let Some(extension) = path.extension().and_then(|extension| extension.to_str())
            && EXTENSIONS.contains(&extension)
        {
            let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
            let path = path.strip_prefix(root()).unwrap_or(&path);
            search(words, path, &text, report);
        }
    }
    Ok(())
}

fn search(words: &[Word], path: &Path, text: &str, report: &mut impl FnMut(String)) {
    let is = |name: &str| path == Path::new(name);
    if NOT_SEARCHED.iter().any(|name| is(name)) {
        return;
    }
    // Nearly all files contain none of them, and matching the patterns takes long.
    let small = text.to_lowercase();
    let may_have = |word: &&Word| word.parts.iter().all(|part| small.contains(part));
    for word in words.iter().filter(may_have) {
        let is_name = |(file, name): &(&str, &str)| is(file) && *name == word.name;
        if NAMES.iter().any(is_name) {
            continue;
        }
        for found in word.pattern.find_iter(text) {
            let line = text[..found.start()].matches('\n').count() + 1;
            let (path, name, instead) = (path.display(), &word.name, &word.instead);
            report(format!("{path}:{line}: \"{name}\"; use: {instead}"));
        }
    }
}

/// Runs the task alone.
pub fn run() -> anyhow::Result<std::process::ExitCode> {
    match check()? {
        Outcome::Passed => Ok(std::process::ExitCode::SUCCESS),
        _ => bail!("these words are not used; {LIST} has what to use instead"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORDS: &str = "# a comment\nzorch: send\nquux it: do it";

    fn lines(path: &str, text: &str) -> Vec<String> {
        let mut found = Vec::new();
        let words = parse(WORDS).unwrap();
        search(&words, Path::new(path), text, &mut |line| found.push(line));
        found
    }

    fn count(text: &str) -> usize {
        lines("a.rs", text).len()
    }

    #[test]
    fn a_word_is_found_in_prose_and_in_identifiers_and_only_whole() {
        for text in [
            "// We zorch.",
            "\"Zorch!\"",
            "fn nak_zorch()",
            "struct NakZorch;",
            "ZORCH_LIMIT",
            "RDMAZorch",
            "zorchNow",
        ] {
            assert_eq!(count(text), 1, "{text}");
        }
        for text in ["zorches", "unzorch", "Zorches"] {
            assert_eq!(count(text), 0, "{text}");
        }
    }

    #[test]
    fn a_phrase_is_found_across_lines_of_a_comment_and_not_in_identifiers() {
        let found = lines("a.rs", "x\n/// We quux\n/// it.");
        assert_eq!(found, ["a.rs:2: \"quux it\"; use: do it"]);
        assert_eq!(count("//! quux it"), 1);
        assert_eq!(count("quux_it() quux, it. quux(it) quux/it"), 0);
    }

    #[test]
    fn a_name_and_the_record_of_changes_are_no_use_of_a_word() {
        assert!(lines("CHANGELOG.md", "zorch").is_empty());
        let words = parse("nobody: no caller").unwrap();
        let mut found = 0;
        for path in ["xtask/src/test.rs", "xtask/src/tests.rs"] {
            search(&words, Path::new(path), "nobody", &mut |_| found += 1);
        }
        assert_eq!(found, 1);
    }

    #[test]
    fn a_list_with_a_line_of_another_form_is_an_error() {
        assert!(parse("no colon").is_err());
    }
}
