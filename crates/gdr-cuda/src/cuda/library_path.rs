//! Which library file is loaded as the CUDA driver.

use std::env;
use std::ffi::OsString;

/// The environment variable that names a file to load instead of `libcuda.so.1`.
const VARIABLE: &str = "GDR_LIBCUDA";

/// Who sets the environment of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Environment {
    /// The user whose rights the process has.
    Trusted,
    /// A caller with fewer rights: the program is setuid or has file capabilities.
    Untrusted,
}

impl Environment {
    fn of_this_process() -> Self {
        // SAFETY: getauxval takes any number and returns 0 for unknown ones.
        match unsafe { libc::getauxval(libc::AT_SECURE) } {
            0 => Self::Trusted,
            _ => Self::Untrusted,
        }
    }
}

/// The file that `GDR_LIBCUDA` names, where it is set and not empty. Ignored in a process that has
/// more rights than its caller, which must not load code of the caller's choice. The dynamic loader
/// ignores `LD_PRELOAD` and `LD_LIBRARY_PATH` there, too.
pub(super) fn named_library() -> Option<OsString> {
    library_in(Environment::of_this_process(), env::var_os(VARIABLE))
}

fn library_in(environment: Environment, named: Option<OsString>) -> Option<OsString> {
    let named = named.filter(|path| !path.is_empty())?;
    match environment {
        Environment::Trusted => Some(named),
        Environment::Untrusted => {
            tracing::warn!("{VARIABLE} is ignored: this program has more rights than its caller");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_named_library_is_ignored_where_the_process_has_more_rights_than_its_caller() {
        let named = || Some(OsString::from("/tmp/libcuda.so"));
        assert_eq!(library_in(Environment::Trusted, named()), named());
        assert_eq!(library_in(Environment::Untrusted, named()), None);
        assert_eq!(
            library_in(Environment::Trusted, Some(OsString::new())),
            None
        );
        assert_eq!(library_in(Environment::Trusted, None), None);
    }
}
