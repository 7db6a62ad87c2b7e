//! `gdr run`: what it starts, with which environment, and what it refuses.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Output;

use assert_cmd::Command;
use snapshot::assert_contains;

use super::preloaded::{command, libraries, library};
use super::{code, gdr, stderr, stdout};

fn run(arguments: &[&str]) -> Command {
    let mut command = command(&["run"]);
    command.args(arguments);
    command
}

fn ended(mut command: Command) -> Output {
    command.output().unwrap()
}

#[test]
fn a_program_runs_with_the_library_and_its_own_arguments() {
    let show = "printf '%s\\n' \"$LD_PRELOAD\" \"${GDR_NICS-unset}\" \"$@\"";
    let output = ended(run(&["sh", "-c", show, "sh", "--json", "-v", "a b"]));
    let preload = library().join("libgdr-verbs.so");
    assert_eq!(
        stdout(&output),
        format!("{}\nunset\n--json\n-v\na b\n", preload.display()),
        "{}",
        stderr(&output)
    );
    let output = ended(run(&[
        "--nic",
        "127.0.0.1,lo",
        "--nic",
        "127.0.0.9",
        "--",
        "sh",
        "-c",
        show,
    ]));
    assert!(
        stdout(&output).ends_with("\n127.0.0.1,lo,127.0.0.9\n"),
        "{}",
        stdout(&output)
    );
    assert_eq!(stderr(&output), "");
}

#[test]
fn rails_are_devices_at_loopback_addresses_of_their_own() {
    let output = ended(run(&["--nics", "3", "sh", "-c", "echo $GDR_NICS"]));
    assert_eq!(stdout(&output), "127.0.1.1,127.0.1.2,127.0.1.3\n");
    for wrong in [
        &["--nics", "0", "true"][..],
        &["--nics", "2", "--nic", "lo", "true"],
    ] {
        assert_eq!(code(&ended(run(wrong))), 64, "{wrong:?}");
    }
}

#[test]
fn what_the_loader_was_given_before_stays_behind_the_library() {
    let mut command = run(&[
        "--only-soft",
        "sh",
        "-c",
        "echo $LD_PRELOAD; echo $LD_LIBRARY_PATH",
    ]);
    let own = library().join("libgdr-verbs.so");
    let shadow = library().join("shadow");
    command.env("LD_PRELOAD", format!("{}:/nonexistent.so", own.display()));
    command.env("LD_LIBRARY_PATH", "/first:/second");
    let output = ended(command);
    assert_eq!(
        stdout(&output),
        format!(
            "{}:/nonexistent.so\n{}:/first:/second\n",
            own.display(),
            shadow.display()
        )
    );
}

#[test]
fn the_status_and_the_signal_of_the_program_are_those_of_gdr() {
    for status in [0, 1, 2, 64, 125] {
        let output = ended(run(&["sh", "-c", &format!("exit {status}")]));
        assert_eq!(code(&output), status);
    }
    let output = ended(run(&["sh", "-c", "kill -TERM $$"]));
    assert_eq!(output.status.signal(), Some(15));
    // The program has gdr's process, so it gets what is sent to that.
    let output = ended(run(&["sh", "-c", "echo $$; exec sh -c 'echo $$'"]));
    let text = stdout(&output);
    let ids: Vec<_> = text.lines().collect();
    assert_eq!(ids[0], ids[1]);
}

#[test]
fn the_environment_is_printed_for_a_shell() {
    let output = ended(run(&["--nic", "127.0.0.1", "--only-soft", "--print-env"]));
    let folder = library().display();
    assert_eq!(
        stdout(&output),
        format!(
            "export LD_PRELOAD='{folder}/libgdr-verbs.so'\n\
             export LD_LIBRARY_PATH='{folder}/shadow'\n\
             export GDR_ONLY_SOFT='1'\n\
             export GDR_NICS='127.0.0.1'\n\
             export NCCL_NET_GDR_LEVEL='SYS'\n\
             export NCCL_GIN_TYPE='2'\n\
             export NCCL_MIN_NCHANNELS='4'\n"
        )
    );
    assert_eq!(code(&output), 0);
}

#[test]
fn nccl_sends_from_gpu_memory_unless_the_user_says_otherwise() {
    let mut command = run(&[
        "--only-soft",
        "sh",
        "-c",
        "echo $NCCL_NET_GDR_LEVEL $NCCL_GIN_TYPE",
    ]);
    command.env("NCCL_NET_GDR_LEVEL", "PHB");
    assert_eq!(stdout(&ended(command)), "PHB 2\n");
}

#[test]
fn nccl_has_four_channels_unless_the_user_limits_them() {
    let ran = |variable: Option<(&str, &str)>| {
        let mut command = run(&["--only-soft", "sh", "-c", "echo $NCCL_MIN_NCHANNELS"]);
        command.envs(variable);
        stdout(&ended(command))
    };
    assert_eq!(ran(None), "4\n");
    assert_eq!(ran(Some(("NCCL_MIN_NCHANNELS", "8"))), "8\n");
    // NCCL would have four channels all the same.
    assert_eq!(ran(Some(("NCCL_MAX_NCHANNELS", "2"))), "\n");
    assert_eq!(ran(Some(("NCCL_MAX_NRINGS", "2"))), "\n");
}

#[test]
fn a_program_that_is_not_there_or_cannot_run_has_the_status_of_env() {
    let output = ended(run(&["no-such-program"]));
    assert_eq!(code(&output), 127, "{}", stderr(&output));
    assert!(stderr(&output).contains("no-such-program: no such program"));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "#!/bin/sh\n").unwrap();
    let output = ended(run(&[file.to_str().unwrap()]));
    assert_eq!(code(&output), 126, "{}", stderr(&output));
}

#[test]
fn a_statically_linked_program_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (source, program) = (folder.path().join("a.c"), folder.path().join("static"));
    fs::write(&source, "int main(void) { return 0; }\n").unwrap();
    let built = std::process::Command::new("cc")
        .args(["-static", "-o"])
        .args([&program, &source])
        .status();
    if !built.is_ok_and(|status| status.success()) {
        skip::skip("no static C library");
        return;
    }
    let output = ended(run(&[program.to_str().unwrap()]));
    assert_eq!(code(&output), 126);
    assert_contains!(stderr(&output), "statically linked");
}

#[test]
fn a_setuid_program_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("program");
    crate::copy_program("/bin/true", &program);
    if std::os::unix::fs::chown(&program, Some(65534), None).is_err() {
        skip::skip("only root makes a program of another user");
        return;
    }
    fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).unwrap();
    let output = ended(run(&[program.to_str().unwrap()]));
    assert_eq!(code(&output), 126);
    let text = stderr(&output);
    assert_contains!(text, "more rights than its caller (setuid)");
}

#[test]
fn a_library_that_is_missing_or_another_is_named_with_what_to_do() {
    let with = |library: &Path| {
        let mut command = run(&["true"]);
        command.env("GDR_VERBS_LIBRARY", library);
        let output = ended(command);
        assert_eq!(code(&output), 125);
        stderr(&output)
    };
    let text = with(Path::new("/nonexistent"));
    assert!(
        text.contains("/nonexistent") && text.contains("GDR_VERBS_LIBRARY"),
        "{text}"
    );
    let text = with(libraries("0.0.9").path());
    assert!(
        text.contains("has version 0.0.9") && text.contains("install the same version of both"),
        "{text}"
    );
    let libc: PathBuf = ["/bin/sh"].iter().collect();
    let text = with(&libc);
    assert_contains!(text, "is not gdr's verbs library");
    let text = with(&library().join("library.c"));
    assert_contains!(text, "is not gdr's verbs library");
    // LD_PRELOAD has no quoting.
    let folder = tempfile::tempdir().unwrap();
    let spaced = folder.path().join("a b");
    fs::create_dir(&spaced).unwrap();
    fs::copy(
        library().join("libgdr-verbs.so"),
        spaced.join("libgdr-verbs.so"),
    )
    .unwrap();
    let text = with(&spaced);
    assert_contains!(text, "which LD_PRELOAD uses to separate paths");
}

#[test]
fn the_library_beside_gdr_is_found() {
    let prefix = tempfile::tempdir().unwrap();
    fs::create_dir_all(prefix.path().join("bin")).unwrap();
    fs::create_dir_all(prefix.path().join("lib")).unwrap();
    let gdr = prefix.path().join("bin/gdr");
    crate::copy_program(assert_cmd::cargo_bin!("gdr"), &gdr);
    symlink(library(), prefix.path().join("lib/gdr")).unwrap();
    let output = Command::new(&gdr)
        .env_remove("GDR_VERBS_LIBRARY")
        .env_remove("LD_PRELOAD")
        .args(["run", "--print-env"])
        .output()
        .unwrap();
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let preload = format!(
        "export LD_PRELOAD='{}/libgdr-verbs.so'\n",
        library().display()
    );
    assert!(stdout(&output).starts_with(&preload), "{}", stdout(&output));
}

#[test]
fn a_nic_of_another_host_is_a_usage_error() {
    for nic in ["192.0.2.7", "no-such-interface", "2001:db8::1"] {
        let output = ended(run(&["--nic", nic, "true"]));
        assert_eq!(code(&output), 64, "{nic}");
        assert!(stderr(&output).contains(nic), "{}", stderr(&output));
    }
    for line in [
        &["run"][..],
        &["run", "--print-env", "true"],
        &["run", "--json", "true"],
    ] {
        assert_eq!(code(&gdr(line)), 64, "{line:?}");
    }
}

#[test]
fn near_takes_a_pci_function_of_this_host() {
    let output = ended(run(&["--near", "ffff:ff:1f.7", "--", "true"]));
    assert_eq!(code(&output), 64, "{}", stderr(&output));
    assert!(stderr(&output).contains("--near ffff:ff:1f.7"));
    // No host has so many GPUs.
    for name in ["somewhere", "4000000000"] {
        let output = ended(run(&["--near", name, "--", "true"]));
        assert_eq!(code(&output), 64, "{}", stderr(&output));
    }
    let functions = fs::read_dir("/sys/bus/pci/devices").ok();
    let Some(function) = functions.and_then(|mut all| all.next()) else {
        skip::skip("this host has no PCI");
        return;
    };
    let function = function.unwrap().file_name().into_string().unwrap();
    let output = ended(run(&[
        "--near",
        &function,
        "--",
        "sh",
        "-c",
        "echo $GDR_VERBS_NEAR",
    ]));
    assert_eq!(
        stdout(&output),
        format!("{function}\n"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn a_program_that_moved_nothing_by_rdma_has_a_status_of_its_own() {
    let required = |option: &str, script: &str| ended(run(&[option, "--", "sh", "-c", script]));
    let wrote = |text: &str| format!("printf '{text}' > $GDR_VERBS_USE/$$-1.use");
    let moved = wrote("listed\\nopened\\nqueue-pair\\nready\\nbytes 4096\\n");
    for (option, script, status, part) in [
        ("--require-rdma", moved.clone(), 0, ""),
        ("--require-rdma=4K", moved.clone(), 0, ""),
        (
            "--require-rdma=5K",
            moved.clone(),
            120,
            "moved 4096 bytes; 5120 are required",
        ),
        (
            "--require-rdma",
            wrote("listed\\n"),
            120,
            "listed the devices but opened none",
        ),
        (
            "--require-rdma",
            "true".to_owned(),
            120,
            "no process asked for RDMA devices",
        ),
        // The program's own status counts more.
        ("--require-rdma", "exit 7".to_owned(), 7, ""),
        ("--require-rdma", "kill -KILL $$".to_owned(), 137, ""),
    ] {
        let output = required(option, &script);
        assert_eq!(
            code(&output),
            status,
            "{option} {script}: {}",
            stderr(&output)
        );
        assert_contains!(stderr(&output), part, "{script}");
    }
    // Nothing of it stays.
    let output = required("--require-rdma", &format!("{moved}; echo $GDR_VERBS_USE"));
    assert!(!Path::new(stdout(&output).trim_end()).exists());
}
