use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    id: CheckId("nvidia.userspace_match"),
    title: "NVIDIA's kernel module and libraries have the same version",
    why: "The libraries work only with a kernel module of exactly their version. After an update \
          without a reboot every call fails with `Driver/library version mismatch`.",
    inputs: "/proc/driver/nvidia/version; the file names libcuda.so.<version> and \
             libnvidia-ml.so.<version>.",
    criteria: "pass: equal. fail: a library has other versions only. skip: no driver or no \
               library.",
    sources: &["NVML API reference: NVML_ERROR_LIB_RM_VERSION_MISMATCH"],
    scope: Scope::Node(run),
    ..super::CHECK
};

const LIBRARIES: [&str; 2] = ["libcuda.so.", "libnvidia-ml.so."];

fn run(context: &Context<'_>) -> Judgement {
    let driver = context.facts().nvidia.by_ref().known_or_skip(
        "the version of NVIDIA's driver",
        "NVIDIA's driver is not loaded",
    )?;
    let list = context.text(virtual_path::LIBRARIES);
    let text = list.by_ref().known_or_skip(
        "the list of libraries",
        "no library of NVIDIA's driver is installed",
    )?;
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
        return Err(Unjudged::skip("no library of NVIDIA's driver is installed"));
    }
    wrong.dedup();
    let finding = if wrong.is_empty() {
        Finding::pass(format!("module and libraries have version {driver}"))
    } else {
        Finding::fail(format!(
            "the module has version {driver}, the libraries have others: {}",
            wrong.join(", ")
        ))
        .fix(
            Fix::run("Reboot to load the new module", "systemctl reboot")
                .effect(Effect::AtReboot)
                .risk(Risk::Medium, "the machine restarts"),
        )
        .fix(Fix::manual(
            "In a container, use the host's libraries",
            "remove the driver's libraries from the image; the NVIDIA Container Toolkit mounts the host's",
        ))
    };
    Ok(finding
        .evidence("/proc/driver/nvidia/version", driver)
        .evidence("libraries", files.join(" ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::fixture::*;

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
        assert_eq!(verdict(&CHECK, &example::healthy()), Pass);
        assert_eq!(verdict(&CHECK, &libraries("580.95.05")), Pass);
        assert_eq!(verdict(&CHECK, &libraries("570.86.15")), Fail);
    }

    #[test]
    fn an_old_library_beside_the_matching_one_passes() {
        let node = example::healthy().file(
            virtual_path::LIBRARIES,
            "/usr/lib/libcuda.so.580.95.05\n/usr/lib/libcuda.so.535.1.2\n",
        );
        assert_eq!(verdict(&CHECK, &node), Pass);
    }

    #[test]
    fn a_node_without_libraries_is_skipped() {
        let none = example::healthy().file(virtual_path::LIBRARIES, "");
        assert_eq!(verdict(&CHECK, &none), Skip);
    }
}
