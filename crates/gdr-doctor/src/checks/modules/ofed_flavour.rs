use std::collections::BTreeSet;

use gdr_node::{DistributionFamily, OsRelease};

use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    id: CheckId("ofed.flavour"),
    title: "one RDMA stack with one set of libraries is installed",
    why: "The RDMA stack is either the kernel's own or MLNX_OFED or DOCA, which supports \
          peer-memory modules and has its own libraries. With two sets of libraries on one \
          machine, a program may load the wrong one.",
    inputs: "/sys/module/mlx5_core/version, which only MLNX_OFED's module has; mlx_compat in \
             /proc/modules; the unit openibd.service, which only MLNX_OFED has; /etc/os-release and \
             the kernel's version; the directories of libibverbs.so.1.",
    criteria: "info: the name of the stack. warn: libibverbs.so.1 is in several directories; \
               MLNX_OFED is installed, and the kernel's own modules are loaded. skip: mlx5_core is \
               not loaded.",
    sources: &[
        "https://docs.nvidia.com/holoscan (DAQIRI)",
        "MLNX_OFED user manual",
    ],
    workloads: Workload::RDMA,
    scope: Scope::Node(run),
    ..super::CHECK
};

fn run(context: &Context<'_>) -> Judgement {
    let facts = context.facts();
    let version = context.text("/sys/module/mlx5_core/version");
    let compat = facts.module("mlx_compat").is_ok();
    let core = facts.module("mlx5_core");
    let stack = match (&version, compat) {
        (Ok(version), _) => format!("MLNX_OFED or DOCA {version}"),
        (_, true) => "MLNX_OFED or DOCA".to_owned(),
        (Err(Absence::Missing), false) if core.is_ok() => "the kernel's own RDMA stack".to_owned(),
        (Err(Absence::Missing), false) if core == Err(Absence::Missing) => {
            return Err(Unjudged::skip("mlx5_core is not loaded"));
        }
        (absent, false) => return Ok(Finding::unknown("which RDMA stack is loaded", absent)),
    };
    let places = places(context);
    let is_own = version == Err(Absence::Missing) && !compat;
    let installed = (context.unit("openibd.service").ok())
        .is_some_and(|unit| unit.property("LoadState") == Some("loaded"));
    let finding = if is_own && installed {
        of_another_kernel(context)
    } else if places.len() > 1 {
        let places: Vec<&str> = places.iter().map(String::as_str).collect();
        Finding::warn(format!(
            "{stack} is loaded, and its libraries are in several directories: {}",
            places.join(", ")
        ))
        .fix(Fix::manual(
            "Keep one set of libraries",
            "remove the rdma-core that does not belong to the loaded stack, and libraries that \
             were installed below /usr/local by hand",
        ))
    } else {
        Finding::info(format!("{stack} is loaded"))
    };
    Ok(finding
        .evidence("/sys/module/mlx5_core/version", version.shown())
        .evidence("mlx_compat", if compat { "loaded" } else { "not loaded" }))
}

/// Returns the finding where the modules of the installed stack are not those that are loaded: it is built for one
/// kernel, or for one release of a distribution.
fn of_another_kernel(context: &Context<'_>) -> Finding {
    let system = OsRelease::read(context.source).ok();
    let kernel = context.text("/proc/sys/kernel/osrelease").ok();
    let of = match (&system, &kernel) {
        (Some(system), Some(kernel)) => format!(" {} of {}", kernel.trim(), system.name),
        (None, Some(kernel)) => format!(" {}", kernel.trim()),
        (_, None) => String::new(),
    };
    let hold = match system.as_ref().and_then(OsRelease::family) {
        Some(DistributionFamily::RedHat) => {
            "; hold the release that it is built for: `subscription-manager release --set=RELEASE`"
        }
        Some(DistributionFamily::Debian) => {
            "; hold the kernel that it is built for: `apt-mark hold`"
        }
        Some(DistributionFamily::Suse) => {
            "; hold the kernel that it is built for: `zypper addlock`"
        }
        None => "",
    };
    Finding::warn(format!(
        "MLNX_OFED or DOCA is installed, but kernel{of} runs its own RDMA stack: the modules were \
         built for another kernel"
    ))
    .fix(Fix::manual(
        "Build the modules for this kernel",
        format!("install it again with `mlnxofedinstall --add-kernel-support`, and restart{hold}"),
    ))
}

/// Returns the directories of the 64-bit libibverbs.
fn places(context: &Context<'_>) -> BTreeSet<String> {
    let text = context
        .text(virtual_path::LIBRARIES)
        .ok()
        .unwrap_or_default();
    text.lines()
        .filter_map(|line| line.split(" -> ").next())
        .filter_map(|path| path.strip_suffix("/libibverbs.so.1"))
        .filter(|place| !place.contains("i386") && !place.ends_with("lib32"))
        // /lib is a link to /usr/lib on every distribution with an RDMA stack of its own.
        .map(|place| match place.strip_prefix("/lib") {
            Some(rest) => format!("/usr/lib{rest}"),
            None => place.to_owned(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use snapshot::assert_contains;

    use super::*;
    use crate::checks::fixture::*;

    #[test]
    fn the_summary_names_the_stack() {
        let found = judged(&CHECK, &example::healthy(), Info);
        assert_contains!(found.summary, "24.10-2.1.8");
        let inbox = example::healthy()
            .without("/sys/module/mlx5_core/version")
            .file("/proc/modules", "mlx5_core 1 0 - Live 0x0\n");
        assert!(worst(&CHECK, &inbox).summary.contains("the kernel's own"));
    }

    #[test]
    fn an_installed_stack_that_is_not_loaded_is_a_warning() {
        let inbox = example::healthy()
            .without("/sys/module/mlx5_core/version")
            .file("/proc/modules", "mlx5_core 1 0 - Live 0x0\n");
        let unit = format!("{}/openibd.service", virtual_path::SYSTEMD);
        assert_eq!(verdict(&CHECK, &inbox), Info);
        let absent = inbox.clone().file(&unit, "LoadState=not-found\n");
        assert_eq!(verdict(&CHECK, &absent), Info);
        let installed = (inbox.file(&unit, "LoadState=loaded\n")).file(
            "/etc/os-release",
            "ID=rhel\nPRETTY_NAME=\"Red Hat Enterprise Linux 9.4\"\n",
        );
        let found = judged(&CHECK, &installed, Warn);
        assert_contains!(found.summary, "Linux 9.4");
        let fix = found.fixes[0].actions[0].to_string();
        assert_contains!(fix, "subscription-manager");
    }

    #[test]
    fn two_sets_of_libraries_are_a_warning_and_two_paths_of_one_set_are_not() {
        let with = |second: &str| {
            example::healthy().file(
                virtual_path::LIBRARIES,
                format!(
                    "/usr/lib64/libibverbs.so.1 -> libibverbs.so.1.14\n\
                     {second}/libibverbs.so.1 -> libibverbs.so.1.14\n"
                ),
            )
        };
        assert_eq!(verdict(&CHECK, &with("/usr/local/lib")), Warn);
        assert_eq!(verdict(&CHECK, &with("/lib64")), Info);
        assert_eq!(verdict(&CHECK, &with("/usr/lib/i386-linux-gnu")), Info);
    }

    #[test]
    fn a_node_without_mlx5_is_skipped() {
        let none = example::healthy()
            .without("/sys/module/mlx5_core")
            .file("/proc/modules", "");
        assert_eq!(verdict(&CHECK, &none), Skip);
    }
}
