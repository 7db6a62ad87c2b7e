//! Describes this machine as in the tables of `docs/machines.md`.

use std::env::consts::ARCH;

use gdr_doctor::{CheckId, Context, Selection, diagnose};
use gdr_node::{Inventory, LiveRoot, OsRelease, Source};
use serde::Serialize;

use crate::output::Output;

/// This machine.
#[derive(Debug, Serialize)]
pub(super) struct Machine {
    /// Name of the distribution, as it calls itself.
    distribution: Option<String>,
    kernel: Option<String>,
    architecture: &'static str,
    /// Command that installs NVIDIA's open driver on this distribution.
    driver_command: Option<&'static str>,
    /// What `gdr doctor` reports about confidential computing.
    confidential_computing: Option<String>,
}

impl Machine {
    /// Returns the machine that this process runs on.
    pub(super) fn here() -> Self {
        let node = LiveRoot::new();
        let system = OsRelease::read(&node).ok();
        let inventory = Inventory::read(&node);
        let context = Context::new(&node, &inventory);
        let only = Selection::all().only([CheckId("gpu.cc")]);
        let findings = diagnose(&context, &only).findings;
        Self {
            kernel: node.text("/proc/sys/kernel/osrelease").ok(),
            architecture: ARCH,
            driver_command: (system.as_ref().and_then(OsRelease::family))
                .map(|family| family.driver_command()),
            distribution: system.map(|system| system.name),
            confidential_computing: findings
                .first()
                .map(|reported| reported.finding.summary.clone()),
        }
    }

    /// Prints the lines about this machine, with the given NVIDIA driver version.
    pub(super) fn show(&self, driver: Option<&str>, output: &mut Output) -> gdr_perf::Result<()> {
        match driver {
            Some(version) => {
                let evidence = gdr_copy::driver_evidence(version);
                output.line(format_args!("NVIDIA driver: {version} (rm: {evidence})"))?;
            }
            None => output.line("NVIDIA driver: none")?,
        }
        let known = |fact: &Option<String>| fact.clone().unwrap_or_else(|| "unknown".to_owned());
        let (system, kernel) = (known(&self.distribution), known(&self.kernel));
        output.line(format_args!(
            "machine: {system}, Linux {kernel}, {}",
            self.architecture
        ))?;
        if let (None, Some(command)) = (driver, self.driver_command) {
            output.line(format_args!("    the driver: {command}"))?;
        }
        match &self.confidential_computing {
            Some(summary) => output.paragraph("confidential computing: ", "    ", summary),
            None => Ok(()),
        }
    }
}
