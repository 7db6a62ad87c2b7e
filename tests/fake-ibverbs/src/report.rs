//! The report of the library to a test.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A call of a verb. Polling is not recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// The verb.
    pub verb: String,
    /// The name of the device, or empty for a call without a device.
    pub device: String,
    /// The arguments.
    pub detail: String,
    /// The result: 0 or an `errno`.
    pub errno: i32,
}

/// The numbers of live objects of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Live {
    /// Open contexts.
    pub contexts: usize,
    /// Protection domains.
    pub domains: usize,
    /// Memory regions.
    pub regions: usize,
    /// Channels of completion events.
    pub channels: usize,
    /// Completion queues.
    pub queues: usize,
    /// Queue pairs.
    pub pairs: usize,
}

/// The report of the library.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// The error of the request, if it failed.
    pub error: Option<String>,
    /// The live objects by device.
    pub live: BTreeMap<String, Live>,
    /// Every call, in order.
    pub calls: Vec<Call>,
    /// The violations of the API by the program.
    pub violations: Vec<String>,
}
