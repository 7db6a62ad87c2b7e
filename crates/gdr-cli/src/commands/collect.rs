//! `gdr collect`: collects the facts about this node in one file.

use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::fchown;
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result};
use gdr_doctor::peermem::PeerMemory;
use gdr_doctor::{Context, Selection, diagnose};
use gdr_node::archive::{Archive, Origin};
use gdr_node::collect::{Recorder, read_all};
use gdr_node::{Inventory, LiveRoot, Source, example, render};
use gdr_perf::report::Schema;
use gdr_process::{WholeFile, create_new};
use serde::Serialize;

use crate::command::{CommandSpec, Group, Run};
use crate::counted::Counted;
use crate::document::Utc;
use crate::exit::{CLOSED, Exit, Statuses, UsageError};
use crate::global::Global;
use crate::host_source;
use crate::output::Output;
use crate::progress::{Progress, print_to_stderr};

/// Write the facts about this node into one file
///
/// Changes nothing, and takes seconds. For every path the file records whether it was read, does not
/// exist or was denied, so that `--from FILE` gives the same diagnosis on another machine. Root can
/// also read the kernel log and PCI registers beyond the first 64 bytes.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// File to write, or `-` for standard output [default: gdr-HOST-TIME.tar.gz]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Overwrite an existing file
    #[arg(short, long)]
    force: bool,

    /// Replace host and user names, MAC and IP addresses, GIDs, GUIDs, UUIDs and serial numbers with
    /// pseudonyms
    #[arg(long)]
    redact: bool,

    /// Collect from a copy of a node's root directory
    #[arg(long, value_name = "DIR")]
    from_root: Option<PathBuf>,

    /// Write the archive of the example node
    #[arg(long, conflicts_with = "from_root")]
    example: bool,
}

/// What was written, and what is missing.
#[derive(Debug, Serialize)]
struct Report<'a> {
    #[serde(flatten)]
    schema: Schema,
    file: Option<&'a Path>,
    bytes: usize,
    files: usize,
    content_bytes: u64,
    seconds: f64,
    #[serde(flatten)]
    origin: &'a Origin,
    denied: Vec<&'a str>,
    short_config_spaces: usize,
}

impl CommandSpec for Options {
    const GROUP: Group = Group::Diagnose;
    const STATUSES: Statuses = &[
        (Exit::Fine, "the archive was written"),
        (Exit::Failure, "the archive could not be written"),
        (Exit::Undecided, CLOSED),
    ];
    const EXAMPLES: &'static str = "\
Examples:
  sudo gdr collect                      record this node in a file named after it
  gdr collect --redact -o node.tar.gz   leave out names and addresses
  ssh node sudo gdr collect -o - > node.tar.gz
  gdr doctor --from node.tar.gz         diagnose the recorded node on any machine";
    const RUN: Run<Self> = run;
}

fn run(global: &Global, options: &Options, output: &mut Output) -> Result<Exit> {
    let to_stdout = options.output.as_deref() == Some(Path::new("-"));
    if to_stdout && global.json {
        let reason = "--json and `-o -` both write to standard output: leave out one of them";
        return Err(UsageError(reason.to_owned()).into());
    }
    if let Some(directory) = &options.from_root
        && !directory.is_dir()
    {
        let reason = format!(
            "--from-root {}: the directory does not exist",
            directory.display()
        );
        return Err(UsageError(reason).into());
    }
    let started = Instant::now();
    let mut archive = collect(options)?;
    if options.redact {
        archive = archive.redact(&users())?;
    }
    let mut bytes = Vec::new();
    archive.write(&mut bytes)?;

    let file = match &options.output {
        Some(_) if to_stdout => {
            // Bypass the stream that strips colors, which would change the archive.
            let mut stdout = std::io::stdout().lock();
            stdout
                .write_all(&bytes)
                .and_then(|()| stdout.flush())
                .context("standard output")?;
            None
        }
        Some(path) => Some(path.clone()),
        None => Some(default_name(archive.origin()).into()),
    };
    if let Some(path) = &file {
        let owner = Owner::of(|name| std::env::var(name).ok());
        save(path, &bytes, options.force, owner)?;
    }
    let (files, content_bytes) = archive.files();
    let report = Report {
        schema: Schema::first("gdr.collect"),
        file: file.as_deref(),
        bytes: bytes.len(),
        files,
        content_bytes,
        seconds: started.elapsed().as_secs_f64(),
        origin: archive.origin(),
        denied: archive.denied(),
        short_config_spaces: short_config_spaces(&archive),
    };
    if global.json {
        output.json(&report)?;
    } else if to_stdout {
        // Standard output contains the archive.
        for line in lines(&report) {
            print_to_stderr(line);
        }
    } else {
        for line in lines(&report) {
            output.line(line)?;
        }
    }
    Ok(Exit::Fine)
}

fn collect(options: &Options) -> Result<Archive> {
    let source: Box<dyn Source> = match &options.from_root {
        _ if options.example => Box::new(example::node()),
        Some(directory) => Box::new(LiveRoot::at(directory)),
        None => Box::new(host_source::this_node()),
    };
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .context("this machine's clock is before 1970")?
        .as_secs();
    let recorder = Recorder::new(source.as_ref());
    let progress = Progress::on_stderr();
    read_all(&recorder, |at| progress.at(at.done, at.total, at.step));
    // Run the diagnosis, so that everything it reads is in the archive.
    let inventory = Inventory::read(&recorder);
    diagnose(&Context::new(&recorder, &inventory), &Selection::all());
    PeerMemory::read(&recorder);
    render::matrix(
        &recorder,
        &inventory,
        render::Vocabulary::default(),
        render::Paint::Plain,
    );
    render::nccl_xml(&recorder, &inventory);
    let origin = Origin::of(&recorder, env!("CARGO_PKG_VERSION"), now);
    Ok(recorder.finish(origin))
}

/// Returns the user's names, which may occur in logs and paths.
fn users() -> Vec<String> {
    let names = ["USER", "LOGNAME", "SUDO_USER"].map(|name| std::env::var(name).ok());
    names.into_iter().flatten().collect()
}

/// Owner of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Owner {
    user: u32,
    group: u32,
}

impl Owner {
    /// Returns the user who runs `sudo`, by its environment variables.
    fn of(variable: impl Fn(&str) -> Option<String>) -> Option<Self> {
        let id = |name| variable(name)?.parse().ok();
        Some(Self {
            user: id("SUDO_UID")?,
            group: id("SUDO_GID")?,
        })
    }
}

/// Writes a file that only its owner may read, because it contains the kernel log. Under `sudo`, the owner is the
/// calling user. An existing file is replaced by a rename, which does not follow links.
fn save(path: &Path, bytes: &[u8], force: bool, owner: Option<Owner>) -> Result<()> {
    let give = |file: &File| {
        if let Some(owner) = owner {
            // Best effort: only root can change the owner.
            let _ = fchown(file, Some(owner.user), Some(owner.group));
        }
    };
    let fresh = || {
        let mut file = create_new(path, 0o600)?;
        give(&file);
        file.write_all(bytes).inspect_err(|_| {
            // Best effort: remove the partial archive. The write error is the one to report.
            let _ = std::fs::remove_file(path);
        })
    };
    let replacing = || {
        let mut file = WholeFile::private(path)?;
        give(file.file());
        file.write_all(bytes)?;
        file.finish()
    };
    let is_special = |about: std::fs::Metadata| !about.is_file() && !about.is_symlink();
    if force && path.symlink_metadata().is_ok_and(is_special) {
        anyhow::bail!(
            "{}: not overwritten, because it is not a regular file",
            path.display()
        );
    }
    let written = match force {
        true => replacing(),
        false => fresh(),
    };
    match written {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            anyhow::bail!(
                "{}: the file exists; use --force to overwrite it",
                path.display()
            )
        }
        other => other.with_context(|| path.display().to_string()),
    }
}

/// `gdr-node17-20261121T014000Z.tar.gz`.
fn default_name(origin: &Origin) -> String {
    let host: String = origin
        .host
        .chars()
        .map(|c| match c {
            'a'..='z' | 'A'..='Z' | '0'..='9' | '-' => c,
            _ => '_',
        })
        .collect();
    let host = if host.is_empty() { "node" } else { &host };
    format!("gdr-{host}-{}.tar.gz", utc(origin.collected))
}

/// Formats a time as `20261121T014000Z`.
fn utc(seconds: u64) -> String {
    let Utc {
        year,
        month,
        day,
        hour,
        minute,
        second,
    } = Utc::of(seconds);
    format!("{year:04}{month:02}{day:02}T{hour:02}{minute:02}{second:02}Z")
}

/// Returns how many functions show only the 64 bytes that every user may read.
fn short_config_spaces(archive: &Archive) -> usize {
    const DEVICES: &str = "/sys/bus/pci/devices";
    let names = archive.list(DEVICES).ok().unwrap_or_default();
    let is_short = |name: &&String| {
        let config = archive.read(&format!("{DEVICES}/{name}/config"));
        config.as_ref().ok().is_some_and(|bytes| bytes.len() <= 64)
    };
    names.iter().filter(is_short).count()
}

fn lines(report: &Report<'_>) -> Vec<String> {
    let host = match report.origin.host.as_str() {
        "" => "the node",
        host => host,
    };
    let place = match report.file {
        Some(file) => format!("{} ", file.display()),
        None => String::new(),
    };
    let mut lines = vec![format!(
        "{host}: {} in {place}({} KiB, {:.1} s)",
        Counted(report.files, "file"),
        report.bytes.div_ceil(1024),
        report.seconds
    )];
    if report.short_config_spaces > 0 {
        lines.push(format!(
            "denied: PCI registers beyond the first 64 bytes of {}: ACS, ATS, AER and the \
             settings of links are unknown",
            Counted(report.short_config_spaces, "function")
        ));
    }
    // A few examples are enough.
    const SHOWN: usize = 6;
    for path in report.denied.iter().take(SHOWN) {
        lines.push(format!("denied: {}", what(path)));
    }
    if let Some(more) = report.denied.len().checked_sub(SHOWN).filter(|n| *n > 0) {
        lines.push(format!("denied: {more} more"));
    }
    let denied = report.short_config_spaces > 0 || !report.denied.is_empty();
    if denied && !report.origin.root {
        lines.push("to have these too, collect as root: sudo gdr collect".to_owned());
    }
    if let Some(file) = report.file {
        lines.push(format!("next: gdr doctor --from {}", file.display()));
    }
    lines
}

/// Returns a description of a path.
fn what(path: &str) -> &str {
    match path {
        "/@kmsg" => "the kernel log (/dev/kmsg)",
        path => path,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_days_and_hours() {
        assert_eq!(utc(0), "19700101T000000Z");
        assert_eq!(utc(951_827_696), "20000229T123456Z");
        assert_eq!(utc(1_795_225_199), "20261121T013959Z");
    }

    #[test]
    fn who_called_sudo_can_read_the_file_and_no_one_else() {
        use std::os::unix::fs::MetadataExt as _;

        let sudo = |name: &str| match name {
            "SUDO_UID" => Some("65534".to_owned()),
            "SUDO_GID" => Some("65533".to_owned()),
            _ => None,
        };
        let owner = Owner::of(sudo).unwrap();
        assert_eq!((owner.user, owner.group), (65534, 65533));
        assert_eq!(Owner::of(|_| None), None);
        assert_eq!(Owner::of(|_| Some("root".to_owned())), None);

        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("node.tar.gz");
        let is_root = directory.path().metadata().unwrap().uid() == 0;
        for force in [false, true] {
            save(&path, b"x", force, Some(owner)).unwrap();
            let about = path.metadata().unwrap();
            assert_eq!(about.mode() & 0o777, 0o600);
            if is_root {
                assert_eq!((about.uid(), about.gid()), (65534, 65533));
            }
        }
    }

    #[test]
    fn a_file_is_named_after_its_node_and_nothing_else() {
        let origin = Origin {
            host: "../a node".to_owned(),
            ..Origin::default()
        };
        assert_eq!(
            default_name(&origin),
            "gdr-___a_node-19700101T000000Z.tar.gz"
        );
        assert!(default_name(&Origin::default()).starts_with("gdr-node-"));
    }
}
