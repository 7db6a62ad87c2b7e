//! Tests that find out while they run that this machine cannot run them.
//!
//! The test harness knows `#[ignore]` only, which is decided when the test is compiled: a test that
//! returns early counts as passed. [`skip`] says so past the harness, which keeps what a test prints
//! unless it fails. `cargo xtask test` reads the line and lists the test as skipped.

use std::fmt::Display;
use std::io::{self, Write};
use std::panic::Location;
use std::thread;

/// Begins the line of a test that is skipped; the reason, [`MIDDLE`] and the name follow.
pub const START: &str = "SKIPPED (";
/// Between the reason and the name.
pub const MIDDLE: &str = "): ";

/// Prints that the test which calls this does not run, or only in part, and why.
///
/// The test has to call it on its own thread, which has the test's name. With one thread for all
/// tests that name is not known, and the line names the place of the call.
#[track_caller]
pub fn skip(reason: impl Display) {
    let thread = thread::current();
    let name = match thread.name() {
        Some(name) if name != "main" => name.to_owned(),
        _ => Location::caller().to_string(),
    };
    // In one piece, so that no other line is inside it.
    let line = format!("{START}{reason}{MIDDLE}{name}\n");
    // Without a standard error the line is lost.
    let _ = io::stderr().write_all(line.as_bytes());
}

/// Reads a line that [`skip`] printed: the name of the test, and the reason.
#[must_use]
pub fn parse(line: &str) -> Option<(&str, &str)> {
    let (reason, name) = line.strip_prefix(START)?.rsplit_once(MIDDLE)?;
    Some((name, reason))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_parsed_into_name_and_reason() {
        let line = "SKIPPED (no tun interface: denied (EPERM)): wire::icrc";
        assert_eq!(
            parse(line),
            Some(("wire::icrc", "no tun interface: denied (EPERM)"))
        );
        assert_eq!(parse("SKIPPED: something else"), None);
    }
}
