//! Takes back what a journal says.

use super::apply::{ApplyError, boot, config_path, failed, half, module_path, mtu, mtu_path, read};
use super::journal::{Change, Journal};
use super::system::System;

/// What came of taking a change back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Undone {
    /// It is as it was before.
    Restored(String),
    /// There is nothing to take back: a reboot has, or it was never made.
    Nothing(String),
    /// It was changed since; it was left as it is.
    Changed(String),
}

/// Takes back every change that stands in the journal, the last one first. What fails is left
/// standing, and the others are taken back all the same.
pub fn undo(system: &mut dyn System, journal: &mut Journal) -> Vec<Result<Undone, ApplyError>> {
    let mut outcomes = Vec::new();
    for (number, change) in journal.standing() {
        let outcome = take_back(&change, system)
            .and_then(|outcome| Ok(journal.undone(number).map(|()| outcome)?));
        outcomes.push(outcome);
    }
    outcomes
}

fn take_back(change: &Change, system: &mut dyn System) -> Result<Undone, ApplyError> {
    match change {
        Change::Register {
            bdf,
            offset,
            before,
            after,
            boot: when,
        } => {
            let path = config_path(bdf);
            let what = format!("{bdf} {offset:#x}");
            if rebooted(when.as_deref(), system) {
                return Ok(Undone::Nothing(format!("{what}: a reboot has reset it")));
            }
            let reads = half(system, &path, *offset)?;
            if reads == *before {
                return Ok(Undone::Nothing(format!("{what} is {before:#06x}")));
            }
            if reads != *after {
                return Ok(Undone::Changed(format!(
                    "{what} was written {after:#06x} and reads {reads:#06x}"
                )));
            }
            system
                .poke(&path, u64::from(*offset), &before.to_le_bytes())
                .map_err(failed(format!("writing {what}")))?;
            let reads = half(system, &path, *offset)?;
            if reads != *before {
                return Err(ApplyError::Ignored {
                    what,
                    wrote: format!("{before:#06x}"),
                    reads: format!("{reads:#06x}"),
                });
            }
            Ok(Undone::Restored(format!(
                "{what}: {after:#06x} -> {before:#06x}"
            )))
        }
        Change::File {
            path,
            before,
            after,
        } => file(path, before.as_deref(), after, system),
        Change::Module { module, boot: when } => {
            if rebooted(when.as_deref(), system) || !system.exists(&module_path(module)) {
                return Ok(Undone::Nothing(format!("{module} is not loaded by this")));
            }
            system
                .unload_module(module)
                .map_err(failed(format!("unloading {module}")))?;
            Ok(Undone::Restored(format!("{module} is unloaded")))
        }
        Change::Mtu {
            netdev,
            before,
            after,
            boot: when,
        } => {
            if rebooted(when.as_deref(), system) {
                return Ok(Undone::Nothing(format!("{netdev}: a reboot has reset it")));
            }
            let reads = mtu(system, netdev)?;
            if reads == *before {
                return Ok(Undone::Nothing(format!("{netdev} has MTU {before}")));
            }
            if reads != *after {
                return Ok(Undone::Changed(format!(
                    "{netdev} was given MTU {after} and has {reads}"
                )));
            }
            system
                .poke(&mtu_path(netdev), 0, format!("{before}\n").as_bytes())
                .map_err(failed(format!("setting the MTU of {netdev}")))?;
            Ok(Undone::Restored(format!(
                "{netdev}: MTU {after} -> {before}"
            )))
        }
        Change::Rescan { bdf } => Ok(Undone::Nothing(format!("{bdf}: it was only found again"))),
    }
}

fn file(
    path: &str,
    before: Option<&[u8]>,
    after: &[u8],
    system: &mut dyn System,
) -> Result<Undone, ApplyError> {
    let reads = match read(system, path) {
        Ok(bytes) => Some(bytes),
        Err(ApplyError::Gone(_)) => None,
        Err(error) => return Err(error),
    };
    if reads.as_deref() == before {
        return Ok(Undone::Nothing(format!("{path} is as it was")));
    }
    if reads.as_deref() != Some(after) {
        return Ok(Undone::Changed(format!("{path} was changed since")));
    }
    match before {
        Some(before) => system.put(path, before),
        None => system.remove(path),
    }
    .map_err(failed(format!("restoring {path}")))?;
    Ok(Undone::Restored(path.to_owned()))
}

/// Returns whether the machine was restarted since.
fn rebooted(when: Option<&str>, system: &dyn System) -> bool {
    match (when, boot(system)) {
        (Some(when), Some(now)) => when != now,
        _ => false,
    }
}
