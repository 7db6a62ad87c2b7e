//! The log of `nvidia-bug-report.sh`: files and command outputs, one after the other.

use super::smi_query;
use crate::kernel_log;
use crate::probe::{GpuFacts, Probe};
use crate::source::{MAX_FILE, MemorySource, virtual_path};

/// The title of a report.
const TITLE: &str = "Start of NVIDIA bug report log file";
/// How far into a text the title may be.
const HEAD: usize = 4096;
/// The shortest separator between parts.
const RULE: &str = "______________________";

/// The parts of a report that are used.
#[derive(Debug)]
pub(super) struct BugReport {
    /// The files below `/proc` and the kernel log.
    pub(super) files: MemorySource,
    /// The output of lspci and `nvidia-smi topo`.
    pub(super) pages: String,
    /// The active NVLinks of each GPU, in the order of nvidia-smi.
    pub(super) nvlinks: Vec<u8>,
    /// The answer of nvidia-smi.
    pub(super) smi: Option<Probe<GpuFacts>>,
}

/// Returns whether a text is a report.
pub(super) fn is_report(text: &str) -> bool {
    let head = text.get(..HEAD).unwrap_or(text);
    text.len() <= HEAD && text.contains(TITLE) || head.contains(TITLE)
}

/// Reads a report.
pub(super) fn read(text: &str) -> BugReport {
    let mut report = BugReport {
        files: MemorySource::partial(),
        pages: String::new(),
        nvlinks: Vec::new(),
        smi: None,
    };
    let mut log = String::new();
    let mut uname = String::new();
    for part in text.split(RULE) {
        let part = part.trim_start_matches('_').trim_start();
        let Some((head, body)) = part.split_once('\n') else {
            continue;
        };
        if let Some(path) = head.strip_prefix("*** ") {
            let (listed, content) = body.split_once('\n').unwrap_or((body, ""));
            let content = if listed.starts_with("*** ls:") {
                content
            } else {
                body
            };
            report.file(path.trim(), content);
        } else if part.starts_with(TITLE) {
            uname = part
                .lines()
                .find_map(|line| line.strip_prefix("uname: "))
                .unwrap_or_default()
                .to_owned();
        } else if head.contains("lspci") || (head.contains("nvidia-smi") && head.contains("topo")) {
            report.pages.push_str(body);
            report.pages.push('\n');
        } else if head.contains("dmesg") || (head.contains("journalctl") && log.is_empty()) {
            log.push_str(&kernel_log::lines_of_kernel(body));
        } else if head.contains("nvidia-smi") && head.contains("nvlink") {
            if report.nvlinks.is_empty() {
                report.nvlinks = active_links(body);
            }
        } else if report.smi.is_none() {
            report.smi = smi_query::read(body);
        }
    }
    if !log.is_empty() {
        report.put(virtual_path::KERNEL_LOG, last(&log));
    }
    // `Linux host 5.15.0-91-generic #101-Ubuntu SMP ... x86_64 GNU/Linux`
    let words: Vec<&str> = uname.split_whitespace().collect();
    if let [_, host, release, ..] = words.as_slice() {
        report.put("/proc/sys/kernel/hostname", host);
        report.put("/proc/sys/kernel/osrelease", release);
    }
    report
}

impl BugReport {
    /// Adds a file in `/proc`. Of directories below `/sys`, a report contains only some files, which would pass for all
    /// of them.
    fn file(&mut self, path: &str, content: &str) {
        let path = path.replace("/./", "/");
        let is_name = path.starts_with("/proc/") && !path.contains("..") && !path.contains(' ');
        if is_name && !content.trim_end().ends_with("does not exist") {
            self.put(&path, content);
        }
    }

    fn put(&mut self, path: &str, content: impl AsRef<[u8]>) {
        let files = std::mem::replace(&mut self.files, MemorySource::partial());
        self.files = files.file(path, content);
    }
}

/// Returns as much of the end of a log as fits a file.
pub(super) fn last(log: &str) -> &str {
    let Some(mut start) = log.len().checked_sub(MAX_FILE) else {
        return log;
    };
    while !log.is_char_boundary(start) {
        start += 1;
    }
    let rest = log.get(start..).unwrap_or_default();
    rest.split_once('\n').map_or(rest, |(_, lines)| lines)
}

/// Counts the active links below each `GPU 0: ...` of `nvidia-smi nvlink --status`.
fn active_links(text: &str) -> Vec<u8> {
    let mut counts: Vec<u8> = Vec::new();
    for line in text.lines() {
        if line.starts_with("GPU ") {
            counts.push(0);
        } else if let (Some(count), Some((link, state))) =
            (counts.last_mut(), line.trim().split_once(": "))
            && link.starts_with("Link ")
            && state.contains("GB/s")
        {
            *count = count.saturating_add(1);
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::{Absence, Source};

    const REPORT: &str = "\
____________________________________________

Start of NVIDIA bug report log file.  Please include this file, along
with a detailed description of your problem.

nvidia-bug-report.sh Version: 31831145

Date: Thu Oct 27 08:50:11 PM -03 2022
uname: Linux node17 6.8.0-45-generic #45-Ubuntu SMP x86_64 GNU/Linux
command line flags: 

____________________________________________

*** /proc/cmdline
*** ls: -r--r--r-- 1 root root 0 2022-10-27 20:50:12 /proc/cmdline
root=/dev/sda1 iommu=pt

____________________________________________

*** /proc/driver/nvidia/./version
*** ls: -r--r--r-- 1 root root 0 2022-10-27 20:50:12 /proc/driver/nvidia/./version
NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build
____________________________________________

*** /sys/bus/pci/devices/0000:01:00.0/power/control
*** ls: -rw-r--r-- 1 root root 4096 /sys/bus/pci/devices/0000:01:00.0/power/control
auto
____________________________________________

/usr/bin/lspci -d \"10de:*\" -v -xxx

01:00.0 3D controller: NVIDIA Corporation GH100 [H100 SXM5 80GB] (rev a1)
\tFlags: bus master, fast devsel, latency 0, IRQ 16, NUMA node 0, IOMMU group 14
____________________________________________

/usr/bin/nvidia-smi nvlink --status

GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-x)
\t Link 0: 26.562 GB/s
\t Link 1: 26.562 GB/s
\t Link 2: <inactive>
____________________________________________

/usr/bin/nvidia-smi --query

==============NVSMI LOG==============

Driver Version                            : 580.95.05

GPU 00000000:01:00.0
    Compute Mode                          : Default
    ECC Mode
        Current                           : Enabled
____________________________________________

/usr/bin/dmesg:

[    1.000000] Linux version 6.8.0
[   12.345678] NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.
";

    #[test]
    fn a_report_has_files_logs_and_what_commands_printed() {
        assert!(is_report(REPORT) && !is_report("words"));
        let report = read(REPORT);
        let text = |path: &str| report.files.text(path).ok().unwrap_or_default();
        assert_eq!(text("/proc/cmdline"), "root=/dev/sda1 iommu=pt");
        assert!(text("/proc/driver/nvidia/version").contains("580.95.05"));
        assert_eq!(text("/proc/sys/kernel/hostname"), "node17");
        assert!(text(virtual_path::KERNEL_LOG).ends_with("fallen off the bus."));
        assert_eq!(report.smi.unwrap().devices[0].ecc_enabled, Some(true));
        assert!(report.pages.contains("01:00.0 3D controller"));
        assert_eq!(report.nvlinks, [2]);
        // A partially captured directory is not listed as if it were complete.
        assert_eq!(
            report.files.list("/sys/bus/pci/devices"),
            Err(Absence::NotCollected)
        );
    }
}
