//! `modules.lockdown`: the kernel lets unsigned modules and register writes through.

use gdr_node::{Datum, virtual_path};

use crate::check::{Check, CheckId, Documentation, Group};
use crate::context::Context;
use crate::finding::{Finding, Subject};
use crate::fix::{Fix, Risk};

pub(super) const CHECK: Check = Check {
    id: CheckId("modules.lockdown"),
    group: Group::Modules,
    title: "the kernel takes the modules and register writes that are needed",
    documentation: Documentation {
        means: "With Secure Boot or lockdown the kernel refuses modules that no trusted key \
                signed, which those built on the machine (nvidia, nvidia_peermem, gdrdrv) often \
                are, and refuses setpci, so that ACS and read requests cannot be set at run time.",
        reads: "/sys/kernel/security/lockdown, the EFI variable SecureBoot, \
                /sys/module/module/parameters/sig_enforce, the kernel's log.",
        judges: "pass: neither. info: Secure Boot without lockdown; signatures are enforced and \
                 NVIDIA's driver is loaded. warn: lockdown; signatures are enforced and it is not. \
                 fail: the log says that a module was rejected and NVIDIA's driver is not loaded.",
        sources: &[
            "man 7 kernel_lockdown",
            "https://docs.nvidia.com/holoscan (DAQIRI: `setpci … Operation not permitted`)",
        ],
    },
    purposes: &[],
    symptom_of: &[],
    run,
};

const LOCKDOWN: &str = "/sys/kernel/security/lockdown";
const ENFORCED: &str = "/sys/module/module/parameters/sig_enforce";
const SECURE_BOOT: &str =
    "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c";

/// What kernel and modprobe say of a module whose signature they do not take.
const REJECTIONS: [&str; 5] = [
    "Key was rejected by service",
    "Required key not available",
    "Loading of unsigned module is rejected",
    "Loading of module with unavailable key is rejected",
    "signature not signed with a trusted key",
];

fn run(context: &Context<'_>) -> Vec<Finding> {
    let lockdown = context.text(LOCKDOWN);
    let enforced = context.text(ENFORCED);
    // Four bytes of attributes, then the value.
    let secure_boot = (context.source.read(SECURE_BOOT)).map(|bytes| bytes.get(4) == Some(&1));
    if lockdown.is_unknown() && enforced.is_unknown() {
        return vec![Finding::unknown(
            Subject::Node,
            "the state of lockdown",
            &lockdown,
        )];
    }
    let locked = (lockdown.present())
        .and_then(|text| text.split(['[', ']']).nth(1))
        .filter(|level| *level != "none");
    let enforces = matches!(enforced.present().map(String::as_str), Some("Y" | "1"));
    let log = context.text(virtual_path::KERNEL_LOG).into_present();
    let rejected = (log.iter().flat_map(|text| text.lines()))
        .find(|line| REJECTIONS.iter().any(|words| line.contains(words)));

    let finding = if let (Some(_), Datum::Missing) = (rejected, &context.facts().nvidia) {
        Finding::fail(
            Subject::Node,
            "the kernel rejected a module for its signature, and NVIDIA's driver is not loaded",
        )
        .fix(sign())
        .fix(switch_off())
    } else if let Some(level) = locked {
        Finding::warn(
            Subject::Node,
            format!(
                "the kernel is locked down ({level}): setpci cannot write, and unsigned modules \
                 are refused"
            ),
        )
        .fix(sign())
        .fix(switch_off())
    } else if enforces && context.facts().nvidia.is_present() {
        Finding::info(
            Subject::Node,
            "the kernel refuses modules that no trusted key signed; NVIDIA's driver is loaded",
        )
    } else if enforces {
        Finding::warn(
            Subject::Node,
            "the kernel refuses modules that no trusted key signed",
        )
        .fix(sign())
    } else if secure_boot == Datum::Present(true) {
        Finding::info(
            Subject::Node,
            "Secure Boot is on and the kernel is not locked down",
        )
    } else {
        Finding::pass(Subject::Node, "nothing is locked down")
    };
    let finding = finding
        .evidence(LOCKDOWN, lockdown.to_string())
        .evidence(ENFORCED, enforced.to_string());
    vec![match rejected {
        Some(line) => finding.evidence("kernel log", line),
        None => finding,
    }]
}

fn sign() -> Fix {
    Fix::manual(
        "Sign the modules with a key of the machine's owner",
        "`mokutil --import KEY.der`, reboot, confirm the key, and let dkms sign with it",
    )
}

fn switch_off() -> Fix {
    Fix::manual("Switch Secure Boot off", "in the firmware's settings").risk(
        Risk::High,
        "the machine then starts whatever is put on its disk",
    )
}

#[cfg(test)]
mod tests {
    use gdr_node::{MemorySource, example};

    use super::*;
    use crate::checks::fixture::{verdict, verdicts};
    use crate::finding::Verdict;

    #[test]
    fn a_free_kernel_passes_and_secure_boot_alone_is_worth_knowing() {
        assert_eq!(verdicts(&CHECK, &example::healthy()), [Verdict::Pass]);
        let secure = example::healthy().file(SECURE_BOOT, [6, 0, 0, 0, 1]);
        assert_eq!(verdict(&CHECK, &secure), Verdict::Info);
    }

    #[test]
    fn lockdown_and_enforced_signatures_are_warned_of() {
        let locked = example::healthy().file(LOCKDOWN, "none [integrity] confidentiality\n");
        assert_eq!(verdict(&CHECK, &locked), Verdict::Warn);
        let enforcing = example::healthy().file(ENFORCED, "Y\n");
        assert_eq!(verdict(&CHECK, &enforcing), Verdict::Info);
        let unloaded = enforcing.without("/proc/driver/nvidia");
        assert_eq!(verdict(&CHECK, &unloaded), Verdict::Warn);
    }

    #[test]
    fn a_rejected_driver_fails() {
        let node = example::healthy()
            .without("/proc/driver/nvidia/version")
            .file(
                virtual_path::KERNEL_LOG,
                "[    9.1] Loading of unsigned module is rejected\n",
            );
        assert_eq!(verdict(&CHECK, &node), Verdict::Fail);
    }

    #[test]
    fn what_was_not_collected_is_not_judged() {
        assert_eq!(verdict(&CHECK, &MemorySource::partial()), Verdict::Unknown);
    }
}
