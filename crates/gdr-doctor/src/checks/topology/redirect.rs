//! A port whose ACS bits redirect traffic between a GPU and a NIC.

use std::collections::BTreeMap;

use gdr_node::Bdf;
use gdr_node::pci::{Acs, AcsBits};

use crate::context::{Context, Pair};
use crate::finding::{Finding, Subject, Verdict};
use crate::fix::{Action, Fix, Register, Risk};

/// The harmful ACS bits of a port, and the pairs that they affect.
pub(super) struct Fault<'a, 'b> {
    /// The port's ACS.
    pub(super) acs: Acs,
    /// The harmful bits among them.
    pub(super) bits: AcsBits,
    /// The verdict.
    pub(super) verdict: Verdict,
    /// The pairs whose path has the port.
    pub(super) pairs: Vec<&'b Pair<'a>>,
}

impl Fault<'_, '_> {
    /// Returns the finding, with fixes for this port now and for all ports at boot.
    pub(super) fn finding(&self, context: &Context<'_>, port: Bdf, boot: Option<&Fix>) -> Finding {
        let (gpus, nics) = ends(&self.pairs);
        let across = self.verdict == Verdict::Warn;
        let bits = self.bits;
        let summary = if self.bits.contains(AcsBits::TRANSLATION_BLOCKING) {
            format!("port {port} ({bits}) blocks translated requests between {gpus} and {nics}")
        } else if across {
            format!(
                "port {port} ({bits}) sends the traffic between {gpus} and {nics} through the \
                 IOMMU; it crosses the host bridge in any case"
            )
        } else {
            format!(
                "port {port} ({bits}) redirects the traffic between {gpus} and {nics} to the root \
                 complex, where it is slow or lost"
            )
        };
        let mut finding = Finding::new(self.verdict, summary)
            .about(self.subject(context, port))
            .evidence(
                format!("ACS control of {port}"),
                format!("{:04x} ({})", self.acs.control, self.acs.control),
            );
        for pair in &self.pairs {
            finding = finding.evidence(
                format!("path of {} - {}", pair.gpu.index, pair.nic.name),
                format!("{}: {}", pair.relation.smi, pair.relation.why),
            );
        }
        let cautious = |fix: Fix| {
            fix.risk(
                Risk::High,
                "devices below the port are no longer isolated: do not apply it if they are \
                 assigned to different guests",
            )
        };
        finding = finding.fix(cautious(Fix::now(
            format!("Clear the redirect bits of {port} until the next boot"),
            Action::WriteConfig {
                bdf: port,
                register: Register::AcsControl,
                mask: (AcsBits::REDIRECTING | self.bits).bits(),
                value: 0,
                was: self.acs.control.bits(),
            },
        )));
        if let Some(fix) = boot {
            finding = finding.fix(cautious(fix.clone()));
        }
        finding.fix(Fix::manual(
        "Turn ACS off in the firmware",
        "look for ACS, Access Control Services or ACS Enable in the firmware's PCIe or NBIO menu; \
         some switches have their own configuration",
    ))
    }

    /// Returns the device of these pairs below the port if there is exactly one, so that other findings about it are
    /// linked to this one; otherwise the port.
    fn subject(&self, context: &Context<'_>, port: Bdf) -> Subject {
        let below = |bdf: Bdf| {
            let chain = context
                .inventory
                .tree
                .as_ref()
                .ok()
                .and_then(|tree| tree.chain(bdf));
            chain.is_some_and(|(_, bridges)| bridges.contains(&port))
        };
        let mut subjects: Vec<Subject> = Vec::new();
        for pair in &self.pairs {
            if below(pair.gpu.bdf) {
                subjects.push(Subject::gpu(&pair.gpu));
            }
            if below(pair.nic.bdf) {
                subjects.push(Subject::nic(&pair.nic));
            }
        }
        subjects.sort();
        subjects.dedup();
        match (subjects.pop(), subjects.is_empty(), self.pairs.as_slice()) {
            (_, _, [pair]) => Subject::pair(pair),
            (Some(subject), true, _) => subject,
            _ => Subject::Function(port),
        }
    }
}

/// Returns the names of the GPUs and of the NICs of pairs, each once.
fn ends(pairs: &[&Pair<'_>]) -> (String, String) {
    let list = |mut names: Vec<String>| {
        names.dedup();
        names.join(", ")
    };
    let mut gpus: Vec<_> = pairs.iter().map(|pair| pair.gpu.index).collect();
    gpus.sort();
    let mut nics: Vec<String> = pairs.iter().map(|pair| pair.nic.name.clone()).collect();
    nics.sort();
    (
        list(gpus.iter().map(ToString::to_string).collect()),
        list(nics),
    )
}

/// Returns the kernel argument that clears the bits of all ports at every boot. The kernel uses only the last such
/// argument, so one has to name all ports.
pub(super) fn at_boot(faults: &BTreeMap<Bdf, Fault<'_, '_>>) -> Option<Fix> {
    let ports: Vec<String> = (faults.iter())
        .filter(|(_, fault)| fault.bits.intersects(AcsBits::REDIRECTING))
        .map(|(port, _)| port.to_string())
        .collect();
    if ports.is_empty() {
        return None;
    }
    Some(Fix::at_boot(
        "Clear the redirect bits at every boot (Linux 4.19 and later)",
        Action::boot(format!("pci=disable_acs_redir={}", ports.join(";"))),
    ))
}
