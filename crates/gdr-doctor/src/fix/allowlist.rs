//! The actions that may be applied.

use thiserror::Error;

use crate::fix::{Action, Register};

/// Redirection of requests, of completions, and egress control: bits 2, 3 and 5 of ACS Control.
const REDIRECTING: u16 = 0x002c;

/// Maximum Read Request Size: bits 14:12 of Device Control.
const READ_REQUEST: u16 = 0x7000;

/// The directories where drop-ins may be written, and the suffixes of their names.
const DROP_INS: &[(&str, &str)] = &[
    ("/etc/modules-load.d/", ".conf"),
    ("/etc/security/limits.d/", ".conf"),
    ("/etc/systemd/system/", ".conf"),
];

/// The reason why an action is not applied.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Refusal {
    /// It has to be done by hand.
    #[error("gdr leaves this change to the administrator")]
    ByHand,
    /// The bits are not among those that are safe to change.
    #[error("bits {0:#06x} of {1} are not among those that gdr changes")]
    Bits(u16, Register),
    /// The file is not in a directory for drop-ins.
    #[error("{0} is not a drop-in file in a directory that gdr writes to")]
    Place(String),
    /// The name is not valid.
    #[error("`{0}` is not a valid name of a {1}")]
    Name(String, &'static str),
}

impl Action {
    /// Checks that it may be applied.
    ///
    /// # Errors
    ///
    /// [`Refusal`] with the reason.
    pub fn permitted(&self) -> Result<(), Refusal> {
        match self {
            Self::WriteConfig { register, mask, .. } => {
                let allowed = match register {
                    Register::AcsControl => REDIRECTING,
                    Register::DeviceControl => READ_REQUEST,
                    Register::LinkControl => 0,
                };
                if mask & !allowed == 0 {
                    Ok(())
                } else {
                    Err(Refusal::Bits(mask & !allowed, *register))
                }
            }
            Self::WriteFile { path, .. } => drop_in(path),
            Self::LoadModule { module } => name(module, "module"),
            Self::Mtu { netdev, .. } => name(netdev, "network interface"),
            Self::Rescan { .. } => Ok(()),
            Self::UnloadModule { .. }
            | Self::WriteSysfs { .. }
            | Self::KernelArgument { .. }
            | Self::Command { .. }
            | Self::Manual { .. } => Err(Refusal::ByHand),
        }
    }
}

fn drop_in(path: &str) -> Result<(), Refusal> {
    let fits = DROP_INS.iter().any(|(folder, end)| {
        (path.strip_prefix(folder)).is_some_and(|rest| {
            rest.ends_with(end)
                && rest
                    .split('/')
                    .all(|part| !part.is_empty() && part != "." && part != "..")
        })
    });
    let plain = path.chars().all(|c| c.is_ascii_graphic());
    if fits && plain {
        Ok(())
    } else {
        Err(Refusal::Place(path.to_owned()))
    }
}

/// Checks that a text is a valid name for the kernel, so that text from a capture cannot become a path or an option.
fn name(text: &str, of: &'static str) -> Result<(), Refusal> {
    let fits = !text.is_empty()
        && text.len() < 64
        && !text.starts_with(['-', '.'])
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "_-.:@".contains(c));
    if fits {
        Ok(())
    } else {
        Err(Refusal::Name(text.to_owned(), of))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(register: Register, mask: u16) -> Action {
        Action::WriteConfig {
            bdf: "1:00.0".parse().unwrap(),
            register,
            mask,
            value: 0,
            was: 0,
        }
    }

    fn file(path: &str) -> Action {
        Action::WriteFile {
            path: path.into(),
            content: String::new(),
        }
    }

    #[test]
    fn only_bits_that_are_safe_are_changed() {
        assert_eq!(config(Register::AcsControl, 0x000c).permitted(), Ok(()));
        assert_eq!(config(Register::DeviceControl, 0x7000).permitted(), Ok(()));
        for (register, mask) in [
            (Register::AcsControl, 0x0001),
            (Register::DeviceControl, 0x7010),
            (Register::LinkControl, 0x0003),
        ] {
            assert!(matches!(
                config(register, mask).permitted(),
                Err(Refusal::Bits(..))
            ));
        }
    }

    #[test]
    fn only_drop_ins_are_written() {
        assert_eq!(file("/etc/modules-load.d/gdr.conf").permitted(), Ok(()));
        let unit = "/etc/systemd/system/slurmd.service.d/memlock.conf";
        assert_eq!(file(unit).permitted(), Ok(()));
        for path in [
            "/etc/passwd",
            "/etc/modules-load.d/../passwd.conf",
            "/etc/modules-load.d/.conf/../../x.conf",
            "/etc/modules-load.d//x.conf",
            "etc/modules-load.d/x.conf",
            "/etc/modules-load.d/a\nb.conf",
        ] {
            assert!(file(path).permitted().is_err(), "{path}");
        }
    }

    #[test]
    fn a_name_from_a_capture_is_no_option_and_no_path() {
        let mtu = |netdev: &str| Action::Mtu {
            netdev: netdev.into(),
            mtu: 9000,
        };
        assert_eq!(mtu("ens1f0np0").permitted(), Ok(()));
        for netdev in ["", "-x", "../x", "a b", "a;b", "a\n", "."] {
            assert!(mtu(netdev).permitted().is_err(), "{netdev:?}");
        }
    }
}
