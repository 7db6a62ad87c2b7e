//! Archives from any source: an archive that can be read can be written, and reads the same again.

#![no_main]

use gdr_node::archive::Archive;
use gdr_node::compare::Facts;
use gdr_node::{Inventory, Source};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = Archive::is_archive(bytes);
    let Ok(archive) = Archive::read(bytes) else {
        return;
    };
    let mut written = Vec::new();
    archive
        .write(&mut written)
        .expect("what was read can be written");
    let again = Archive::read(written.as_slice()).expect("what was written can be read");
    assert_eq!(again.files(), archive.files());
    assert_eq!(Inventory::read(&again), Inventory::read(&archive));
    assert_eq!(Facts::read(&again), Facts::read(&archive));
    assert_eq!(again.list("/"), archive.list("/"));
    let redacted = archive
        .redact(&["alice".to_owned()])
        .expect("no name is too odd");
    assert!(redacted.origin().redacted);
});
