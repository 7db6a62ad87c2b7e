//! Functions and lines of addresses, from the debug information of the program's files.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use addr2line::Loader;
use gdr_check::FoundFrame;

/// Files whose debug information was read.
#[derive(Default)]
pub(super) struct SourceLines(HashMap<String, Option<Loader>>);

impl SourceLines {
    /// Adds what the file of a frame says of it.
    pub(super) fn find(&mut self, frame: &mut FoundFrame) {
        let loader = self.0.entry(frame.object.clone()).or_insert_with(|| {
            // Read only regular files, whatever path the program reports for itself.
            let path = Path::new(&frame.object);
            let is_file = fs::metadata(path).is_ok_and(|it| it.is_file());
            is_file.then(|| Loader::new(path).ok()).flatten()
        });
        let Some(loader) = loader else {
            return;
        };
        let address = loader.relative_address_base().wrapping_add(frame.offset);
        if frame.symbol.is_none() {
            frame.symbol = loader.find_symbol(address).map(str::to_owned);
        }
        if let Ok(Some(location)) = loader.find_location(address)
            && let Some(file) = location.file
        {
            let line = location.line.unwrap_or(0);
            frame.source = Some(format!("{file}:{line}"));
        }
    }
}
