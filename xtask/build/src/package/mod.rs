//! `cargo xtask package`: an archive, Debian packages and RPM packages.

mod architecture;
mod archive;
mod build_paths;
mod deb;
pub(crate) mod elf;
mod layout;
mod programs;
mod rpm;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use clap::ValueEnum;

pub use self::architecture::Architecture;
pub use self::build_paths::BuildPaths;
pub use self::elf::check as check_needs;
pub use self::layout::contrib;
use self::layout::{Content, Folders, Item, Part};
pub use self::programs::{OLDEST_GLIBC, PUBLISHED, Programs, pages, release_flags};
use crate::install::make_folder;
use crate::tools::{Program, Tools};
use crate::workspace::root;

/// The version of gdr.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

#[derive(Debug, clap::Args)]
pub struct Options {
    /// The architectures [default: both].
    #[arg(long, value_name = "NAME")]
    arch: Vec<Architecture>,
    /// The kinds of packages [default: all].
    #[arg(long, value_name = "KIND")]
    kind: Vec<Kind>,
    /// The folder for the packages.
    #[arg(long, value_name = "FOLDER", default_value = "dist/packages")]
    out: PathBuf,
    /// Install and use the packages in roots of older distributions, which apt fetches. Needs root.
    #[arg(long)]
    pub check: bool,
}

/// A kind of packages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// One .tar.gz.
    Tar,
    /// gdr, libgdrapi2 and libgdrapi-dev.
    Deb,
    /// gdr, libgdrapi2 and libgdrapi-devel.
    Rpm,
}

impl Kind {
    const ALL: [Self; 3] = [Self::Tar, Self::Deb, Self::Rpm];
}

/// A package that was made.
#[derive(Clone, Debug)]
pub struct Package {
    /// The file of the package.
    pub file: PathBuf,
    /// Its kind.
    pub kind: Kind,
    /// The architecture of its programs.
    pub architecture: Architecture,
}

/// Makes the packages that the options choose, and prints their files.
pub fn run(options: &Options) -> anyhow::Result<Vec<Package>> {
    let architectures = or_all(&options.arch, &Architecture::ALL);
    let kinds = or_all(&options.kind, &Kind::ALL);
    let packages = make(&architectures, &kinds, &root().join(&options.out))?;
    for package in &packages {
        println!("{}", package.file.display());
    }
    Ok(packages)
}

/// Makes every package for every architecture, and returns their files.
pub fn make_all(out: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let packages = make(&Architecture::ALL, &Kind::ALL, out)?;
    Ok(packages.into_iter().map(|package| package.file).collect())
}

/// Makes the archive of one architecture, and returns the tools that its programs are built with, too.
pub fn make_archive(architecture: Architecture, out: &Path) -> anyhow::Result<(Tools, PathBuf)> {
    let time = source_time()?;
    let (tools, built) = programs_for(&[architecture], &[], time)?;
    let [programs] = &*built else {
        bail!("not one architecture was built")
    };
    Ok((tools, archive_of(architecture, programs, time, out)?))
}

/// Returns the targets of Rust that packages are made for.
pub fn targets() -> [String; 2] {
    Architecture::ALL.map(Architecture::target)
}

fn or_all<T: Copy>(chosen: &[T], all: &[T]) -> Vec<T> {
    if chosen.is_empty() { all } else { chosen }.to_vec()
}

/// Builds the programs of packages for the architectures, in their order, and returns the tools, too,
/// which are these and the programs that are needed beside them.
pub fn programs_for(
    architectures: &[Architecture],
    needed: &[Program],
    time: u64,
) -> anyhow::Result<(Tools, Vec<Programs>)> {
    let host = Architecture::of_this_machine().context(
        "gdr is packaged on x86_64 and aarch64 only: its manual pages are written by itself",
    )?;
    let mut targets: Vec<_> = architectures.iter().map(|it| it.target()).collect();
    if !architectures.contains(&host) {
        targets.push(host.target());
    }
    let tools = Tools::find(&targets, needed)?;
    let built = programs::build(&tools, architectures, host, time)?;
    Ok((tools, built))
}

fn make(
    architectures: &[Architecture],
    kinds: &[Kind],
    out: &Path,
) -> anyhow::Result<Vec<Package>> {
    let needed = [
        (Kind::Deb, Program::DpkgDeb),
        (Kind::Rpm, Program::Rpmbuild),
    ];
    let needed = needed.into_iter().filter(|(kind, _)| kinds.contains(kind));
    let needed: Vec<_> = needed.map(|(_, program)| program).collect();
    let time = source_time()?;
    let (_, built) = programs_for(architectures, &needed, time)?;
    make_folder(out)?;
    let mut packages = Vec::new();
    for (&architecture, programs) in architectures.iter().zip(&built) {
        for &kind in kinds {
            let files = match kind {
                Kind::Tar => vec![archive_of(architecture, programs, time, out)?],
                Kind::Deb => deb::build(architecture, programs, time, out)?,
                Kind::Rpm => rpm::build(architecture, programs, time, out)?,
            };
            packages.extend(files.into_iter().map(|file| Package {
                file,
                kind,
                architecture,
            }));
        }
    }
    Ok(packages)
}

/// Returns the files of an archive, sorted.
fn archived(programs: &Programs) -> anyhow::Result<Vec<Item>> {
    let folders = Folders::archive();
    let mut items = layout::archive_root(programs)?;
    for part in [Part::Command, Part::Library, Part::Development] {
        items.extend(layout::files(part, &folders, programs)?);
    }
    items.sort_by(|one, other| one.path.cmp(&other.path));
    Ok(items)
}

/// Writes the files of an archive to a folder.
pub fn unpacked(programs: &Programs, folder: &Path) -> anyhow::Result<()> {
    layout::stage(&archived(programs)?, folder)
}

/// Makes the archive of one architecture.
fn archive_of(
    architecture: Architecture,
    programs: &Programs,
    time: u64,
    out: &Path,
) -> anyhow::Result<PathBuf> {
    let name = format!("gdr-{VERSION}-{}-linux", architecture.name());
    let items = archived(programs)?;
    let paths = BuildPaths::of_this_machine();
    for item in &items {
        let bytes = match &item.content {
            Content::Bytes { bytes, .. } => bytes,
            Content::Link(target) => target.as_bytes(),
        };
        paths.check_bytes(bytes, &item.path)?;
    }
    let file = out.join(format!("{name}.tar.gz"));
    archive::write(&items, &name, time, &file)?;
    Ok(file)
}

/// Returns the time of everything in packages, in seconds since 1970: `SOURCE_DATE_EPOCH`, else the last commit's.
pub fn source_time() -> anyhow::Result<u64> {
    if let Ok(named) = std::env::var("SOURCE_DATE_EPOCH") {
        return named
            .parse()
            .context("SOURCE_DATE_EPOCH is not a number of seconds");
    }
    let output = Command::new("git")
        .args(["log", "-1", "--format=%ct"])
        .current_dir(root())
        .output()
        .context("git cannot be started: set SOURCE_DATE_EPOCH to the time of the packages")?;
    let text = String::from_utf8(output.stdout)?;
    text.trim()
        .parse()
        .context("git knows no commit here: set SOURCE_DATE_EPOCH to the time of the packages")
}

/// Reads a template of packaging/ and puts values in place of `@NAME@`.
fn filled(template: &Path, values: &[(&str, &str)]) -> anyhow::Result<String> {
    let path = root().join("packaging").join(template);
    let mut text =
        fs::read_to_string(&path).with_context(|| format!("{} cannot be read", path.display()))?;
    for (name, value) in values {
        text = text.replace(&format!("@{name}@"), value);
    }
    Ok(text)
}
