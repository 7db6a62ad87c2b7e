//! Parts of the guest: QEMU, a kernel and its initramfs, from Debian's packages.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use super::archive::{Archive, Kind};
use super::modules;
use super::qemu::{Qemu, works};
use xtask_build::package::Architecture;
use xtask_build::packages::{Apt, once};
use xtask_build::results::Unavailable;
use xtask_build::workspace::target;

const INIT: &str = include_str!("init.sh");

/// The first of these that apt has for the architecture is used. 6.12 is the kernel of Debian 13 and a
/// backport in 12; the "cloud" kernels have no rxe.
const KERNELS: [&str; 2] = ["linux-image-6.12", "linux-image"];

/// rxe needs `crc32_generic`, but requests it under the name of the algorithm, so it is not among
/// rxe's dependencies.
const MODULES: [&str; 15] = [
    "crc32_generic",
    "crc32_pclmul",
    "crc32c_generic",
    "crc32c_intel",
    "ib_uverbs",
    "rdma_rxe",
    "rdma_ucm",
    "siw",
    "veth",
    "bridge",
    "sch_netem",
    "sch_prio",
    "cls_u32",
    "udmabuf",
    "overlay",
];

/// Packages for the guest.
const GUEST_PACKAGES: [&str; 8] = [
    "busybox-static",
    "iproute2",
    "libibverbs1",
    "ibverbs-providers",
    "ibverbs-utils",
    "librdmacm1",
    "perftest",
    "rdmacm-utils",
];
/// The programs of these packages that the guest runs.
const GUEST_PROGRAMS: [&str; 22] = [
    "busybox",
    "ip",
    "tc",
    "rdma",
    "ib_write_bw",
    "ib_write_lat",
    "ib_read_bw",
    "ib_read_lat",
    "ib_send_bw",
    "ib_send_lat",
    "ib_atomic_bw",
    "ib_atomic_lat",
    "ibv_rc_pingpong",
    "ibv_srq_pingpong",
    "ibv_uc_pingpong",
    "ibv_ud_pingpong",
    "cmtime",
    "mckey",
    "rping",
    "rstream",
    "ucmatose",
    "udaddy",
];
/// The file name of the initramfs without the programs to run.
const BASE: &str = "base.cpio";

/// Folders of programs in Debian's packages.
const PROGRAMS: [&str; 4] = ["usr/bin", "bin", "usr/sbin", "sbin"];

/// A kernel and its initramfs.
#[derive(Debug)]
pub(crate) struct Guest {
    pub(crate) kernel: PathBuf,
    /// The initramfs without the programs to run.
    pub(crate) base: PathBuf,
    pub(crate) version: String,
}

/// Returns the folder for the files of one run. Cargo builds the guest's programs into `vm` beside
/// it.
pub(crate) fn run_folder() -> PathBuf {
    target().join("vm-run")
}

/// Returns the folder of the cache for what an architecture's guest needs.
fn kept(cache: &Path, what: &str, architecture: Architecture) -> PathBuf {
    match architecture {
        Architecture::X86 => cache.join(what),
        Architecture::Arm => cache.join(format!("{what}-{}", architecture.name())),
    }
}

/// Debian's packages of QEMU for an architecture's guests, the first with the program.
fn qemu_packages(architecture: Architecture) -> Vec<&'static str> {
    let mut packages = match architecture {
        Architecture::X86 => vec!["qemu-system-x86"],
        Architecture::Arm => vec!["qemu-system-arm"],
    };
    packages.extend(["qemu-system-common", "qemu-system-data"]);
    if architecture == Architecture::X86 {
        packages.push("seabios");
    }
    packages
}

/// Finds QEMU for an architecture's guests: the installed one, otherwise one from Debian's packages.
pub(crate) fn qemu(cache: &Path, architecture: Architecture) -> anyhow::Result<Qemu> {
    let program = format!("qemu-system-{}", architecture.name());
    let installed = Qemu {
        architecture,
        program: program.clone().into(),
        root: None,
    };
    if works(&installed) {
        return Ok(installed);
    }
    let packages = qemu_packages(architecture);
    let install = format!(
        "install QEMU (Debian, Ubuntu: apt-get install {})",
        packages[0]
    );
    let folder = kept(cache, "qemu", architecture);
    let root = once(&folder, &format!("{packages:?}"), |root| {
        let apt = Apt::fetch_lists(&cache.join("apt"))?;
        if !apt.has(packages[0])? {
            return Err(Unavailable::new(format!("no {program}: {install}")).into());
        }
        let mut names = apt.with_libraries(&packages)?;
        // The host's dynamic loader needs the host's libc.
        names.retain(|name| name != "libc6");
        apt.unpack(&names, root)
    })?;
    let unpacked = Qemu {
        architecture,
        program: root.join("usr/bin").join(program),
        root: Some(root),
    };
    if !works(&unpacked) {
        let reason = format!("the unpacked QEMU does not start here: {install}");
        return Err(Unavailable::new(reason).into());
    }
    Ok(unpacked)
}

/// Returns the kernel of an architecture and its initramfs.
pub(crate) fn guest(cache: &Path, architecture: Architecture) -> anyhow::Result<Guest> {
    let debian = architecture.of_debian();
    let kernels = KERNELS.map(|name| format!("{name}-{debian}"));
    let recipe = format!("{kernels:?} {GUEST_PACKAGES:?}");
    let root = once(&kept(cache, "guest", architecture), &recipe, |root| {
        let lists = kept(cache, "apt", architecture);
        let apt = Apt::fetch_lists_for(&lists, debian)?;
        let mut names = apt.with_libraries(&GUEST_PACKAGES)?;
        names.push(kernel_package(&apt, &kernels)?);
        apt.unpack(&names, root)
    })?;
    let boot = root.join("boot");
    let (kernel, version) = entries(&boot)?
        .into_iter()
        .find_map(|path| {
            let name = path.file_name()?.to_str()?;
            let version = name.strip_prefix("vmlinuz-")?.to_owned();
            Some((path, version))
        })
        .with_context(|| format!("{}: no vmlinuz", boot.display()))?;
    // A changed script or list needs a new archive.
    let recipe = format!("{version}\n{MODULES:?}\n{GUEST_PROGRAMS:?}\n{INIT}");
    let folder = once(&kept(cache, "base", architecture), &recipe, |folder| {
        write_base(&root, architecture, &version, &folder.join(BASE))
    })?;
    let base = folder.join(BASE);
    Ok(Guest {
        kernel,
        base,
        version,
    })
}

fn kernel_package(apt: &Apt, kernels: &[String]) -> anyhow::Result<String> {
    for name in kernels {
        if apt.has(name)?
            && let Some(package) = apt.behind(name, "linux-image-")?
        {
            return Ok(package);
        }
    }
    let names = kernels.join(" or ");
    Err(Unavailable::new(format!("apt's sources have no {names} (no network?)")).into())
}

fn write_base(
    root: &Path,
    architecture: Architecture,
    version: &str,
    to: &Path,
) -> anyhow::Result<()> {
    let out = File::create(to).with_context(|| to.display().to_string())?;
    let mut archive = Archive::new(BufWriter::new(out));
    for folder in [
        "proc", "sys", "dev", "tmp", "run", "root", "etc", "usr/sbin",
    ] {
        archive.folder(folder)?;
    }
    for (path, leads_to) in [
        ("bin", "usr/bin"),
        ("sbin", "usr/sbin"),
        ("lib", "usr/lib"),
        ("lib64", "usr/lib64"),
    ] {
        archive.link(path, leads_to)?;
    }
    archive.character_device("dev/console", (5, 1))?;
    archive.file("init", Kind::Program, INIT.as_bytes())?;

    for name in GUEST_PROGRAMS {
        let program = found(root, &PROGRAMS, name)?;
        archive.copy(&format!("usr/bin/{name}"), Kind::Program, &program)?;
    }
    // Before the merge of `/usr` some packages have their libraries in `/lib`.
    let place = format!("usr/lib/{}", architecture.multiarch());
    for folder in [&*place, place.trim_start_matches("usr/")] {
        libraries(&mut archive, &root.join(folder), &place)?;
    }
    let providers = format!("{place}/libibverbs");
    libraries(&mut archive, &root.join(&providers), &providers)?;
    let (folder, loader) = match architecture {
        Architecture::X86 => ("usr/lib64", "ld-linux-x86-64.so.2"),
        Architecture::Arm => ("usr/lib", "ld-linux-aarch64.so.1"),
    };
    archive.link(&format!("{folder}/{loader}"), &format!("/{place}/{loader}"))?;
    for file in entries(&root.join("etc/libibverbs.d"))? {
        let name = name_of(&file)?.to_owned();
        archive.copy(&format!("etc/libibverbs.d/{name}"), Kind::Data, &file)?;
    }

    let folder = ["usr/lib/modules", "lib/modules"]
        .map(|folder| root.join(folder).join(version))
        .into_iter()
        .find(|folder| folder.exists())
        .context("the kernel's package has no modules")?;
    let busybox = found(root, &PROGRAMS, "busybox")?;
    let runs_here = Architecture::of_this_machine() == Some(architecture);
    let busybox = runs_here.then_some(&*busybox);
    let mut order = String::new();
    for module in modules::with_dependencies(&folder, &MODULES, busybox)? {
        let path = format!("modules/{}.ko", module.name);
        archive.file(&path, Kind::Data, &module.contents)?;
        order += &module.name;
        order.push('\n');
    }
    archive.file("modules/order", Kind::Data, order.as_bytes())?;
    archive.finish()?.flush()?;
    Ok(())
}

fn libraries<W: Write>(archive: &mut Archive<W>, folder: &Path, path: &str) -> anyhow::Result<()> {
    if !folder.exists() {
        return Ok(());
    }
    for file in entries(folder)? {
        let name = name_of(&file)?.to_owned();
        let plain = !fs::symlink_metadata(&file)?.is_dir();
        if plain && (name.ends_with(".so") || name.contains(".so.")) {
            archive.copy(&format!("{path}/{name}"), Kind::Program, &file)?;
        }
    }
    Ok(())
}

/// Writes the initramfs: `base`, the programs by their paths, and the script that runs them.
pub(crate) fn initrd<'a>(
    base: &Path,
    programs: impl IntoIterator<Item = (&'a str, &'a Path)>,
    script: &str,
    to: &Path,
) -> anyhow::Result<()> {
    fs::copy(base, to).with_context(|| to.display().to_string())?;
    let out = File::options().append(true).open(to)?;
    let mut archive = Archive::new(BufWriter::new(out));
    archive.file("gdr/programs", Kind::Data, script.as_bytes())?;
    for (path, program) in programs {
        archive.copy(path, Kind::Program, program)?;
    }
    archive.finish()?.flush()?;
    Ok(())
}

/// Finds the regular file `name` in the first of `folders` below `root` that has it.
fn found(root: &Path, folders: &[&str], name: &str) -> anyhow::Result<PathBuf> {
    folders
        .iter()
        .map(|folder| root.join(folder).join(name))
        .find(|path| fs::symlink_metadata(path).is_ok_and(|found| found.is_file()))
        .with_context(|| format!("no {name} in the packages"))
}

fn entries(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let at = || folder.display().to_string();
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder).with_context(at)? {
        paths.push(entry.with_context(at)?.path());
    }
    paths.sort();
    Ok(paths)
}

fn name_of(path: &Path) -> anyhow::Result<&str> {
    match path.file_name().and_then(|name| name.to_str()) {
        Some(name) => Ok(name),
        None => bail!("{}: a name that is not UTF-8", path.display()),
    }
}
