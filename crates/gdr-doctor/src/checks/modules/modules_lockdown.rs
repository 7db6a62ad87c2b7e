use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    id: CheckId("modules.lockdown"),
    title: "the kernel accepts the needed modules and register writes",
    why: "With Secure Boot or lockdown the kernel refuses modules that are not signed with a \
          trusted key. Modules that are built on the machine (nvidia, nvidia_peermem, gdrdrv) \
          often are not. It also refuses setpci, so that ACS and read request sizes cannot be set \
          at run time.",
    inputs: "/sys/kernel/security/lockdown, the EFI variable SecureBoot, \
             /sys/module/module/parameters/sig_enforce, the kernel log.",
    criteria: "pass: neither is on. info: Secure Boot without lockdown; or signatures are enforced \
               and NVIDIA's driver is loaded. warn: lockdown; or signatures are enforced and the \
               driver is not loaded. fail: the kernel log has a rejected module and the driver is \
               not loaded.",
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

/// Messages of the kernel and of modprobe about a module whose signature is not accepted.
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
        return Ok(Finding::unknown("the lockdown mode", &lockdown));
    }
    let locked = (lockdown.as_ref().ok())
        .and_then(|text| text.split(['[', ']']).nth(1))
        .filter(|level| *level != "none");
    let enforces = matches!(enforced.as_ref().ok().map(String::as_str), Some("Y" | "1"));
    let rejected = context.logged(|line| REJECTIONS.iter().any(|words| line.contains(words)));
    let finding = if let (Some(_), Err(Absence::Missing)) = (&rejected, &context.facts().nvidia) {
        Finding::fail(
            "the kernel rejected the signature of a module, and NVIDIA's driver is not loaded",
        )
        .fix(sign())
        .fix(switch_off())
    } else if let Some(level) = locked {
        Finding::warn(format!(
            "the kernel is locked down ({level}): it refuses writes by setpci and unsigned modules"
        ))
        .fix(sign())
        .fix(switch_off())
    } else if enforces && context.facts().nvidia.is_ok() {
        Finding::info("the kernel enforces module signatures; NVIDIA's driver is loaded")
    } else if enforces {
        Finding::warn(
            "the kernel enforces module signatures, and NVIDIA's driver is not \
                       loaded",
        )
        .fix(sign())
    } else if secure_boot == Ok(true) {
        Finding::info("Secure Boot is on and the kernel is not locked down")
    } else {
        Finding::pass("neither lockdown nor Secure Boot is on")
    };
    let finding = finding
        .evidence(LOCKDOWN, lockdown.shown())
        .evidence(ENFORCED, enforced.shown());
    Ok(finding.evidence_all(rejected.map(|line| ("kernel log", line))))
}

fn sign() -> Fix {
    Fix::manual(
        "Sign the modules with a machine owner key (MOK)",
        "`mokutil --import KEY.der`, reboot, confirm the key, and configure dkms to sign with it",
    )
}

fn switch_off() -> Fix {
    Fix::manual("Turn Secure Boot off", "in the firmware setup")
        .risk(Risk::High, "the machine then boots unsigned software")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::fixture::*;

    #[test]
    fn a_kernel_without_lockdown_passes_and_secure_boot_alone_is_info() {
        assert_eq!(verdicts(&CHECK, &example::healthy()), [Pass]);
        let secure = example::healthy().file(SECURE_BOOT, [6, 0, 0, 0, 1]);
        assert_eq!(verdict(&CHECK, &secure), Info);
    }

    #[test]
    fn lockdown_and_enforced_signatures_are_warnings() {
        let locked = example::healthy().file(LOCKDOWN, "none [integrity] confidentiality\n");
        assert_eq!(verdict(&CHECK, &locked), Warn);
        let enforcing = example::healthy().file(ENFORCED, "Y\n");
        assert_eq!(verdict(&CHECK, &enforcing), Info);
        let unloaded = enforcing.without("/proc/driver/nvidia");
        assert_eq!(verdict(&CHECK, &unloaded), Warn);
    }

    #[test]
    fn a_rejected_module_fails_if_the_driver_is_not_loaded() {
        let node = example::healthy()
            .without("/proc/driver/nvidia/version")
            .file(
                virtual_path::KERNEL_LOG,
                "[    9.1] Loading of unsigned module is rejected\n",
            );
        assert_eq!(verdict(&CHECK, &node), Fail);
    }
}
