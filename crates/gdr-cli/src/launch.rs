//! Starts programs with one of gdr's libraries in front of libibverbs.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::commands::net::NetworkError;
use crate::commands::run::MountError;
use crate::elf::Elf;
use crate::exit::Exit;

/// A library for `LD_PRELOAD`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PreloadLibrary {
    /// gdr's devices, for `gdr run`.
    Verbs,
    /// The counters of `gdr trace`, and the rules of `gdr check`.
    Trace,
}

/// Why a program was not started, which also determines the exit status.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LaunchError {
    /// The library was not found.
    #[error(
        "gdr's verbs library {file} was not found in {}; build it with `cargo xtask verbs-library`, \
         install it and gdr with `cargo xtask install`, or set GDR_VERBS_LIBRARY to its path", listed(.searched)
    )]
    NoLibrary {
        file: &'static str,
        searched: Vec<PathBuf>,
    },
    /// The file is not the library.
    #[error("{} is not gdr's verbs library; set GDR_VERBS_LIBRARY to the path of the right one", .0.display())]
    NotTheLibrary(PathBuf),
    /// The library has another version.
    #[error(
        "{} has version {found}, but this gdr has version {}; install the same version of both",
        .path.display(), env!("CARGO_PKG_VERSION")
    )]
    OtherVersion { path: PathBuf, found: String },
    /// The loader's variables cannot hold the path.
    #[error(
        "{} contains a colon or a space, which {variable} uses to separate paths; install gdr \
         elsewhere", .path.display()
    )]
    Separator {
        path: PathBuf,
        variable: &'static str,
    },
    /// A file cannot be read.
    #[error("{} cannot be read: {source}", .path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    /// A file cannot be written.
    #[error("{} cannot be written: {source}", .path.display())]
    NotWritten { path: PathBuf, source: io::Error },
    /// The program runs with more rights than its caller.
    #[error(
        "{} runs with more rights than its caller ({why}), so the loader ignores LD_PRELOAD; run a copy \
         without these rights", .path.display()
    )]
    Privileged { path: PathBuf, why: &'static str },
    /// The program is statically linked.
    #[error("{} is statically linked, so it cannot load gdr's library", .0.display())]
    Static(PathBuf),
    /// The program was not found.
    #[error("{}: no such program", .0.display())]
    NotFound(PathBuf),
    /// The program was started, but cannot be waited for.
    #[error("the program cannot be waited for: {0}")]
    Wait(#[source] io::Error),
    /// The hosts for the program cannot be created.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// The devices' files cannot be mounted for the program.
    #[error(transparent)]
    Mount(#[from] MountError),
    /// The kernel refused to start the program.
    #[error("{} cannot be started: {source}", .path.display())]
    NotStarted { path: PathBuf, source: io::Error },
}

impl LaunchError {
    /// Returns the status, as env(1) has it.
    pub(crate) fn exit(&self) -> Exit {
        match self {
            Self::NotFound(_) => Exit::NotFound,
            Self::Privileged { .. } | Self::Static(_) | Self::NotStarted { .. } => Exit::NotStarted,
            _ => Exit::Launcher,
        }
    }
}

fn listed(paths: &[PathBuf]) -> String {
    let paths: Vec<_> = paths.iter().map(|it| it.display().to_string()).collect();
    paths.join(", ")
}

/// Replaces this process by the program at `path`, so that status and signals need no forwarding. Returns only if that
/// fails.
pub(crate) fn become_program(
    path: PathBuf,
    name: &OsStr,
    arguments: &[OsString],
    environment: Vec<(&'static str, OsString)>,
) -> LaunchError {
    for (name, value) in &environment {
        tracing::info!("{name}={}", value.to_string_lossy());
    }
    let source = Command::new(&path)
        .arg0(name)
        .args(arguments)
        .envs(environment)
        .exec();
    LaunchError::NotStarted { path, source }
}

impl PreloadLibrary {
    /// Returns the name of its file.
    pub(crate) const fn file(self) -> &'static str {
        match self {
            Self::Verbs => "libgdr-verbs.so",
            Self::Trace => "libgdr-verbs-trace.so",
        }
    }

    /// Returns the object in it that has its version.
    const fn version_symbol(self) -> &'static str {
        match self {
            Self::Verbs => "gdr_verbs_version",
            Self::Trace => "gdr_verbs_trace_version",
        }
    }

    /// Returns its path; it has this version.
    pub(crate) fn find(self) -> Result<PathBuf, LaunchError> {
        let file = self.file();
        let named = env::var_os("GDR_VERBS_LIBRARY").filter(|path| !path.is_empty());
        let candidates = match named.map(PathBuf::from) {
            Some(folder) if folder.is_dir() => vec![folder.join(file)],
            Some(path) if self == Self::Verbs => vec![path],
            Some(path) => vec![path.with_file_name(file)],
            None => beside(file),
        };
        let Some(path) = candidates.iter().find(|path| path.is_file()) else {
            let searched = candidates;
            return Err(LaunchError::NoLibrary { file, searched });
        };
        let unreadable = |source| LaunchError::Unreadable {
            path: path.clone(),
            source,
        };
        let path = fs::canonicalize(path).map_err(unreadable)?;
        let bytes = fs::read(&path).map_err(unreadable)?;
        let version = Elf::new(&bytes).and_then(|elf| elf.object(self.version_symbol()));
        match version.and_then(|text| text.split(|byte| *byte == 0).next()) {
            None => Err(LaunchError::NotTheLibrary(path)),
            Some(found) if found == env!("CARGO_PKG_VERSION").as_bytes() => Ok(path),
            Some(found) => {
                let found = String::from_utf8_lossy(found).into_owned();
                Err(LaunchError::OtherVersion { path, found })
            }
        }
    }
}

/// Returns where a library is when gdr is installed, and in cargo's target folder.
fn beside(file: &str) -> Vec<PathBuf> {
    let gdr = env::current_exe().unwrap_or_default();
    let prefix = gdr.parent().and_then(Path::parent);
    let of_debian = format!("lib/{}-linux-gnu/gdr", env::consts::ARCH);
    let folders = ["lib/gdr", "lib64/gdr", &of_debian, "lib", "verbs"];
    let paths = folders.map(|folder| prefix.unwrap_or(Path::new("")).join(folder).join(file));
    paths.to_vec()
}

/// Returns the value of a variable with a path prepended. The library of `gdr trace` stays in front of it, because it
/// counts calls to the libraries behind it.
pub(crate) fn prepended(variable: &'static str, path: &Path) -> Result<OsString, LaunchError> {
    in_front(variable, path, &env::var_os(variable).unwrap_or_default())
}

/// Like [`prepended`], before a value.
pub(crate) fn in_front(
    variable: &'static str,
    path: &Path,
    before: &OsStr,
) -> Result<OsString, LaunchError> {
    let separators = b": ;\t\n";
    let added = path.as_os_str().as_bytes();
    if added.iter().any(|it| separators.contains(it)) {
        let path = path.to_owned();
        return Err(LaunchError::Separator { path, variable });
    }
    let others = before.as_bytes().split(|byte| *byte == b':');
    // A program that gdr started may itself start gdr.
    let others = others.filter(|other| !other.is_empty() && *other != added);
    let is_trace = |other: &&[u8]| {
        let name = Path::new(OsStr::from_bytes(other)).file_name();
        name == Some(OsStr::new(PreloadLibrary::Trace.file()))
    };
    let (mut all, behind): (Vec<_>, Vec<_>) = others.partition(is_trace);
    all.push(added);
    all.extend(behind);
    Ok(OsString::from_vec(all.join(&b':')))
}

/// Returns a word of a shell.
pub(crate) fn quoted(value: &OsStr) -> Vec<u8> {
    let inner: Vec<_> = value.as_bytes().split(|byte| *byte == b'\'').collect();
    [b"'".as_slice(), &inner.join(&b"'\\''"[..]), b"'"].concat()
}

/// Returns the program's file, found as a shell does.
pub(crate) fn found(program: &OsStr) -> Result<PathBuf, LaunchError> {
    let path = Path::new(program);
    let not_found = || LaunchError::NotFound(path.to_owned());
    if program.as_bytes().contains(&b'/') {
        return path.exists().then(|| path.to_owned()).ok_or_else(not_found);
    }
    let folders = env::var_os("PATH").unwrap_or_else(|| "/usr/bin:/bin".into());
    let mut files = env::split_paths(&folders).map(|folder| folder.join(path));
    let is_program = |path: &PathBuf| {
        let metadata = fs::metadata(path);
        metadata.is_ok_and(|it| it.is_file() && it.permissions().mode() & 0o111 != 0)
    };
    files.find(is_program).ok_or_else(not_found)
}

/// Checks what would keep a library out of the program.
pub(crate) fn examine(path: &Path) -> Result<(), LaunchError> {
    if let Some(why) = privileges(path) {
        let path = path.to_owned();
        return Err(LaunchError::Privileged { path, why });
    }
    /// More than any program has. The rest of a longer file does not matter.
    const MOST: u64 = 256 << 20;
    let mut bytes = Vec::new();
    // A file that cannot be read may still be executable.
    let read = fs::File::open(path).and_then(|file| file.take(MOST).read_to_end(&mut bytes));
    if read.is_err() {
        bytes.clear();
    }
    match Elf::new(&bytes) {
        Some(elf) if !elf.has_loader() => Err(LaunchError::Static(path.to_owned())),
        _ => Ok(()),
    }
}

/// Returns why the loader would ignore `LD_PRELOAD` (`AT_SECURE` in getauxval(3)).
fn privileges(path: &Path) -> Option<&'static str> {
    const SETUID: u32 = 0o4000;
    const SETGID: u32 = 0o2010;
    let file = fs::metadata(path).ok()?;
    let own = fs::metadata("/proc/self").ok()?;
    let mode = file.permissions().mode();
    if mode & SETUID != 0 && file.uid() != own.uid() {
        return Some("setuid");
    }
    if mode & SETGID == SETGID && file.gid() != own.gid() {
        return Some("setgid");
    }
    let has_capabilities =
        || rustix::fs::getxattr(path, "security.capability", &mut [0_u8; 64]).is_ok();
    (own.uid() != 0 && has_capabilities()).then_some("file capabilities")
}
