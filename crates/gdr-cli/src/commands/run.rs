//! `gdr run`: starts a program with gdr's verbs library.

mod chaos;
mod mounted_files;

use std::env;
use std::ffi::OsString;
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use anyhow::Result;
use gdr_rdma::{Device, SoftAddress};
use gdr_trace::Ended;

pub(crate) use self::chaos::{ChaosError, ChaosRun, scenario};
pub(crate) use self::mounted_files::MountError;
use crate::child_program;
use crate::command::{CommandSpec, Group, Run};
use crate::elf::{self, Elf};
use crate::exit::{CANNOT_RUN, Exit, NO_PROGRAM, NO_VERBS_LIBRARY, Statuses, UsageError};
use crate::global::Global;
use crate::gpu::GpuName;
use crate::gpu_context::pci_address;
use crate::launch::{
    LaunchError, PreloadLibrary, become_program, examine, found, prepended, quoted,
};
use crate::output::Output;
use crate::rdma_requirement::{Requirement, RequirementError};
use crate::units;

/// Run a program with gdr's software RDMA devices, without RDMA hardware
///
/// gdr's libibverbs replaces the program's. Its devices gdr0, gdr1 and so on speak RoCEv2 over UDP port
/// 4791 and can register GPU memory. They need neither a kernel module nor privileges. Processes of one
/// user share the port.
///
/// The replacement works for programs linked against libibverbs (LD_PRELOAD) and for those that load
/// it by name, like NCCL (LD_LIBRARY_PATH). Programs also find the devices in /sys/class/infiniband
/// and /dev/infiniband. If rdma-core is installed, its devices are listed after gdr's and work as usual.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    devices: DeviceOptions,

    /// Exit with status 120 unless the program moves at least this many bytes (4096, 1G; default: 1) by RDMA
    ///
    /// Every process that lists devices has to reach the limit; for one that does not, the message says how
    /// far it got. Packets count in both directions. gdr waits for the program, and forwards SIGTERM and
    /// SIGHUP to it.
    #[arg(
        long,
        value_name = "BYTES",
        value_parser = units::size,
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "1",
        conflicts_with = "print_env"
    )]
    require_rdma: Option<u64>,

    /// Inject faults into the devices: a scenario, or a file with one (.toml)
    ///
    /// A scenario is a list of faults, such as 'drop p=1%; late by=200us qp=0; link-down at=1s for=300ms'. The
    /// guide's page on chaos describes all of them. The faults that struck are printed at the end, with a command
    /// to replay them. Exits with status 120 if the scenario was not applied. All packets go by UDP.
    #[arg(long, value_name = "SPEC|FILE", conflicts_with = "print_env")]
    chaos: Option<String>,

    /// Seed that determines where the faults of --chaos strike, instead of the one in the scenario
    #[arg(long, value_name = "N", requires = "chaos")]
    seed: Option<u64>,

    /// Write each fault that struck to this file, one per line, instead of printing the first few
    #[arg(long, value_name = "FILE", requires = "chaos")]
    chaos_log: Option<PathBuf>,

    /// Mount the devices' files into /sys for the program, in a private mount namespace
    ///
    /// Use this for programs that bypass the C library: statically linked programs, and programs written in Go.
    /// They see the devices as of the start of the program, without counters and without /dev; the devices of the
    /// host's libibverbs are hidden. Requires overlayfs, and user namespaces or root.
    #[arg(long, conflicts_with = "print_env")]
    mount: bool,

    /// Copy the devices' files to this folder, in a process that has loaded the library
    #[arg(long, value_name = "FOLDER", hide = true, conflicts_with_all = ["program", "print_env"])]
    copy_files: Option<PathBuf>,

    /// Print the environment as shell commands instead of running a program
    #[arg(long, conflicts_with = "program")]
    print_env: bool,

    /// The program and its arguments
    #[arg(
        value_name = "PROGRAM",
        trailing_var_arg = true,
        allow_hyphen_values = true,
        required_unless_present_any = ["print_env", "copy_files"]
    )]
    program: Vec<OsString>,
}

/// The devices to give to a program.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct DeviceOptions {
    /// Create a device at this address, or at the first address of this interface; a list, or repeat it
    ///
    /// By default there is a device for each address in GDR_NICS; if that is not set, one at 127.0.0.1 and at
    /// the first IPv4 and IPv6 address of each interface that is up.
    #[arg(
        long = "device",
        visible_alias = "nic",
        value_name = "ADDR|IFACE",
        value_delimiter = ','
    )]
    nics: Vec<String>,

    /// Create this many devices: rails gdr0, gdr1 and so on, at 127.0.1.1, 127.0.1.2 and so on
    #[arg(long = "nics", value_name = "N", conflicts_with = "nics", value_parser = clap::value_parser!(u8).range(1..=64))]
    rails: Option<u8>,

    /// Hide the devices of the installed libibverbs, and do not load it
    #[arg(long)]
    only_soft: bool,

    /// Make the devices appear in /sys close to this GPU or PCI function
    ///
    /// Name a GPU by its index, UUID (GPU-...) or PCI address. NCCL, UCX and others choose the device for a GPU
    /// by the distance between their PCI functions. By default a device has the PCI function of its network
    /// interface, or else a PCI function that is close to no other.
    #[arg(long, value_name = "GPU|PCI-ADDRESS", value_parser = GpuName::parse)]
    near: Option<GpuName>,

    /// Capture the devices' packets in this file, for Wireshark and tcpdump
    ///
    /// The file has the format that `tcpdump -i any` writes, and contains every RoCEv2 packet that the program's
    /// devices sent or received. Capturing needs no privileges. Packets sent through shared memory appear as UDP
    /// packets, and carry their payload even where the receiver would otherwise read it from the sender's memory.
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
}

impl CommandSpec for Options {
    const GROUP: Group = Group::RunPrograms;
    const STATUSES: Statuses = &[
        (
            Exit::Fine,
            "success; a program that is run determines the status",
        ),
        (
            Exit::NotMet,
            "the program succeeded, but did not meet --require-rdma, or the --chaos scenario was not applied",
        ),
        (Exit::Launcher, NO_VERBS_LIBRARY),
        (Exit::NotStarted, CANNOT_RUN),
        (Exit::NotFound, NO_PROGRAM),
    ];
    const EXAMPLES: &'static str = "\
Examples:
  gdr run ibv_devinfo -v                          list gdr's devices on this host
  gdr run --nic 127.0.0.1 ib_write_bw             start a server and, in another terminal,
  gdr run --nic 127.0.0.1 ib_write_bw 127.0.0.1   its client
  gdr run --nic eth0 --only-soft ./nccl_test      hide the host's own RDMA devices
  gdr run --nics 8 -- ibv_devinfo                 create eight rails on this host
  gdr run --require-rdma=1G -- ./kv_cache_test    fail if the program falls back to TCP
  gdr run --chaos 'drop p=1%' --seed 7 -- ./job   lose packets, the same ones in every run
  gdr run --pcap packets.pcap -- ./job            capture the packets for Wireshark
  gdr run --mount -- ./device-plugin              let a Go program find the devices in /sys
  eval \"$(gdr run --nic eth0 --print-env)\"        set up every program in this shell";
    const STATUS_OF: fn(&anyhow::Error) -> Option<Exit> = |error| {
        let unmet = error.downcast_ref().map(RequirementError::exit);
        unmet.or_else(|| error.downcast_ref().map(ChaosError::exit))
    };
    const RUN: Run<Self> = run;
}

fn run(global: &Global, options: &Options, output: &mut Output) -> Result<Exit> {
    if global.json {
        return Err(UsageError(
            "gdr run does not support --json, as it prints nothing itself".to_owned(),
        )
        .into());
    }
    if let Some(folder) = &options.copy_files {
        mounted_files::copy(folder)?;
        return Ok(Exit::Fine);
    }
    let mut environment = environment(&options.devices)?;
    let Some((program, arguments)) = options.program.split_first() else {
        for (name, value) in &environment {
            output.bytes(&[b"export ", name.as_bytes(), b"=", &quoted(value), b"\n"].concat())?;
        }
        return Ok(Exit::Fine);
    };
    let path = found(program)?;
    match examine(&path) {
        // It sees the files, and nothing else.
        Err(LaunchError::Static(_)) if options.mount => {}
        examined => examined?,
    }
    if options.mount {
        environment.push((ONLY_SOFT, "1".into()));
        environment.push(mounted_files::show(&environment)?);
    }
    let chaos = match &options.chaos {
        Some(text) => {
            let scenario = scenario(text, options.seed)?;
            Some(ChaosRun::new(scenario, options.chaos_log.as_deref())?)
        }
        None => None,
    };
    let requirement = options.require_rdma.map(Requirement::new).transpose()?;
    if chaos.is_none() && requirement.is_none() {
        return Err(become_program(path, program, arguments, environment).into());
    }
    environment.extend(chaos.iter().flat_map(ChaosRun::variables));
    if let Some(requirement) = &requirement {
        let (variable, folder) = requirement.variable();
        environment.push((variable, folder.to_owned()));
    }
    let ended = child_program::run(&path, program, arguments, environment)?;
    let applied = chaos.as_ref().map_or(Ok(()), ChaosRun::finish);
    if ended == Ended::Status(0) {
        applied?;
        requirement.map_or(Ok(()), |requirement| requirement.check())?;
    }
    Ok(Exit::of_program(ended))
}

/// The folder, beside the library for `LD_PRELOAD`, with the library that is found by name.
const SHADOW: &str = "shadow";
/// The name of the library that programs load.
const LIBIBVERBS: &str = "libibverbs.so.1";
/// Variables that name the installed libibverbs, and that hide its devices.
const SYSTEM: &str = "GDR_LIBIBVERBS";
const ONLY_SOFT: &str = "GDR_ONLY_SOFT";
/// Variable with the PCI function to place devices near.
const NEAR: &str = "GDR_VERBS_NEAR";
/// Variable with the capture file.
const PCAP: &str = "GDR_PCAP";

/// Corrects three assumptions of NCCL about NICs, unless the user has set the variables. These devices access the
/// memory of every GPU wherever they are in the PCI tree; NCCL 2.28 crashes with a segmentation fault if it looks for
/// NICs driven by GPUs and finds only these; and between two GPUs of a host they are faster than two channels, which
/// is what NCCL 2.28 gives them, whatever speed they report.
const OF_NCCL: [(&str, &str); 3] = [
    ("NCCL_NET_GDR_LEVEL", "SYS"),
    ("NCCL_GIN_TYPE", "2"),
    (CHANNELS, "4"),
];
/// Variable with the least number of channels, and variables that it would override.
const CHANNELS: &str = "NCCL_MIN_NCHANNELS";
const OTHER_CHANNELS: [&str; 3] = ["NCCL_MAX_NCHANNELS", "NCCL_MIN_NRINGS", "NCCL_MAX_NRINGS"];

/// Returns what to add to the environment.
pub(crate) fn environment(options: &DeviceOptions) -> Result<Vec<(&'static str, OsString)>> {
    let library = PreloadLibrary::Verbs.find()?;
    let mut variables = vec![("LD_PRELOAD", prepended("LD_PRELOAD", &library)?)];
    let shadow = library.with_file_name(SHADOW);
    if !shadow.join(LIBIBVERBS).exists() {
        let searched = vec![shadow];
        let file = LIBIBVERBS;
        return Err(LaunchError::NoLibrary { file, searched }.into());
    }
    let installed = if options.only_soft { None } else { installed() };
    if has_versions_of(&shadow, installed.as_deref())? {
        let value = prepended("LD_LIBRARY_PATH", &shadow)?;
        variables.push(("LD_LIBRARY_PATH", value));
    }
    if options.only_soft {
        variables.push((ONLY_SOFT, "1".into()));
    } else if let Some(path) = installed {
        variables.push((SYSTEM, path.into()));
    }
    if !options.nics.is_empty() {
        let all = Device::list_soft()?;
        for nic in &options.nics {
            if !is_local(nic, &all) {
                return Err(UsageError(format!(
                    "--device {nic}: not an address of this host, and not an interface that is up; `gdr \
                     devices` lists them"
                ))
                .into());
            }
        }
        variables.push(("GDR_NICS", options.nics.join(",").into()));
    }
    if let Some(rails) = options.rails {
        let addresses: Vec<_> = (1..=rails).map(|rail| format!("127.0.1.{rail}")).collect();
        variables.push(("GDR_NICS", addresses.join(",").into()));
    }
    if let Some(name) = &options.near {
        // Programs may use the other statuses.
        let near = pci_address(name).map_err(|error| UsageError(format!("--near: {error}")))?;
        let near = near.to_string();
        if !Path::new("/sys/bus/pci/devices").join(&near).exists() {
            return Err(UsageError(format!(
                "--near {near}: this host has no PCI function at this address; `lspci` lists them"
            ))
            .into());
        }
        variables.push((NEAR, near.into()));
    }
    if let Some(path) = &options.pcap {
        // Each device appends to it.
        let path = std::path::absolute(path)?;
        fs::File::create(&path).map_err(|source| LaunchError::NotWritten {
            path: path.clone(),
            source,
        })?;
        variables.push((PCAP, path.into()));
    }
    if options.only_soft || !has_hardware() {
        let is_set = |name: &str| env::var_os(name).is_some();
        let is_chosen =
            |name: &str| is_set(name) || name == CHANNELS && OTHER_CHANNELS.into_iter().any(is_set);
        let unset = OF_NCCL.into_iter().filter(|(name, _)| !is_chosen(name));
        variables.extend(unset.map(|(name, value)| (name, OsString::from(value))));
    }
    Ok(variables)
}

/// Returns whether the host has RDMA devices of its own.
fn has_hardware() -> bool {
    let devices = fs::read_dir("/sys/class/infiniband");
    devices.is_ok_and(|mut devices| devices.next().is_some())
}

/// Returns whether the library that replaces libibverbs has every symbol version of the installed one. Without these
/// versions, libraries from a newer rdma-core could not be loaded.
fn has_versions_of(shadow: &Path, installed: Option<&Path>) -> Result<bool, LaunchError> {
    let Some(installed) = installed else {
        return Ok(true);
    };
    let read = |path: &Path| {
        let path = path.to_owned();
        fs::read(&path).map_err(|source| LaunchError::Unreadable { path, source })
    };
    let (own, other) = (read(&shadow.join(LIBIBVERBS))?, read(installed)?);
    let versions = |bytes| Elf::new(bytes).map_or_else(Vec::new, |elf| elf.versions());
    let own = versions(&own);
    // The first is the name of the library.
    let mut missing = versions(&other).into_iter().skip(1);
    let missing = missing.find(|version| !own.contains(version));
    if let Some(version) = missing {
        tracing::warn!(
            "{} comes from a newer rdma-core than this gdr supports ({}), so programs that load libibverbs \
             by name will not see gdr's devices; use --only-soft for programs that need no other \
             library from rdma-core",
            installed.display(),
            String::from_utf8_lossy(version)
        );
    }
    Ok(missing.is_none())
}

/// Returns whether the library creates a device for this address or interface.
fn is_local(nic: &str, all: &[SoftAddress]) -> bool {
    match nic.parse::<IpAddr>() {
        // All of 127.0.0.0/8 belongs to the host, but only 127.0.0.1 is listed.
        Ok(IpAddr::V4(v4)) if v4.is_loopback() => true,
        Ok(address) => all.iter().any(|own| own.address == address),
        Err(_) => all.iter().any(|own| own.interface == nic),
    }
}

/// Returns the path of the installed libibverbs: what the user has set, or what a program would load.
fn installed() -> Option<PathBuf> {
    let named = env::var_os(SYSTEM).filter(|path| !path.is_empty());
    if let Some(path) = named {
        return Some(path.into());
    }
    let folders = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    // The loader of Debian and Ubuntu searches these without a cache.
    let of_debian = ["/lib", "/usr/lib"].map(|it| format!("{it}/{}-linux-gnu", env::consts::ARCH));
    let found = env::split_paths(&folders)
        .filter(|folder| !folder.as_os_str().is_empty() && !folder.ends_with(SHADOW))
        .chain(["/lib64", "/usr/lib64", "/lib", "/usr/lib"].map(PathBuf::from))
        .chain(of_debian.map(PathBuf::from))
        .map(|folder| folder.join(LIBIBVERBS))
        .find(|path| path.exists());
    found.or_else(|| {
        let cache = fs::read("/etc/ld.so.cache").ok()?;
        elf::cached(&cache, LIBIBVERBS).map(Path::to_owned)
    })
}
