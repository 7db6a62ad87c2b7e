//! Environment variables read by a library.

#![expect(
    clippy::disallowed_methods,
    reason = "every other module reads the environment by this one"
)]

use std::env;
use std::ffi::OsString;

/// Whose environment the process has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Environment {
    /// That of the user whose rights the process has.
    Own,
    /// A caller with fewer rights: the program is setuid or setgid, or has file capabilities.
    OfCaller,
}

impl Environment {
    fn of_this_process() -> Self {
        // SAFETY: getauxval takes any number and returns 0 for unknown ones.
        match unsafe { libc::getauxval(libc::AT_SECURE) } {
            0 => Self::Own,
            _ => Self::OfCaller,
        }
    }
}

/// Returns the value of an environment variable, which may be empty; `None` if it is not set.
///
/// In a process with more rights than its caller (`AT_SECURE` of getauxval(3): setuid, setgid, file capabilities),
/// every variable counts as unset. The caller chose the values, and must not choose which code runs or which files are
/// written with these rights. The dynamic loader likewise ignores `LD_PRELOAD` there.
pub fn variable(name: &str) -> Option<OsString> {
    variable_in(Environment::of_this_process(), name, env::var_os(name))
}

fn variable_in(environment: Environment, name: &str, value: Option<OsString>) -> Option<OsString> {
    match environment {
        Environment::Own => value,
        Environment::OfCaller => {
            if value.is_some() {
                tracing::warn!("{name} is ignored: this program has more rights than its caller");
            }
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_more_rights_than_its_caller_has_no_variables() {
        let value = || Some(OsString::from("/tmp/x.so"));
        assert_eq!(variable_in(Environment::Own, "GDR_X", value()), value());
        assert_eq!(variable_in(Environment::Own, "GDR_X", None), None);
        assert_eq!(variable_in(Environment::OfCaller, "GDR_X", value()), None);
    }
}
