//! The report of the library to a test.

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

/// What an object is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "they are libibverbs' objects")]
pub enum Kind {
    Context,
    Domain,
    Region,
    Channel,
    Queue,
    Pair,
}

/// The report of the library.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// The device and the kind of each live object.
    pub live: Vec<(String, Kind)>,
    /// Every call, in order.
    pub calls: Vec<Call>,
    /// The violations of the API by the program.
    pub violations: Vec<String>,
}
