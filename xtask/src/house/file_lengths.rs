//! Files that are too long to be read as one thing, or too short to be one.

use std::path::Path;

use super::finding::{Finding, Rule};
use super::settings::Settings;

/// The fewest lines of a file, and the most.
const SHORTEST: usize = 40;
const LONGEST: usize = 800;

/// Files that cargo or the compiler names; they may be short.
const NAMED_BY_CARGO: [&str; 4] = ["main.rs", "lib.rs", "mod.rs", "build.rs"];

/// The module of doc tests that must not compile. It has no other code, so it may be short.
const COMPILE_FAIL: &str = "compile_fail.rs";

/// Whether a file may be short: a name of cargo, an example, or doc tests that must not compile.
fn may_be_short(path: &Path) -> bool {
    let mut folders = path.parent().into_iter().flat_map(Path::components);
    NAMED_BY_CARGO.iter().any(|name| path.ends_with(name))
        || path.ends_with(COMPILE_FAIL)
        || folders.any(|folder| folder.as_os_str() == "examples")
}

/// Compares the length of each Rust file with the limits.
pub(crate) fn check<'a>(
    files: impl Iterator<Item = (&'a Path, &'a str)>,
    settings: &Settings,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in files {
        let lines = text.lines().count();
        let (rule, what) = if lines > LONGEST {
            (Rule::LongFile, format!("{lines} lines: at most {LONGEST}"))
        } else if lines < SHORTEST && !may_be_short(path) {
            let what = format!("{lines} lines: merge it into the file that it is a part of");
            (Rule::ShortFile, what)
        } else {
            continue;
        };
        if !settings.allows(rule, path, None) {
            findings.push(Finding::new(rule, path, 1, what));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(path: &str, lines: usize) -> Vec<Rule> {
        let settings = Settings::parse(
            "[[allow]]\nrule = \"short-file\"\npath = \"fuzz\"\nreason = \"one target a file\"",
        );
        let text = "\n".repeat(lines);
        let files = [(Path::new(path), &*text)];
        let findings = check(files.into_iter(), &settings.unwrap());
        findings.iter().map(|finding| finding.rule).collect()
    }

    #[test]
    fn the_limits_themselves_are_allowed() {
        assert_eq!(rules("a.rs", 39), [Rule::ShortFile]);
        assert_eq!(rules("a.rs", 40), []);
        assert_eq!(rules("a.rs", 800), []);
        assert_eq!(rules("a.rs", 801), [Rule::LongFile]);
    }

    #[test]
    fn files_that_cargo_names_and_exceptions_may_be_short_and_not_long() {
        for path in ["a/lib.rs", "a/main.rs", "a/mod.rs", "build.rs", "fuzz/x.rs"] {
            assert_eq!(rules(path, 3), [], "{path}");
            assert_eq!(rules(path, 900), [Rule::LongFile], "{path}");
        }
    }
    #[test]
    fn examples_and_doc_tests_that_must_not_compile_may_be_short_and_not_long() {
        for path in ["crates/a/examples/b.rs", "crates/a/src/compile_fail.rs"] {
            assert_eq!(rules(path, 3), [], "{path}");
            assert_eq!(rules(path, 900), [Rule::LongFile], "{path}");
        }
        for path in ["crates/a/src/examples.rs", "crates/a/src/fail.rs"] {
            assert_eq!(rules(path, 3), [Rule::ShortFile], "{path}");
        }
    }
}
