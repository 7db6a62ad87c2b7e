//! Types of one name.
//!
//! Two public types of one crate must not share a name: a reader of one cannot tell which is meant.
//! What several crates call the same, and what is `pub(crate)`, is listed only.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::finding::{Finding, Rule};
use super::settings::Settings;

/// Where a type is defined.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) package: String,
    pub(crate) path: PathBuf,
    pub(crate) line: usize,
}

/// The types of a workspace, by name.
#[derive(Debug, Default)]
pub(crate) struct Types {
    public: BTreeMap<String, Vec<Place>>,
    internal: BTreeMap<String, Vec<Place>>,
}

impl Types {
    pub(crate) fn add_public(&mut self, name: &str, place: Place) {
        add(&mut self.public, name, place);
    }

    pub(crate) fn add_internal(&mut self, name: &str, place: Place) {
        add(&mut self.internal, name, place);
    }

    /// A finding for each public type after the first of its name in its crate.
    pub(crate) fn check(&self, settings: &Settings) -> Vec<Finding> {
        let mut findings = Vec::new();
        for (name, places) in &self.public {
            let mut first: BTreeMap<&str, &Place> = BTreeMap::new();
            for place in places {
                let Some(first) = first.get(&*place.package) else {
                    first.insert(&place.package, place);
                    continue;
                };
                if settings.allows(Rule::Homonyms, &place.path, Some(name)) {
                    continue;
                }
                let (path, line) = (first.path.display(), first.line);
                let what = format!("{name} is also the name of {path}:{line}");
                findings.push(Finding::new(Rule::Homonyms, &place.path, place.line, what));
            }
        }
        findings
    }

    /// Names that several crates have a public type of, the most frequent first.
    pub(crate) fn across_crates(&self) -> Vec<(&str, Vec<&str>)> {
        let mut shared: Vec<(&str, Vec<&str>)> = Vec::new();
        for (name, places) in &self.public {
            let mut packages: Vec<&str> = places.iter().map(|place| &*place.package).collect();
            packages.dedup();
            if packages.len() > 1 {
                shared.push((name, packages));
            }
        }
        shared.sort_by_key(|(name, packages)| (std::cmp::Reverse(packages.len()), *name));
        shared
    }

    /// Names that a crate has three or more types of, public and `pub(crate)` together.
    pub(crate) fn frequent(&self) -> Vec<(&str, Vec<&Place>)> {
        let mut by_crate: BTreeMap<(&str, &str), Vec<&Place>> = BTreeMap::new();
        for (name, places) in self.public.iter().chain(&self.internal) {
            for place in places {
                by_crate
                    .entry((name, &place.package))
                    .or_default()
                    .push(place);
            }
        }
        by_crate.retain(|_, places| places.len() > 2);
        by_crate
            .into_iter()
            .map(|((name, _), places)| (name, places))
            .collect()
    }
}

fn add(types: &mut BTreeMap<String, Vec<Place>>, name: &str, place: Place) {
    let places = types.entry(name.to_owned()).or_default();
    // A file can belong to several targets.
    if let Err(at) = places.binary_search(&place) {
        places.insert(at, place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(package: &str, path: &str) -> Place {
        Place {
            package: package.to_owned(),
            path: path.into(),
            line: 7,
        }
    }

    #[test]
    fn one_name_twice_is_a_finding_within_a_crate_only() {
        let mut types = Types::default();
        types.add_public("Engine", place("a", "a/x.rs"));
        types.add_public("Engine", place("b", "b/x.rs"));
        assert!(types.check(&Settings::default()).is_empty());
        assert_eq!(types.across_crates(), [("Engine", vec!["a", "b"])]);

        types.add_public("Engine", place("a", "a/y.rs"));
        let findings = types.check(&Settings::default());
        assert_eq!(findings.len(), 1);
        assert_eq!(
            findings[0].to_string(),
            "a/y.rs:7: homonyms: Engine is also the name of a/x.rs:7"
        );
    }

    #[test]
    fn a_type_that_is_seen_through_two_targets_is_one() {
        let mut types = Types::default();
        types.add_public("Engine", place("a", "a/x.rs"));
        types.add_public("Engine", place("a", "a/x.rs"));
        assert!(types.check(&Settings::default()).is_empty());
    }

    #[test]
    fn internal_types_are_listed_and_exceptions_are_not_found() {
        let mut types = Types::default();
        for file in ["a/x.rs", "a/y.rs"] {
            types.add_public("Options", place("a", file));
        }
        types.add_internal("Options", place("a", "a/z.rs"));
        assert_eq!(types.frequent().len(), 1);
        let settings = Settings::parse(
            "[[allow]]\nrule = \"homonyms\"\npath = \"a\"\nname = \"Options\"\nreason = \"x\"",
        );
        assert!(types.check(&settings.unwrap()).is_empty());
    }
}
