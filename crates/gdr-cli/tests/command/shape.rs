//! The shape of a JSON document: its keys, and the types of their values.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use serde_json::Value;

/// Words of one key that are listed; a key with more has the type `string`.
const WORDS: usize = 24;

/// Paths whose values depend on the machine, up to their type.
const ANY: [&str; 7] = [
    "host",
    "machine.architecture",
    "machine.distribution",
    "machine.driver_command",
    "machine.kernel",
    "soft[].netdev",
    "verbs.devices[].ports[].gids[].netdev",
];

/// What was seen at one path.
#[derive(Default)]
struct Seen {
    /// In how many objects the key is.
    times: usize,
    types: BTreeSet<&'static str>,
    strings: BTreeSet<String>,
}

/// The shape of one document or of several of one kind.
#[derive(Default)]
pub(super) struct Shape {
    paths: BTreeMap<String, Seen>,
    /// How many objects are at each path.
    objects: BTreeMap<String, usize>,
}

impl Shape {
    pub(super) fn of(document: &Value) -> Self {
        let mut shape = Self::default();
        shape.add(String::new(), document);
        shape
    }

    fn add(&mut self, path: String, value: &Value) {
        match value {
            Value::Object(members) => {
                *self.objects.entry(path.clone()).or_default() += 1;
                for (key, member) in members {
                    let path = match path.as_str() {
                        "" => key.clone(),
                        path => format!("{path}.{key}"),
                    };
                    self.see(&path, member);
                    self.add(path, member);
                }
            }
            Value::Array(items) => {
                let path = format!("{path}[]");
                for item in items {
                    self.see(&path, item);
                    self.add(path.clone(), item);
                }
            }
            _ => {}
        }
    }

    fn see(&mut self, path: &str, value: &Value) {
        let seen = self.paths.entry(path.to_owned()).or_default();
        seen.times += 1;
        seen.types.insert(match value {
            Value::Null => "null",
            Value::Bool(_) => "boolean",
            Value::Number(number) if number.is_f64() => "float",
            Value::Number(_) => "integer",
            Value::String(_) => "string",
            Value::Array(_) => "array",
            Value::Object(_) => "object",
        });
        if let Value::String(text) = value {
            seen.strings.insert(text.clone());
        }
    }

    /// Returns one line a path: `gpus[].pci: string`. A `?` follows a key that some objects lack. Strings that are
    /// words (verdicts, kinds, states) are listed, but for the paths in `free`.
    pub(super) fn lines(&self, free: &[&str]) -> String {
        // Writing to a String does not fail.
        let mut text = String::new();
        for (path, seen) in &self.paths {
            let parent = path.rsplit_once('.').map_or("", |(parent, _)| parent);
            let in_all = path.ends_with("[]") || self.objects.get(parent) == Some(&seen.times);
            let mark = if in_all { "" } else { "?" };
            if ANY.contains(&path.as_str()) {
                let _ = writeln!(text, "{path}{mark}: any");
                continue;
            }
            let types: Vec<String> = seen
                .types
                .iter()
                .map(|kind| match *kind {
                    "string" if !free.contains(&path.as_str()) => strings(&seen.strings),
                    kind => kind.to_owned(),
                })
                .collect();
            let _ = writeln!(text, "{path}{mark}: {}", types.join(" or "));
        }
        text
    }
}

fn strings(strings: &BTreeSet<String>) -> String {
    let is_word = |text: &String| {
        let mut letters = text.chars();
        letters
            .next()
            .is_some_and(|first| first.is_ascii_alphabetic())
            && letters.all(|letter| letter.is_ascii_alphanumeric() || "-_.".contains(letter))
    };
    if strings.len() > WORDS || !strings.iter().all(is_word) {
        return "string".to_owned();
    }
    let words: Vec<_> = strings.iter().map(String::as_str).collect();
    format!("string ({})", words.join(", "))
}

#[test]
fn a_shape_has_every_key_with_types_and_words() {
    let document = serde_json::json!({
        "gpus": [{"pci": "0000:18:00.0", "n": 1}, {"pci": null, "n": 1.5, "more": {}}],
        "verdict": "pass",
        "names": ["mlx5_0", "mlx5_1"],
    });
    assert_eq!(
        Shape::of(&document).lines(&["names[]"]),
        "gpus: array\ngpus[]: object\ngpus[].more?: object\ngpus[].n: float or integer\n\
         gpus[].pci: null or string\nnames: array\nnames[]: string\nverdict: string (pass)\n"
    );
}
