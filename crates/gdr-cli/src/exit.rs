//! What the exit status says.

use std::process::ExitCode;

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    Fine,
    Warning,
    Failure,
    Undecided,
    Usage,
}

/// The last lines of every help text.
pub(crate) const EXIT_STATUS: &str = "\
Exit status:
  0   fine
  1   a warning: it works, but not in full
  2   a failure
  3   undecided: it was stopped before it could tell
  64  the command line makes no sense";

impl Exit {
    pub(crate) const fn code(self) -> u8 {
        match self {
            Self::Fine => 0,
            Self::Warning => 1,
            Self::Failure => 2,
            Self::Undecided => 3,
            // EX_USAGE of sysexits.h.
            Self::Usage => 64,
        }
    }

    /// What `error` makes of a command.
    pub(crate) fn of(error: &anyhow::Error) -> Self {
        if error.is::<UsageError>() {
            return Self::Usage;
        }
        match error.downcast_ref::<gdr_perf::Error>() {
            Some(gdr_perf::Error::Settings(_)) => Self::Usage,
            Some(gdr_perf::Error::Stopped) => Self::Undecided,
            _ => match error.downcast_ref::<gdr_copy::Error>() {
                Some(gdr_copy::Error::BackendName(_)) => Self::Usage,
                _ => Self::Failure,
            },
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        exit.code().into()
    }
}

/// The command line (or the environment that stands for it) contradicts itself.
#[derive(Debug)]
pub(crate) struct UsageError(pub(crate) String);

impl std::fmt::Display for UsageError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UsageError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_help_names_every_status() {
        for exit in [
            Exit::Fine,
            Exit::Warning,
            Exit::Failure,
            Exit::Undecided,
            Exit::Usage,
        ] {
            let code = format!("\n  {:<4}", exit.code());
            assert!(EXIT_STATUS.contains(&code), "{exit:?}");
        }
    }

    #[test]
    fn an_error_becomes_the_status_of_its_kind() {
        let usage = gdr_perf::Error::Settings("no".into());
        assert_eq!(Exit::of(&usage.into()), Exit::Usage);
        assert_eq!(Exit::of(&gdr_perf::Error::Stopped.into()), Exit::Undecided);
        assert_eq!(
            Exit::of(&gdr_copy::Error::ForkedChild.into()),
            Exit::Failure
        );
        assert_eq!(Exit::of(&UsageError("no".into()).into()), Exit::Usage);
    }
}
