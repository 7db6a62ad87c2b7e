//! JSON messages between two processes. Messages from a peer are not trusted.

use gdr_rdma::{Deadline, HandshakeError, PeerText, Session};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::error::{Error, PeerError, Result};

/// Maximum number of entries in a list, or fields in an object, of a message.
const MOST_ENTRIES: usize = 64;

/// Sends a message as JSON.
pub(crate) fn send<M: Serialize>(
    session: &mut Session,
    message: &M,
    deadline: Deadline,
) -> Result<()> {
    let bytes = serde_json::to_vec(message).map_err(PeerError::Encode)?;
    Ok(session.send(&bytes, deadline)?)
}

/// Receives a message.
pub(crate) fn receive<M: DeserializeOwned>(session: &mut Session, deadline: Deadline) -> Result<M> {
    match session.receive(deadline) {
        Ok(bytes) => parse(&bytes),
        Err(error) => Err(refusal(error)),
    }
}

/// Turns a refusal by the peer into [`PeerError::Refused`]; other errors stay.
pub(crate) fn refusal(error: gdr_rdma::Error) -> Error {
    match error {
        gdr_rdma::Error::Handshake(HandshakeError::Refused(why)) => {
            PeerError::Refused(why.to_string()).into()
        }
        error => error.into(),
    }
}

/// Parses bytes from an untrusted sender.
pub(crate) fn parse<M: DeserializeOwned>(bytes: &[u8]) -> Result<M> {
    let wrong = |error: &dyn std::fmt::Display| PeerError::Message(error.to_string());
    let mut value: Value = serde_json::from_slice(bytes).map_err(|error| wrong(&error))?;
    if !make_safe(&mut value) {
        return Err(wrong(&"it has too many entries").into());
    }
    Ok(serde_json::from_value(value).map_err(|error| wrong(&error))?)
}

/// Escapes every text, so that it can be printed. Returns whether all lists and objects are short enough.
fn make_safe(value: &mut Value) -> bool {
    match value {
        Value::String(text) => {
            *text = PeerText::new(text).into_string();
            true
        }
        Value::Array(values) => values.len() <= MOST_ENTRIES && values.iter_mut().all(make_safe),
        Value::Object(fields) => {
            let safe = std::mem::take(fields).into_iter().map(|(name, mut value)| {
                let fits = make_safe(&mut value);
                (PeerText::new(&name).into_string(), value, fits)
            });
            let mut fit = true;
            *fields = safe
                .map(|(name, value, fits)| {
                    fit &= fits;
                    (name, value)
                })
                .collect();
            fit && fields.len() <= MOST_ENTRIES
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => true,
    }
}
