//! Fixes of findings, and their application: as a script to read first, or directly with a journal
//! to undo it.
//!
//! [`Plan`] chooses among the fixes of a [`Diagnosis`](crate::Diagnosis); [`script()`] writes it as
//! a commented shell script with its undo lines; [`apply()`] applies it through [`System`], writes
//! every change to a [`Journal`] before it is made, and reads every register back; [`undo()`]
//! undoes the changes of a journal.
//!
//! Few actions may be applied: ACS redirect bits, the Maximum Read Request Size, loading modules
//! now and at boot, drop-ins for limits, the removal and rescan of a function without a driver, and
//! MTUs; never firmware. [`Refusal`] has the reason for the others.

use std::fmt;

use gdr_node::Bdf;
use serde::{Serialize, Serializer};
mod allowlist;
mod apply;
mod journal;
mod plan;
pub(crate) mod platform;
mod script;
mod shell;
mod system;
mod undo;

pub use allowlist::Refusal;
pub use apply::{ApplyError, Done, apply};
pub use journal::{Change, Journal, JournalError, Record};
pub use plan::{Plan, Step};
pub use script::script;
pub use system::{LiveSystem, System};
pub use undo::{Undone, undo};

/// The privilege that it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Privilege {
    /// Any user.
    User,
    /// Root.
    Root,
}

/// When it takes effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Effect {
    /// Immediately.
    Now,
    /// When the job, the service or the login is started again.
    AtRestart,
    /// When the machine is restarted.
    AtReboot,
}

/// How long it lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Persistence {
    /// Until the process ends.
    UntilExit,
    /// Until the machine is restarted.
    UntilReboot,
    /// Permanently.
    Permanent,
}

/// Its risk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Risk {
    /// Nothing.
    None,
    /// Something may run slower or restart.
    Low,
    /// Devices or connections in use are disturbed.
    Medium,
    /// Isolation between devices, or the boot of the machine, may be affected.
    High,
}

/// A 16-bit register of a PCI function, found by its capability and never by a fixed address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Register {
    /// ACS Control: 6 bytes into extended capability 0x000d.
    AcsControl,
    /// Device Control: 8 bytes into the PCI Express capability.
    DeviceControl,
    /// Link Control: 16 bytes into the PCI Express capability.
    LinkControl,
}

impl Register {
    /// Returns its name in setpci, with a width of 16 bits.
    pub const fn setpci(self) -> &'static str {
        match self {
            Self::AcsControl => "ECAP_ACS+6.w",
            Self::DeviceControl => "CAP_EXP+8.w",
            Self::LinkControl => "CAP_EXP+10.w",
        }
    }
}

impl fmt::Display for Register {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AcsControl => "ACS Control",
            Self::DeviceControl => "Device Control",
            Self::LinkControl => "Link Control",
        })
    }
}

/// An action of a fix.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
#[allow(missing_docs, reason = "the names say it")]
pub enum Action {
    /// Set the bits in `mask` of a register as in `value`.
    WriteConfig {
        #[serde(serialize_with = "as_text")]
        bdf: Bdf,
        register: Register,
        /// The bits that change.
        mask: u16,
        /// Their new values.
        value: u16,
        /// The value of the register at the time of the check.
        was: u16,
    },
    /// Load a kernel module now.
    LoadModule { module: String },
    /// Unload a kernel module now.
    UnloadModule { module: String },
    /// Write a file: a drop-in of modules-load.d, limits.d, systemd or modprobe.d. The undo
    /// restores the former content.
    WriteFile { path: String, content: String },
    /// Write a value into a file of sysfs or procfs.
    WriteSysfs { path: String, value: String },
    /// Remove a PCI function and rescan the bus. Only if no driver is bound to it.
    Rescan {
        #[serde(serialize_with = "as_text")]
        bdf: Bdf,
    },
    /// Set an interface's MTU.
    Mtu { netdev: String, mtu: u32 },
    /// Add an argument to the kernel's command line.
    KernelArgument { argument: String },
    /// Another command. It is shown, but never applied.
    Command { line: String },
    /// Work by hand: firmware settings, another slot, another cable.
    Manual { text: String },
}

fn as_text<S: Serializer>(value: &impl fmt::Display, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

impl Action {
    /// Another command.
    pub fn run(line: impl Into<String>) -> Self {
        Self::Command { line: line.into() }
    }

    /// Load a kernel module now.
    pub fn load(module: impl Into<String>) -> Self {
        Self::LoadModule {
            module: module.into(),
        }
    }

    /// Add an argument to the kernel's command line.
    pub fn boot(argument: impl Into<String>) -> Self {
        Self::KernelArgument {
            argument: argument.into(),
        }
    }

    /// Write a file.
    pub fn file(path: impl Into<String>, content: impl Into<String>) -> Self {
        Self::WriteFile {
            path: path.into(),
            content: content.into(),
        }
    }

    /// Write a value into a file of sysfs or procfs.
    pub fn sysfs(path: impl Into<String>, value: impl Into<String>) -> Self {
        Self::WriteSysfs {
            path: path.into(),
            value: value.into(),
        }
    }

    /// Returns its command line, if it has one.
    pub fn command(&self) -> Option<String> {
        Some(match self {
            Self::WriteConfig {
                bdf,
                register,
                mask,
                value,
                ..
            } => format!(
                "setpci -s {bdf} {}={value:04x}:{mask:04x}",
                register.setpci()
            ),
            Self::LoadModule { module } => format!("modprobe {module}"),
            Self::UnloadModule { module } => format!("modprobe -r {module}"),
            Self::WriteFile { path, content } => format!(
                "printf '%s\\n' {} > {path}",
                content
                    .lines()
                    .map(|line| format!("'{}'", line.replace('\'', r"'\''")))
                    .collect::<Vec<_>>()
                    .join(" ")
            ),
            Self::WriteSysfs { path, value } => format!("echo {value} > {path}"),
            Self::Rescan { bdf } => format!(
                "echo 1 > /sys/bus/pci/devices/{bdf}/remove && echo 1 > /sys/bus/pci/rescan"
            ),
            Self::Mtu { netdev, mtu } => format!("ip link set dev {netdev} mtu {mtu}"),
            Self::Command { line } => line.clone(),
            Self::KernelArgument { .. } | Self::Manual { .. } => return None,
        })
    }
}

/// The form in which an action is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shown {
    /// A command line, which can be copied into a shell.
    Command(String),
    /// A sentence. Text between back-ticks in it is a command or a name.
    Prose(String),
}

impl Action {
    /// Returns the action as it is shown.
    pub fn shown(&self) -> Shown {
        match (self, self.command()) {
            (Self::KernelArgument { argument }, _) => {
                Shown::Prose(format!("boot with the kernel argument `{argument}`"))
            }
            (_, Some(command)) => Shown::Command(command),
            (other, None) => Shown::Prose(other.to_string()),
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::KernelArgument { argument } => {
                write!(f, "boot with the kernel argument {argument}")
            }
            Self::Manual { text } => f.write_str(text),
            _ => f.write_str(&self.command().unwrap_or_default()),
        }
    }
}

/// Where a fix is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Site {
    /// In software or firmware.
    Software,
    /// At the cards, slots and cables.
    Hardware,
}

/// A fix of a finding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fix {
    /// One line with its effect.
    pub title: String,
    /// Its actions, in order.
    pub actions: Vec<Action>,
    /// Who may do it.
    pub privilege: Privilege,
    /// From when on it helps.
    pub effect: Effect,
    /// How long it lasts.
    pub persistence: Persistence,
    /// Its risk.
    pub risk: Risk,
    /// The possible damage, if there is any.
    pub caution: Option<String>,
    /// Where it is made.
    #[serde(skip)]
    pub site: Site,
}

impl Fix {
    /// Returns an action of root that takes effect immediately and lasts until the next boot.
    pub fn now(title: impl Into<String>, action: Action) -> Self {
        Self {
            title: title.into(),
            actions: vec![action],
            privilege: Privilege::Root,
            effect: Effect::Now,
            persistence: Persistence::UntilReboot,
            risk: Risk::Low,
            caution: None,
            site: Site::Software,
        }
    }

    /// Returns a command of root that takes effect immediately.
    pub fn run(title: impl Into<String>, line: impl Into<String>) -> Self {
        Self::now(title, Action::run(line))
    }

    /// Returns an action of root that takes effect at the next boot and is permanent.
    pub fn at_boot(title: impl Into<String>, action: Action) -> Self {
        Self {
            effect: Effect::AtReboot,
            persistence: Persistence::Permanent,
            ..Self::now(title, action)
        }
    }

    /// Work by hand, in firmware or on the hardware.
    pub fn manual(title: impl Into<String>, text: impl Into<String>) -> Self {
        Self {
            effect: Effect::AtReboot,
            persistence: Persistence::Permanent,
            ..Self::now(title, Action::Manual { text: text.into() })
        }
    }

    /// Work at the cards, slots or cables.
    pub fn hardware(title: impl Into<String>, text: impl Into<String>) -> Self {
        Self {
            site: Site::Hardware,
            ..Self::manual(title, text)
        }
    }

    /// Returns a setting of a user for a job: an environment variable or an option.
    pub fn user(title: impl Into<String>, line: impl Into<String>) -> Self {
        Self {
            privilege: Privilege::User,
            effect: Effect::AtRestart,
            persistence: Persistence::UntilExit,
            risk: Risk::None,
            ..Self::now(title, Action::Command { line: line.into() })
        }
    }

    /// Adds an action after the others.
    #[must_use]
    pub fn then(mut self, action: Action) -> Self {
        self.actions.push(action);
        self
    }

    /// Sets when it takes effect.
    #[must_use]
    pub fn effect(mut self, effect: Effect) -> Self {
        self.effect = effect;
        self
    }

    /// Sets how long it lasts.
    #[must_use]
    pub fn persistence(mut self, persistence: Persistence) -> Self {
        self.persistence = persistence;
        self
    }

    /// Sets its risk and the possible damage.
    #[must_use]
    pub fn risk(mut self, risk: Risk, caution: impl Into<String>) -> Self {
        self.risk = risk;
        self.caution = Some(caution.into());
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_register_is_written_by_capability_and_only_its_bits() {
        let action = Action::WriteConfig {
            bdf: "40:01.1".parse().unwrap(),
            register: Register::AcsControl,
            mask: 0x002c,
            value: 0,
            was: 0x001d,
        };
        assert_eq!(
            action.to_string(),
            "setpci -s 0000:40:01.1 ECAP_ACS+6.w=0000:002c"
        );
    }

    #[test]
    fn a_file_with_quotes_stays_one_word_a_line() {
        let action = Action::WriteFile {
            path: "/etc/x.conf".into(),
            content: "it's\ntwo\n".into(),
        };
        assert_eq!(
            action.to_string(),
            r"printf '%s\n' 'it'\''s' 'two' > /etc/x.conf"
        );
    }
}
