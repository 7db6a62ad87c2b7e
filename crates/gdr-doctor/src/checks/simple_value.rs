//! The checks that compare one file with one value.

use crate::check::Group;
use crate::checks::prelude::*;

/// A file, the value that it should have, and the findings.
pub(crate) struct SimpleValue {
    path: &'static str,
    /// The meaning of the value, for findings that it is unknown.
    what: &'static str,
    /// The reason of the skip if there is no such file.
    missing: &'static str,
    /// Whether a value is the right one.
    good: fn(&str) -> bool,
    pass: &'static str,
    info: &'static str,
    /// The title of the fix, and the value that it writes.
    fix: Option<(&'static str, &'static str)>,
}

impl SimpleValue {
    /// Returns the finding about the value of the file.
    pub(crate) fn judge(&self, context: &Context<'_>) -> Judgement {
        let path = self.path;
        let value = context.text(path).known_or_skip(self.what, self.missing)?;
        if (self.good)(&value) {
            return Ok(Finding::pass(self.pass).evidence(path, value));
        }
        let finding = Finding::info(self.info).evidence(path, value);
        Ok(match self.fix {
            Some((title, wanted)) => finding.fix(Fix::now(title, Action::sysfs(path, wanted))),
            None => finding,
        })
    }
}

pub(in crate::checks) const NUMA_BALANCING: Check = Check {
    id: CheckId("cpu.numa_balancing"),
    title: "automatic NUMA balancing is off",
    why: "With automatic NUMA balancing the kernel unmaps pages for a moment to find out which \
          CPUs use them. Jobs that are bound to their node get jitter and no benefit.",
    inputs: "/proc/sys/kernel/numa_balancing.",
    criteria: "pass: off, or the kernel does not have it. info: on. unknown: not collected.",
    sources: &["Linux Documentation/admin-guide/sysctl/kernel.rst: numa_balancing"],
    scope: Scope::Value(&SimpleValue {
        path: "/proc/sys/kernel/numa_balancing",
        what: "whether NUMA balancing is on",
        missing: "this kernel has no automatic NUMA balancing",
        good: |value| value == "0",
        pass: "automatic NUMA balancing is off",
        info: "automatic NUMA balancing is on: jobs that are bound to a node get jitter",
        fix: Some(("Turn it off", "0")),
    }),
    group: Group::Host,
    ..Check::DEFAULT
};

pub(in crate::checks) const THP: Check = Check {
    id: CheckId("cpu.thp"),
    title: "transparent huge pages are used on request only",
    why: "If transparent huge pages are always on, the kernel sometimes stops a process to merge \
          pages. Large buffers benefit; latency suffers.",
    inputs: "/sys/kernel/mm/transparent_hugepage/enabled.",
    criteria: "pass: madvise or never. info: always. unknown: not collected.",
    sources: &["Linux Documentation/admin-guide/mm/transhuge.rst"],
    scope: Scope::Value(&SimpleValue {
        path: "/sys/kernel/mm/transparent_hugepage/enabled",
        what: "the mode of transparent huge pages",
        missing: "this kernel has no transparent huge pages",
        good: |value| !value.contains("[always]"),
        pass: "transparent huge pages are used on request only",
        info: "transparent huge pages are always on: the kernel sometimes stops a process to merge \
               pages",
        fix: Some(("Use them on request only", "madvise")),
    }),
    group: Group::Host,
    ..Check::DEFAULT
};

pub(in crate::checks) const NVIDIA_FS: Check = Check {
    id: CheckId("nvidia_fs"),
    title: "it is known whether GPUDirect Storage is installed",
    why: "nvidia_fs gives storage access to GPU memory. RDMA does not need it.",
    inputs: "/proc/driver/nvidia-fs/version.",
    criteria: "info: loaded. skip: not loaded. unknown: not collected.",
    sources: &["NVIDIA GPUDirect Storage overview"],
    scope: Scope::Value(&SimpleValue {
        path: "/proc/driver/nvidia-fs/version",
        what: "whether nvidia_fs is loaded",
        missing: "nvidia_fs is not loaded, which RDMA does not need",
        good: |_| false,
        pass: "",
        info: "nvidia_fs is loaded; RDMA does not need it",
        fix: None,
    }),
    ..Check::DEFAULT
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::fixture::*;

    #[test]
    fn the_right_value_passes_another_is_info_and_a_missing_file_is_skipped() {
        for (check, good, bad) in [
            (&NUMA_BALANCING, Some("0"), "1"),
            (
                &THP,
                Some("always [madvise] never"),
                "[always] madvise never",
            ),
            (&NVIDIA_FS, None, "version: 2.20"),
        ] {
            let Scope::Value(value) = check.scope else {
                panic!("{} is not about one value", check.id);
            };
            let with = |text: &str| example::healthy().file(value.path, format!("{text}\n"));
            if let Some(good) = good {
                assert_eq!(verdict(check, &with(good)), Pass, "{}", check.id);
            }
            assert_eq!(verdict(check, &with(bad)), Info, "{}", check.id);
            assert_eq!(verdict(check, &MemorySource::new()), Skip, "{}", check.id);
        }
    }
}
