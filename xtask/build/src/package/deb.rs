//! Debian packages, by dpkg-deb.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;

use super::architecture::Architecture;
use super::archive::gzip;
use super::build_paths::BuildPaths;
use super::layout::{self, Content, Folders, Item, Part};
use super::programs::Programs;
use super::{VERSION, filled};
use crate::install::make_folder;
use crate::workspace::{root, succeed, target};

/// The Debian packages and their parts.
const PACKAGES: [(&str, Part); 3] = [
    ("gdr", Part::Command),
    ("libgdrapi2", Part::Library),
    ("libgdrapi-dev", Part::Development),
];

/// Members of the control archive that are programs, and those that are not; a package has some.
const SCRIPTS: [&str; 2] = ["prerm", "postrm"];
const TABLES: [&str; 2] = ["shlibs", "triggers"];

/// The revision of the package.
const REVISION: &str = "1";

/// Makes the packages of one architecture, and returns their files.
pub(super) fn build(
    architecture: Architecture,
    programs: &Programs,
    time: u64,
    out: &Path,
) -> anyhow::Result<Vec<PathBuf>> {
    let mut made = Vec::new();
    for (name, part) in PACKAGES {
        let mut items = layout::files(part, &Folders::debian(architecture), programs)?;
        items.extend(documents(name, programs, time)?);
        let folder = target()
            .join("packaging/deb")
            .join(architecture.name())
            .join(name);
        if folder.exists() {
            fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())?;
        }
        layout::stage(&items, &folder)?;
        control(name, architecture, &items, &folder.join("DEBIAN"))?;
        BuildPaths::of_this_machine().check(&folder)?;
        let file = out.join(format!(
            "{name}_{VERSION}-{REVISION}_{}.deb",
            architecture.of_debian()
        ));
        let mut command = Command::new("dpkg-deb");
        command
            // Ubuntu 20.04 and Debian 11 cannot read zstd. One thread: its output does not depend on
            // how many there are.
            .args(["--root-owner-group", "-Zxz", "--build"])
            .args([&folder, &file])
            .env("DPKG_DEB_THREADS_MAX", "1")
            .env("SOURCE_DATE_EPOCH", time.to_string())
            .stdout(std::process::Stdio::null());
        succeed(command)?;
        made.push(file);
    }
    Ok(made)
}

/// Returns what every Debian package has in its folder of documentation.
fn documents(name: &str, programs: &Programs, time: u64) -> anyhow::Result<Vec<Item>> {
    let folder = Path::new("usr/share/doc").join(name);
    let changes = filled(
        Path::new("deb/changelog"),
        &[
            ("PACKAGE", name),
            ("VERSION", &format!("{VERSION}-{REVISION}")),
            ("DATE", &date(time)?),
        ],
    )?;
    let mut copyright = filled(Path::new("deb/copyright"), &[])?;
    copyright += &indented(&fs::read_to_string(root().join("LICENSE-MIT"))?);
    let mut items = vec![
        Item {
            path: folder.join("changelog.Debian.gz"),
            content: data(gzip(changes.as_bytes())?),
        },
        Item {
            path: folder.join("copyright"),
            content: data(copyright.into_bytes()),
        },
    ];
    if name != "libgdrapi-dev" {
        items.push(Item {
            path: folder.join("third-party.md.gz"),
            content: data(gzip(programs.third_party.as_bytes())?),
        });
    }
    let overrides = filled(Path::new("deb/lintian-overrides"), &[])?;
    let own = of_package(&overrides, name);
    if !own.is_empty() {
        items.push(Item {
            path: Path::new("usr/share/lintian/overrides").join(name),
            content: data(own.into_bytes()),
        });
    }
    Ok(items)
}

/// Returns the overrides of one package, each after the comment that says why.
fn of_package(overrides: &str, name: &str) -> String {
    let prefix = format!("{name}: ");
    let (mut own, mut comment) = (String::new(), String::new());
    for line in overrides.lines() {
        if line.starts_with('#') {
            comment = format!("{line}\n");
        } else if line.starts_with(&prefix) {
            own += &format!("{comment}{line}\n");
        }
    }
    own
}

fn data(bytes: Vec<u8>) -> Content {
    Content::Bytes { bytes, mode: 0o644 }
}

/// Returns a text as the continuation of a field: each line begins with a space, and an empty one is a dot.
fn indented(text: &str) -> String {
    let lines = text.lines().map(|line| match line.trim() {
        "" => " .\n".to_owned(),
        line => format!(" {line}\n"),
    });
    lines.collect()
}

/// Writes the control archive's files.
fn control(
    name: &str,
    architecture: Architecture,
    items: &[Item],
    folder: &Path,
) -> anyhow::Result<()> {
    make_folder(folder)?;
    fs::set_permissions(folder, Permissions::from_mode(0o755))?;
    let text = filled(
        &Path::new("deb").join(format!("{name}.control")),
        &[
            ("VERSION", &format!("{VERSION}-{REVISION}")),
            ("ARCHITECTURE", architecture.of_debian()),
            ("SIZE", &installed_size(items).to_string()),
        ],
    )?;
    write(&folder.join("control"), &text, 0o644)?;
    write(&folder.join("md5sums"), &checksums(folder)?, 0o644)?;
    for (members, mode) in [(&SCRIPTS, 0o755), (&TABLES, 0o644)] {
        for member in members {
            let template = Path::new("deb").join(format!("{name}.{member}"));
            if root().join("packaging").join(&template).exists() {
                write(&folder.join(member), &filled(&template, &[])?, mode)?;
            }
        }
    }
    Ok(())
}

fn write(path: &Path, text: &str, mode: u32) -> anyhow::Result<()> {
    fs::write(path, text)
        .and_then(|()| fs::set_permissions(path, Permissions::from_mode(mode)))
        .with_context(|| format!("{} cannot be written", path.display()))
}

/// Returns the field Installed-Size: KiB, rounded up for each file.
fn installed_size(items: &[Item]) -> usize {
    let sizes = items.iter().map(|item| match &item.content {
        Content::Bytes { bytes, .. } => bytes.len().div_ceil(1024),
        Content::Link(_) => 1,
    });
    sizes.sum()
}

/// Returns the lines of md5sums, by the program of that name: of each file beside the control files' folder.
fn checksums(control: &Path) -> anyhow::Result<String> {
    let stage = control
        .parent()
        .context("no folder above the control files")?;
    let output = Command::new("sh")
        .arg("-c")
        .arg("find usr -type f -print0 | LC_ALL=C sort -z | xargs -0 md5sum")
        .current_dir(stage)
        .output()
        .context("sh cannot be started")?;
    Ok(String::from_utf8(output.stdout)?)
}

/// Returns a time as RFC 5322 has it, in UTC, by date(1).
fn date(time: u64) -> anyhow::Result<String> {
    let output = Command::new("date")
        .args(["--utc", "--rfc-email", &format!("--date=@{time}")])
        .env("LC_ALL", "C")
        .output()
        .context("date cannot be started")?;
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_becomes_the_continuation_of_a_field() {
        assert_eq!(indented("one\n\n  two\n"), " one\n .\n two\n");
    }

    #[test]
    fn an_override_comes_with_the_comment_that_answers_it() {
        let all = "# first\na: one\nb: one\n# second\na: two\n";
        assert_eq!(of_package(all, "a"), "# first\na: one\n# second\na: two\n");
        assert_eq!(of_package(all, "b"), "# first\nb: one\n");
        assert_eq!(of_package(all, "c"), "");
    }

    #[test]
    fn the_time_of_a_changelog_is_in_utc() {
        assert_eq!(date(0).unwrap(), "Thu, 01 Jan 1970 00:00:00 +0000");
    }
}
