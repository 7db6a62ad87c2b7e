//! Fields of every JSON document: its schema, the version of gdr, the host and the time.

use std::collections::HashSet;
use std::fmt;
use std::fs;
use std::path::Path;
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use gdr_node::Source;
use gdr_perf::report::Schema;
use gdr_process::WholeFile;
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::{RawValue, to_raw_value};

/// Kernel file with the host name.
const HOSTNAME: &str = "/proc/sys/kernel/hostname";

/// Name of the node, if it is not this machine.
static OTHER_NODE: OnceLock<Option<String>> = OnceLock::new();

/// Sets the node that the documents of this process describe. Its name may be unknown.
pub(crate) fn is_about(node: Option<&dyn Source>) {
    let name = node.and_then(|node| node.text(HOSTNAME).ok());
    // The document describes the first node that a process reads.
    let _ = OTHER_NODE.set(
        name.map(|name| name.trim().to_owned())
            .filter(|name| !name.is_empty()),
    );
}

/// A schema, with the members of its documents.
#[derive(Serialize)]
pub(crate) struct Document<T> {
    #[serde(flatten)]
    pub(crate) schema: Schema,
    #[serde(flatten)]
    pub(crate) content: T,
}

/// Adds the fields of every document to the text of a JSON object: `gdr`, `host` and `time`, unless the object has
/// them. The object must have `schema` and `version`.
///
/// # Errors
/// An object without a schema, or with a key twice.
pub(crate) fn complete(text: &str) -> serde_json::Result<String> {
    let lines = members(text)?.join(",\n  ");
    Ok(format!("{{\n  {lines}\n}}"))
}

/// Like [`complete`], for one of several documents in lines: `text` has no line break.
///
/// # Errors
/// Same as [`complete`].
pub(crate) fn complete_line(text: &str) -> serde_json::Result<String> {
    Ok(format!("{{{}}}", members(text)?.join(", ")))
}

/// Writes a value as a completed document to a file.
pub(crate) fn write(path: &Path, value: &impl Serialize) -> anyhow::Result<()> {
    let mut text = complete(&serde_json::to_string_pretty(value)?)?;
    text.push('\n');
    WholeFile::write(path, text.as_bytes())
        .with_context(|| format!("the document cannot be written to {}", path.display()))
}

/// Returns the members of the completed object, each as `"key": value`.
fn members(text: &str) -> serde_json::Result<Vec<String>> {
    let Object(mut fields) = serde_json::from_str(text)?;
    let mut take = |name: &str| {
        let at = fields.iter().position(|(key, _)| key == name)?;
        Some(fields.remove(at).1)
    };
    let without = |name: &str| serde_json::Error::custom(format!("a document without {name}"));
    let mut all = vec![
        (
            "schema".to_owned(),
            take("schema").ok_or_else(|| without("schema"))?,
        ),
        (
            "version".to_owned(),
            take("version").ok_or_else(|| without("version"))?,
        ),
    ];
    for (name, value) in [
        ("gdr", Some(env!("CARGO_PKG_VERSION").to_owned())),
        ("host", host()),
        ("time", Some(now())),
    ] {
        let value = match take(name) {
            Some(own) => own,
            None => to_raw_value(&value)?,
        };
        all.push((name.to_owned(), value));
    }
    all.append(&mut fields);
    let mut lines = Vec::with_capacity(all.len());
    for (key, value) in &all {
        lines.push(format!("{}: {value}", serde_json::to_string(key)?));
    }
    Ok(lines)
}

/// Returns the name of the node that the document is about.
fn host() -> Option<String> {
    let here = || {
        let name = fs::read_to_string(HOSTNAME).ok()?;
        Some(name.trim().to_owned()).filter(|name| !name.is_empty())
    };
    OTHER_NODE.get().cloned().unwrap_or_else(here)
}

/// Returns the time, by this machine's clock.
fn now() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    // A clock before 1970 was never set.
    rfc_3339(since.map_or(0, |since| since.as_secs()))
}

/// Formats a time in UTC: `2026-11-21T01:40:00Z`.
fn rfc_3339(seconds: u64) -> String {
    let Utc {
        year,
        month,
        day,
        hour,
        minute,
        second,
    } = Utc::of(seconds);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// A date and time of day.
pub(crate) struct Utc {
    pub(crate) year: u64,
    pub(crate) month: u64,
    pub(crate) day: u64,
    pub(crate) hour: u64,
    pub(crate) minute: u64,
    pub(crate) second: u64,
}

impl Utc {
    /// Returns the time `seconds` after the beginning of 1970.
    pub(crate) fn of(seconds: u64) -> Self {
        let (day, second) = (seconds / 86_400, seconds % 86_400);
        // Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms", civil_from_days. The year
        // begins in March, so that the leap day is the last.
        let day = day + 719_468;
        let (era, of_era) = (day / 146_097, day % 146_097);
        let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
        let of_year = of_era - (365 * year + year / 4 - year / 100);
        let month = (5 * of_year + 2) / 153;
        let (day, month) = (
            of_year - (153 * month + 2) / 5 + 1,
            if month < 10 { month + 3 } else { month - 9 },
        );
        Self {
            year: year + era * 400 + u64::from(month <= 2),
            month,
            day,
            hour: second / 3600,
            minute: second / 60 % 60,
            second: second % 60,
        }
    }
}

/// Fields of a JSON object in their order, each name once.
struct Object(Vec<(String, Box<RawValue>)>);

impl<'de> Deserialize<'de> for Object {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = Object;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Object, A::Error> {
                let (mut fields, mut seen) = (Vec::new(), HashSet::new());
                while let Some((key, value)) = map.next_entry::<String, Box<RawValue>>()? {
                    if !seen.insert(key.clone()) {
                        return Err(A::Error::custom(format!("the key {key} occurs twice")));
                    }
                    fields.push((key, value));
                }
                Ok(Object(fields))
            }
        }
        deserializer.deserialize_map(Fields)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn times_are_written_as_rfc_3339_does() {
        assert_eq!(rfc_3339(0), "1970-01-01T00:00:00Z");
        assert_eq!(rfc_3339(951_827_696), "2000-02-29T12:34:56Z");
        assert_eq!(rfc_3339(1_795_225_199), "2026-11-21T01:39:59Z");
    }

    #[test]
    fn a_document_begins_with_what_all_have_and_keeps_the_order_of_its_own() {
        let text =
            complete(r#"{"zebra": [1, {"a": 2}], "version": 1, "schema": "gdr.x", "ant": 3}"#);
        let Object(fields) = serde_json::from_str(&text.unwrap()).unwrap();
        let keys: Vec<_> = fields.iter().map(|(key, _)| key.as_str()).collect();
        assert_eq!(
            keys,
            ["schema", "version", "gdr", "host", "time", "zebra", "ant"]
        );
        assert_eq!(
            fields[2].1.get(),
            format!("{:?}", env!("CARGO_PKG_VERSION"))
        );
        assert_eq!(fields[5].1.get(), r#"[1, {"a": 2}]"#);
    }

    #[test]
    fn what_a_document_says_of_its_host_is_kept() {
        let text = complete(r#"{"schema": "gdr.x", "version": 1, "host": "n1", "gdr": "9"}"#);
        let value: Value = serde_json::from_str(&text.unwrap()).unwrap();
        assert_eq!((&value["host"], &value["gdr"]), (&"n1".into(), &"9".into()));
    }

    #[test]
    fn a_key_that_comes_twice_and_a_document_without_schema_are_refused() {
        for text in [
            r#"{"schema": "gdr.x", "version": 1, "version": "580.95"}"#,
            r#"{"version": 1}"#,
            r#"{"schema": "gdr.x"}"#,
            r#"[1]"#,
        ] {
            complete(text).unwrap_err();
        }
    }
}
