//! `nvidia.userspace_match`: the kernel module and the libraries are of one version.

use gdr_node::{Datum, virtual_path};

use crate::check::{Check, CheckId, Documentation, Group};
use crate::context::Context;
use crate::facts::Version;
use crate::finding::{Finding, Subject};
use crate::fix::{Action, Effect, Fix, Risk};

pub(super) const CHECK: Check = Check {
    id: CheckId("nvidia.userspace_match"),
    group: Group::Modules,
    title: "NVIDIA's kernel module and libraries are of one version",
    documentation: Documentation {
        means: "The libraries talk to a kernel module of exactly their version. After an update \
                without a reboot every call fails with `Driver/library version mismatch`.",
        reads: "/proc/driver/nvidia/version; the names of libcuda.so.<version> and \
                libnvidia-ml.so.<version>.",
        judges: "pass: equal. fail: a library of another version and none of the module's. skip: \
                 no driver or no library.",
        sources: &["NVML API reference: NVML_ERROR_LIB_RM_VERSION_MISMATCH"],
    },
    purposes: &[],
    symptom_of: &[],
    run,
};

const LIBRARIES: [&str; 2] = ["libcuda.so.", "libnvidia-ml.so."];

fn run(context: &Context<'_>) -> Vec<Finding> {
    let driver = match &context.facts().nvidia {
        Datum::Present(driver) => driver,
        Datum::Missing => return vec![Finding::skip("NVIDIA's driver is not loaded")],
        absent => {
            return vec![Finding::unknown(
                Subject::Node,
                "the version of NVIDIA's driver",
                absent,
            )];
        }
    };
    let list = context.text(virtual_path::LIBRARIES);
    let text = match &list {
        Datum::Present(text) => text,
        Datum::Missing => return vec![Finding::skip("no library of NVIDIA's driver is installed")],
        absent => {
            return vec![Finding::unknown(
                Subject::Node,
                "the list of libraries",
                absent,
            )];
        }
    };
    let mut files = Vec::new();
    let mut wrong = Vec::new();
    for library in LIBRARIES {
        let versions: Vec<(&str, Version)> = text
            .lines()
            .filter_map(|line| line.split(" -> ").next())
            .filter_map(|path| Some((path, Version::find(path.split_once(library)?.1)?)))
            .collect();
        let matches = versions
            .iter()
            .any(|(_, version)| *version == driver.version);
        for (path, version) in versions {
            files.push(path);
            if !matches {
                wrong.push(format!("{library}{version}"));
            }
        }
    }
    if files.is_empty() {
        return vec![Finding::skip("no library of NVIDIA's driver is installed")];
    }
    wrong.dedup();
    let finding = if wrong.is_empty() {
        Finding::pass(
            Subject::Node,
            format!("module and libraries are of version {driver}"),
        )
    } else {
        Finding::fail(
            Subject::Node,
            format!(
                "the module is of version {driver} and the libraries are not: {}",
                wrong.join(", ")
            ),
        )
        .fix(
            Fix::now(
                "Load the new module",
                Action::Command {
                    line: "systemctl reboot".to_owned(),
                },
            )
            .effect(Effect::AtReboot)
            .risk(Risk::Medium, "the machine restarts"),
        )
        .fix(Fix::manual(
            "In a container, let the runtime mount the host's libraries",
            "remove the driver's libraries from the image; the NVIDIA container toolkit brings \
             those of the host",
        ))
    };
    vec![
        finding
            .evidence("/proc/driver/nvidia/version", driver.to_string())
            .evidence("libraries", files.join(" ")),
    ]
}

#[cfg(test)]
mod tests {
    use gdr_node::{MemorySource, example};

    use super::*;
    use crate::checks::fixture::verdict;
    use crate::finding::Verdict;

    fn libraries(version: &str) -> MemorySource {
        example::healthy().file(
            virtual_path::LIBRARIES,
            format!(
                "/usr/lib64/libcuda.so.1 -> libcuda.so.{version}\n/usr/lib64/libcuda.so.{version}\n"
            ),
        )
    }

    #[test]
    fn equal_versions_pass_and_others_fail() {
        assert_eq!(verdict(&CHECK, &example::healthy()), Verdict::Pass);
        assert_eq!(verdict(&CHECK, &libraries("580.95.05")), Verdict::Pass);
        assert_eq!(verdict(&CHECK, &libraries("570.86.15")), Verdict::Fail);
    }

    #[test]
    fn an_old_library_beside_the_right_one_does_no_harm() {
        let node = example::healthy().file(
            virtual_path::LIBRARIES,
            "/usr/lib/libcuda.so.580.95.05\n/usr/lib/libcuda.so.535.1.2\n",
        );
        assert_eq!(verdict(&CHECK, &node), Verdict::Pass);
    }

    #[test]
    fn without_libraries_or_a_capture_nothing_is_judged() {
        let none = example::healthy().file(virtual_path::LIBRARIES, "");
        assert_eq!(verdict(&CHECK, &none), Verdict::Skip);
        assert_eq!(verdict(&CHECK, &MemorySource::partial()), Verdict::Unknown);
        let unread = example::healthy().not_collected(virtual_path::LIBRARIES);
        assert_eq!(verdict(&CHECK, &unread), Verdict::Unknown);
    }
}
