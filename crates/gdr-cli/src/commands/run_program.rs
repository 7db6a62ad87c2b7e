//! `gdr run`: starts a program with gdr's verbs library.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, Read};
use std::net::IpAddr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, iter};

use anyhow::Result;
use gdr_rdma::{Device, SoftAddress};

use crate::elf::{self, Elf};
use crate::exit::{EXIT_STATUS, Exit, UsageError};
use crate::global::Global;
use crate::output::Output;

const EXAMPLES: &str = "\
Examples:
  gdr run ibv_devinfo -v                          its devices, at all addresses of this host
  gdr run --nic 127.0.0.1 ib_write_bw             a server, and in another terminal:
  gdr run --nic 127.0.0.1 ib_write_bw 127.0.0.1   its client
  gdr run --nic eth0 --only-soft ./nccl_test      a program that loads libibverbs by name
  eval \"$(gdr run --nic eth0 --print-env)\"        for the programs of this shell";

/// Run a program with RDMA devices of gdr's own, without RDMA hardware
///
/// The program's libibverbs is replaced by gdr's, whose devices gdr0, gdr1 and so on speak RoCEv2 over
/// UDP port 4791, and take GPU memory. No kernel module and no privilege is needed. Processes of one
/// user share the port.
///
/// Programs that are linked with libibverbs use gdr's in its place (LD_PRELOAD). Those that load it by
/// name, as NCCL does, find gdr's if no rdma-core is installed, or with --only-soft (LD_LIBRARY_PATH).
#[derive(Debug, clap::Args)]
#[command(after_help = format!("{EXAMPLES}\n\n{EXIT_STATUS}"))]
pub(crate) struct Options {
    /// A device at this address, or at the first address of this interface; more than one as a
    /// list or by repeating it
    ///
    /// Without it, there is a device at 127.0.0.1 and at the first IPv4 and IPv6 address of each
    /// interface that is up, or as GDR_NICS says.
    #[arg(long = "nic", value_name = "ADDR|IFACE", value_delimiter = ',')]
    nics: Vec<String>,

    /// Replace libibverbs also for programs that load it by name, where rdma-core is installed
    ///
    /// Libraries that need private functions of the installed one cannot be loaded then.
    #[arg(long)]
    only_soft: bool,

    /// Print the environment as shell commands instead of running a program
    #[arg(long, conflicts_with = "program")]
    print_env: bool,

    /// The program and its arguments
    #[arg(
        value_name = "PROGRAM",
        trailing_var_arg = true,
        allow_hyphen_values = true,
        required_unless_present = "print_env"
    )]
    program: Vec<OsString>,
}

/// Why a program was not started, and the exit status that says so.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LaunchError {
    /// The library is not there.
    #[error(
        "gdr's verbs library {LIBRARY} is not in {}; make it with `cargo xtask verbs-library`, \
         install it beside gdr, or name it in GDR_VERBS_LIBRARY", listed(.searched)
    )]
    NoLibrary { searched: Vec<PathBuf> },
    /// A file that is not the library.
    #[error("{} is not gdr's verbs library; name another one in GDR_VERBS_LIBRARY", .0.display())]
    NotTheLibrary(PathBuf),
    /// A library of another version.
    #[error(
        "{} is of version {found}, and this gdr of version {}; use both of one version",
        .path.display(), env!("CARGO_PKG_VERSION")
    )]
    OtherVersion { path: PathBuf, found: String },
    /// A path that the loader's variables cannot hold.
    #[error(
        "{} cannot be put into {variable}, which separates paths by colons and spaces; install gdr \
         elsewhere", .path.display()
    )]
    Separator {
        path: PathBuf,
        variable: &'static str,
    },
    /// A file cannot be read.
    #[error("{} cannot be read: {source}", .path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    /// A program that runs with other rights than its caller.
    #[error(
        "{} has more rights than its caller ({why}), and the loader ignores LD_PRELOAD there; run a \
         copy without them", .path.display()
    )]
    Privileged { path: PathBuf, why: &'static str },
    /// A program without a loader.
    #[error("{} is statically linked: it loads no library, gdr's included", .0.display())]
    Static(PathBuf),
    /// The program is not there.
    #[error("{}: no such program", .0.display())]
    NotFound(PathBuf),
    /// The kernel refused to start it.
    #[error("{} cannot be started: {source}", .path.display())]
    NotStarted { path: PathBuf, source: io::Error },
}

impl LaunchError {
    /// The status, as that of env(1).
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

pub(crate) fn run(global: &Global, options: &Options, output: &mut Output) -> Result<Exit> {
    if global.json {
        return Err(UsageError("gdr run has no JSON: it prints nothing itself".to_owned()).into());
    }
    let environment = environment(options)?;
    let Some((program, arguments)) = options.program.split_first() else {
        for (name, value) in &environment {
            output.bytes(&[b"export ", name.as_bytes(), b"=", &quoted(value), b"\n"].concat())?;
        }
        return Ok(Exit::Fine);
    };
    let path = found(program)?;
    examine(&path, arguments)?;
    for (name, value) in &environment {
        tracing::info!("{name}={}", value.to_string_lossy());
    }
    // This process becomes the program, so its status and signals need no relay.
    let source = Command::new(&path)
        .arg0(program)
        .args(arguments)
        .envs(environment)
        .exec();
    Err(LaunchError::NotStarted { path, source }.into())
}

/// The library for `LD_PRELOAD`, and the folder beside it with the one that is found by name.
const LIBRARY: &str = "libgdr-verbs.so";
const SHADOW: &str = "shadow";
/// The name of the library that programs load.
const LIBIBVERBS: &str = "libibverbs.so.1";

/// What to add to the environment.
fn environment(options: &Options) -> Result<Vec<(&'static str, OsString)>> {
    let library = library()?;
    let mut variables = vec![("LD_PRELOAD", prepended("LD_PRELOAD", &library)?)];
    if options.only_soft || installed().is_none() {
        let shadow = library.with_file_name(SHADOW);
        if !shadow.join(LIBIBVERBS).exists() {
            let searched = vec![shadow];
            return Err(LaunchError::NoLibrary { searched }.into());
        }
        let value = prepended("LD_LIBRARY_PATH", &shadow)?;
        variables.push(("LD_LIBRARY_PATH", value));
    }
    if !options.nics.is_empty() {
        let all = Device::list_soft()?;
        for nic in &options.nics {
            if !is_local(nic, &all) {
                return Err(UsageError(format!(
                    "--nic {nic}: no address and no interface of this host that is up; `gdr \
                     devices` lists them"
                ))
                .into());
            }
        }
        variables.push(("GDR_NICS", options.nics.join(",").into()));
    }
    Ok(variables)
}

/// Whether the library makes a device of it.
fn is_local(nic: &str, all: &[SoftAddress]) -> bool {
    match nic.parse::<IpAddr>() {
        // All of 127.0.0.0/8 belongs to the host, and only 127.0.0.1 is listed.
        Ok(IpAddr::V4(v4)) if v4.is_loopback() => true,
        Ok(address) => all.iter().any(|own| own.address == address),
        Err(_) => all.iter().any(|own| own.interface == nic),
    }
}

/// The library, which is of this version.
fn library() -> Result<PathBuf, LaunchError> {
    let named = env::var_os("GDR_VERBS_LIBRARY").filter(|path| !path.is_empty());
    let candidates = match named.map(PathBuf::from) {
        Some(folder) if folder.is_dir() => vec![folder.join(LIBRARY)],
        Some(file) => vec![file],
        None => beside(),
    };
    let Some(path) = candidates.iter().find(|path| path.is_file()) else {
        let searched = candidates;
        return Err(LaunchError::NoLibrary { searched });
    };
    let unreadable = |source| LaunchError::Unreadable {
        path: path.clone(),
        source,
    };
    let path = fs::canonicalize(path).map_err(unreadable)?;
    let bytes = fs::read(&path).map_err(unreadable)?;
    let version = Elf::new(&bytes).and_then(|elf| elf.object("gdr_verbs_version"));
    match version.and_then(|text| text.split(|byte| *byte == 0).next()) {
        None => Err(LaunchError::NotTheLibrary(path)),
        Some(found) if found == env!("CARGO_PKG_VERSION").as_bytes() => Ok(path),
        Some(found) => {
            let found = String::from_utf8_lossy(found).into_owned();
            Err(LaunchError::OtherVersion { path, found })
        }
    }
}

/// Where the library is when gdr is installed, and in cargo's target folder.
fn beside() -> Vec<PathBuf> {
    let gdr = env::current_exe().unwrap_or_default();
    let prefix = gdr.parent().and_then(Path::parent);
    let folders = ["lib/gdr", "lib", "verbs"];
    let paths = folders.map(|folder| prefix.unwrap_or(Path::new("")).join(folder).join(LIBRARY));
    paths.to_vec()
}

/// The installed libibverbs that a program would load.
fn installed() -> Option<PathBuf> {
    let folders = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let found = env::split_paths(&folders)
        .filter(|folder| !folder.as_os_str().is_empty() && !folder.ends_with(SHADOW))
        .chain(["/lib64", "/usr/lib64", "/lib", "/usr/lib"].map(PathBuf::from))
        .map(|folder| folder.join(LIBIBVERBS))
        .find(|path| path.exists());
    found.or_else(|| {
        let cache = fs::read("/etc/ld.so.cache").ok()?;
        elf::cached(&cache, LIBIBVERBS).map(Path::to_owned)
    })
}

/// The value of a variable with a path before what it has.
fn prepended(variable: &'static str, path: &Path) -> Result<OsString, LaunchError> {
    let separators = b": ;\t\n";
    if path
        .as_os_str()
        .as_bytes()
        .iter()
        .any(|it| separators.contains(it))
    {
        let path = path.to_owned();
        return Err(LaunchError::Separator { path, variable });
    }
    let before = env::var_os(variable).unwrap_or_default();
    let others = before.as_bytes().split(|byte| *byte == b':');
    // A program that gdr started may start gdr.
    let others = others.filter(|other| !other.is_empty() && *other != path.as_os_str().as_bytes());
    let all: Vec<_> = iter::once(path.as_os_str().as_bytes())
        .chain(others)
        .collect();
    Ok(OsString::from_vec(all.join(&b':')))
}

/// A word of a shell.
fn quoted(value: &OsStr) -> Vec<u8> {
    let inner: Vec<_> = value.as_bytes().split(|byte| *byte == b'\'').collect();
    [b"'".as_slice(), &inner.join(&b"'\\''"[..]), b"'"].concat()
}

/// The program's file, found as a shell does.
fn found(program: &OsStr) -> Result<PathBuf, LaunchError> {
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

/// Finds out what would keep the library out of the program, and what the program would miss.
fn examine(path: &Path, arguments: &[OsString]) -> Result<(), LaunchError> {
    if let Some(why) = privileges(path) {
        let path = path.to_owned();
        return Err(LaunchError::Privileged { path, why });
    }
    /// More than programs have; of a longer file the rest does not matter.
    const MOST: u64 = 256 << 20;
    let mut bytes = Vec::new();
    // A file that cannot be read may still be one that can be run.
    let read = fs::File::open(path).and_then(|file| file.take(MOST).read_to_end(&mut bytes));
    let elf = read.ok().and_then(|_| Elf::new(&bytes));
    let Some(elf) = elf else { return Ok(()) };
    if !elf.has_loader() {
        return Err(LaunchError::Static(path.to_owned()));
    }
    if elf.needs("librdmacm.so.1") && !Path::new("/dev/infiniband/rdma_cm").exists() {
        let missing = format!(
            "connections by rdma_cm need /dev/infiniband/rdma_cm of the kernel: gdr has no stand-in \
             for librdmacm, with which {} is linked",
            path.display()
        );
        if connects_by_rdma_cm(path, arguments) {
            tracing::warn!("{missing}");
        } else {
            tracing::info!("{missing}");
        }
    }
    Ok(())
}

/// Why the loader would ignore `LD_PRELOAD` (`AT_SECURE` in getauxval(3)).
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

/// Whether a program that is linked with librdmacm connects by it, as far as its command line shows:
/// the examples of librdmacm do, and perftest's programs do on request.
fn connects_by_rdma_cm(path: &Path, arguments: &[OsString]) -> bool {
    const EXAMPLES: [&str; 13] = [
        "cmtime",
        "mckey",
        "rcopy",
        "rdma_client",
        "rdma_server",
        "rdma_xclient",
        "rdma_xserver",
        "riostream",
        "rping",
        "rstream",
        "ucmatose",
        "udaddy",
        "udpong",
    ];
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let options = ["-R", "--rdma_cm", "-z", "--comm_rdma_cm"].map(OsStr::new);
    EXAMPLES.contains(&&*name)
        || (name.starts_with("ib_") && arguments.iter().any(|it| options.contains(&&**it)))
}
