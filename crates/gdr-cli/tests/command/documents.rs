//! What every JSON document of every command has in common.

use std::collections::HashSet;
use std::fmt;
use std::io::{BufRead, BufReader, Read};
use std::process::Command;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use super::*;

/// Any JSON, in which no object has a key twice.
struct Unique;

impl<'de> Deserialize<'de> for Unique {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = Unique;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("JSON")
            }
            fn visit_bool<E>(self, _: bool) -> Result<Unique, E> {
                Ok(Unique)
            }
            fn visit_i64<E>(self, _: i64) -> Result<Unique, E> {
                Ok(Unique)
            }
            fn visit_u64<E>(self, _: u64) -> Result<Unique, E> {
                Ok(Unique)
            }
            fn visit_f64<E>(self, _: f64) -> Result<Unique, E> {
                Ok(Unique)
            }
            fn visit_str<E>(self, _: &str) -> Result<Unique, E> {
                Ok(Unique)
            }
            fn visit_unit<E>(self) -> Result<Unique, E> {
                Ok(Unique)
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Unique, A::Error> {
                while items.next_element::<Unique>()?.is_some() {}
                Ok(Unique)
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Unique, A::Error> {
                let mut seen = HashSet::new();
                while let Some((key, Unique)) = map.next_entry::<String, Unique>()? {
                    if !seen.insert(key.clone()) {
                        return Err(A::Error::custom(format!("{key} comes twice")));
                    }
                }
                Ok(Unique)
            }
        }
        deserializer.deserialize_any(Any)
    }
}

/// Checks that the text is one document with everything that documents have, and returns it.
fn assert_document(line: &str, text: &str) -> Value {
    let unique: Result<Unique, _> = serde_json::from_str(text);
    assert!(unique.is_ok(), "{line}: {}", unique.err().unwrap());
    let value: Value = serde_json::from_str(text).unwrap();
    assert!(
        value["schema"].as_str().unwrap().starts_with("gdr."),
        "{line}"
    );
    assert!(value["version"].is_u64(), "{line}: {}", value["version"]);
    assert_eq!(value["gdr"], env!("CARGO_PKG_VERSION"), "{line}");
    let host = value
        .get("host")
        .unwrap_or_else(|| panic!("{line}: no host"));
    assert!(host.is_null() || host.as_str() != Some(""), "{line}");
    let time = Regex::new(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$").unwrap();
    assert!(time.is_match(value["time"].as_str().unwrap()), "{line}");
    value
}

#[test]
fn every_document_has_schema_version_host_and_time_and_no_key_twice() {
    let directory = tempfile::tempdir().unwrap();
    let archive = directory.path().join("node.tar.gz");
    let archive = archive.to_str().unwrap();
    for line in [
        "version",
        "sanity -l",
        "sanity --simulate -t attributes_sanity",
        "copybw --simulate -s 4K -w 10 -r 10",
        "copylat --simulate -s 64K -w 10 -r 10",
        "apiperf --simulate -s 64K -n 5",
        "pplat --simulate -t 10",
        "info --simulate",
        "loopback --simulate --udp-port 14851 --size 4K --iterations 1",
        "loopback --simulate --udp-port 14852 --sweep --size 4 --iterations 5",
        "compare --simulate --udp-port 14896 --size 16 --iterations 5",
        "doctor --example",
        "doctor list",
        "doctor show acs.path",
        "explain --offline ibv_reg_mr failed",
        &format!("collect --example -o {archive}"),
        "topo --example",
        "topo why GPU0 mlx5_3 --example",
        "nics --example",
        "env --example",
        "devices",
        "devices --example",
        "peermem status --example",
        "fix --example",
        // Errors, of every layer.
        "sanity --simulate -t no_such_check",
        "copybw --simulate --gpu 7",
        "loopback --simulate --from 192.0.2.1",
        "frobnicate",
        "doctor --from /no/such/file",
    ] {
        let output = gdr(line.split(' ').chain(["--json"]));
        let text = stdout(&output);
        assert!(!text.is_empty(), "{line}: {}", stderr(&output));
        let document = assert_document(line, &text);
        if line.contains("--example") && !line.starts_with("collect") {
            assert_eq!(document["host"], "example-node", "{line}");
        }
    }
    for line in [
        format!("diff {archive} {archive}"),
        format!("fleet {archive} {archive} {archive}"),
    ] {
        let output = gdr(line.split(' ').chain(["--json"]));
        assert_document(&line, &stdout(&output));
    }
}

/// Sends SIGINT once standard error has something on it, and reads what the process says.
fn interrupted(line: &str) -> (i32, String, String) {
    let mut child = super::program()
        .args(line.split(' '))
        .env("GDR_LOG", "gdr_copy=info")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut said = String::new();
    // The choice of a backend is logged before anything is measured.
    while !said.contains("backend") {
        assert_ne!(stderr.read_line(&mut said).unwrap(), 0, "{line}: {said}");
    }
    // Signals that come before they are handled end the process by themselves.
    let handled = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        u64::from_str_radix(mask.unwrap().trim(), 16).unwrap() & 2 != 0
    };
    while !handled() {
        std::thread::yield_now();
    }
    let kill = format!("kill -INT {}", child.id());
    assert!(
        Command::new("sh")
            .args(["-c", &kill])
            .status()
            .unwrap()
            .success()
    );
    let mut text = String::new();
    child
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut text)
        .unwrap();
    stderr.read_to_string(&mut said).unwrap();
    (child.wait().unwrap().code().unwrap(), text, said)
}

#[test]
fn a_measurement_that_is_interrupted_ends_with_3_and_a_document() {
    for line in [
        "sanity --simulate",
        "copybw --simulate -l -s 16M -w 100000 -r 100000",
        "copylat --simulate -s 1M -w 1000000 -r 1000000",
        "apiperf --simulate -s 16M -n 1000000",
        "pplat --simulate -t 100000000",
        "loopback --simulate --udp-port 14853 --size 4K --iterations 100000000",
        "loopback --simulate --udp-port 14854 --sweep --iterations 100000000",
        "compare --simulate --udp-port 14897 --size 1M",
    ] {
        let (status, text, _) = interrupted(&format!("{line} --json"));
        assert_eq!(status, 3, "{line}: {text}");
        let document = assert_document(line, &text);
        if document["schema"] == "gdr.error" {
            assert_eq!(document["error"]["name"], "stopped", "{line}");
            assert_eq!(document["exit"], 3, "{line}");
        } else {
            assert_eq!(document["verdict"], "undecided", "{line}");
        }
        let (status, text, said) = interrupted(line);
        assert_eq!(status, 3, "{line}");
        let word = format!("{text}{said}").to_lowercase();
        assert_contains!(word, "stopp", "{line}");
    }
}

#[test]
fn a_part_that_takes_minutes_is_not_waited_for() {
    let started = std::time::Instant::now();
    let line = "copybw --simulate -s 1G -w 1000000 -r 1";
    let (status, _, said) = interrupted(line);
    assert_eq!(status, 3, "{said}");
    assert_contains!(said, "stopped by a signal: 0 of ");
    // The million copies of a GiB take hours on every machine.
    assert!(
        started.elapsed() < std::time::Duration::from_secs(120),
        "{said}"
    );
}
