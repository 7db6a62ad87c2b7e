//! The page of guards names tests that exist.
#![allow(
    clippy::unwrap_used,
    reason = "a fixture that fails is a test that fails"
)]

use std::fs;
use std::path::Path;

#[test]
fn every_test_that_the_page_of_guards_names_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = fs::read_to_string(root.join("docs/guards.md")).unwrap();
    let mut count = 0;
    for entry in page.split(".rs` `").skip(1).zip(page.split(".rs` `")) {
        let (after, before) = entry;
        let file = before.rsplit('`').next().unwrap();
        let test = after.split('`').next().unwrap();
        let path = root.join("crates").join(format!("{file}.rs"));
        let source = fs::read_to_string(&path).unwrap_or_default();
        assert!(source.contains(&format!("fn {test}(")), "{file}.rs: {test}");
        count += 1;
    }
    assert!(count > 80, "{count} tests");
}
