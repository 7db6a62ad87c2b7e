//! Applies the actions of a plan.

use std::io;

use gdr_node::pci::{CapabilityId, ConfigSpace, ExtendedId, Offset, Unread};
use gdr_node::{Bdf, Datum};
use thiserror::Error;

use super::allowlist::Refusal;
use super::journal::{Change, Journal, JournalError};
use super::system::System;
use crate::fix::{Action, Register};

/// The kernel's ID of the current boot.
pub(super) const BOOT: &str = "/proc/sys/kernel/random/boot_id";

/// The result of an action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Done {
    /// It was applied, and reading it back gave the right value.
    Changed(String),
    /// The value was already right.
    Already(String),
}

/// The reason why an action was not applied, or not completely.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ApplyError {
    /// It may not be applied.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The journal cannot be written; nothing was changed.
    #[error("{0}; nothing was changed")]
    Journal(#[from] JournalError),
    /// Its subject does not exist.
    #[error("{0} no longer exists, so the node has changed: run the diagnosis again")]
    Gone(String),
    /// A driver is bound to the function.
    #[error("{bdf} is in use by the driver {driver}, and removing it would disrupt its users")]
    InUse {
        /// The function.
        bdf: Bdf,
        /// The driver.
        driver: String,
    },
    /// A system call failed.
    #[error("{what} failed: {source}")]
    Io {
        /// The operation.
        what: String,
        /// The cause.
        source: io::Error,
    },
    /// The device did not accept the value.
    #[error(
        "{what} was set to {wrote}, but reads {reads}: the device or its firmware overrides it; change \
         it in the firmware's setup or on the kernel's command line"
    )]
    Ignored {
        /// The register or file.
        what: String,
        /// The value that was written.
        wrote: String,
        /// The value that was read back.
        reads: String,
    },
}

/// Applies one action: writes it to the journal, makes the change, and reads it back.
///
/// # Errors
///
/// [`ApplyError`]. If the change was made and reading it back failed, the journal has it, so that
/// it can be undone.
pub fn apply(
    action: &Action,
    system: &mut dyn System,
    journal: &mut Journal,
) -> Result<Done, ApplyError> {
    action.permitted()?;
    match action {
        Action::WriteConfig {
            bdf,
            register,
            mask,
            value,
            ..
        } => write_config(*bdf, *register, *mask, *value, system, journal),
        Action::LoadModule { module } => load_module(module, system, journal),
        Action::WriteFile { path, content } => write_file(path, content, system, journal),
        Action::Rescan { bdf } => rescan(*bdf, system, journal),
        Action::Mtu { netdev, mtu } => set_mtu(netdev, *mtu, system, journal),
        Action::UnloadModule { .. }
        | Action::WriteSysfs { .. }
        | Action::KernelArgument { .. }
        | Action::Command { .. }
        | Action::Manual { .. } => Err(Refusal::ByHand.into()),
    }
}

/// Returns the ID of the current boot.
pub(super) fn boot(system: &dyn System) -> Option<String> {
    let bytes = system.read(BOOT).ok().flatten()?;
    Some(String::from_utf8_lossy(&bytes).trim().to_owned())
}

/// Reads a file that must exist.
pub(super) fn read(system: &dyn System, path: &str) -> Result<Vec<u8>, ApplyError> {
    system
        .read(path)
        .map_err(failed(format!("reading {path}")))?
        .ok_or_else(|| ApplyError::Gone(path.to_owned()))
}

pub(super) fn failed(what: String) -> impl FnOnce(io::Error) -> ApplyError {
    move |source| ApplyError::Io { what, source }
}

pub(super) fn config_path(bdf: impl std::fmt::Display) -> String {
    format!("/sys/bus/pci/devices/{bdf}/config")
}

/// Returns a 16-bit register at an offset of a function's config space.
pub(super) fn half(system: &dyn System, path: &str, at: u16) -> Result<u16, ApplyError> {
    let bytes = read(system, path)?;
    let at = usize::from(at);
    match bytes.get(at..at + 2) {
        Some(&[low, high]) => Ok(u16::from_le_bytes([low, high])),
        _ => Err(ApplyError::Gone(format!(
            "byte {at:#x} of {path}, which needs root to read,"
        ))),
    }
}

fn write_config(
    bdf: Bdf,
    register: Register,
    mask: u16,
    value: u16,
    system: &mut dyn System,
    journal: &mut Journal,
) -> Result<Done, ApplyError> {
    let path = config_path(bdf);
    let at = place(&read(system, &path)?, register)
        .ok_or_else(|| ApplyError::Gone(format!("{register} of {bdf}")))?;
    let before = half(system, &path, at)?;
    let after = before & !mask | value & mask;
    let what = format!("{register} of {bdf}");
    if before == after {
        return Ok(Done::Already(format!("{what} is {before:#06x}")));
    }
    journal.begin(Change::Register {
        bdf: bdf.to_string(),
        offset: at,
        before,
        after,
        boot: boot(system),
    })?;
    system
        .poke(&path, u64::from(at), &after.to_le_bytes())
        .map_err(failed(format!("writing {what}")))?;
    let reads = half(system, &path, at)?;
    if reads != after {
        return Err(ApplyError::Ignored {
            what,
            wrote: format!("{after:#06x}"),
            reads: format!("{reads:#06x}"),
        });
    }
    Ok(Done::Changed(format!(
        "{what}: {before:#06x} -> {after:#06x}"
    )))
}

/// Returns the offset of a register in this config space.
fn place(config: &[u8], register: Register) -> Option<u16> {
    let config = ConfigSpace::new(config.to_vec(), Unread::Denied).ok()?;
    let found = |at: Datum<Offset>, plus| at.ok().map(|at| at.plus(plus).0);
    match register {
        Register::AcsControl => found(config.find_extended(ExtendedId::ACS), 6),
        Register::DeviceControl => found(config.find(CapabilityId::PCI_EXPRESS), 8),
        Register::LinkControl => found(config.find(CapabilityId::PCI_EXPRESS), 16),
    }
}

/// Returns the directory of a loaded module.
pub(super) fn module_path(module: &str) -> String {
    format!("/sys/module/{}", module.replace('-', "_"))
}

fn load_module(
    module: &str,
    system: &mut dyn System,
    journal: &mut Journal,
) -> Result<Done, ApplyError> {
    let loaded = module_path(module);
    if system.exists(&loaded) {
        return Ok(Done::Already(format!("{module} is loaded")));
    }
    journal.begin(Change::Module {
        module: module.to_owned(),
        boot: boot(system),
    })?;
    system
        .load_module(module)
        .map_err(failed(format!("loading {module}")))?;
    if !system.exists(&loaded) {
        return Err(ApplyError::Ignored {
            what: module.to_owned(),
            wrote: "to be loaded".to_owned(),
            reads: "not loaded".to_owned(),
        });
    }
    Ok(Done::Changed(format!("{module} is loaded")))
}

fn write_file(
    path: &str,
    content: &str,
    system: &mut dyn System,
    journal: &mut Journal,
) -> Result<Done, ApplyError> {
    let before = system
        .read(path)
        .map_err(failed(format!("reading {path}")))?;
    if before.as_deref() == Some(content.as_bytes()) {
        return Ok(Done::Already(format!("{path} says so")));
    }
    journal.begin(Change::File {
        path: path.to_owned(),
        before,
        after: content.as_bytes().to_vec(),
    })?;
    system
        .put(path, content.as_bytes())
        .map_err(failed(format!("writing {path}")))?;
    Ok(Done::Changed(format!("{path} is written")))
}

fn rescan(bdf: Bdf, system: &mut dyn System, journal: &mut Journal) -> Result<Done, ApplyError> {
    let function = format!("/sys/bus/pci/devices/{bdf}");
    if !system.exists(&function) {
        return Err(ApplyError::Gone(bdf.to_string()));
    }
    if system.exists(&format!("{function}/driver")) {
        let uevent = system
            .read(&format!("{function}/uevent"))
            .ok()
            .flatten()
            .unwrap_or_default();
        let driver = String::from_utf8_lossy(&uevent)
            .lines()
            .find_map(|line| line.strip_prefix("DRIVER=").map(str::to_owned))
            .unwrap_or_else(|| "that is bound".to_owned());
        return Err(ApplyError::InUse { bdf, driver });
    }
    journal.begin(Change::Rescan {
        bdf: bdf.to_string(),
    })?;
    system
        .poke(&format!("{function}/remove"), 0, b"1")
        .map_err(failed(format!("removing {bdf}")))?;
    system
        .poke("/sys/bus/pci/rescan", 0, b"1")
        .map_err(failed("scanning the PCI bus".to_owned()))?;
    if !system.exists(&function) {
        return Err(ApplyError::Gone(bdf.to_string()));
    }
    Ok(Done::Changed(format!("{bdf} was found again")))
}

pub(super) fn mtu_path(netdev: &str) -> String {
    format!("/sys/class/net/{netdev}/mtu")
}

/// Returns an interface's MTU.
pub(super) fn mtu(system: &dyn System, netdev: &str) -> Result<u32, ApplyError> {
    let path = mtu_path(netdev);
    let text = read(system, &path)?;
    String::from_utf8_lossy(&text)
        .trim()
        .parse()
        .map_err(|_| ApplyError::Gone(format!("a number in {path}")))
}

fn set_mtu(
    netdev: &str,
    after: u32,
    system: &mut dyn System,
    journal: &mut Journal,
) -> Result<Done, ApplyError> {
    let before = mtu(system, netdev)?;
    if before == after {
        return Ok(Done::Already(format!("{netdev} has MTU {after}")));
    }
    journal.begin(Change::Mtu {
        netdev: netdev.to_owned(),
        before,
        after,
        boot: boot(system),
    })?;
    system
        .poke(&mtu_path(netdev), 0, format!("{after}\n").as_bytes())
        .map_err(failed(format!("setting the MTU of {netdev}")))?;
    let reads = mtu(system, netdev)?;
    if reads != after {
        return Err(ApplyError::Ignored {
            what: format!("the MTU of {netdev}"),
            wrote: after.to_string(),
            reads: reads.to_string(),
        });
    }
    Ok(Done::Changed(format!("{netdev}: MTU {before} -> {after}")))
}
