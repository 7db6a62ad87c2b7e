//! What the two ends of a run in two processes tell each other, as JSON.

use gdr_rdma::{Deadline, Session};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::report::{Checks, End, Ended, Memory, Outcome};
use crate::error::{Error, Result};

/// The version of what follows.
pub(super) const VERSION: u32 = 1;

/// A message. The end that connects begins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "message", rename_all = "snake_case")]
pub(super) enum Message {
    /// What the connecting end wants to move.
    Ask(Ask),
    /// The listening end is willing.
    Ready(Box<Ready>),
    /// It is not.
    Refused {
        /// Why.
        reason: String,
    },
    /// The connecting end has settled the path MTU.
    Agreed {
        /// As the InfiniBand specification codes it.
        mtu: u8,
    },
    /// Pattern A was filled in.
    Filled {
        /// Whether it is there.
        outcome: Outcome,
    },
    /// The WRITEs have ended.
    Written {
        /// How.
        ended: Ended,
    },
    /// GPU memory was looked at.
    Verified {
        /// How the receive ended.
        received: Ended,
        /// What was seen.
        checks: Checks,
    },
    /// The READs have ended.
    ReadBack {
        /// How.
        ended: Ended,
        /// What they brought.
        outcome: Outcome,
    },
}

/// What the connecting end wants to move.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Ask {
    pub(super) version: u32,
    pub(super) size: u64,
    pub(super) iterations: u32,
    pub(super) seed: u32,
    pub(super) end: End,
}

/// Where it will go.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Ready {
    pub(super) memory: Memory,
    pub(super) end: End,
    /// The path MTU as this end sees it.
    pub(super) mtu: u8,
}

pub(super) fn send(session: &mut Session, message: &Message, deadline: Deadline) -> Result<()> {
    let bytes = serde_json::to_vec(message)
        .map_err(|error| Error::Peer(format!("could not be told: {error}")))?;
    Ok(session.send(&bytes, deadline)?)
}

pub(super) fn receive(session: &mut Session, deadline: Deadline) -> Result<Message> {
    parse(&session.receive(deadline)?)
}

/// Of bytes that anybody may have sent.
fn parse(bytes: &[u8]) -> Result<Message> {
    let wrong = |error: &dyn std::fmt::Display| {
        Error::Peer(format!(
            "sent what is no message of `gdr loopback`: {error}; use one gdr on both sides"
        ))
    };
    let value: Value = serde_json::from_slice(bytes).map_err(|error| wrong(&error))?;
    if !is_printable(&value) {
        return Err(wrong(&"it has control characters"));
    }
    serde_json::from_value(value).map_err(|error| wrong(&error))
}

/// Whether no text in it could do more to a terminal than be shown.
fn is_printable(value: &Value) -> bool {
    match value {
        Value::String(text) => !text.chars().any(|c| c.is_control() && c != '\n'),
        Value::Array(values) => values.iter().all(is_printable),
        Value::Object(fields) => fields.values().all(is_printable),
        Value::Null | Value::Bool(_) | Value::Number(_) => true,
    }
}

/// That another message came than was due.
pub(super) fn unexpected<T>(message: &Message) -> Result<T> {
    let name = match message {
        Message::Refused { reason } => {
            return Err(Error::Peer(format!("refused: {reason}")));
        }
        Message::Ask(_) => "ask",
        Message::Ready(_) => "ready",
        Message::Agreed { .. } => "agreed",
        Message::Filled { .. } => "filled",
        Message::Written { .. } => "written",
        Message::Verified { .. } => "verified",
        Message::ReadBack { .. } => "read_back",
    };
    Err(Error::Peer(format!(
        "sent `{name}` out of turn; use one gdr on both sides"
    )))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::report::Difference;
    use super::*;

    #[test]
    fn messages_come_back_as_they_went() {
        let differs = Outcome::Differs(Difference {
            words: u64::MAX,
            mismatches: 2,
            still_before: 1,
            first_offset: 4,
            expected: u32::MAX,
            found: 0,
        });
        let failed = Ended::Late {
            waited_ms: 5,
            completions: 1,
            due: 2,
        };
        let mut checks = Checks::not_done("nothing");
        checks.copy = differs.clone();
        for message in [
            Message::Agreed { mtu: 5 },
            Message::Filled { outcome: differs },
            Message::Written { ended: failed },
            Message::Verified {
                received: Ended::Done { ns: 7 },
                checks,
            },
        ] {
            let bytes = serde_json::to_vec(&message).unwrap();
            assert_eq!(parse(&bytes).unwrap(), message);
        }
    }

    #[test]
    fn text_that_would_act_on_a_terminal_is_refused() {
        let escape = br#"{"message":"refused","reason":"\u001b[2J"}"#;
        let error = parse(escape).unwrap_err().to_string();
        assert!(error.contains("control characters"), "{error}");
        parse(br#"{"message":"refused","reason":"no GPU"}"#).unwrap();
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_judged(bytes: Vec<u8>, text: String) {
            prop_assert!(parse(&bytes).is_err());
            let _ = parse(text.as_bytes());
        }
    }
}
