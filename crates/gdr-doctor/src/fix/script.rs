//! A plan as a shell script.

use std::fmt::Write;

use super::plan::Plan;
use super::shell::{comment, word};
use crate::fix::{Action, Fix};
use crate::report::terms;

/// The end of a file's content in the script.
const END: &str = "END_OF_FILE";

/// Renders the plan as a script for `/bin/sh`: every step with its reason, its commands, and its undo lines as
/// comments. Fixes that have to be done by hand are comments.
pub fn script(plan: &Plan) -> String {
    let mut out = String::from("#!/bin/sh\n");
    let host = plan.host.as_deref().unwrap_or("this node");
    out.push_str(&comment(&format!(
        "What gdr fix would do on {host}. Nothing has been changed.\n\
         Read it, then run it as root; or let gdr fix --apply do the same with a journal.\n\
         Below each step are the lines that undo it."
    )));
    out.push_str("set -eu\n");
    if plan.steps.is_empty() {
        out.push_str("\n# There is nothing to do.\n");
    }
    for (number, step) in (1..).zip(&plan.steps) {
        out.push('\n');
        out.push_str(&comment(&format!(
            "{number}. {}: {}: {} ({})",
            step.verdict, step.subject, step.summary, step.check
        )));
        for fix in &step.fixes {
            heading(&mut out, "", fix);
            for action in &fix.actions {
                commands(&mut out, action);
            }
        }
        for fix in &step.others {
            heading(&mut out, "not done here: ", fix);
            for action in &fix.actions {
                out.push_str(&comment(&format!("    {action}")));
            }
        }
    }
    out
}

fn heading(out: &mut String, prefix: &str, fix: &Fix) {
    out.push_str(&comment(&format!("{prefix}{} ({})", fix.title, terms(fix))));
    if let Some(caution) = &fix.caution {
        out.push_str(&comment(&format!("note: {caution}")));
    }
}

fn commands(out: &mut String, action: &Action) {
    // Writing to a string never fails.
    let _ = match action {
        Action::WriteConfig {
            bdf,
            register,
            mask,
            value,
            was,
        } => {
            let name = register.setpci();
            let before = was & mask;
            writeln!(
                out,
                "setpci -s {bdf} {name}={value:04x}:{mask:04x}\n\
                 # Some ports ignore what is written to them: read it again.\n\
                 now=$(setpci -s {bdf} {name})\n\
                 if [ $((0x$now & 0x{mask:04x})) -ne $((0x{value:04x})) ]; then\n  \
                 echo \"{bdf}: {register} did not change: $now\" >&2\n  exit 1\nfi\n\
                 # undo: setpci -s {bdf} {name}={before:04x}:{mask:04x}"
            )
        }
        Action::LoadModule { module } => {
            let module = word(module);
            writeln!(out, "modprobe {module}\n# undo: modprobe -r {module}")
        }
        Action::WriteFile { path, content } => file(out, path, content),
        Action::Rescan { bdf } => writeln!(
            out,
            "if [ -e /sys/bus/pci/devices/{bdf}/driver ]; then\n  \
             echo \"{bdf}: a driver holds it\" >&2\n  exit 1\nfi\n\
             echo 1 > /sys/bus/pci/devices/{bdf}/remove\n\
             echo 1 > /sys/bus/pci/rescan\n\
             # undo: nothing to undo"
        ),
        Action::Mtu { netdev, mtu } => {
            let place = word(&format!("/sys/class/net/{netdev}/mtu"));
            writeln!(
                out,
                "before=$(cat {place})\n\
                 ip link set dev {netdev} mtu {mtu}\n\
                 echo \"undo with: ip link set dev {netdev} mtu $before\"\n\
                 # undo: ip link set dev {netdev} mtu <what it was>",
                netdev = word(netdev),
            )
        }
        // A plan has none of these among what it does.
        Action::UnloadModule { .. }
        | Action::WriteSysfs { .. }
        | Action::KernelArgument { .. }
        | Action::Command { .. }
        | Action::Manual { .. } => {
            out.push_str(&comment(&action.to_string()));
            Ok(())
        }
    };
}

fn file(out: &mut String, path: &str, content: &str) -> std::fmt::Result {
    let end = (0..)
        .map(|n| {
            if n == 0 {
                END.to_owned()
            } else {
                format!("{END}_{n}")
            }
        })
        .find(|end| content.lines().all(|line| line != end))
        .unwrap_or_default();
    let folder = path.rsplit_once('/').map_or("/", |(folder, _)| folder);
    let (path, folder) = (word(path), word(folder));
    let body = content.trim_end_matches('\n');
    writeln!(
        out,
        "mkdir -p {folder}\n\
         if [ -e {path} ]; then\n  cp -p {path} {path}.before-gdr\nfi\n\
         cat > {path} <<'{end}'\n{body}\n{end}\n\
         # undo: if [ -e {path}.before-gdr ]; then mv {path}.before-gdr {path}; \
         else rm {path}; fi"
    )
}

#[cfg(test)]
mod tests {
    use super::super::plan::tests::diagnosis;
    use super::*;
    use crate::finding::{Finding, Subject};
    use crate::fix::Register;

    /// Returns every action in one plan, with texts as hostile as a capture may hold.
    pub(in crate::fix) fn everything() -> Plan {
        let fix = Fix::now(
            "Do it",
            Action::WriteConfig {
                bdf: "40:01.1".parse().unwrap(),
                register: Register::AcsControl,
                mask: 0x002c,
                value: 0,
                was: 0x001d,
            },
        )
        .then(Action::load("nvidia_peermem"))
        .then(Action::file(
            "/etc/security/limits.d/99-gdr.conf",
            "* - memlock unlimited\nEND_OF_FILE\n",
        ))
        .then(Action::Rescan {
            bdf: "41:00.0".parse().unwrap(),
        })
        .then(Action::Mtu {
            netdev: "ens1f0".into(),
            mtu: 9000,
        });
        let hostile = "x\nrm -rf /\n$(reboot) `reboot` '";
        Plan::new(
            &diagnosis(vec![
                Finding::fail(hostile)
                    .about(Subject::Named(hostile.into()))
                    .fix(fix.risk(crate::fix::Risk::Medium, hostile))
                    .fix(Fix::at_boot(hostile, Action::boot(hostile)))
                    .fix(Fix::now(
                        "x",
                        Action::Mtu {
                            netdev: hostile.into(),
                            mtu: 9000,
                        },
                    )),
            ]),
            &[],
        )
    }

    #[test]
    fn the_script_does_what_was_planned_and_nothing_that_a_text_says() {
        let text = script(&everything());
        assert!(text.contains("\nsetpci -s 0000:40:01.1 ECAP_ACS+6.w=0000:002c\n"));
        assert!(text.contains("# undo: setpci -s 0000:40:01.1 ECAP_ACS+6.w=000c:002c\n"));
        assert!(
            text.contains("<<'END_OF_FILE_1'\n* - memlock unlimited\nEND_OF_FILE\nEND_OF_FILE_1\n")
        );
        for line in text.lines() {
            let code = line.split('#').next().unwrap_or("");
            assert!(
                !code.contains("reboot") && !code.contains("rm -rf"),
                "{line}"
            );
        }
    }

    #[test]
    fn a_plan_of_nothing_is_a_script_of_nothing() {
        assert!(script(&Plan::default()).contains("# There is nothing to do.\n"));
    }

    #[test]
    fn the_shell_and_shellcheck_take_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fix.sh");
        for plan in [everything(), Plan::default()] {
            std::fs::write(&path, script(&plan)).unwrap();
            let parsed = std::process::Command::new("sh")
                .arg("-n")
                .arg(&path)
                .output()
                .unwrap();
            assert!(parsed.status.success(), "{parsed:?}");
            match std::process::Command::new("shellcheck").arg(&path).output() {
                Ok(checked) => {
                    let said = String::from_utf8_lossy(&checked.stdout).into_owned();
                    assert!(checked.status.success(), "{said}");
                }
                Err(_) => eprintln!("skipped: shellcheck is not installed"),
            }
        }
    }
}
