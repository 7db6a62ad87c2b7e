//! Scripts of packaging/: install.sh of the archive, and gdr-textfile of the timer.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn packaging() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging")
}

fn text(output: &Output) -> String {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {errors}", output.status);
    String::from_utf8(output.stdout.clone()).expect("text")
}

fn write(path: &Path, content: &str, mode: u32) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// Creates an unpacked archive with one file of each kind.
fn archive(folder: &Path) {
    let script = fs::read_to_string(packaging().join("install.sh")).unwrap();
    write(&folder.join("install.sh"), &script, 0o755);
    write(&folder.join("bin/gdr"), "the command", 0o755);
    symlink("gdr", folder.join("bin/gdrcopy_sanity")).unwrap();
    write(
        &folder.join("libexec/gdr/gdr-textfile"),
        "@prefix@/bin/gdr",
        0o755,
    );
    let unit = "ExecStart=@prefix@/bin/gdr\n";
    write(&folder.join("lib/systemd/system/gdr.service"), unit, 0o644);
    write(&folder.join("share/gdr/limits.d/gdr.conf"), "limits", 0o644);
    write(&folder.join("LICENSE-MIT"), "not installed", 0o644);
}

fn install(archive: &Path, arguments: &[&str]) -> Output {
    Command::new("sh")
        .arg(archive.join("install.sh"))
        .args(arguments)
        .output()
        .unwrap()
}

/// Returns every file below a folder, sorted.
fn files(folder: &Path) -> Vec<String> {
    let output = Command::new("find")
        .arg(folder)
        .args(["-mindepth", "1", "-printf", "%P\n"])
        .output();
    let mut files: Vec<_> = text(&output.unwrap()).lines().map(str::to_owned).collect();
    files.sort();
    files
}

#[test]
fn install_sh_installs_below_the_prefix_and_its_removal_leaves_what_was_there() {
    let folder = tempfile::tempdir().unwrap();
    let (unpacked, prefix) = (folder.path().join("unpacked"), folder.path().join("prefix"));
    archive(&unpacked);
    write(&prefix.join("bin/other"), "another program", 0o755);
    let arguments = ["--prefix", prefix.to_str().unwrap()];
    // Twice, because the second run must replace the first.
    for _ in 0..2 {
        text(&install(&unpacked, &arguments));
    }
    let unit = fs::read_to_string(prefix.join("lib/systemd/system/gdr.service")).unwrap();
    assert_eq!(unit, format!("ExecStart={}/bin/gdr\n", prefix.display()));
    let link = prefix.join("bin/gdrcopy_sanity").read_link().unwrap();
    assert_eq!(link, Path::new("gdr"));
    let script = fs::metadata(prefix.join("libexec/gdr/gdr-textfile")).unwrap();
    assert_eq!(script.permissions().mode() & 0o777, 0o755);
    assert!(!prefix.join("LICENSE-MIT").exists());

    // A newer version has different files.
    fs::remove_file(unpacked.join("share/gdr/limits.d/gdr.conf")).unwrap();
    text(&install(&unpacked, &arguments));
    assert!(!prefix.join("share/gdr/limits.d").exists());

    text(&install(
        &unpacked,
        &[arguments[0], arguments[1], "--uninstall"],
    ));
    assert_eq!(files(&prefix), ["bin", "bin/other"]);
    let again = install(&unpacked, &[arguments[0], arguments[1], "--uninstall"]);
    assert_eq!(again.status.code(), Some(64));
}

#[test]
fn below_a_destdir_the_units_name_the_prefix_alone() {
    let folder = tempfile::tempdir().unwrap();
    let (unpacked, root) = (folder.path().join("unpacked"), folder.path().join("root"));
    archive(&unpacked);
    text(&install(&unpacked, &["--destdir", root.to_str().unwrap()]));
    let unit = fs::read_to_string(root.join("usr/local/lib/systemd/system/gdr.service")).unwrap();
    assert_eq!(unit, "ExecStart=/usr/local/bin/gdr\n");
}

#[test]
fn install_sh_refuses_what_it_cannot_do_and_says_why() {
    let folder = tempfile::tempdir().unwrap();
    archive(folder.path());
    for (arguments, reason) in [
        (&["--prefix", "gdr"][..], "not an absolute path"),
        (&["--prefix", "/opt/g dr"], "cannot contain this path"),
        (&["--prefix"], "needs a folder"),
        (&["--libdir", "/lib"], "no such option"),
    ] {
        let output = install(folder.path(), arguments);
        assert_eq!(output.status.code(), Some(64), "{arguments:?}");
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(error.contains(reason), "{error}");
    }
}

/// Runs gdr-textfile with a gdr that prints this and exits with this.
fn textfile(folder: &Path, prints: &str, status: u8) -> Output {
    let gdr = folder.join("gdr");
    write(
        &gdr,
        &format!("#!/bin/sh\necho '{prints}' \"$*\"\nexit {status}\n"),
        0o755,
    );
    Command::new("sh")
        .arg(packaging().join("gdr-textfile"))
        .args(["--for", "nccl"])
        .env("GDR", gdr)
        .env("TEXTFILE_FOLDER", folder.join("collected"))
        .output()
        .unwrap()
}

#[test]
fn every_outcome_of_the_doctor_becomes_metrics_and_a_failure_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let collected = folder.path().join("collected");
    let without = textfile(folder.path(), "x", 0);
    let error = String::from_utf8(without.stderr).unwrap();
    assert!(
        error.contains("does not exist; set TEXTFILE_FOLDER"),
        "{error}"
    );

    fs::create_dir(&collected).unwrap();
    for status in [0, 1, 2, 3] {
        text(&textfile(
            folder.path(),
            &format!("outcome {status}"),
            status,
        ));
        let written = fs::read_to_string(collected.join("gdr.prom")).unwrap();
        assert_eq!(
            written,
            format!("outcome {status} doctor --format prom --for nccl\n")
        );
    }
    let failed = textfile(folder.path(), "usage", 64);
    assert_eq!(failed.status.code(), Some(64));
    let written = fs::read_to_string(collected.join("gdr.prom")).unwrap();
    assert!(written.starts_with("outcome 3 "), "{written}");
    // No temporary file is left.
    assert_eq!(files(&collected), ["gdr.prom"]);
}

#[test]
fn shellcheck_has_no_remark_on_the_scripts() {
    if Command::new("shellcheck")
        .arg("--version")
        .output()
        .is_err()
    {
        skip::skip("shellcheck is not installed: apt-get install shellcheck");
        return;
    }
    let scripts = [
        "install.sh",
        "gdr-textfile",
        "deb/gdr.prerm",
        "deb/gdr.postrm",
    ];
    let output = Command::new("shellcheck")
        .args(scripts.map(|script| packaging().join(script)))
        .output()
        .unwrap();
    text(&output);
}
