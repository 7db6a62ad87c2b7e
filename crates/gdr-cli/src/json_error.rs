//! Errors in the form that programs read: codes and exit statuses.

use gdr_doctor::environment::NoRail;
use gdr_perf::report::Schema;
use serde::Serialize;
use serde_json::Value;

use crate::exit::{Exit, InputError, UsageError};
use crate::gpu::NoSuchGpu;
use crate::gpu_context::NoGpu;
use crate::interrupt::Interrupted;
use crate::launch::LaunchError;
use crate::object_content::ContentError;
use crate::object_link::UnexpectedObject;

/// What `--json` prints when a command ends with an error: `gdr.error`.
#[derive(Debug, Serialize)]
pub(crate) struct JsonError {
    #[serde(flatten)]
    schema: Schema,
    error: Details,
    /// The exit status.
    exit: u8,
    /// What was measured before a signal arrived.
    #[serde(skip_serializing_if = "<[Value]>::is_empty")]
    measured: Vec<Value>,
}

#[derive(Debug, Serialize)]
struct Details {
    /// The code of the error, such as `port_in_use`.
    name: &'static str,
    /// What failed, why, and what to do.
    message: String,
}

impl JsonError {
    /// Returns the document for `error`, whose text is `message`.
    pub(crate) fn new(error: &anyhow::Error, message: String, exit: Exit) -> Self {
        let interrupted = error.downcast_ref::<Interrupted>();
        Self {
            measured: interrupted.map_or_else(Vec::new, |it| it.measured.clone()),
            ..Self::named(code(error), message, exit)
        }
    }

    /// Returns the document for a command line that cannot be parsed.
    pub(crate) fn usage(message: String) -> Self {
        Self::named("usage", message, Exit::Usage)
    }

    fn named(name: &'static str, message: String, exit: Exit) -> Self {
        Self {
            schema: Schema::first("gdr.error"),
            error: Details { name, message },
            exit: exit.code(),
            measured: Vec::new(),
        }
    }
}

/// Returns the exit status for `error`, to which the command assigns no status of its own.
pub(crate) fn exit_status(error: &anyhow::Error) -> Exit {
    if error.is::<UsageError>() {
        return Exit::Usage;
    }
    if error.is::<InputError>() {
        return Exit::Input;
    }
    if let Some(none) = error.downcast_ref::<NoGpu>() {
        return none.exit();
    }
    if error.is::<Interrupted>() {
        return Exit::Undecided;
    }
    if let Some(error) = error.downcast_ref::<LaunchError>() {
        return error.exit();
    }
    if let Some(error) = error.downcast_ref::<gdr_object::Error>() {
        return match error {
            gdr_object::Error::Empty { .. } | gdr_object::Error::NothingNewer { .. } => {
                Exit::Undecided
            }
            _ => Exit::Failure,
        };
    }
    match error.downcast_ref::<gdr_perf::Error>() {
        Some(gdr_perf::Error::Settings(_)) => Exit::Usage,
        Some(gdr_perf::Error::Stopped) => Exit::Undecided,
        _ => match error.downcast_ref::<gdr_copy::Error>() {
            Some(gdr_copy::Error::BackendName(_)) => Exit::Usage,
            _ => Exit::Failure,
        },
    }
}

/// Returns the code of the first error in the chain that has one.
fn code(error: &anyhow::Error) -> &'static str {
    type Cause<'a> = &'a (dyn std::error::Error + 'static);
    fn of<E: std::error::Error + 'static>(
        cause: Cause,
        code: fn(&E) -> &'static str,
    ) -> Option<&'static str> {
        cause.downcast_ref().map(code)
    }
    let code = |cause: Cause| {
        of(cause, |_: &UsageError| "usage")
            .or_else(|| of(cause, |_: &InputError| "input"))
            .or_else(|| of(cause, |_: &Interrupted| "stopped"))
            .or_else(|| of(cause, NoGpu::code))
            .or_else(|| of(cause, |_: &NoSuchGpu| "no_such_device"))
            .or_else(|| of(cause, |_: &UnexpectedObject| "object_unexpected"))
            .or_else(|| of(cause, |_: &ContentError| "object_content"))
            .or_else(|| of(cause, NoRail::code))
            .or_else(|| of(cause, gdr_object::Error::code))
            .or_else(|| of(cause, gdr_perf::Error::code))
            .or_else(|| of(cause, gdr_rdma::Error::code))
            .or_else(|| of(cause, gdr_rdma::NicError::code))
            .or_else(|| of(cause, gdr_copy::Error::code))
            .or_else(|| of(cause, gdr_cuda::Error::code))
            .or_else(|| of(cause, |_: &std::io::Error| "io"))
    };
    error.chain().find_map(code).unwrap_or("other")
}

#[cfg(test)]
mod tests {
    use gdr_rdma::HandshakeError;

    use super::*;

    #[test]
    fn errors_have_the_name_of_the_innermost_that_has_one() {
        let wrong_key = || gdr_rdma::Error::from(HandshakeError::WrongKey);
        let perf = gdr_perf::Error::from(wrong_key());
        assert_eq!(code(&perf.into()), "handshake_wrong_key");
        let context = anyhow::Error::from(wrong_key()).context("connecting");
        assert_eq!(code(&context), "handshake_wrong_key");
        let copy = gdr_perf::Error::Copy(gdr_copy::Error::ForkedChild);
        assert_eq!(code(&copy.into()), "forked_child");
        let settings = gdr_perf::Error::from(gdr_perf::SettingsError::NoSize);
        assert_eq!(code(&settings.into()), "settings");
        assert_eq!(code(&UsageError("no".into()).into()), "usage");
        assert_eq!(code(&InputError("no".into()).into()), "input");
        assert_eq!(code(&std::io::Error::other("no").into()), "io");
        assert_eq!(code(&anyhow::anyhow!("no")), "other");
    }

    #[test]
    fn a_gpu_that_is_missing_has_another_name_than_one_that_fails() {
        let exit = Exit::Undecided;
        assert_eq!(code(&NoGpu::Absent { exit }.into()), "no_gpu");
        let reason = String::new();
        assert_eq!(code(&NoGpu::Unusable { reason }.into()), "gpu_unusable");
    }

    #[test]
    fn an_error_becomes_the_status_of_its_kind() {
        let usage = gdr_perf::Error::from(gdr_perf::SettingsError::NoSize);
        assert_eq!(exit_status(&usage.into()), Exit::Usage);
        assert_eq!(
            exit_status(&gdr_perf::Error::Stopped.into()),
            Exit::Undecided
        );
        assert_eq!(
            exit_status(&gdr_copy::Error::ForkedChild.into()),
            Exit::Failure
        );
        assert_eq!(exit_status(&UsageError("no".into()).into()), Exit::Usage);
        assert_eq!(exit_status(&InputError("no".into()).into()), Exit::Input);
    }
}
