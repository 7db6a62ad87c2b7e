//! The source files of a workspace and the cargo targets that they belong to.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

/// Extensions of the files that are read.
const EXTENSIONS: [&str; 6] = ["rs", "md", "toml", "sh", "c", "h"];

/// Folders that hold no source: build output, bundles and the inputs of fuzzing.
const SKIPPED: [&str; 4] = ["target", "dist", "corpus", "artifacts"];

/// The sources of one workspace. Every path is relative to its root.
#[derive(Debug, Default)]
pub(crate) struct SourceTree {
    pub(crate) files: BTreeMap<PathBuf, String>,
    /// By folder.
    packages: BTreeMap<PathBuf, Package>,
}

/// A cargo package.
#[derive(Debug)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) folder: PathBuf,
    pub(crate) targets: Vec<Target>,
}

/// A cargo target, which is one tree of modules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) kind: TargetKind,
    /// The file that holds the root module.
    pub(crate) root: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TargetKind {
    /// A library or a program.
    Product,
    /// A test, an example, a benchmark or a build script.
    Support,
}

impl SourceTree {
    /// Reads all files below `root`.
    pub(crate) fn read(root: &Path) -> anyhow::Result<Self> {
        let mut files = BTreeMap::new();
        read_folder(root, root, &mut files)?;
        Self::new(files)
    }

    /// Finds the packages among `files`.
    pub(crate) fn new(files: BTreeMap<PathBuf, String>) -> anyhow::Result<Self> {
        let mut packages = BTreeMap::new();
        for (path, text) in &files {
            if path.file_name().is_some_and(|name| name == "Cargo.toml")
                && let Some(package) = package(path, text, &files)?
            {
                packages.insert(package.folder.clone(), package);
            }
        }
        Ok(Self { files, packages })
    }

    pub(crate) fn packages(&self) -> impl Iterator<Item = &Package> {
        self.packages.values()
    }

    /// The package that a file belongs to: the one in the nearest folder above it.
    pub(crate) fn package_of(&self, path: &Path) -> Option<&Package> {
        path.ancestors()
            .skip(1)
            .find_map(|folder| self.packages.get(folder))
    }

    pub(crate) fn rust_files(&self) -> impl Iterator<Item = (&Path, &str)> {
        self.files
            .iter()
            .filter(|(path, _)| has_extension(path, "rs"))
            .map(|(path, text)| (path.as_path(), text.as_str()))
    }
}

pub(crate) fn has_extension(path: &Path, extension: &str) -> bool {
    path.extension().is_some_and(|found| found == extension)
}

fn read_folder(
    root: &Path,
    folder: &Path,
    files: &mut BTreeMap<PathBuf, String>,
) -> anyhow::Result<()> {
    let at = || folder.display().to_string();
    for entry in fs::read_dir(folder).with_context(at)? {
        let entry = entry.with_context(at)?;
        let (path, name) = (entry.path(), entry.file_name());
        let name = name.to_string_lossy();
        let kind = entry.file_type().with_context(at)?;
        if kind.is_dir() {
            if !name.starts_with('.') && !SKIPPED.contains(&&*name) {
                read_folder(root, &path, files)?;
            }
        } else if kind.is_file() && EXTENSIONS.iter().any(|known| has_extension(&path, known)) {
            let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
            let path = path.strip_prefix(root).unwrap_or(&path).to_owned();
            files.insert(path, text);
        }
    }
    Ok(())
}

/// Reads a manifest; `None` for one of a workspace without a package of its own.
fn package(
    manifest: &Path,
    text: &str,
    files: &BTreeMap<PathBuf, String>,
) -> anyhow::Result<Option<Package>> {
    let at = || manifest.display().to_string();
    let table: toml::Table = toml::from_str(text).with_context(at)?;
    let Some(package) = table.get("package") else {
        return Ok(None);
    };
    let Some(name) = package.get("name").and_then(toml::Value::as_str) else {
        bail!("{}: the package has no name", at());
    };
    let folder = manifest.parent().unwrap_or(Path::new("")).to_owned();
    let mut targets: Vec<Target> = Vec::new();
    let mut add = |kind, root: PathBuf| {
        let known = targets.iter().any(|target| target.root == root);
        if !known && files.contains_key(&root) {
            targets.push(Target { kind, root });
        }
    };
    for (key, kind) in [
        ("lib", TargetKind::Product),
        ("bin", TargetKind::Product),
        ("test", TargetKind::Support),
        ("bench", TargetKind::Support),
        ("example", TargetKind::Support),
    ] {
        for path in declared_paths(table.get(key)) {
            add(kind, folder.join(path));
        }
    }
    for root in ["src/lib.rs", "src/main.rs"] {
        add(TargetKind::Product, folder.join(root));
    }
    add(TargetKind::Support, folder.join("build.rs"));
    for (parts, kind) in [
        ("src/bin", TargetKind::Product),
        ("tests", TargetKind::Support),
        ("benches", TargetKind::Support),
        ("examples", TargetKind::Support),
    ] {
        let parts = folder.join(parts);
        for path in files.keys() {
            // `NAME.rs` or `NAME/main.rs`.
            let is_root = match path
                .strip_prefix(&parts)
                .map(|rest| rest.components().count())
            {
                Ok(1) => has_extension(path, "rs"),
                Ok(2) => path.ends_with("main.rs"),
                _ => false,
            };
            if is_root {
                add(kind, path.clone());
            }
        }
    }
    Ok(Some(Package {
        name: name.to_owned(),
        folder,
        targets,
    }))
}

/// The `path` keys of a table or of an array of tables.
fn declared_paths(value: Option<&toml::Value>) -> Vec<&str> {
    let tables: Vec<&toml::Value> = match value {
        Some(toml::Value::Array(tables)) => tables.iter().collect(),
        Some(table) => vec![table],
        None => Vec::new(),
    };
    tables
        .into_iter()
        .filter_map(|table| table.get("path")?.as_str())
        .collect()
}

/// A tree of these files, for tests.
#[cfg(test)]
pub(crate) fn fixture(files: &[(&str, &str)]) -> SourceTree {
    let files = files
        .iter()
        .map(|(path, text)| (PathBuf::from(path), (*text).to_owned()))
        .collect();
    SourceTree::new(files).expect("the fixture's manifests are valid")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_found_where_cargo_finds_them() {
        let tree = fixture(&[
            ("Cargo.toml", "[workspace]\nmembers = [\"a\"]"),
            (
                "a/Cargo.toml",
                "[package]\nname = \"a\"\n[[bin]]\nname = \"x\"\npath = \"x.rs\"",
            ),
            ("a/src/lib.rs", ""),
            ("a/src/other.rs", ""),
            ("a/x.rs", ""),
            ("a/tests/one.rs", ""),
            ("a/tests/two/main.rs", ""),
            ("a/tests/two/part.rs", ""),
        ]);
        let package = tree.packages().next().unwrap();
        let roots: Vec<_> = package
            .targets
            .iter()
            .map(|target| (target.root.to_str().unwrap(), target.kind))
            .collect();
        assert_eq!(
            roots,
            [
                ("a/x.rs", TargetKind::Product),
                ("a/src/lib.rs", TargetKind::Product),
                ("a/tests/one.rs", TargetKind::Support),
                ("a/tests/two/main.rs", TargetKind::Support),
            ]
        );
        let part = tree.package_of(Path::new("a/tests/two/part.rs")).unwrap();
        assert_eq!(part.name, "a");
    }

    #[test]
    fn build_output_and_hidden_folders_are_not_read() {
        let root = tempfile::tempdir().unwrap();
        for folder in ["src", "target", "dist", ".git", "fuzz/corpus"] {
            let folder = root.path().join(folder);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("a.rs"), "").unwrap();
            fs::write(folder.join("a.png"), [0xff]).unwrap();
        }
        let tree = SourceTree::read(root.path()).unwrap();
        let files: Vec<_> = tree.rust_files().map(|(path, _)| path).collect();
        assert_eq!(files, [Path::new("src/a.rs")]);
        assert_eq!(tree.files.len(), 1);
    }
}
