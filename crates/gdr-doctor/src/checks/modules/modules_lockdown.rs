use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    id: CheckId("modules.lockdown"),
    title: "the kernel takes the modules and register writes that are needed",
    why: "With Secure Boot or lockdown the kernel refuses modules that no trusted key signed, \
          which those built on the machine (nvidia, nvidia_peermem, gdrdrv) often are, and refuses \
          setpci, so that ACS and read requests cannot be set at run time.",
    inputs: "/sys/kernel/security/lockdown, the EFI variable SecureBoot, \
          /sys/module/module/parameters/sig_enforce, the kernel's log.",
    criteria: "pass: neither. info: Secure Boot without lockdown; signatures are enforced and \
          NVIDIA's driver is loaded. warn: lockdown; signatures are enforced and it is not. fail: \
          the log says that a module was rejected and NVIDIA's driver is not loaded.",
    sources: &[
        "man 7 kernel_lockdown",
        "https://docs.nvidia.com/holoscan (DAQIRI: `setpci … Operation not permitted`)",
    ],
    scope: Scope::Node(run),
    ..super::CHECK
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

fn run(context: &Context<'_>) -> Judgement {
    let lockdown = context.text(LOCKDOWN);
    let enforced = context.text(ENFORCED);
    // Four bytes of attributes, then the value.
    let secure_boot = (context.source.read(SECURE_BOOT)).map(|bytes| bytes.get(4) == Some(&1));
    if lockdown.is_unknown() && enforced.is_unknown() {
        return Ok(Finding::unknown("the state of lockdown", &lockdown));
    }
    let locked = (lockdown.as_ref().ok())
        .and_then(|text| text.split(['[', ']']).nth(1))
        .filter(|level| *level != "none");
    let enforces = matches!(enforced.as_ref().ok().map(String::as_str), Some("Y" | "1"));
    let rejected = context.logged(|line| REJECTIONS.iter().any(|words| line.contains(words)));
    let finding = if let (Some(_), Err(Absence::Missing)) = (&rejected, &context.facts().nvidia) {
        Finding::fail(
            "the kernel rejected a module for its signature, and NVIDIA's driver is not loaded",
        )
        .fix(sign())
        .fix(switch_off())
    } else if let Some(level) = locked {
        Finding::warn(format!(
            "the kernel is locked down ({level}): setpci cannot write, and unsigned modules \
                 are refused"
        ))
        .fix(sign())
        .fix(switch_off())
    } else if enforces && context.facts().nvidia.is_ok() {
        Finding::info(
            "the kernel refuses modules that no trusted key signed; NVIDIA's driver is loaded",
        )
    } else if enforces {
        Finding::warn("the kernel refuses modules that no trusted key signed").fix(sign())
    } else if secure_boot == Ok(true) {
        Finding::info("Secure Boot is on and the kernel is not locked down")
    } else {
        Finding::pass("nothing is locked down")
    };
    let finding = finding
        .evidence(LOCKDOWN, lockdown.shown())
        .evidence(ENFORCED, enforced.shown());
    Ok(finding.evidence_all(rejected.map(|line| ("kernel log", line))))
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
    use super::*;
    use crate::checks::fixture::*;

    #[test]
    fn a_free_kernel_passes_and_secure_boot_alone_is_worth_knowing() {
        assert_eq!(verdicts(&CHECK, &example::healthy()), [Pass]);
        let secure = example::healthy().file(SECURE_BOOT, [6, 0, 0, 0, 1]);
        assert_eq!(verdict(&CHECK, &secure), Info);
    }

    #[test]
    fn lockdown_and_enforced_signatures_are_warned_of() {
        let locked = example::healthy().file(LOCKDOWN, "none [integrity] confidentiality\n");
        assert_eq!(verdict(&CHECK, &locked), Warn);
        let enforcing = example::healthy().file(ENFORCED, "Y\n");
        assert_eq!(verdict(&CHECK, &enforcing), Info);
        let unloaded = enforcing.without("/proc/driver/nvidia");
        assert_eq!(verdict(&CHECK, &unloaded), Warn);
    }

    #[test]
    fn a_rejected_driver_fails() {
        let node = example::healthy()
            .without("/proc/driver/nvidia/version")
            .file(
                virtual_path::KERNEL_LOG,
                "[    9.1] Loading of unsigned module is rejected\n",
            );
        assert_eq!(verdict(&CHECK, &node), Fail);
    }
}
