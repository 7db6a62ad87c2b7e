//! The rules, and a place where one of them is broken.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::Deserialize;

/// A rule of the house.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Rule {
    Circles,
    ProviderImports,
    LongFile,
    ShortFile,
    Homonyms,
    Words,
}

impl Rule {
    pub(crate) const ALL: [Self; 6] = [
        Self::Circles,
        Self::ProviderImports,
        Self::LongFile,
        Self::ShortFile,
        Self::Homonyms,
        Self::Words,
    ];

    /// The name in `house.toml` and in the report.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Circles => "circles",
            Self::ProviderImports => "provider-imports",
            Self::LongFile => "long-file",
            Self::ShortFile => "short-file",
            Self::Homonyms => "homonyms",
            Self::Words => "words",
        }
    }

    /// What is counted.
    pub(crate) const fn unit(self) -> &'static str {
        match self {
            Self::Circles => "files in import circles of more than four files",
            Self::ProviderImports => "imports of a facade by a provider",
            Self::LongFile => "files of more than 800 lines",
            Self::ShortFile => "files of fewer than 40 lines",
            Self::Homonyms => "public types whose name another one in the crate has",
            Self::Words => "words that the glossary replaces",
        }
    }
}

/// A place where a rule is broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) rule: Rule,
    pub(crate) path: PathBuf,
    pub(crate) line: usize,
    pub(crate) what: String,
    /// How much it adds to the count of its rule.
    pub(crate) weight: usize,
}

impl Finding {
    pub(crate) fn new(rule: Rule, path: &Path, line: usize, what: String) -> Self {
        Self {
            rule,
            path: path.to_owned(),
            line,
            what,
            weight: 1,
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (path, rule) = (self.path.display(), self.rule.name());
        write!(f, "{path}:{}: {rule}: {}", self.line, self.what)
    }
}
