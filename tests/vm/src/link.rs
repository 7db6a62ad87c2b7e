//! What the wire between the two hosts does to packets (`tc-netem(8)`).

use std::process::Command;

use anyhow::{Context, bail};

use crate::namespace::NEAR;

/// A wire that misbehaves, in both directions, until this is dropped.
#[derive(Debug)]
#[must_use]
pub struct Trouble(());

impl Trouble {
    /// As netem's words say, e.g. `loss 1%`.
    ///
    /// # Errors
    /// Where `tc` refuses.
    pub fn make(words: &str) -> anyhow::Result<Self> {
        let trouble = Self(());
        for side in SIDES {
            let words = words.split(' ');
            tc(
                side,
                ["qdisc", "replace", "dev", side.1, "root", "netem"],
                words,
            )?;
        }
        Ok(trouble)
    }

    /// How many packets were lost so far, in both directions.
    ///
    /// # Errors
    /// Where `tc` refuses or says something else.
    pub fn lost(&self) -> anyhow::Result<u64> {
        let mut total = 0;
        for side in SIDES {
            let text = tc(side, ["-s", "qdisc", "show", "dev", side.1], [])?;
            // "... (dropped 12, overlimits 0 requeues 0)"
            total += text
                .split_once("(dropped ")
                .and_then(|(_, rest)| rest.split_once(','))
                .and_then(|(count, _)| count.parse::<u64>().ok())
                .with_context(|| format!("tc said: {text}"))?;
        }
        Ok(total)
    }
}

impl Drop for Trouble {
    fn drop(&mut self) {
        for side in SIDES {
            // There is none where `make` failed half-way.
            if let Err(error) = tc(side, ["qdisc", "del", "dev", side.1, "root"], []) {
                eprintln!("{error:#}");
            }
        }
    }
}

/// Namespace and interface of each end.
type Side = (Option<&'static str>, &'static str);
const SIDES: [Side; 2] = [(Some(NEAR), "near0"), (None, "far0")];

fn tc<'a, const N: usize>(
    side: Side,
    first: [&str; N],
    then: impl IntoIterator<Item = &'a str>,
) -> anyhow::Result<String> {
    let mut command = Command::new("/usr/bin/tc");
    if let Some(namespace) = side.0 {
        command.args(["-n", namespace]);
    }
    let output = command.args(first).args(then).output().context("tc")?;
    if !output.status.success() {
        bail!("{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
