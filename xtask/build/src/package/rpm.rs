//! RPM packages, by rpmbuild.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::Context;

use super::architecture::Architecture;
use super::build_paths::BuildPaths;
use super::layout::{self, Content, Folders, Item, Part};
use super::programs::Programs;
use super::{VERSION, filled};
use crate::install::make_folder;
use crate::workspace::{root, succeed, target};

/// The RPM packages and their parts.
const PACKAGES: [(&str, Part); 3] = [
    ("gdr", Part::Command),
    ("libgdrapi2", Part::Library),
    ("libgdrapi-devel", Part::Development),
];

/// Makes the packages of one architecture, and returns their files.
pub(super) fn build(
    architecture: Architecture,
    programs: &Programs,
    time: u64,
    out: &Path,
) -> anyhow::Result<Vec<PathBuf>> {
    let folder = target().join("packaging/rpm").join(architecture.name());
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())?;
    }
    let [stage, lists, made] = ["stage", "lists", "made"].map(|name| folder.join(name));
    for folder in [&stage, &lists, &made] {
        make_folder(folder)?;
    }
    for (name, part) in PACKAGES {
        let mut items = layout::files(part, &Folders::rpm(), programs)?;
        items.extend(licences(name, programs)?);
        layout::stage(&items, &stage)?;
        fs::write(lists.join(name), list(name, &items))?;
    }
    let spec = folder.join("gdr.spec");
    let text = filled(
        Path::new("rpm/gdr.spec"),
        &[
            ("VERSION", VERSION),
            ("DATE", &date(time)?),
            ("STAGE", &stage.display().to_string()),
            ("LISTS", &lists.display().to_string()),
        ],
    )?;
    fs::write(&spec, text)?;
    let mut command = Command::new("rpmbuild");
    command
        .args(["-bb", "--quiet", "--target", architecture.name()])
        // Debian's rpmbuild has no folder of libraries of its own.
        .args(["--define", "_libdir /usr/lib64"])
        .args([
            "--define",
            &format!("_topdir {}", folder.join("top").display()),
        ])
        .args(["--define", &format!("_rpmdir {}", made.display())])
        .args([
            "--define",
            "_rpmfilename %%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm",
        ])
        .arg(&spec)
        .env("SOURCE_DATE_EPOCH", time.to_string())
        .stdout(Stdio::null());
    succeed(command)?;
    let paths = BuildPaths::of_this_machine();
    paths.check(&stage)?;
    let mut files = Vec::new();
    for (name, _) in PACKAGES {
        let name = format!("{name}-{VERSION}-1.{}.rpm", architecture.name());
        let file = out.join(&name);
        fs::copy(made.join(&name), &file).with_context(|| file.display().to_string())?;
        // Its header, with what rpmbuild notes of the build, is not compressed.
        paths.check(&file)?;
        files.push(file);
    }
    Ok(files)
}

/// Returns the licences of a package, in its own folder.
fn licences(name: &str, programs: &Programs) -> anyhow::Result<Vec<Item>> {
    let folder = Path::new("usr/share/licenses").join(name);
    let mut items = Vec::new();
    let mut add = |name: &str, bytes| {
        items.push(Item {
            path: folder.join(name),
            content: Content::Bytes { bytes, mode: 0o644 },
        });
    };
    for name in ["LICENSE-APACHE", "LICENSE-MIT"] {
        add(name, fs::read(root().join(name))?);
    }
    if name != "libgdrapi-devel" {
        add("third-party.md", programs.third_party.clone().into_bytes());
    }
    Ok(items)
}

/// Returns the list of a package's files for its section in the spec file: folders that it shares with no other package
/// are its own.
fn list(name: &str, items: &[Item]) -> String {
    let own = ["usr/lib64/gdr", "usr/libexec/gdr", "usr/share/gdr"];
    let documents = [
        format!("usr/share/doc/{name}"),
        format!("usr/share/licenses/{name}"),
    ];
    let mut lines = vec!["%defattr(-,root,root,-)".to_owned()];
    for folder in own
        .iter()
        .copied()
        .chain(documents.iter().map(String::as_str))
    {
        for item in items {
            for above in item
                .path
                .ancestors()
                .skip(1)
                .filter(|above| above.starts_with(folder))
            {
                lines.push(format!("%dir /{}", above.display()));
            }
        }
    }
    for Item { path, .. } in items {
        let mark = match path.to_string_lossy() {
            path if path.starts_with("usr/share/licenses") => "%license ",
            path if path.starts_with("usr/share/doc") => "%doc ",
            _ => "",
        };
        lines.push(format!("{mark}/{}", path.display()));
    }
    lines.sort();
    lines.dedup();
    lines.join("\n") + "\n"
}

/// Returns a day as a changelog of RPM has it, in UTC, by date(1).
fn date(time: u64) -> anyhow::Result<String> {
    let output = Command::new("date")
        .args(["--utc", "+%a %b %d %Y", &format!("--date=@{time}")])
        .env("LC_ALL", "C")
        .output()
        .context("date cannot be started")?;
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_that_no_other_package_has_belong_to_the_package() {
        let item = |path: &str| Item {
            path: path.into(),
            content: Content::Link("x".to_owned()),
        };
        let items = [
            item("usr/bin/gdr"),
            item("usr/lib64/gdr/shadow/libibverbs.so"),
            item("usr/share/licenses/gdr/LICENSE-MIT"),
        ];
        let expected = "%defattr(-,root,root,-)\n\
             %dir /usr/lib64/gdr\n\
             %dir /usr/lib64/gdr/shadow\n\
             %dir /usr/share/licenses/gdr\n\
             %license /usr/share/licenses/gdr/LICENSE-MIT\n\
             /usr/bin/gdr\n\
             /usr/lib64/gdr/shadow/libibverbs.so\n";
        assert_eq!(list("gdr", &items), expected);
    }
}
