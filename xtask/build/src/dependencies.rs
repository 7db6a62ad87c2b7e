//! The crates that packages contain, as cargo resolves them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::process::Stdio;

use anyhow::{Context, bail};
use serde::Deserialize;

use crate::workspace::{cargo, root};

/// The parts of `cargo metadata`'s output that are read.
#[derive(Debug, Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    resolve: Resolve,
}

/// A crate.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Package {
    id: String,
    pub name: String,
    pub version: String,
    pub license: Option<String>,
    pub description: Option<String>,
    pub repository: Option<String>,
    /// `None` for a crate of this workspace.
    pub source: Option<String>,
    pub manifest_path: PathBuf,
    /// SHA-256 of the registry's archive, from Cargo.lock.
    #[serde(skip)]
    pub checksum: Option<String>,
}

/// The parts of Cargo.lock that are read.
#[derive(Debug, Deserialize)]
struct Lock {
    package: Vec<Locked>,
}

#[derive(Debug, Deserialize)]
struct Locked {
    name: String,
    version: String,
    checksum: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Debug, Deserialize)]
struct Node {
    id: String,
    deps: Vec<Dependency>,
}

#[derive(Debug, Deserialize)]
struct Dependency {
    pkg: String,
    dep_kinds: Vec<DependencyKind>,
}

#[derive(Debug, Deserialize)]
struct DependencyKind {
    /// `None` for a linked dependency; `build` and `dev` are not in the programs.
    kind: Option<String>,
}

/// Crates, and the crates that each is linked with.
#[derive(Debug, Default)]
pub struct Dependencies {
    /// By cargo's identifier.
    packages: BTreeMap<String, Package>,
    edges: BTreeMap<String, BTreeSet<String>>,
}

impl Dependencies {
    /// Returns these crates of the workspace, and the crates that they are linked with for the targets.
    ///
    /// # Errors
    ///
    /// If cargo cannot resolve them without the network.
    pub fn of(roots: &[&str], targets: &[String]) -> anyhow::Result<Self> {
        let mut arguments = vec!["metadata", "--format-version", "1", "--locked"];
        for target in targets {
            arguments.extend(["--filter-platform", target]);
        }
        let output = cargo(&arguments)
            .stderr(Stdio::inherit())
            .output()
            .context("cargo cannot be started")?;
        if !output.status.success() {
            bail!("cargo metadata failed ({})", output.status);
        }
        let mut found = Self::reachable(serde_json::from_slice(&output.stdout)?, roots)?;
        let lock: Lock = toml::from_str(&fs::read_to_string(root().join("Cargo.lock"))?)?;
        for package in found.packages.values_mut() {
            let locked = lock.package.iter().find(|locked| {
                (&locked.name, &locked.version) == (&package.name, &package.version)
            });
            package.checksum = locked.and_then(|locked| locked.checksum.clone());
        }
        Ok(found)
    }

    fn reachable(metadata: Metadata, roots: &[&str]) -> anyhow::Result<Self> {
        let packages: BTreeMap<_, _> = metadata
            .packages
            .into_iter()
            .map(|package| (package.id.clone(), package))
            .collect();
        let linked: BTreeMap<_, BTreeSet<String>> = metadata
            .resolve
            .nodes
            .into_iter()
            .map(|Node { id, deps }| {
                let linked = deps
                    .into_iter()
                    .filter(|dependency| dependency.dep_kinds.iter().any(|it| it.kind.is_none()));
                (id, linked.map(|dependency| dependency.pkg).collect())
            })
            .collect();
        let mut found = Self::default();
        let mut open = Vec::new();
        for root in roots {
            let package = packages
                .values()
                .find(|package| package.name == *root && package.source.is_none());
            let package = package.with_context(|| format!("the workspace has no crate {root}"))?;
            open.push(package.id.clone());
        }
        while let Some(id) = open.pop() {
            if found.packages.contains_key(&id) {
                continue;
            }
            let package = packages
                .get(&id)
                .with_context(|| format!("no crate {id}"))?;
            let below = linked.get(&id).cloned().unwrap_or_default();
            open.extend(below.iter().cloned());
            found.packages.insert(id.clone(), package.clone());
            found.edges.insert(id, below);
        }
        Ok(found)
    }

    /// Returns every crate, by name and version.
    pub fn packages(&self) -> Vec<&Package> {
        let mut packages: Vec<_> = self.packages.values().collect();
        packages
            .sort_by(|one, other| (&one.name, &one.version).cmp(&(&other.name, &other.version)));
        packages
    }

    /// Returns what a crate is linked with.
    pub fn below(&self, package: &Package) -> Vec<&Package> {
        let ids = self.edges.get(&package.id).into_iter().flatten();
        let mut below: Vec<_> = ids.filter_map(|id| self.packages.get(id)).collect();
        below.sort_by(|one, other| (&one.name, &one.version).cmp(&(&other.name, &other.version)));
        below
    }
}

impl Package {
    /// Returns its address in the form of the package-url specification.
    pub fn url(&self) -> String {
        format!("pkg:cargo/{}@{}", self.name, self.version)
    }

    /// Returns whether it belongs to this workspace.
    pub fn is_own(&self) -> bool {
        self.source.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `a` is linked with `b`, and built and tested with `c`.
    const METADATA: &str = r#"{
        "packages": [
            {"id": "1", "name": "a", "version": "1.0.0", "license": "MIT", "description": null,
             "repository": null, "source": null, "manifest_path": "/a/Cargo.toml"},
            {"id": "2", "name": "b", "version": "2.0.0", "license": "MIT", "description": null,
             "repository": null, "source": "registry", "manifest_path": "/b/Cargo.toml"},
            {"id": "3", "name": "c", "version": "3.0.0", "license": "MIT", "description": null,
             "repository": null, "source": "registry", "manifest_path": "/c/Cargo.toml"}
        ],
        "resolve": {"nodes": [
            {"id": "1", "deps": [
                {"pkg": "2", "dep_kinds": [{"kind": null}]},
                {"pkg": "3", "dep_kinds": [{"kind": "build"}, {"kind": "dev"}]}]},
            {"id": "2", "deps": []},
            {"id": "3", "deps": []}
        ]}
    }"#;

    #[test]
    fn only_what_is_linked_is_listed() {
        let metadata = || serde_json::from_str(METADATA).unwrap();
        let found = Dependencies::reachable(metadata(), &["a"]).unwrap();
        let urls: Vec<_> = found.packages().into_iter().map(Package::url).collect();
        assert_eq!(urls, ["pkg:cargo/a@1.0.0", "pkg:cargo/b@2.0.0"]);
        let below = found.below(found.packages()[0]);
        assert_eq!(below, [found.packages()[1]]);
        let error = Dependencies::reachable(metadata(), &["b"]).unwrap_err();
        assert_eq!(error.to_string(), "the workspace has no crate b");
    }
}
