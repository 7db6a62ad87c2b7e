use crate::checks::prelude::*;
use crate::gpudirect_support::{self, frees_twice};
use crate::peermem::{MODULE, OLD_MODULE};

pub(super) const CHECK: Check = Check {
    id: CheckId("peermem.age"),
    title: "the peer-memory module is not too old",
    why: "Before branch 510 nvidia_peermem could free pages that the driver had already taken \
          back. The kernel log then has `invalid context` or `invalid page_table` many times, and \
          processes hang when they exit. Later drivers up to 560.35.03 log the same without harm. \
          nv_peer_mem is the package before that: 1.1 is the last for MLNX_OFED 4.9 LTS, and 1.2 \
          needs an MLNX_OFED with the fix of a deadlock by lock inversion (2696789, from 5.1 on).",
    inputs: "/proc/driver/nvidia/version; /sys/module/nv_peer_mem/version; \
             `nv_get_p2p_free_callback` in the kernel log.",
    criteria: "pass: 510 or later, or 470.141 or later of branch 470. warn: another version; \
               nv_peer_mem on 470 or later, which has nvidia_peermem. info: such a line of a driver \
               that is not known. skip: no peer-memory module is loaded.",
    sources: &[
        "https://github.com/Mellanox/nv_peer_memory/issues/112",
        "https://github.com/Mellanox/nv_peer_memory/issues/120",
    ],
    workloads: Workload::RDMA,
    symptom_of: &["peermem.conflict"],
    scope: Scope::Node(run),
    ..super::CHECK
};

fn run(context: &Context<'_>) -> Judgement {
    let module = gpudirect_support::peer_module(context).known_or_skip(
        "the list of loaded modules",
        "no peer-memory module is loaded",
    )?;
    let complaint = context.logged(|line| {
        line.contains("nv_get_p2p_free_callback")
            || (line.contains("peermem") || line.contains("nv_peer_mem"))
                && (line.contains("invalid context") || line.contains("invalid page_table"))
    });
    let driver = match (&context.facts().nvidia, frees_twice(context)) {
        (Ok(driver), Ok(frees_twice)) => (driver, frees_twice),
        (absent, _) => {
            return Ok(match complaint {
                Some(line) => Finding::info(format!(
                    "{module} skipped late callbacks, which is harmless unless the driver is older \
                     than 510"
                ))
                .evidence("kernel log", line),
                None => Finding::unknown("the version of NVIDIA's driver", absent),
            });
        }
    };
    let branch = driver.0.version.0.first().copied().unwrap_or_default();
    let finding = match (driver, complaint) {
        ((driver, true), None) => Finding::warn(format!(
            "{module} of driver {driver} is older than 510 and may free pages twice"
        ))
        .fix(upgrade()),
        ((_, true), Some(line)) => Finding::warn(format!(
            "{module} tried to free pages that the driver had already taken back"
        ))
        .evidence("kernel log", line)
        .fix(upgrade()),
        ((driver, false), None) if module == OLD_MODULE && branch >= 470 => {
            superseded(context, driver)
        }
        ((driver, false), None) => Finding::pass(format!(
            "{module} of driver {driver} has logged no such error"
        )),
        ((driver, false), Some(line)) => Finding::pass(format!(
            "{module} of driver {driver} skipped late callbacks, which is harmless"
        ))
        .evidence("kernel log", line),
    };
    Ok(finding.evidence("/proc/driver/nvidia/version", driver.0))
}

/// Returns the former module beside a driver that has its successor.
fn superseded(context: &Context<'_>, driver: &impl std::fmt::Display) -> Finding {
    let path = format!("/sys/module/{OLD_MODULE}/version");
    let version = context.text(&path);
    let number = |text: &str| {
        let mut parts = text.trim().split(['.', '-']).map(str::parse::<u32>);
        Some((parts.next()?.ok()?, parts.next()?.ok()?))
    };
    let needs = match version.as_ref().ok().and_then(|text| number(text)) {
        Some(version) if version >= (1, 2) => {
            ", and needs MLNX_OFED 5.1 or later with the fix of a deadlock (2696789)"
        }
        Some(_) => ", and is made for MLNX_OFED 4.9 LTS, without the fix of a deadlock (2696789)",
        None => "",
    };
    Finding::warn(format!(
        "{OLD_MODULE} is no longer maintained{needs}; driver {driver} has {MODULE} in its place"
    ))
    .evidence(path, version.shown())
    .fix(Fix::manual(
        "Remove the package, and load the driver's module",
        format!("`modprobe -r {OLD_MODULE}; gdr peermem enable`, and uninstall nvidia-peer-memory"),
    ))
}

fn upgrade() -> Fix {
    Fix::manual(
        "Use a newer driver, or dma-buf",
        "install a current driver; with the open modules, dma-buf replaces the module",
    )
    .risk(Risk::Medium, "every process on the GPUs ends")
}

#[cfg(test)]
mod tests {
    use snapshot::assert_contains;

    use super::*;
    use crate::checks::fixture::*;

    fn driver(version: &str) -> MemorySource {
        example::healthy().file(
            "/proc/driver/nvidia/version",
            format!("NVRM version: NVIDIA UNIX x86_64 Kernel Module  {version}  Tue\n"),
        )
    }

    #[test]
    fn an_old_module_or_a_logged_error_is_a_warning() {
        assert_eq!(verdict(&CHECK, &example::healthy()), Pass);
        assert_eq!(verdict(&CHECK, &driver("495.29.05")), Warn);
        assert_eq!(verdict(&CHECK, &driver("470.256.02")), Pass);
        let complaint = "[ 1.0] nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected \
                         invalid context, skipping further processing\n";
        let node = driver("470.57.02").file(virtual_path::KERNEL_LOG, complaint);
        assert_eq!(verdict(&CHECK, &node), Warn);
        // Where the mitigation of a later driver prints it, it is harmless.
        let node = driver("535.161.08").file(virtual_path::KERNEL_LOG, complaint);
        assert_eq!(verdict(&CHECK, &node), Pass);
        let unknown = node.denied("/proc/driver/nvidia/version");
        assert_eq!(verdict(&CHECK, &unknown), Info);
    }

    #[test]
    fn a_version_that_may_not_be_read_is_unknown() {
        let denied = example::healthy().denied("/proc/driver/nvidia/version");
        assert_eq!(verdict(&CHECK, &denied), Unknown);
    }

    #[test]
    fn the_former_module_on_a_driver_with_its_successor_is_a_warning() {
        let node = |version: &str| {
            without_peermem()
                .file("/sys/module/nv_peer_mem/initstate", "live\n")
                .file("/sys/module/nv_peer_mem/version", version)
        };
        for (version, words) in [
            ("1.1-0\n", "made for MLNX_OFED 4.9"),
            ("1.3-0\n", "MLNX_OFED 5.1 or later"),
            ("?\n", "no longer maintained; driver"),
        ] {
            let found = judged(&CHECK, &node(version), Warn);
            assert_contains!(found.summary, words);
        }
    }

    #[test]
    fn a_node_without_a_module_is_skipped() {
        assert_eq!(verdict(&CHECK, &without_peermem()), Skip);
    }
}
