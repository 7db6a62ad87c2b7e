//! Exceptions of objects, whose classes are in `gdr._errors`.

use gdr_object::{BusyReason, Error, GoneReason};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::error::{self, IntoException};

impl IntoException for Error {
    fn into_exception(self) -> PyErr {
        let text = self.to_string();
        match self {
            Self::Rdma(error) => error.into_exception(),
            Self::Copy(error) => error.into_exception(),
            Self::Cuda(error) => error.into_exception(),
            Self::Stalled { name, done, of } => raise("Stalled", text, |fields| {
                fields.set_item("name", name.as_str())?;
                fields.set_item("done", done)?;
                fields.set_item("of", of)
            }),
            Self::NoAnswer { owner, .. } => raise("NoAnswer", text, |fields| {
                fields.set_item("owner", owner.to_string())
            }),
            Self::NothingNewer { name, seen } => raise("NothingNewer", text, |fields| {
                fields.set_item("name", name.as_str())?;
                fields.set_item("seen", seen.map(gdr_object::Epoch::get))
            }),
            Self::Empty { name } => raise("Empty", text, |fields| {
                fields.set_item("name", name.as_str())
            }),
            Self::Gone { what, why } => raise("Gone", text, |fields| {
                fields.set_item("what", what)?;
                fields.set_item("reason", gone(why))
            }),
            Self::Denied {
                name,
                permitted,
                asked,
            } => raise("Denied", text, |fields| {
                fields.set_item("name", name.as_str())?;
                fields.set_item("permitted", permitted.to_string())?;
                fields.set_item("asked", asked.to_string())
            }),
            Self::Busy { what, by } => busy(text, what, by),
            Self::RingFull { name, .. } => {
                busy(text, name.to_string(), BusyReason::FollowersBehind)
            }
            Self::NoSuchObject { name, owner } => raise("NoSuchObject", text, |fields| {
                fields.set_item("name", name.as_str())?;
                fields.set_item("owner", owner.to_string())
            }),
            Self::Name(_)
            | Self::Shape { .. }
            | Self::Slots(_)
            | Self::Size { .. }
            | Self::NotOnGpu { .. }
            | Self::OtherLink { .. }
            | Self::OutOfRange { .. }
            | Self::Tensors { .. }
            | Self::WrongMode { .. } => PyValueError::new_err(text),
            _ => error::Error::new_err(text),
        }
    }
}

fn busy(text: String, what: String, by: BusyReason) -> PyErr {
    raise("Busy", text, |fields| {
        fields.set_item("what", what)?;
        let reason = match by {
            BusyReason::OwnerWrites => "owner-writes",
            BusyReason::PeerWrites => "peer-writes",
            BusyReason::CopiesQueued => "copies-queued",
            BusyReason::LinkInUse => "link-in-use",
            BusyReason::Leased => "leased",
            BusyReason::Followed => "followed",
            BusyReason::FollowersBehind => "followers-behind",
            BusyReason::PutTooSlow => "put-too-slow",
            _ => "unknown",
        };
        fields.set_item("reason", reason)
    })
}

const fn gone(why: GoneReason) -> &'static str {
    match why {
        GoneReason::Closed => "closed",
        GoneReason::ServerClosed => "server-closed",
        GoneReason::Restarted => "restarted",
        GoneReason::Disconnected => "disconnected",
        GoneReason::Unreachable => "unreachable",
        GoneReason::Interrupted => "interrupted",
        _ => "unknown",
    }
}

/// Returns an exception of a class of `gdr._errors`, with its fields.
fn raise(
    class: &str,
    text: String,
    fill: impl FnOnce(&Bound<'_, PyDict>) -> PyResult<()>,
) -> PyErr {
    Python::attach(|py| {
        let fields = PyDict::new(py);
        let exception = fill(&fields)
            .and_then(|()| py.import("gdr._errors")?.getattr(class))
            .and_then(|class| class.call((text,), Some(&fields)));
        match exception {
            Ok(exception) => PyErr::from_value(exception),
            Err(error) => error,
        }
    })
}
