//! The libibverbs of the newest rdma-core in Debian, downloaded by this machine's package manager.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::list::List;

/// The distribution that gets each release first, and the keys of its packages.
const SUITE: &str = "sid";
const KEYS: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
const PACKAGE: &str = "libibverbs1";

/// An `apt` with separate folders, which does not change the machine's state.
struct Apt(TempDir);

impl Apt {
    /// Creates an `apt` for the newest suite, from the sources of this machine's Debian packages.
    fn new() -> Result<Self, String> {
        let mut targets = Command::new("apt-get");
        targets.args([
            "indextargets",
            "--format",
            "$(ORIGIN) $(COMPONENT) $(REPO_URI)",
        ]);
        let listed = targets
            .output()
            .map_err(|error| format!("apt-get: {error}"))?;
        let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
        let place = listed
            .lines()
            .find_map(|line| line.strip_prefix("Debian main "));
        let place = place.ok_or("this machine has no packages of Debian")?;
        if !Path::new(KEYS).is_file() {
            return Err(format!("{KEYS} is missing"));
        }
        let folder = TempDir::new().map_err(|error| error.to_string())?;
        let made = fs::create_dir_all(folder.path().join("lists/partial"))
            .and_then(|()| fs::create_dir_all(folder.path().join("archives/partial")))
            .and_then(|()| fs::write(folder.path().join("status"), ""))
            .and_then(|()| {
                let source = format!("deb [signed-by={KEYS}] {place} {SUITE} main\n");
                fs::write(folder.path().join("sources.list"), source)
            });
        made.map_err(|error| error.to_string())?;
        Ok(Self(folder))
    }

    fn folder(&self) -> &Path {
        self.0.path()
    }

    fn run(&self, arguments: &[&str]) -> Result<(), String> {
        let within = |name: &str| self.folder().join(name).display().to_string();
        let options = [
            format!("Dir::State={}", within("")),
            format!("Dir::State::lists={}", within("lists")),
            format!("Dir::State::status={}", within("status")),
            format!("Dir::Cache={}", within("")),
            format!("Dir::Etc::sourcelist={}", within("sources.list")),
            "Dir::Etc::sourceparts=/dev/null".to_owned(),
            "APT::Sandbox::User=".to_owned(),
            "Acquire::Languages=none".to_owned(),
            "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false".to_owned(),
            "Acquire::http::Timeout=10".to_owned(),
            "Acquire::Retries=0".to_owned(),
            "APT::Update::Error-Mode=any".to_owned(),
        ];
        // apt's own time limit applies to each packet.
        let mut apt = Command::new("timeout");
        apt.args(["180", "apt-get", "--quiet"])
            .current_dir(self.folder());
        for option in options {
            apt.arg("--option").arg(option);
        }
        run(apt.args(arguments))
    }
}

fn run(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(said.lines().next_back().unwrap_or("it fails").to_owned())
}

/// Returns the only entry of a folder whose name has this prefix.
fn entry(folder: &Path, start: &str) -> Result<PathBuf, String> {
    let entries = fs::read_dir(folder).map_err(|error| error.to_string())?;
    let mut paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let is_it = |path: &PathBuf| {
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        name.starts_with(start)
    };
    let found = paths.find(is_it);
    found.ok_or_else(|| format!("{} has no {start}", folder.display()))
}

/// Returns the exports of the newest libibverbs, or the reason why it is not available here.
pub(crate) fn newest() -> Result<List, String> {
    let apt = Apt::new()?;
    apt.run(&["update"])?;
    apt.run(&["download", PACKAGE])?;
    let package = entry(apt.folder(), PACKAGE)?;
    let name = package.file_name().unwrap_or_default().to_string_lossy();
    let release = name
        .split('_')
        .nth(1)
        .unwrap_or_default()
        .replace("%3a", ":");
    let unpacked = apt.folder().join("unpacked");
    run(Command::new("dpkg-deb")
        .arg("--extract")
        .args([&package, &unpacked]))?;
    let folder = entry(&unpacked.join("usr/lib"), std::env::consts::ARCH)?;
    let library = fs::canonicalize(folder.join("libibverbs.so.1"));
    let library = library.map_err(|error| error.to_string())?;
    Ok(List::of_file(&library, format!("rdma-core {release}")))
}
