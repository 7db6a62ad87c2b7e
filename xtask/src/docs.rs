//! `cargo xtask docs`.

use std::process::ExitCode;

use crate::ledger::{Ledger, Outcome};
use crate::links;
use crate::test::outcome;
use crate::workspace::{cargo, target};

pub(crate) fn run() -> anyhow::Result<ExitCode> {
    let mut ledger = Ledger::default();
    ledger.check("documentation", rustdoc);
    ledger.check("links in the documentation", links::check);
    println!(
        "open {}",
        target().join("doc/gdr_copy/index.html").display()
    );
    Ok(ledger.close())
}

/// The API's pages, where a broken link is an error.
pub(crate) fn rustdoc() -> anyhow::Result<Outcome> {
    let mut command = cargo(&["doc", "--workspace", "--no-deps"]);
    command.env("RUSTDOCFLAGS", "-D warnings");
    outcome(command)
}
