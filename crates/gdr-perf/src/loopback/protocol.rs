//! JSON messages between the two ends of a run in two processes.

use std::time::Duration;

use gdr_rdma::{Deadline, Service, Session, SoftOptions};
use serde::{Deserialize, Serialize};

use super::report::{Checks, End, Ended, Outcome, PacketCounts};
use super::settings::Settings;
use crate::error::{PeerError, Result, SettingsError};
use crate::memory_facts::{Memory, MemoryFacts};
use crate::peer_message;

/// Name of the service in the greetings of both ends.
pub const SERVICE: Service = Service::new("gdr-loopback");
/// Version of the protocol.
const VERSION: u32 = 3;

/// A message. The connecting end sends the first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "message", rename_all = "snake_case")]
pub(super) enum Message {
    /// The connecting end's request.
    Ask(Box<Ask>),
    /// The listening end accepts.
    Ready(Box<Ready>),
    /// The connecting end has chosen the path MTU.
    Agreed {
        /// As the InfiniBand specification codes it.
        mtu: u8,
    },
    /// Pattern A was filled in.
    Filled {
        /// The result of its verification.
        outcome: Outcome,
    },
    /// The WRITEs have ended.
    Written {
        /// The result.
        ended: Ended,
    },
    /// GPU memory was compared.
    Verified {
        /// The result of the receive.
        received: Ended,
        /// The results of the comparisons.
        checks: Checks,
        /// The counters of its device.
        #[serde(default)]
        packets: Option<PacketCounts>,
    },
    /// The READs have ended.
    ReadBack {
        /// The result.
        ended: Ended,
        /// The result of comparing the bytes.
        outcome: Outcome,
        /// The counters of its device.
        #[serde(default)]
        packets: Option<PacketCounts>,
    },
}

/// The connecting end's request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Ask {
    pub(super) version: u32,
    pub(super) size: u64,
    pub(super) iterations: u32,
    pub(super) seed: u32,
    /// Number of queue pairs over which the connecting end sends. Earlier protocol versions lack it, and are reported
    /// as such.
    #[serde(default)]
    pub(super) queue_pairs: usize,
    pub(super) end: End,
    /// The memory to send. Host memory only, if the end does not say.
    #[serde(default = "MemoryFacts::host")]
    pub(super) source: MemoryFacts,
}

impl Ask {
    /// Requests a run with `settings`, in which `end` writes `source` over this many queue pairs.
    pub(super) fn new(
        settings: &Settings,
        queue_pairs: usize,
        end: End,
        source: MemoryFacts,
    ) -> Self {
        Self {
            version: VERSION,
            size: settings.size,
            iterations: settings.iterations,
            seed: settings.seed,
            queue_pairs,
            end,
            source,
        }
    }

    /// Returns the settings that the peer requests, with the deadline of a step at this end. Unusable settings are a
    /// [`PeerError`], not an error of this end's settings.
    pub(super) fn settings(&self, timeout: Duration) -> Result<Settings, PeerError> {
        if self.version != VERSION {
            return Err(PeerError::Version {
                theirs: self.version,
                ours: VERSION,
            });
        }
        let settings = Settings {
            size: self.size,
            iterations: self.iterations,
            seed: self.seed,
            timeout,
            injected: None,
        };
        settings.check().map_err(PeerError::Settings)?;
        if !(1..=SoftOptions::MAX_SHARDS).contains(&self.queue_pairs) {
            let refused = SettingsError::QueuePairs(self.queue_pairs);
            return Err(PeerError::Settings(refused));
        }
        Ok(settings)
    }
}

/// The listening end's offer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Ready {
    pub(super) memory: Memory,
    pub(super) end: End,
    /// The path MTU as this end sees it.
    pub(super) mtu: u8,
}

pub(super) fn send(session: &mut Session, message: &Message, deadline: Deadline) -> Result<()> {
    peer_message::send(session, message, deadline)
}

pub(super) fn receive(session: &mut Session, deadline: Deadline) -> Result<Message> {
    peer_message::receive(session, deadline)
}

/// Fails because `message` is out of order.
pub(super) fn unexpected<T>(message: &Message) -> Result<T> {
    let name = match message {
        Message::Ask(_) => "ask",
        Message::Ready(_) => "ready",
        Message::Agreed { .. } => "agreed",
        Message::Filled { .. } => "filled",
        Message::Written { .. } => "written",
        Message::Verified { .. } => "verified",
        Message::ReadBack { .. } => "read_back",
    };
    Err(PeerError::OutOfTurn(name).into())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::report::Difference;
    use super::*;

    fn parse(bytes: &[u8]) -> Result<Message> {
        peer_message::parse(bytes)
    }

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
                packets: Some(PacketCounts::default()),
            },
        ] {
            let bytes = serde_json::to_vec(&message).unwrap();
            assert_eq!(parse(&bytes).unwrap(), message);
        }
    }

    #[test]
    fn words_that_would_act_on_a_terminal_or_forge_a_line_are_made_safe() {
        let forged = "\\nPASS: 10 of 10\\u001b[2J\\u202e";
        let message = format!(
            r#"{{"message":"filled","outcome":{{"outcome":"failed","reason":"{forged}"}}}}"#
        )
        .replace("\\\\", "\\");
        let Message::Filled {
            outcome: Outcome::Failed { reason },
        } = parse(message.as_bytes()).unwrap()
        else {
            panic!("another message");
        };
        assert_eq!(reason, "\\nPASS: 10 of 10\\u{1b}[2J\\u{202e}");
    }

    #[test]
    fn unknown_words_are_quoted_in_part_and_made_safe() {
        let long = "\u{202e}".to_owned() + &"x".repeat(60_000);
        for message in [
            serde_json::json!({ "message": long }),
            serde_json::json!({ "message": "filled", "outcome": { "outcome": long } }),
            serde_json::json!({ "message": "written", "ended": { "ended": "late", "due": long } }),
        ] {
            let bytes = serde_json::to_vec(&message).unwrap();
            let error = parse(&bytes).unwrap_err().to_string();
            assert!(error.len() < 700, "{} bytes", error.len());
            assert!(!error.contains('\u{202e}'), "{error}");
        }
        let many = serde_json::json!({ "message": "filled", "outcome": vec![1; 1000] });
        let error = parse(&serde_json::to_vec(&many).unwrap()).unwrap_err();
        assert!(error.to_string().contains("too many entries"), "{error}");
    }

    #[test]
    fn an_end_that_names_no_source_sends_host_memory() {
        let device = gdr_rdma::Device::soft_with(SoftOptions::default().port(0)).unwrap();
        let ask = Ask::new(
            &Settings::default(),
            1,
            End::of(&device),
            MemoryFacts::host(),
        );
        let message = Message::Ask(Box::new(ask));
        let mut earlier = serde_json::to_value(&message).unwrap();
        assert!(earlier.as_object_mut().unwrap().remove("source").is_some());
        let bytes = serde_json::to_vec(&earlier).unwrap();
        assert_eq!(parse(&bytes).unwrap(), message);
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_judged(bytes: Vec<u8>, text: String) {
            prop_assert!(parse(&bytes).is_err());
            let _ = parse(text.as_bytes());
        }
    }
}
