//! Skips tests that find out at run time that this machine cannot run them.
//!
//! The test harness only knows `#[ignore]`, which is decided at compile time, and counts a test that returns early as
//! passed. [`skip`] bypasses the harness, which captures a test's output unless it fails. `cargo xtask test` reads the
//! line and lists the test as skipped.

use std::fmt::Display;
use std::io::{self, Write};
use std::panic::Location;
use std::thread;

/// Start of the line about a skipped test. The reason, [`MIDDLE`] and the name follow.
pub const START: &str = "SKIPPED (";
/// Separates the reason from the name.
pub const MIDDLE: &str = "): ";

/// Prints that the calling test does not run, or only in part, and why.
///
/// Must be called on the test's own thread, which has the test's name. If one thread runs all tests, that name is
/// unknown, and the line contains the location of the call.
#[track_caller]
pub fn skip(reason: impl Display) {
    let thread = thread::current();
    let name = match thread.name() {
        Some(name) if name != "main" => name.to_owned(),
        _ => Location::caller().to_string(),
    };
    // Written in one piece, so that no other line gets inside it.
    let line = format!("{START}{reason}{MIDDLE}{name}\n");
    // Without standard error, the line is lost.
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
