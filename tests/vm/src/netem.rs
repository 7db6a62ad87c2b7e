//! Simulated network faults between the two hosts (`tc-netem(8)`).

use std::process::Command;

use anyhow::{Context, bail};

use crate::near::NAMESPACE;

/// Network faults in both directions, until this is dropped.
#[derive(Debug)]
#[must_use]
pub struct Netem(());

impl Netem {
    /// Enables the faults in netem syntax, such as `loss 1%`.
    ///
    /// # Errors
    /// If `tc` fails.
    pub fn enable(words: &str) -> anyhow::Result<Self> {
        let netem = Self(());
        for side in SIDES {
            let words = words.split(' ');
            tc(
                side,
                ["qdisc", "replace", "dev", side.1, "root", "netem"],
                words,
            )?;
        }
        Ok(netem)
    }

    /// Like [`Netem::enable`], only for IPv4 packets to queue pair 1: the messages of the connection manager.
    ///
    /// # Errors
    /// If `tc` fails.
    pub fn enable_for_management(words: &str) -> anyhow::Result<Self> {
        /// All packets go to the first band, except those that the filter selects.
        const BANDS: &str = "root handle 1: prio bands 2 priomap 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0";
        /// The destination in the BTH, after the headers of IP and UDP, and the check that it is UDP.
        const FILTER: &str = "parent 1: protocol ip u32 match ip protocol 17 0xff \
                              match u32 1 0xffffff at 32 flowid 1:2";
        let netem = Self(());
        for side in SIDES {
            let dev = ["dev", side.1];
            tc(
                side,
                ["qdisc", "replace"],
                dev.into_iter().chain(BANDS.split(' ')),
            )?;
            let faults = ["parent", "1:2", "netem"]
                .into_iter()
                .chain(words.split(' '));
            tc(side, ["qdisc", "add"], dev.into_iter().chain(faults))?;
            tc(
                side,
                ["filter", "add"],
                dev.into_iter().chain(FILTER.split_whitespace()),
            )?;
        }
        Ok(netem)
    }

    /// Returns the number of lost packets in both directions.
    ///
    /// # Errors
    /// If `tc` fails or its output has no counter.
    pub fn lost(&self) -> anyhow::Result<u64> {
        let mut total = 0_u64;
        for side in SIDES {
            let text = tc(side, ["-s", "qdisc", "show", "dev", side.1], [])?;
            // "... (dropped 12, overlimits 0 requeues 0)", for each queue.
            for part in text.split("(dropped ").skip(1) {
                let count = part
                    .split_once(',')
                    .and_then(|(count, _)| count.parse::<u64>().ok());
                total += count.with_context(|| format!("output of tc: {text}"))?;
            }
        }
        Ok(total)
    }
}

impl Drop for Netem {
    fn drop(&mut self) {
        for side in SIDES {
            // Fails if `enable` did not reach this side.
            if let Err(error) = tc(side, ["qdisc", "del", "dev", side.1, "root"], []) {
                eprintln!("{error:#}");
            }
        }
    }
}

/// Namespace and interface of each side.
type Side = (Option<&'static str>, &'static str);
const SIDES: [Side; 2] = [(Some(NAMESPACE), "near0"), (None, "far0")];

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
