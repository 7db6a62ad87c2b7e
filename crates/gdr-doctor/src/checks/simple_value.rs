//! The checks that compare one file with one value.

use crate::check::Group;
use crate::checks::prelude::*;

/// A file, the value that it should have, and what follows from another one.
pub(crate) struct SimpleValue {
    path: &'static str,
    /// What the value says, for findings that it is unknown.
    what: &'static str,
    /// Why the check does not apply where there is no such file.
    missing: &'static str,
    /// Whether a value is the wanted one.
    good: fn(&str) -> bool,
    pass: &'static str,
    info: &'static str,
    /// What to write into the file, and what that brings about.
    fix: Option<(&'static str, &'static str)>,
}

impl SimpleValue {
    /// What the value of the file means.
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
    title: "the kernel does not move memory between NUMA nodes on its own",
    why: "With automatic NUMA balancing the kernel takes pages away for a moment to see who uses \
          them. Jobs that are bound to their node gain nothing and see jitter.",
    inputs: "/proc/sys/kernel/numa_balancing.",
    criteria: "pass: off, or a kernel without it. info: on. unknown: not collected.",
    sources: &["Linux Documentation/admin-guide/sysctl/kernel.rst: numa_balancing"],
    scope: Scope::Value(&SimpleValue {
        path: "/proc/sys/kernel/numa_balancing",
        what: "whether NUMA balancing is on",
        missing: "this kernel has no automatic NUMA balancing",
        good: |value| value == "0",
        pass: "automatic NUMA balancing is off",
        info: "automatic NUMA balancing is on: bound jobs see jitter from it",
        fix: Some(("Turn it off", "0")),
    }),
    group: Group::Host,
    ..Check::DEFAULT
};

pub(in crate::checks) const THP: Check = Check {
    id: CheckId("cpu.thp"),
    title: "transparent huge pages are made on request only",
    why: "With transparent huge pages always on, the kernel stops a process now and then to put \
          pages together. Large buffers gain from them; latency sees the stops.",
    inputs: "/sys/kernel/mm/transparent_hugepage/enabled.",
    criteria: "pass: madvise or never. info: always. unknown: not collected.",
    sources: &["Linux Documentation/admin-guide/mm/transhuge.rst"],
    scope: Scope::Value(&SimpleValue {
        path: "/sys/kernel/mm/transparent_hugepage/enabled",
        what: "when transparent huge pages are made",
        missing: "this kernel has no transparent huge pages",
        good: |value| !value.contains("[always]"),
        pass: "transparent huge pages are made on request only",
        info: "transparent huge pages are always made: latency sees stops from it",
        fix: Some(("Make them on request", "madvise")),
    }),
    group: Group::Host,
    ..Check::DEFAULT
};

pub(in crate::checks) const NVIDIA_FS: Check = Check {
    id: CheckId("nvidia_fs"),
    title: "whether GPUDirect Storage is there",
    why: "nvidia_fs lets storage reach GPU memory. RDMA does not need it.",
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
    fn the_wanted_value_passes_another_is_worth_knowing_and_a_missing_file_is_no_fault() {
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
