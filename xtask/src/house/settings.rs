//! `xtask/house.toml`: how many findings of each rule the tree may have, and the exceptions.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use serde::Deserialize;

use super::finding::{Finding, Rule};

/// Where the settings are in the workspace.
pub(crate) const FILE: &str = "xtask/house.toml";

#[derive(Debug, Default)]
pub(crate) struct Settings {
    ceilings: BTreeMap<Rule, usize>,
    exceptions: Vec<Exception>,
}

/// The file's shape.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    #[serde(default)]
    ceilings: BTreeMap<Rule, usize>,
    #[serde(default)]
    allow: Vec<Exception>,
}

/// A finding that is meant to be there.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Exception {
    rule: Rule,
    /// A file, or a folder with everything in it, from the root of the workspace.
    path: PathBuf,
    /// Only this word, or this type.
    name: Option<String>,
    reason: String,
    /// Set by [`Settings::allows`].
    #[serde(skip)]
    is_used: Cell<bool>,
}

impl Settings {
    pub(crate) fn parse(text: &str) -> anyhow::Result<Self> {
        let document: Document = toml::from_str(text).context(FILE)?;
        for exception in &document.allow {
            if exception.reason.trim().is_empty() {
                bail!("{FILE}: {} has no reason", exception.path.display());
            }
        }
        Ok(Self {
            ceilings: document.ceilings,
            exceptions: document.allow,
        })
    }

    /// How many findings of this rule are allowed.
    pub(crate) fn ceiling(&self, rule: Rule) -> usize {
        self.ceilings.get(&rule).copied().unwrap_or(0)
    }

    /// Whether an exception covers what was found at `path` under `name`.
    pub(crate) fn allows(&self, rule: Rule, path: &Path, name: Option<&str>) -> bool {
        let mut is_allowed = false;
        for exception in &self.exceptions {
            let is_named = exception.name.is_none() || exception.name.as_deref() == name;
            if exception.rule == rule && path.starts_with(&exception.path) && is_named {
                exception.is_used.set(true);
                is_allowed = true;
            }
        }
        is_allowed
    }

    /// A finding for each exception that covers nothing. Call it after the rules have run.
    pub(crate) fn unused(&self) -> Vec<Finding> {
        self.exceptions
            .iter()
            .filter(|exception| !exception.is_used.get())
            .map(|exception| {
                let what =
                    format!("{FILE} allows it and there is nothing to allow: remove the exception");
                Finding::new(exception.rule, &exception.path, 1, what)
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "
        [ceilings]
        words = 3
        [[allow]]
        rule = \"short-file\"
        path = \"a/b\"
        reason = \"one per fuzz target\"
        [[allow]]
        rule = \"words\"
        path = \"c.rs\"
        name = \"old\"
        reason = \"a user's name\"
    ";

    #[test]
    fn an_exception_covers_its_rule_path_and_name_alone() {
        let settings = Settings::parse(TEXT).unwrap();
        let allows = |rule, path: &str, name| settings.allows(rule, Path::new(path), name);
        assert!(allows(Rule::ShortFile, "a/b/c.rs", None));
        assert!(!allows(Rule::ShortFile, "a/bc.rs", None));
        assert!(!allows(Rule::LongFile, "a/b/c.rs", None));
        assert!(allows(Rule::Words, "c.rs", Some("old")));
        assert!(!allows(Rule::Words, "c.rs", Some("older")));
        assert_eq!(settings.ceiling(Rule::Words), 3);
        assert_eq!(settings.ceiling(Rule::LongFile), 0);
    }

    #[test]
    fn an_exception_that_covers_nothing_is_a_finding() {
        let settings = Settings::parse(TEXT).unwrap();
        settings.allows(Rule::ShortFile, Path::new("a/b/c.rs"), None);
        let unused = settings.unused();
        assert_eq!(unused.len(), 1);
        assert_eq!(unused[0].path, Path::new("c.rs"));
    }

    #[test]
    fn an_exception_needs_a_reason() {
        let text = TEXT.replace("a user's name", " ");
        assert!(Settings::parse(&text).is_err());
    }
}
