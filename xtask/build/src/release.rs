//! `cargo xtask release`: everything that a release publishes, in one folder. Nothing is published:
//! .github/workflows/release.yml does that with this folder.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, bail};

use crate::dependencies::Dependencies;
use crate::package::{self, Architecture, PUBLISHED, VERSION};
use crate::results::{Outcome, Results};
use crate::workspace::{cargo, root};
use crate::{sbom, third_party, wheel};

/// The heading of changes that no release has yet.
const UNRELEASED: &str = "Unreleased";

#[derive(Debug, clap::Args)]
pub struct Options {
    /// Build everything even if the tree has changes that are not committed or CHANGELOG.md has no
    /// section of this version.
    #[arg(long)]
    dry_run: bool,
    /// The folder for the release. An older release there is replaced.
    #[arg(long, value_name = "FOLDER", default_value = "dist/release")]
    out: PathBuf,
}

pub fn run(options: &Options) -> anyhow::Result<ExitCode> {
    let out = root().join(&options.out);
    let mut results = Results::default();
    results.check("CHANGELOG.md and the tree", || match ready() {
        Err(reason) if options.dry_run => Ok(Outcome::Skipped {
            reason: format!("{reason:#}"),
        }),
        result => result.map(|()| Outcome::Passed),
    });
    results.check("crates in the order of their dependencies", crates);
    results.check("packages", || {
        clear(&out)?;
        package::make_all(&out)?;
        Ok(Outcome::Passed)
    });
    results.check("wheels", || {
        wheel::build_portable(&Architecture::ALL, &out)?;
        Ok(Outcome::Passed)
    });
    results.check("licences and bill of materials", || {
        let targets = package::targets();
        let dependencies = Dependencies::of(&PUBLISHED, &targets)?;
        write(
            &out,
            "third-party.md",
            &third_party::licences(&dependencies)?,
        )?;
        let document = sbom::document(&dependencies, "gdr", VERSION);
        let text = serde_json::to_string_pretty(&document)? + "\n";
        write(&out, &format!("gdr-{VERSION}.cdx.json"), &text)?;
        Ok(Outcome::Passed)
    });
    results.check("notes", || {
        let changes = changelog()?;
        let notes = section(&changes, VERSION).or_else(|| section(&changes, UNRELEASED));
        write(
            &out,
            "notes.md",
            notes.context("CHANGELOG.md has no changes")?,
        )?;
        Ok(Outcome::Passed)
    });
    results.check("checksums", || checksums(&out));
    Ok(results.close())
}

fn changelog() -> anyhow::Result<String> {
    fs::read_to_string(root().join("CHANGELOG.md")).context("CHANGELOG.md cannot be read")
}

fn write(out: &Path, name: &str, text: &str) -> anyhow::Result<()> {
    let path = out.join(name);
    fs::write(&path, text).with_context(|| format!("{} cannot be written", path.display()))
}

/// Checks that this tree can be released as it is.
fn ready() -> anyhow::Result<()> {
    if section(&changelog()?, VERSION).is_none() {
        bail!("CHANGELOG.md has no section [{VERSION}]: rename [{UNRELEASED}]");
    }
    let output = Command::new("git")
        .args(["status", "--porcelain"])
        .current_dir(root())
        .output()
        .context("git cannot be started")?;
    let changes = String::from_utf8_lossy(&output.stdout);
    if let Some(change) = changes.lines().next() {
        bail!("the tree has changes that are not committed: {change}");
    }
    Ok(())
}

/// Returns the section of a version: what is between its heading and the next one.
fn section<'a>(changelog: &'a str, version: &str) -> Option<&'a str> {
    let heading = format!("\n## [{version}]");
    let (_, rest) = changelog.split_once(&heading)?;
    let (_, body) = rest.split_once('\n')?;
    let body = body.split_once("\n## [").map_or(body, |(body, _)| body);
    Some(body.trim()).filter(|body| !body.is_empty())
}

/// Packages every crate as `cargo publish` would, each after those that it depends on. Cargo checks
/// the metadata, and that each finds its dependencies among those before it.
fn crates() -> anyhow::Result<Outcome> {
    let mut command = cargo(&["package", "--workspace", "--no-verify", "--allow-dirty"]);
    for name in unpublished()? {
        command.args(["--exclude", &name]);
    }
    Outcome::of(command)
}

/// Returns the members of the workspace that are not published.
fn unpublished() -> anyhow::Result<Vec<String>> {
    let output = cargo(&["metadata", "--format-version", "1", "--no-deps", "--locked"])
        .output()
        .context("cargo cannot be started")?;
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let packages = metadata["packages"]
        .as_array()
        .context("cargo lists no packages")?;
    let kept = packages
        .iter()
        .filter(|package| package["publish"].as_array().is_some_and(Vec::is_empty));
    Ok(kept
        .filter_map(|package| Some(package["name"].as_str()?.to_owned()))
        .collect())
}

/// Removes an older release. Any other folder with contents is an error and stays as it is.
fn clear(out: &Path) -> anyhow::Result<()> {
    let is_empty = fs::read_dir(out)
        .map(|mut entries| entries.next().is_none())
        .unwrap_or(true);
    if !is_empty && !out.join("SHA256SUMS").exists() {
        bail!(
            "{} is not a release and not empty: remove it yourself",
            out.display()
        );
    }
    if out.exists() {
        fs::remove_dir_all(out)?;
    }
    fs::create_dir_all(out).with_context(|| format!("{} cannot be created", out.display()))?;
    // First, because a release is known by it, even an incomplete one.
    write(out, "SHA256SUMS", "")
}

/// Writes SHA256SUMS, which `sha256sum --check` reads.
fn checksums(out: &Path) -> anyhow::Result<Outcome> {
    let mut names = Vec::new();
    for entry in fs::read_dir(out)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name != "SHA256SUMS" {
            names.push(name);
        }
    }
    names.sort();
    let output = Command::new("sha256sum")
        .args(&names)
        .current_dir(out)
        .output()
        .context("sha256sum cannot be started")?;
    if !output.status.success() {
        bail!("{}", String::from_utf8_lossy(&output.stderr));
    }
    let text = String::from_utf8(output.stdout)?;
    print!("{text}");
    write(out, "SHA256SUMS", &text)?;
    Ok(Outcome::Passed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_section_of_a_version_ends_at_the_next_one() {
        let text = "# Changelog\n\n## [Unreleased]\n\n## [0.2.0] - 2026-12-01\n\n### Added\n\n- b\n\n## [0.1.0]\n\n- a\n";
        assert_eq!(section(text, "0.2.0"), Some("### Added\n\n- b"));
        assert_eq!(section(text, "0.1.0"), Some("- a"));
        assert_eq!(section(text, "Unreleased"), None);
        assert_eq!(section(text, "0.3.0"), None);
    }

    #[test]
    fn tests_and_tasks_are_not_published() {
        let kept = unpublished().unwrap();
        assert!(kept.contains(&"xtask".to_owned()), "{kept:?}");
        assert!(!kept.contains(&"gdr-cli".to_owned()), "{kept:?}");
    }

    #[test]
    fn a_folder_without_a_release_is_not_cleared() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("thesis.tex"), "").unwrap();
        assert!(clear(folder.path()).is_err());
        fs::remove_file(folder.path().join("thesis.tex")).unwrap();
        clear(folder.path()).unwrap();
        write(folder.path(), "old.deb", "").unwrap();
        clear(folder.path()).unwrap();
        assert!(!folder.path().join("old.deb").exists());
    }
}
