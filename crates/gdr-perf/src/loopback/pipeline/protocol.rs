//! Messages between the two ends of a comparison in two processes.

use std::time::Duration;

use gdr_rdma::Service;
use serde::{Deserialize, Serialize};

use super::super::report::End;
use super::consumer::Facts;
use super::report::PipelineRow;
use super::settings::PipelineSettings;
use crate::error::{PeerError, Result};
use crate::memory_facts::MemoryFacts;
use crate::report::ProcessFacts;

/// Name of the service in the greetings of both ends.
pub const SERVICE: Service = Service::new("gdr-comparison");
/// Version of the protocol.
pub(super) const VERSION: u32 = 1;

/// A message. The end with the GPU connects, and sends the first one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "comparison", rename_all = "snake_case")]
pub(super) enum Message {
    /// The end with the GPU asks for frames.
    Ask(Box<Ask>),
    /// The other end offers frames.
    Ready(Box<Ready>),
    /// The end with the GPU has chosen the path MTU, encoded as in the InfiniBand specification.
    Agreed { mtu: u8 },
    /// The end with the GPU has measured a size.
    Row(Box<PipelineRow>),
}

/// The request of the end with the GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Ask {
    pub(super) version: u32,
    pub(super) sizes: Vec<u64>,
    pub(super) rounds: u32,
    pub(super) seed: u32,
    pub(super) timeout_ms: u64,
    pub(super) process: ProcessFacts,
    pub(super) end: End,
    pub(super) memory: Facts,
}

impl Ask {
    pub(super) fn new(
        settings: &PipelineSettings,
        process: ProcessFacts,
        end: End,
        memory: Facts,
    ) -> Self {
        Self {
            version: VERSION,
            sizes: settings.sizes.clone(),
            rounds: settings.rounds,
            seed: settings.seed,
            timeout_ms: settings.timeout.as_millis().try_into().unwrap_or(u64::MAX),
            process,
            end,
            memory,
        }
    }

    /// Returns the settings that the peer asks for. Unusable settings are a [`PeerError`], not an error of this end's
    /// settings.
    pub(super) fn settings(&self) -> Result<PipelineSettings, PeerError> {
        if self.version != VERSION {
            let (theirs, ours) = (self.version, VERSION);
            return Err(PeerError::Version { theirs, ours });
        }
        let settings = PipelineSettings {
            sizes: self.sizes.clone(),
            rounds: self.rounds,
            seed: self.seed,
            timeout: Duration::from_millis(self.timeout_ms),
            ..PipelineSettings::default()
        };
        settings.check().map_err(PeerError::Settings)?;
        Ok(settings)
    }
}

/// The other end's offer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Ready {
    pub(super) process: ProcessFacts,
    pub(super) end: End,
    /// The path MTU as this end sees it.
    pub(super) mtu: u8,
    /// Memory of the frames. Host memory only, if the other end does not say.
    #[serde(default = "MemoryFacts::host")]
    pub(super) source: MemoryFacts,
}

/// Fails because `message` is out of order.
pub(super) fn unexpected<T>(message: &Message) -> Result<T> {
    let name = match message {
        Message::Ask(_) => "ask",
        Message::Ready(_) => "ready",
        Message::Agreed { .. } => "agreed",
        Message::Row(_) => "row",
    };
    Err(PeerError::OutOfTurn(name).into())
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};

    use super::*;

    #[test]
    fn an_end_that_names_no_source_has_frames_in_host_memory() {
        let end = End {
            device: "soft".to_owned(),
            address: SocketAddr::from((Ipv4Addr::LOCALHOST, 4791)),
            provider: "soft".to_owned(),
            integrity: "all".to_owned(),
        };
        let message = Message::Ready(Box::new(Ready {
            process: ProcessFacts::of_this_one(),
            end,
            mtu: 5,
            source: MemoryFacts::host(),
        }));
        let mut earlier = serde_json::to_value(&message).unwrap();
        assert!(earlier.as_object_mut().unwrap().remove("source").is_some());
        assert_eq!(serde_json::from_value::<Message>(earlier).unwrap(), message);
    }
}
