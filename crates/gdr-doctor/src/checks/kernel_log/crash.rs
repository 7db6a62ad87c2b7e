use regex::Regex;

use super::message::{Message, messages};
use super::rule::cut;
use crate::checks::prelude::*;

/// The first lines of crash reports.
const HEAD: &str = r"Oops|^BUG: |general protection fault|kernel BUG at";
/// A function of one of the drivers in a report: `nvidia_ioctl+0x1b/0x30 [nvidia]`.
const DRIVER: &str = r"\[(?P<module>nvidia\w*|nv_peer_mem|mlx[45]_\w+|ib_\w+|rdma_\w+|gdrdrv)\b";
/// The most lines of a report.
const REPORT: usize = 80;

pub(super) const CHECK: Check = Check {
    id: CheckId("klog.crash"),
    title: "the kernel has not crashed in a driver of GPUs or NICs",
    why: "After a crash in a driver its locks and lists may be corrupt: transfers hang, and \
          modules cannot be unloaded.",
    criteria: "fail: an Oops, BUG or general protection fault whose report has a function of \
               nvidia, mlx5, ib_core, gdrdrv or a similar module. pass: none. unknown: the log may \
               not be read.",
    sources: &["Linux Documentation/admin-guide/bug-hunting.rst"],
    scope: Scope::Node(run),
    ..super::CHECK
};

fn run(context: &Context<'_>) -> Judgement {
    let log = context
        .text(virtual_path::KERNEL_LOG)
        .known("the kernel log")?;
    let (Ok(head), Ok(driver)) = (Regex::new(HEAD), Regex::new(DRIVER)) else {
        return Err(Unjudged::OutOfScope);
    };
    // The current report: its first line, and the number of the line that ends it at the latest.
    let mut report: Option<(Message<'_>, usize)> = None;
    for (number, message) in messages(&log).enumerate() {
        let open = report.filter(|(_, end)| number < *end);
        if head.is_match(message.text) {
            let first = open.map_or(message, |(first, _)| first);
            report = Some((first, number + REPORT));
            continue;
        }
        // The list of all modules names drivers that did not crash.
        if message.text.starts_with("Modules linked in") {
            continue;
        }
        let culprit = open.and_then(|(first, _)| {
            let module = driver.captures(message.text)?["module"].to_owned();
            Some((first, module))
        });
        if let Some((first, module)) = culprit {
            return Ok(crashed(first, message, &module));
        }
    }
    Ok(Finding::pass(
        "the kernel has not crashed in a driver of GPUs or NICs",
    ))
}

fn crashed(first: Message<'_>, trace: Message<'_>, module: &str) -> Finding {
    Finding::fail(format!(
        "the kernel has crashed in {module}: restart the machine"
    ))
    .evidence(virtual_path::KERNEL_LOG, cut(first.line))
    .evidence(virtual_path::KERNEL_LOG, cut(trace.line))
    .fix(
        Fix::manual(
            "Restart the machine",
            "then update the driver, and report the crash to its vendor with the whole log",
        )
        .risk(Risk::Medium, "everything on the machine stops"),
    )
}

#[cfg(test)]
mod tests {
    use gdr_node::{MemorySource, example};

    use super::*;
    use crate::checks::fixture::{verdict, worst};
    use crate::finding::Verdict;

    fn log(text: &str) -> MemorySource {
        example::healthy().file(virtual_path::KERNEL_LOG, text)
    }

    #[test]
    fn a_quiet_log_passes() {
        assert_eq!(verdict(&CHECK, &example::healthy()), Verdict::Pass);
    }

    #[test]
    fn a_crash_in_a_driver_fails_and_names_it() {
        let found = worst(
            &CHECK,
            &log(
                "[  100.1] BUG: unable to handle page fault for address: ffff\n\
                 [  100.2] Oops: 0000 [#1] SMP NOPTI\n\
                 [  100.3] Modules linked in: gdrdrv(OE) nvidia(OE) [last unloaded: ib_core]\n\
                 [  100.4] Call Trace:\n\
                 [  100.5]  nv_get_p2p_free_callback+0x1b/0x30 [nvidia_peermem]\n",
            ),
        );
        assert_eq!(found.verdict, Verdict::Fail);
        assert!(
            found.summary.contains("nvidia_peermem"),
            "{}",
            found.summary
        );
    }

    #[test]
    fn a_crash_in_another_module_and_a_warning_pass() {
        let elsewhere = "[  100.2] Oops: 0000 [#1] SMP NOPTI\n\
                         [  100.3] Modules linked in: gdrdrv(OE) nvidia(OE) [last unloaded: x]\n\
                         [  100.5]  btrfs_sync+0x1b/0x30 [btrfs]\n";
        assert_eq!(verdict(&CHECK, &log(elsewhere)), Verdict::Pass);
        let warning = "[   10.0] WARNING: CPU: 0 PID: 1 at mm/page_alloc.c\n\
                       [   10.1] Call Trace:\n\
                       [   10.2]  mlx5_load+0x1/0x2 [mlx5_core]\n";
        assert_eq!(verdict(&CHECK, &log(warning)), Verdict::Pass);
    }
}
