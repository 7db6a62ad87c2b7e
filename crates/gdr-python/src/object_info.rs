//! An owner's description of an object, as a dict.

use gdr_object::{Location, Mode, ObjectInfo, Rights, WhenFull};
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// Returns the fields of an object's description.
pub(crate) fn to_dict<'py>(py: Python<'py>, info: &ObjectInfo) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("name", info.name.as_str())?;
    dict.set_item("element", info.element.name())?;
    dict.set_item("shape", info.shape.dimensions())?;
    dict.set_item("nbytes", info.bytes)?;
    let (mode, when_full) = match info.mode {
        Mode::Live => ("live".to_owned(), None),
        Mode::Latest => ("latest".to_owned(), None),
        Mode::Ring { slots, when_full } => (format!("ring:{slots}"), Some(when_full)),
    };
    dict.set_item("mode", mode)?;
    let when_full = when_full.map(|when_full| match when_full {
        WhenFull::DropOldest => "drop-oldest",
        WhenFull::Block => "block",
    });
    dict.set_item("when_full", when_full)?;
    dict.set_item("checksum", info.checksum.to_string())?;
    let access = match info.rights {
        Rights::Nothing => "nothing",
        Rights::Read => "read",
        Rights::ReadWrite => "read-write",
    };
    dict.set_item("access", access)?;
    dict.set_item("newest", info.newest.map(gdr_object::Epoch::get))?;
    let location = PyDict::new(py);
    let (place, device, simulated) = match &info.location {
        Location::Host => ("host", None, false),
        Location::Gpu {
            ordinal, simulated, ..
        } => ("gpu", Some(*ordinal), *simulated),
    };
    location.set_item("place", place)?;
    location.set_item("device", device)?;
    location.set_item("simulated", simulated)?;
    dict.set_item("location", location)?;
    let path = PyDict::new(py);
    path.set_item("provider", &info.path.provider)?;
    path.set_item("method", &info.path.method)?;
    path.set_item("why", &info.path.why)?;
    dict.set_item("path", path)?;
    Ok(dict)
}
