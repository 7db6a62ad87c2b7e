//! File of a process's findings, with one JSON object per line. It is created with the first finding.

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::process;

use gdr_check::{Finding, Found, FoundFrame, FoundPlace};
use gdr_process::{create_new, process_name};

use super::stack::Stacks;

/// The file of a process.
pub(super) struct ReportFile {
    folder: PathBuf,
    file: Option<File>,
}

impl ReportFile {
    pub(super) fn new(folder: PathBuf) -> Self {
        Self { folder, file: None }
    }

    /// Adds a finding. Where the file cannot be written nothing can be said.
    pub(super) fn write(&mut self, finding: &Finding, stacks: &Stacks) {
        if self.file.is_none() {
            let path = self.folder.join(format!("{}.findings", process_name()));
            self.file = create_new(&path, 0o600).ok();
        }
        let Some(file) = &mut self.file else {
            return;
        };
        let found = Found {
            rule: finding.rule,
            pid: process::id(),
            object: finding.object.clone(),
            detail: finding.detail.clone(),
            places: finding
                .places
                .iter()
                .map(|place| FoundPlace {
                    what: place.what.to_owned(),
                    frames: stacks
                        .frames(place.stack)
                        .map(|frame| FoundFrame {
                            object: frame.object,
                            offset: frame.offset,
                            symbol: frame.symbol,
                            source: None,
                        })
                        .collect(),
                })
                .collect(),
        };
        if let Ok(mut line) = serde_json::to_vec(&found) {
            line.push(b'\n');
            let _ = file.write_all(&line);
        }
    }
}
