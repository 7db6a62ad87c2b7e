use gdr_node::kernel_log::{Record, records};
use regex::{Regex, RegexBuilder};

use super::expressions::{CRASH, DRIVER_FRAME, KERNEL_WARNING};
use super::rule::cut;
use crate::checks::prelude::*;

/// The most lines of a report.
const REPORT: usize = 80;

pub(super) const CHECK: Check = Check {
    id: CheckId("klog.crash"),
    title: "the kernel has not crashed in a driver of GPUs or NICs",
    why: "After a crash in a driver its locks and lists may be corrupt: transfers hang, and \
          modules cannot be unloaded. After a warning the driver goes on, in a state that its \
          authors did not expect.",
    criteria: "fail: an Oops, BUG, fault or bad access whose report has a function of nvidia, mlx5, \
               ib_core, gdrdrv or a similar module. warn: a warning with one. info: such a crash \
               elsewhere. pass: none. unknown: the log may not be read.",
    sources: &["Linux Documentation/admin-guide/bug-hunting.rst"],
    scope: Scope::Node(run),
    ..super::CHECK
};

fn run(context: &Context<'_>) -> Judgement {
    let log = context
        .text(virtual_path::KERNEL_LOG)
        .known("the kernel log")?;
    let (Ok(crash), Ok(warning), Ok(driver)) = (
        RegexBuilder::new(CRASH).case_insensitive(true).build(),
        Regex::new(KERNEL_WARNING),
        Regex::new(DRIVER_FRAME),
    ) else {
        return Err(Unjudged::OutOfScope);
    };
    // The current report: its kind, its first line, and the number of the record that ends it at
    // the latest.
    let mut report: Option<(Kind, Record<'_>, usize)> = None;
    let mut warned = None;
    let mut elsewhere = None;
    for (number, message) in records(&log).enumerate() {
        report = report.filter(|(_, _, end)| number < *end);
        let kind = match &*message.text {
            text if crash.is_match(text) => Some(Kind::Crash),
            text if warning.is_match(text) => Some(Kind::Warning),
            _ => None,
        };
        if let Some(kind) = kind {
            let first = match report.take() {
                Some((known, first, _)) if known == kind => first,
                _ => message.clone(),
            };
            if kind == Kind::Crash {
                elsewhere = elsewhere.or_else(|| Some(first.clone()));
            }
            report = Some((kind, first, number + REPORT));
        }
        // The list of all modules names drivers that did not crash.
        if message.text.starts_with("Modules linked in") {
            continue;
        }
        let Some((kind, first, _)) = &report else {
            continue;
        };
        let Some(found) = driver.captures(&message.text) else {
            continue;
        };
        let finding = reported(*kind, first, &message, &found["module"]);
        match kind {
            Kind::Crash => return Ok(finding),
            Kind::Warning => warned = warned.or(Some(finding)),
        }
    }
    Ok(match (warned, elsewhere) {
        (Some(warned), _) => warned,
        (None, Some(first)) => Finding::info(
            "the kernel has crashed outside of the drivers of GPUs and NICs: restart the machine",
        )
        .evidence(virtual_path::KERNEL_LOG, cut(first.line)),
        (None, None) => Finding::pass("the kernel has not crashed in a driver of GPUs or NICs"),
    })
}

/// What the kernel reports with a trace.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// An access or a state after which it cannot go on.
    Crash,
    /// A state that should not be.
    Warning,
}

fn reported(kind: Kind, first: &Record<'_>, trace: &Record<'_>, module: &str) -> Finding {
    let finding = match kind {
        Kind::Crash => Finding::fail(format!(
            "the kernel has crashed in {module}: restart the machine"
        ))
        .fix(
            Fix::manual(
                "Restart the machine",
                "then update the driver, and report the crash to its vendor with the whole log",
            )
            .risk(Risk::Medium, "everything on the machine stops"),
        ),
        Kind::Warning => Finding::warn(format!("the kernel has warned of a fault in {module}"))
            .fix(Fix::manual(
                "Update the driver",
                "if the newest one still warns, report it to its vendor with the whole log",
            )),
    };
    finding
        .evidence(virtual_path::KERNEL_LOG, cut(first.line))
        .evidence(virtual_path::KERNEL_LOG, cut(trace.line))
}

#[cfg(test)]
mod tests {
    use gdr_node::{MemorySource, example};
    use snapshot::assert_contains;

    use super::*;
    use crate::checks::fixture::{Fail, Info, judged, verdict};
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
        let found = judged(
            &CHECK,
            &log(
                "[  100.1] BUG: unable to handle page fault for address: ffff\n\
                 [  100.2] Oops: 0000 [#1] SMP NOPTI\n\
                 [  100.3] Modules linked in: gdrdrv(OE) nvidia(OE) [last unloaded: ib_core]\n\
                 [  100.4] Call Trace:\n\
                 [  100.5]  nv_get_p2p_free_callback+0x1b/0x30 [nvidia_peermem]\n",
            ),
            Fail,
        );
        assert_contains!(found.summary, "nvidia_peermem");
    }

    #[test]
    fn a_crash_on_arm_fails_and_a_warning_in_a_driver_warns() {
        let arm = "2026-01-15T09:47:08.616100+00:00 n kernel: Unable to handle kernel NULL pointer \
                   dereference at virtual address 0000000000000008\n\
                   2026-01-15T09:47:08.616165+00:00 n kernel: Call trace:\n\
                   2026-01-15T09:47:08.616166+00:00 n kernel:  devx_umem_reg+0x2b0/0x5a0 [mlx5_ib]\n";
        let found = judged(&CHECK, &log(arm), Fail);
        assert_contains!(found.summary, "mlx5_ib");
        let warning = "[   10.0] WARNING: CPU: 0 PID: 1 at drivers/x.c:9 mlx5_load+0x1/0x2 [mlx5_core]\n\
                       [   10.1] Modules linked in: nvidia(OE)\n";
        assert_eq!(verdict(&CHECK, &log(warning)), Verdict::Warn);
    }

    #[test]
    fn a_crash_in_another_module_is_reported_and_a_warning_passes() {
        let elsewhere = "[  100.2] Oops: 0000 [#1] SMP NOPTI\n\
                         [  100.3] Modules linked in: gdrdrv(OE) nvidia(OE) [last unloaded: x]\n\
                         [  100.5]  btrfs_sync+0x1b/0x30 [btrfs]\n";
        let found = judged(&CHECK, &log(elsewhere), Info);
        assert_contains!(found.evidence[0].value, "Oops", "{found:?}");
        let warning = "[   10.0] WARNING: CPU: 0 PID: 1 at mm/page_alloc.c\n\
                       [   10.1] Call Trace:\n\
                       [   10.2]  ext4_sync+0x1/0x2 [ext4]\n";
        assert_eq!(verdict(&CHECK, &log(warning)), Verdict::Pass);
    }
}
