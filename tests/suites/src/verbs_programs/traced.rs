//! Compares what `gdr trace` reports about programs with the counters of gdr's own engine.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::Context;
use serde::Deserialize;

/// File extensions of reports, and of engine counters.
pub(super) const REPORT: &str = "json";
const COUNTERS: &str = "counters";
/// Counters for the bytes of completed receives, and for those whose completions were not polled.
const RECEIVE: &str = "receive";
const UNTAKEN: &str = "untaken";

/// The compared parts of a report.
#[derive(Deserialize)]
struct Report {
    processes: Vec<Process>,
}

#[derive(Deserialize)]
struct Process {
    pid: u32,
    queue_pairs: Vec<QueuePair>,
}

#[derive(Deserialize)]
struct QueuePair {
    traffic: Vec<Cell>,
}

#[derive(Deserialize)]
struct Cell {
    operation: String,
    bytes: u64,
}

/// The bytes of a process by operation.
type Bytes = BTreeMap<String, u64>;

/// Compares the reports in a folder with the counters next to them; returns what differs. Together, the programs must
/// have moved some bytes.
pub(super) fn difference(folder: &Path) -> anyhow::Result<Option<String>> {
    let (mut traced, mut counted) = (BTreeMap::new(), BTreeMap::new());
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let extension = path.extension().unwrap_or_default();
        if extension == REPORT {
            let report: Report = serde_json::from_str(&text)
                .with_context(|| format!("{}: {text}", path.display()))?;
            for process in report.processes {
                add(&mut traced, process.pid, of_process(&process));
            }
        } else if extension == COUNTERS {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let pid = name.split('-').next().and_then(|pid| pid.parse().ok());
            add(
                &mut counted,
                pid.context(name.into_owned())?,
                of_engine(&text)?,
            );
        }
    }
    Ok(compare(&traced, &counted))
}

/// Adds to the bytes that processes with this number, on any host, moved through any device.
fn add(sums: &mut BTreeMap<u32, Bytes>, pid: u32, bytes: Bytes) {
    let sum = sums.entry(pid).or_default();
    for (name, bytes) in bytes {
        *sum.entry(name).or_default() += bytes;
    }
}

fn compare(traced: &BTreeMap<u32, Bytes>, counted: &BTreeMap<u32, Bytes>) -> Option<String> {
    if traced != counted {
        return Some(format!(
            "gdr trace reported {traced:?}, and the engine counted {counted:?}"
        ));
    }
    let is_moved = traced.values().any(|bytes| !bytes.is_empty());
    (!is_moved).then(|| "nothing was moved".to_owned())
}

fn of_process(process: &Process) -> Bytes {
    let mut sums = Bytes::new();
    for cell in process.queue_pairs.iter().flat_map(|pair| &pair.traffic) {
        *sums.entry(cell.operation.clone()).or_default() += cell.bytes;
    }
    sums.retain(|_, bytes| *bytes > 0);
    sums
}

/// Parses lines of a name and a number. A trace covers the receives whose completions were polled.
fn of_engine(text: &str) -> anyhow::Result<Bytes> {
    let mut sums = Bytes::new();
    for line in text.lines() {
        let (name, bytes) = line.split_once(' ').context("a line without a number")?;
        sums.insert(name.to_owned(), bytes.parse().context(line.to_owned())?);
    }
    let untaken = sums.remove(UNTAKEN).unwrap_or_default();
    if let Some(received) = sums.get_mut(RECEIVE) {
        let taken = received.checked_sub(untaken);
        *received = taken.context("more untaken than received")?;
    }
    sums.retain(|_, bytes| *bytes > 0);
    Ok(sums)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receive_whose_completion_no_one_took_is_not_in_a_trace() {
        let engine = |text| of_engine(text).map(|sums| sums.into_iter().collect::<Vec<_>>());
        let taken = engine("send 0\nreceive 50\nuntaken 48\n").unwrap();
        assert_eq!(taken, [("receive".to_owned(), 2)]);
        assert!(engine("receive 48\nuntaken 48\n").unwrap().is_empty());
        assert!(engine("receive 1\nuntaken 2\n").is_err());
    }

    #[test]
    fn a_difference_of_one_byte_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let report = |bytes: u64| {
            let cells = format!(
                r#"[{{"operation":"send","bytes":1}},{{"operation":"send","bytes":{bytes}}}]"#
            );
            let pairs = format!(r#"[{{"traffic":{cells}}}]"#);
            let text = format!(r#"{{"processes":[{{"pid":7,"queue_pairs":{pairs}}}]}}"#);
            fs::write(folder.path().join("6.json"), text).unwrap();
            difference(folder.path()).unwrap()
        };
        fs::write(folder.path().join("7-gdr0.counters"), "send 10\nread 0\n").unwrap();
        assert_eq!(report(9), None);
        assert!(report(10).unwrap().contains("the engine counted"));
        // The same number on another host, or another device of the process.
        fs::write(folder.path().join("7-5-b-gdr0.counters"), "send 4\n").unwrap();
        assert_eq!(report(13), None);
        fs::remove_file(folder.path().join("7-5-b-gdr0.counters")).unwrap();
        // A process without counters, and a run that moved nothing.
        fs::remove_file(folder.path().join("7-gdr0.counters")).unwrap();
        assert!(report(9).is_some());
        fs::remove_file(folder.path().join("6.json")).unwrap();
        assert!(difference(folder.path()).unwrap().is_some());
    }
}
