//! Errors as a program reads them.

use std::fmt::Debug;

use gdr_perf::report::Schema;
use serde::Serialize;

use crate::exit::{Exit, UsageError};

/// What `--json` prints when a command ends with an error: `gdr.error`.
#[derive(Debug, Serialize)]
pub(crate) struct Fault {
    #[serde(flatten)]
    schema: Schema,
    error: Details,
    /// The exit status.
    exit: u8,
}

#[derive(Debug, Serialize)]
struct Details {
    /// e.g. `port_in_use`: stays as it is.
    name: String,
    /// What failed, why, and what to do.
    message: String,
}

impl Fault {
    /// Of an error whose words are `message`.
    pub(crate) fn new(error: &anyhow::Error, message: String, exit: Exit) -> Self {
        Self::named(name(error), message, exit)
    }

    /// Of a command line that makes no sense.
    pub(crate) fn usage(message: String) -> Self {
        Self::named("usage".to_owned(), message, Exit::Usage)
    }

    fn named(name: String, message: String, exit: Exit) -> Self {
        Self {
            schema: Schema::first("gdr.error"),
            error: Details { name, message },
            exit: exit.code(),
        }
    }
}

/// The name of the innermost error that has one.
fn name(error: &anyhow::Error) -> String {
    if error.is::<UsageError>() {
        return "usage".to_owned();
    }
    for cause in error.chain() {
        if let Some(error) = cause.downcast_ref::<gdr_perf::Error>() {
            return match error {
                gdr_perf::Error::Rdma(error) => rdma(error),
                gdr_perf::Error::Copy(error) => variant(error),
                gdr_perf::Error::Gpu(error) => variant(error),
                other => variant(other),
            };
        }
        if let Some(error) = cause.downcast_ref::<gdr_rdma::Error>() {
            return rdma(error);
        }
        if let Some(error) = cause.downcast_ref::<gdr_copy::Error>() {
            return variant(error);
        }
        if let Some(error) = cause.downcast_ref::<gdr_cuda::Error>() {
            return variant(error);
        }
        if cause.is::<std::io::Error>() {
            return "io".to_owned();
        }
    }
    "other".to_owned()
}

fn rdma(error: &gdr_rdma::Error) -> String {
    match error {
        gdr_rdma::Error::Handshake(error) => format!("handshake_{}", variant(error)),
        gdr_rdma::Error::Copy(error) => variant(error),
        gdr_rdma::Error::Cuda(error) => variant(error),
        other => variant(other),
    }
}

/// The name of an enum's variant, as JSON writes names.
fn variant(error: &impl Debug) -> String {
    let debug = format!("{error:?}");
    let mut name = String::new();
    for letter in debug.chars().take_while(char::is_ascii_alphanumeric) {
        if letter.is_ascii_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.push(letter.to_ascii_lowercase());
    }
    name
}

#[cfg(test)]
mod tests {
    use gdr_rdma::HandshakeError;

    use super::*;

    #[test]
    fn errors_are_named_by_their_innermost_variant() {
        let wrong_key = || gdr_rdma::Error::from(HandshakeError::WrongKey);
        let perf = gdr_perf::Error::from(wrong_key());
        assert_eq!(name(&perf.into()), "handshake_wrong_key");
        let context = anyhow::Error::from(wrong_key()).context("on the way");
        assert_eq!(name(&context), "handshake_wrong_key");
        let copy = gdr_perf::Error::Copy(gdr_copy::Error::ForkedChild);
        assert_eq!(name(&copy.into()), "forked_child");
        let settings = gdr_perf::Error::Settings("no".into());
        assert_eq!(name(&settings.into()), "settings");
        assert_eq!(name(&UsageError("no".into()).into()), "usage");
        assert_eq!(name(&std::io::Error::other("no").into()), "io");
        assert_eq!(name(&anyhow::anyhow!("no")), "other");
    }
}
