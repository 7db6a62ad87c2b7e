//! The peer-memory module of a node: its state, and how to load it now and at boot.
//!
//! A peer-memory module lets `ibv_reg_mr` take a GPU address. It needs an RDMA stack with
//! `ib_register_peer_memory_client`, which MLNX_OFED, DOCA and Ubuntu's kernels have and
//! kernel.org's does not. If it cannot work, dma-buf may.

use std::fmt;

use gdr_node::{Absence, Datum, DatumExt, Source, virtual_path};
use serde::{Serialize, Serializer};

use crate::facts::Facts;
use crate::fix::Action;
use crate::gpudirect_support::dmabuf_by_version;
use crate::version::NvidiaDriver;

/// The current module, which is a part of NVIDIA's driver.
pub const MODULE: &str = "nvidia_peermem";

/// The former module, a separate package.
pub const OLD_MODULE: &str = "nv_peer_mem";

/// The drop-in that loads the module at boot.
pub const DROP_IN: &str = "/etc/modules-load.d/nvidia-peermem.conf";

/// The directories of drop-ins that name modules to load at boot, and the former file.
const BOOT_FOLDERS: [&str; 3] = [
    "/etc/modules-load.d",
    "/run/modules-load.d",
    "/usr/lib/modules-load.d",
];
const BOOT_FILE: &str = "/etc/modules";

/// The file of the former module's init script, which loads it at boot unless `ONBOOT` is another word
/// than `yes` (Mellanox/nv_peer_memory `nv_peer_mem.conf`).
const OLD_BOOT_FILE: &str = "/etc/infiniband/nv_peer_mem.conf";

/// The symbol of the RDMA stack that the module needs.
const SYMBOL: &str = "ib_register_peer_memory_client";

/// The state of the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Standing {
    /// It is loaded and registered with the RDMA stack.
    Active,
    /// It is loaded; it is not known whether it is registered.
    Loaded,
    /// It is loaded, but not registered: it has no effect.
    Unregistered,
    /// Both modules are loaded and claim the same memory.
    Conflict,
    /// It is not loaded and can be.
    Loadable,
    /// It is not loaded and cannot work here.
    Impossible,
    /// It is not loaded; it is not known whether it can be.
    Unknown,
}

/// Whether GPU memory can be registered by dma-buf instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum DmaBuf {
    /// The driver and the kernel support it; the NIC's driver decides.
    Ready,
    /// The driver or the kernel does not support it.
    No,
    /// It is not known.
    Unknown,
}

/// The peer-memory module of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PeerMemory {
    /// The state of the module.
    pub standing: Standing,
    /// Why, in a sentence.
    pub because: String,
    /// The loaded modules, of the two.
    pub loaded: Vec<String>,
    /// The version of the loaded one. Its JSON name differs, because `version` in every JSON
    /// document of gdr is the schema's.
    #[serde(rename = "module_version")]
    pub version: Option<String>,
    /// NVIDIA's driver, with its flavour.
    #[serde(serialize_with = "fact")]
    pub driver: Datum<String>,
    /// The file that loads it at boot.
    #[serde(serialize_with = "fact")]
    pub at_boot: Datum<String>,
    /// Whether dma-buf works instead.
    pub dma_buf: DmaBuf,
    /// Why, in a sentence.
    pub dma_buf_because: String,
}

fn fact<S: Serializer>(datum: &Datum<String>, serializer: S) -> Result<S::Ok, S::Error> {
    match datum {
        Ok(text) => serializer.serialize_some(text),
        _ => serializer.serialize_none(),
    }
}

impl PeerMemory {
    /// Reads it.
    pub fn read(source: &dyn Source) -> Self {
        let facts = Facts::read(source);
        let loaded = loaded(source, &facts);
        let (standing, because) = standing(source, &facts, &loaded);
        let (dma_buf, dma_buf_because) = dma_buf(source, &facts);
        Self {
            standing,
            because,
            version: loaded.first().and_then(|name| version(source, name).ok()),
            loaded,
            driver: facts.nvidia.by_ref().map(NvidiaDriver::described),
            at_boot: at_boot(source),
            dma_buf,
            dma_buf_because,
        }
    }

    /// Returns the action that loads the module now.
    pub fn load() -> Action {
        Action::LoadModule {
            module: MODULE.to_owned(),
        }
    }

    /// Returns the action that loads the module at boot.
    pub fn enable() -> Action {
        Action::WriteFile {
            path: DROP_IN.to_owned(),
            content: format!("# GPU memory for RDMA NICs\n{MODULE}\n"),
        }
    }
}

impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Active => "active",
            Self::Loaded => "loaded",
            Self::Unregistered => "loaded, but without effect",
            Self::Conflict => "in conflict",
            Self::Loadable => "not loaded",
            Self::Impossible => "not loaded, and cannot work here",
            Self::Unknown => "not loaded; it is not known whether it can be",
        })
    }
}

fn loaded(source: &dyn Source, facts: &Facts) -> Vec<String> {
    [MODULE, OLD_MODULE]
        .into_iter()
        .filter(|name| {
            facts.module(name).is_ok() || source.list(&format!("/sys/module/{name}")).is_ok()
        })
        .map(str::to_owned)
        .collect()
}

fn version(source: &dyn Source, module: &str) -> Datum<String> {
    source.text(&format!("/sys/module/{module}/version"))
}

fn standing(source: &dyn Source, facts: &Facts, loaded: &[String]) -> (Standing, String) {
    match loaded {
        [] => prospect(source, facts),
        [module] => match registered(source, facts, module) {
            Some(true) => (
                Standing::Active,
                format!("{module} is loaded and registered with ib_core"),
            ),
            Some(false) => (
                Standing::Unregistered,
                format!(
                    "{module} is loaded, but not registered with ib_core: it was built for another \
                     RDMA stack; rebuild it, or use dma-buf"
                ),
            ),
            None => (
                Standing::Loaded,
                format!(
                    "{module} is loaded; it is not known whether it is registered with \
                         ib_core"
                ),
            ),
        },
        _ => (
            Standing::Conflict,
            format!(
                "{MODULE} and {OLD_MODULE} are both loaded: unload and uninstall {OLD_MODULE}, \
                 which is no longer maintained"
            ),
        ),
    }
}

/// Returns whether the module is registered with ib_core: it uses ib_core, or the list of clients
/// has it.
fn registered(source: &dyn Source, facts: &Facts, module: &str) -> Option<bool> {
    let clients = "/sys/kernel/mm/memory_peers";
    if (source.list(clients).ok())
        .is_some_and(|clients| clients.iter().any(|name| name.starts_with("nv_mem")))
    {
        return Some(true);
    }
    let users = &facts.module("ib_core").ok()?.users;
    Some(users.iter().any(|user| user == module))
}

/// Returns whether a module that is not loaded can be loaded.
fn prospect(source: &dyn Source, facts: &Facts) -> (Standing, String) {
    match &facts.nvidia {
        Err(Absence::Missing) => {
            return (
                Standing::Impossible,
                "NVIDIA's driver is not loaded, and the module needs it".to_owned(),
            );
        }
        Ok(_) => {}
        Err(absence) => {
            return (Standing::Unknown, format!("NVIDIA's driver: {absence}"));
        }
    }
    if facts.module("ib_core") == Err(Absence::Missing) {
        return (
            Standing::Impossible,
            "no RDMA stack is loaded: ib_core is missing; load the NIC's driver first".to_owned(),
        );
    }
    let symbols = source.text(virtual_path::SYMBOLS);
    let known = symbols
        .as_ref()
        .map(|text| text.lines().any(|line| line.starts_with(SYMBOL)));
    match known {
        Ok(true) => match shipped(source) {
            Some(false) => (
                Standing::Impossible,
                format!(
                    "{MODULE} was not built for this kernel: reinstall the driver's modules while \
                     this RDMA stack is installed"
                ),
            ),
            _ => (
                Standing::Loadable,
                format!("ib_core has {SYMBOL}: `gdr peermem load` loads the module"),
            ),
        },
        Ok(false) => (
            Standing::Impossible,
            format!(
                "the loaded RDMA stack does not have {SYMBOL}: it is the kernel's own, without \
                 peer memory; loading fails with `Invalid argument`. Use dma-buf, or install \
                 MLNX_OFED or DOCA and then reinstall the driver's modules"
            ),
        ),
        _ => (
            Standing::Unknown,
            "the kernel's symbols are not readable: they need root".to_owned(),
        ),
    }
}

/// Returns whether the kernel's list of modules has it.
fn shipped(source: &dyn Source) -> Option<bool> {
    let text = source.text(virtual_path::MODULE_FILES).ok()?;
    Some(
        text.lines()
            .any(|line| line.contains("nvidia-peermem.ko") || line.contains("nvidia_peermem.ko")),
    )
}

fn at_boot(source: &dyn Source) -> Datum<String> {
    let names = |text: &str| {
        text.lines().map(str::trim).any(|line| {
            let line = line.replace('-', "_");
            line == MODULE || line == OLD_MODULE
        })
    };
    let mut unknown = None;
    for folder in BOOT_FOLDERS {
        match source.list(folder) {
            Ok(files) => {
                for file in files.iter().filter(|file| file.ends_with(".conf")) {
                    let path = format!("{folder}/{file}");
                    if source
                        .text(&path)
                        .as_ref()
                        .ok()
                        .is_some_and(|text| names(text))
                    {
                        return Ok(path);
                    }
                }
            }
            Err(Absence::Missing) => {}
            other => unknown = Some(other.map(|_| String::new())),
        }
    }
    if (source.text(BOOT_FILE).as_ref().ok()).is_some_and(|text| names(text)) {
        return Ok(BOOT_FILE.to_owned());
    }
    let on_boot = |text: &str| {
        let value = text
            .lines()
            .find_map(|line| line.trim().strip_prefix("ONBOOT="));
        value.is_some_and(|value| value.trim_matches(['"', '\'']).eq_ignore_ascii_case("yes"))
    };
    if source.text(OLD_BOOT_FILE).is_ok_and(|text| on_boot(&text)) {
        return Ok(OLD_BOOT_FILE.to_owned());
    }
    unknown.unwrap_or(Err(Absence::Missing))
}

/// Returns whether the driver and the kernel support dma-buf, and why.
fn dma_buf(source: &dyn Source, facts: &Facts) -> (DmaBuf, String) {
    let support = dmabuf_by_version(source, facts);
    match support.is {
        Ok(true) => (DmaBuf::Ready, support.why),
        Ok(false) => (DmaBuf::No, support.why),
        Err(absence) => (DmaBuf::Unknown, format!("{}: {absence}", support.why)),
    }
}

#[cfg(test)]
mod tests {
    use gdr_node::{MemorySource, example};
    use snapshot::assert_contains;

    use super::*;

    fn standing(node: &MemorySource) -> Standing {
        PeerMemory::read(node).standing
    }

    fn unloaded() -> MemorySource {
        example::healthy()
            .without("/sys/module/nvidia_peermem")
            .without("/sys/kernel/mm/memory_peers")
            .file(
                "/proc/modules",
                "nvidia 1 0 - Live 0x0\nib_core 1 1 ib_uverbs, Live 0x0\n",
            )
    }

    #[test]
    fn the_former_modules_own_file_loads_it_at_boot() {
        let node = |text: &str| {
            example::healthy()
                .without("/etc/modules-load.d")
                .file(OLD_BOOT_FILE, text)
        };
        let yes = node("# Start upon boot\nONBOOT=yes\n");
        assert_eq!(at_boot(&yes), Ok(OLD_BOOT_FILE.to_owned()));
        assert_ne!(at_boot(&node("ONBOOT=no\n")), Ok(OLD_BOOT_FILE.to_owned()));
    }

    #[test]
    fn a_module_that_is_loaded_and_registered_is_active() {
        let peer = PeerMemory::read(&example::healthy());
        assert_eq!(peer.standing, Standing::Active);
        assert_eq!(
            peer.at_boot,
            Ok("/etc/modules-load.d/nvidia-peermem.conf".into())
        );
        assert_eq!(peer.dma_buf, DmaBuf::Ready, "{}", peer.dma_buf_because);
    }

    #[test]
    fn the_drivers_version_is_written_as_nvidia_writes_it() {
        let peer = PeerMemory::read(&example::healthy());
        assert_eq!(peer.driver, Ok("580.95.05 (open)".into()));
        assert_contains!(peer.dma_buf_because, "580.95.05");
    }

    #[test]
    fn a_module_that_ib_core_does_not_know_is_without_effect() {
        let node = example::healthy()
            .without("/sys/kernel/mm/memory_peers")
            .file(
                "/proc/modules",
                "nvidia_peermem 1 0 - Live 0x0\nib_core 1 1 ib_uverbs, Live 0x0\n",
            );
        assert_eq!(standing(&node), Standing::Unregistered);
    }

    #[test]
    fn both_modules_are_a_conflict() {
        let node = example::healthy().file("/sys/module/nv_peer_mem/version", "1.3\n");
        assert_eq!(standing(&node), Standing::Conflict);
    }

    #[test]
    fn what_is_not_loaded_can_be_where_the_stack_has_the_symbol() {
        assert_eq!(standing(&unloaded()), Standing::Loadable);
        let node = unloaded().file(virtual_path::SYMBOLS, "ib_register_client [ib_core]\n");
        let peer = PeerMemory::read(&node);
        assert_eq!(peer.standing, Standing::Impossible);
        assert_contains!(peer.because, "dma-buf");
        let node = unloaded().denied(virtual_path::SYMBOLS);
        assert_eq!(standing(&node), Standing::Unknown);
        let node = unloaded().without("/proc/driver/nvidia");
        assert_eq!(standing(&node), Standing::Impossible);
        let node = unloaded().file("/proc/modules", "nvidia 1 0 - Live 0x0\n");
        assert_eq!(standing(&node), Standing::Impossible);
    }

    #[test]
    fn nothing_is_claimed_of_a_node_that_was_not_read() {
        let peer = PeerMemory::read(&MemorySource::partial());
        assert_eq!(peer.standing, Standing::Unknown);
        assert_eq!(peer.dma_buf, DmaBuf::Unknown);
        assert_eq!(peer.at_boot, Err(Absence::NotCollected));
    }

    #[test]
    fn a_proprietary_or_old_driver_and_an_old_kernel_have_no_dma_buf() {
        let with = |driver: &str, kernel: &str| {
            let node = example::healthy()
                .file("/proc/driver/nvidia/version", driver)
                .file("/proc/sys/kernel/osrelease", kernel);
            PeerMemory::read(&node).dma_buf
        };
        let open = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release";
        let closed = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue";
        assert_eq!(with(open, "6.8.0-60-generic\n"), DmaBuf::Ready);
        assert_eq!(with(closed, "6.8.0-60-generic\n"), DmaBuf::No);
        assert_eq!(with(open, "5.4.0-42-generic\n"), DmaBuf::No);
    }
}
