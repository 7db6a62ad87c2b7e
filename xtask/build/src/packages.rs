//! Debian packages, fetched by `apt-get download` and unpacked into a folder. Nothing is installed,
//! and no privileges are needed.
//!
//! apt works on lists of its own in the cache folder, made from the machine's sources. The machine's
//! own lists may be missing, as in container images, or too old to name the installed versions.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use rustix::fs::{FlockOperation, flock};

use crate::results::Unavailable;
use crate::workspace::target;

/// The limit of one download. The kernel's package has 107 MB, all others together below 40.
const MOST_BYTES: u64 = 400 << 20;
/// Prefixes of the names of library packages.
const LIBRARIES: [&str; 2] = ["lib", "zlib"];
/// Time limits and attempts of apt.
const LIMITS: [&str; 8] = [
    "-o",
    "Acquire::http::Timeout=30",
    "-o",
    "Acquire::https::Timeout=30",
    "-o",
    "Acquire::Retries=2",
    // apt's sandbox user cannot write to this folder.
    "-o",
    "APT::Sandbox::User=root",
];

/// A package in apt's signed lists.
#[derive(Debug, PartialEq, Eq)]
struct Source {
    file: String,
    bytes: u64,
}

/// Returns the folder for downloads: `GDR_VM_CACHE`, else the user's cache folder, else one in
/// cargo's target folder.
pub fn cache() -> PathBuf {
    let folder = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    if let Some(own) = folder("GDR_VM_CACHE") {
        return own.into();
    }
    if let Some(user) = folder("XDG_CACHE_HOME") {
        return Path::new(&user).join("gdr-vm");
    }
    match folder("HOME") {
        Some(home) => Path::new(&home).join(".cache/gdr-vm"),
        None => target().join("vm-cache"),
    }
}

/// Makes a folder, and waits until no other process has it locked. The lock lasts as long as the file.
pub fn locked(folder: &Path) -> anyhow::Result<File> {
    fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    let lock = File::create(folder.join("lock"))?;
    flock(&lock, FlockOperation::LockExclusive)?;
    Ok(lock)
}

/// Fills `folder` by `make` unless it was filled by the same recipe. It appears by a rename, so it
/// is never incomplete.
pub fn once(
    folder: &Path,
    recipe: &str,
    make: impl FnOnce(&Path) -> anyhow::Result<()>,
) -> anyhow::Result<PathBuf> {
    let written = folder.join("recipe");
    if fs::read_to_string(&written).ok().as_deref() != Some(recipe) {
        let partial = folder.with_extension("partial");
        for old in [folder, &partial] {
            if old.exists() {
                fs::remove_dir_all(old).with_context(|| old.display().to_string())?;
            }
        }
        fs::create_dir_all(&partial).with_context(|| partial.display().to_string())?;
        make(&partial)?;
        fs::write(partial.join("recipe"), recipe)?;
        fs::rename(&partial, folder).with_context(|| folder.display().to_string())?;
    }
    Ok(folder.to_owned())
}

/// apt with lists of its own.
pub struct Apt {
    /// Where the lists are, and no installed package.
    options: Vec<String>,
}

impl Apt {
    /// Fetches the lists of the machine's sources into a folder.
    pub fn fetch_lists(folder: &Path) -> anyhow::Result<Self> {
        Self::fetch(folder, &[])
    }

    /// Like [`Self::fetch_lists`], for an architecture of Debian that may not be this machine's.
    pub fn fetch_lists_for(folder: &Path, architecture: &str) -> anyhow::Result<Self> {
        Self::fetch(folder, &[format!("APT::Architecture={architecture}")])
    }

    fn fetch(folder: &Path, others: &[String]) -> anyhow::Result<Self> {
        let lists = folder.join("lists");
        let cache = folder.join("cache");
        for made in [lists.join("partial"), cache.join("archives/partial")] {
            fs::create_dir_all(&made).with_context(|| made.display().to_string())?;
        }
        let options = [
            format!("Dir::State::lists={}", lists.display()),
            format!("Dir::Cache={}", cache.display()),
            "Dir::State::status=/dev/null".to_owned(),
            "Acquire::Languages=none".to_owned(),
        ];
        let apt = Self {
            options: options
                .iter()
                .chain(others)
                .cloned()
                .flat_map(|option| ["-o".to_owned(), option])
                .collect(),
        };
        // A hook of the machine that fails without privileges makes this fail after the lists are
        // there, and one source that does not answer leaves the others: what is missing shows later.
        apt.get()
            .args(["-qq", "update"])
            .status()
            .map_err(cannot_start)?;
        Ok(apt)
    }

    fn get(&self) -> Command {
        let mut command = Command::new("apt-get");
        command
            .args(LIMITS)
            .args(&self.options)
            .stdin(Stdio::null());
        command
    }

    /// Fetches the packages into `root` and unpacks them there. apt compares each with the checksum
    /// in its signed lists.
    pub fn unpack(&self, names: &[String], root: &Path) -> anyhow::Result<()> {
        let sources = self.sources(names)?;
        let total: u64 = sources.iter().map(|source| source.bytes).sum();
        if total > MOST_BYTES {
            bail!("the packages have {total} bytes; at most {MOST_BYTES} are fetched");
        }
        println!(
            "fetching {} packages, {} MB",
            sources.len(),
            total / 1_000_000
        );
        let folder = root.join("packages");
        fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        let status = self
            .get()
            .args(["-qq", "download"])
            .args(names)
            .current_dir(&folder)
            .status()
            .map_err(cannot_start)?;
        if !status.success() {
            return Err(Unavailable::new("apt-get cannot download (no network?)").into());
        }
        for source in &sources {
            let file = folder.join(&source.file);
            let found = fs::metadata(&file).with_context(|| file.display().to_string())?;
            if found.len() != source.bytes {
                bail!(
                    "{}: {} bytes, not {}",
                    source.file,
                    found.len(),
                    source.bytes
                );
            }
            let status = Command::new("dpkg-deb")
                .arg("--extract")
                .args([&file, root])
                .status()
                .map_err(|error| {
                    Unavailable::new(format!("dpkg-deb cannot be started: {error}"))
                })?;
            if !status.success() {
                bail!("dpkg-deb cannot unpack {}", source.file);
            }
        }
        fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())
    }

    /// Returns `names` and all libraries that they depend on.
    pub fn with_libraries(&self, names: &[&str]) -> anyhow::Result<Vec<String>> {
        let output = self.cache(
            &[
                "depends",
                "--recurse",
                "--important",
                "--no-pre-depends",
                "--no-conflicts",
                "--no-breaks",
                "--no-replaces",
                "--no-enhances",
            ],
            names,
        )?;
        Ok(select_libraries(names, &output))
    }

    /// Returns the package that a metapackage stands for: the newest kernel for `linux-image-amd64`.
    pub fn behind(&self, name: &str, prefix: &str) -> anyhow::Result<Option<String>> {
        let output = self.cache(&["depends", "--important"], &[name])?;
        Ok(output
            .lines()
            .filter_map(|line| line.trim().strip_prefix("Depends: "))
            .find(|needed| needed.starts_with(prefix))
            .map(str::to_owned))
    }

    /// Returns whether the lists have a package.
    pub fn has(&self, name: &str) -> anyhow::Result<bool> {
        let output = self.cache(&["policy"], &[name])?;
        Ok(output
            .lines()
            .filter_map(|line| line.trim().strip_prefix("Candidate: "))
            .any(|version| version != "(none)"))
    }

    fn cache(&self, arguments: &[&str], names: &[&str]) -> anyhow::Result<String> {
        let output = Command::new("apt-cache")
            .args(&self.options)
            .args(arguments)
            .args(names)
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .output()
            .map_err(cannot_start)?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn sources(&self, names: &[String]) -> anyhow::Result<Vec<Source>> {
        let output = self
            .get()
            .args(["-qq", "--print-uris", "download"])
            .args(names)
            .stderr(Stdio::inherit())
            .output()
            .map_err(cannot_start)?;
        let sources: Option<Vec<_>> = String::from_utf8_lossy(&output.stdout)
            .lines()
            .map(source)
            .collect();
        match sources {
            Some(sources) if output.status.success() && sources.len() == names.len() => Ok(sources),
            _ => {
                let reason = "apt's sources do not have every package (no network?)";
                Err(Unavailable::new(reason).into())
            }
        }
    }
}

fn cannot_start(error: std::io::Error) -> Unavailable {
    Unavailable::new(format!(
        "apt cannot be started ({error}); Debian's packages come by it"
    ))
}

fn select_libraries(names: &[&str], depends: &str) -> Vec<String> {
    let mut selected: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    // Other dependencies, such as debconf, are not needed to run a program. apt prints each package
    // without indentation and its dependencies below it, in the order of discovery, so the pass is
    // repeated until it finds no new package.
    loop {
        let before = selected.len();
        let mut wanted = false;
        for line in depends.lines() {
            if !line.starts_with([' ', '|', '<']) {
                wanted = selected.iter().any(|name| name == line);
            } else if wanted
                && let Some((_, needed)) = line.split_once("Depends: ")
                && LIBRARIES.iter().any(|prefix| needed.starts_with(prefix))
                && !line.trim_start().starts_with('|')
                && !selected.iter().any(|name| name == needed)
            {
                selected.push(needed.to_owned());
            }
        }
        if selected.len() == before {
            return selected;
        }
    }
}

/// Reads `'ADDRESS' FILE BYTES SHA256:...`.
fn source(line: &str) -> Option<Source> {
    let mut fields = line.split(' ').skip(1);
    let file = fields.next()?.to_owned();
    let bytes = fields.next()?.parse().ok()?;
    // Without a checksum apt accepts any file.
    fields.next()?.strip_prefix("SHA256:")?;
    Some(Source { file, bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_apt_are_parsed_and_those_without_a_checksum_refused() {
        let line = "'http://deb.debian.org/a.deb' a_1%3a7.2_amd64.deb 928188 SHA256:00ff";
        let expected = Source {
            file: "a_1%3a7.2_amd64.deb".to_owned(),
            bytes: 928_188,
        };
        assert_eq!(source(line), Some(expected));
        assert_eq!(source("'http://deb.debian.org/a.deb' a.deb 12 "), None);
        assert_eq!(source("W: something else"), None);
    }

    #[test]
    fn a_folder_is_made_once_for_each_recipe_also_for_an_empty_one() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("kept");
        let mut made = 0;
        for (recipe, times) in [("", 1), ("", 1), ("a", 2), ("", 3)] {
            let make = |partial: &Path| {
                made += 1;
                Ok(fs::write(partial.join("content"), "")?)
            };
            assert_eq!(once(&folder, recipe, make).unwrap(), folder);
            assert_eq!(made, times, "{recipe:?}");
            assert!(folder.join("content").exists());
        }
    }

    #[test]
    fn only_dependencies_on_libraries_are_followed() {
        let depends = "\
iproute2
 |Depends: debconf
  Depends: libbpf1
  Depends: adduser
libelf1
  Depends: libc6
debconf
  Depends: libperl
libbpf1
  Depends: libelf1
";
        assert_eq!(
            select_libraries(&["iproute2"], depends),
            ["iproute2", "libbpf1", "libelf1", "libc6"]
        );
    }
}
