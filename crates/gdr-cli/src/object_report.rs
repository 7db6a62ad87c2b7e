//! Reports about objects and transfers, for people and for programs.

use std::time::Duration;

use gdr_object::{Checksum, Element, Epoch, Location, Mode, ObjectInfo, Rights, WhenFull};
use gdr_perf::report::Schema;
use gdr_render::Table;
use serde::Serialize;

use crate::units::figure;

/// An object in a document.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ObjectRow {
    name: String,
    element: Element,
    shape: Vec<u64>,
    bytes: u64,
    /// `live`, `latest` or `ring`.
    mode: &'static str,
    /// Number of publications that are kept at a time.
    slots: u16,
    /// Of a ring.
    when_full: Option<WhenFull>,
    checksum: Checksum,
    /// What this peer may do.
    rights: Rights,
    /// The newest one.
    epoch: Option<u64>,
    /// `host` or `gpu`.
    location: &'static str,
    gpu: Option<GpuRow>,
    /// Whether the GPU is simulated.
    simulated: bool,
    provider: String,
    method: String,
    why: String,
}

/// A GPU of an owner.
#[derive(Clone, Debug, Serialize)]
struct GpuRow {
    /// At the owner.
    ordinal: u32,
    name: String,
}

impl From<&ObjectInfo> for ObjectRow {
    fn from(info: &ObjectInfo) -> Self {
        let (mode, when_full) = match info.mode {
            Mode::Live => ("live", None),
            Mode::Latest => ("latest", None),
            Mode::Ring { when_full, .. } => ("ring", Some(when_full)),
        };
        let (location, gpu, simulated) = match &info.location {
            Location::Host => ("host", None, false),
            Location::Gpu {
                ordinal,
                name,
                simulated,
            } => {
                let gpu = GpuRow {
                    ordinal: *ordinal,
                    name: name.clone(),
                };
                ("gpu", Some(gpu), *simulated)
            }
        };
        Self {
            name: info.name.to_string(),
            element: info.element,
            shape: info.shape.dimensions().to_vec(),
            bytes: info.bytes,
            mode,
            slots: info.mode.slots(),
            when_full,
            checksum: info.checksum,
            rights: info.rights,
            epoch: info.newest.map(Epoch::get),
            location,
            gpu,
            simulated,
            provider: info.path.provider.clone(),
            method: info.path.method.clone(),
            why: info.path.why.clone(),
        }
    }
}

impl ObjectRow {
    /// Returns whether it is in memory of a simulated GPU.
    pub(crate) const fn is_simulated(&self) -> bool {
        self.simulated
    }
}

/// Returns a table of objects.
pub(crate) fn table(objects: &[ObjectInfo]) -> Table {
    let heads = [
        "name", "elements", "bytes", "mode", "epoch", "rights", "memory", "path",
    ];
    let mut table = Table::new(&heads).keep_whole(&[2, 4]);
    for info in objects {
        table.row(vec![
            info.name.to_string(),
            format!("{}{}", info.element, info.shape),
            info.bytes.to_string(),
            info.mode.to_string(),
            info.newest
                .map_or("-".to_owned(), |epoch| epoch.to_string()),
            info.rights.to_string(),
            info.location.to_string(),
            info.path.to_string(),
        ]);
    }
    table
}

/// What a get or a put transferred: `gdr.get`, `gdr.put`.
#[derive(Debug, Serialize)]
pub(crate) struct Transferred {
    #[serde(flatten)]
    schema: Schema,
    owner: String,
    object: ObjectRow,
    epoch: u64,
    bytes: u64,
    seconds: f64,
    gb_per_s: f64,
    /// Number of epochs between the previous one and this one, if the object is followed.
    #[serde(skip_serializing_if = "Option::is_none")]
    missed: Option<u64>,
    simulated: bool,
}

impl Transferred {
    pub(crate) fn new(
        schema: &'static str,
        owner: String,
        info: &ObjectInfo,
        epoch: Epoch,
        time: Duration,
    ) -> Self {
        let object = ObjectRow::from(info);
        Self {
            schema: Schema::first(schema),
            owner,
            epoch: epoch.get(),
            bytes: info.bytes,
            seconds: time.as_secs_f64(),
            gb_per_s: rate(info.bytes, time),
            missed: None,
            simulated: object.simulated,
            object,
        }
    }

    /// Returns the same report for a followed object, with the number of earlier epochs that were not transferred.
    pub(crate) fn missed(mut self, missed: u64) -> Self {
        self.missed = Some(missed);
        self
    }

    /// Formats it as a sentence, after the verb `done`.
    pub(crate) fn sentence(&self, done: &str) -> String {
        let missed = match self.missed {
            None | Some(0) => String::new(),
            Some(missed) => format!("; {missed} before it were missed"),
        };
        format!(
            "{done} epoch {} of {}: {} bytes in {} ms ({} GB/s), {}, {}{missed}",
            self.epoch,
            self.object.name,
            self.bytes,
            figure(self.seconds * 1e3),
            figure(self.gb_per_s),
            self.object.provider,
            self.object.method,
        )
    }
}

/// Returns gigabytes (10^9 bytes) per second.
pub(crate) fn rate(bytes: u64, time: Duration) -> f64 {
    bytes as f64 / time.as_secs_f64().max(1e-9) / 1e9
}
