//! The files of `contrib/ci`, with stand-ins for runners and launchers.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use assert_cmd::cargo_bin;
use serde_json::Value;

use super::preloaded::command;
use super::{code, stderr, stdout};

fn file(name: &str) -> PathBuf {
    let contrib = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib/ci");
    contrib.join(name)
}

/// Returns the script of the action's step.
fn script_of_action() -> String {
    let text = fs::read_to_string(file("action.yaml")).unwrap();
    let (_, script) = text.split_once("      run: |\n").unwrap();
    script.replace("\n        ", "\n").trim_start().to_owned()
}

#[test]
fn the_action_unpacks_an_archive_into_the_path_of_later_steps() {
    let folder = tempfile::tempdir().unwrap();
    let bin = folder.path().join("gdr-0.1.0-x86_64-linux/bin");
    fs::create_dir_all(&bin).unwrap();
    symlink(cargo_bin!("gdr"), bin.join("gdr")).unwrap();
    let archive = folder.path().join("archive.tar.gz");
    let made = Command::new("tar")
        .args(["czf".as_ref(), archive.as_os_str(), "-C".as_ref()])
        .arg(folder.path())
        .arg("gdr-0.1.0-x86_64-linux")
        .status();
    assert!(made.unwrap().success());
    // No setting of this machine is changed.
    let own = folder.path().join("own");
    fs::create_dir(&own).unwrap();
    symlink("/bin/true", own.join("sudo")).unwrap();
    let path = std::env::var("PATH").unwrap();
    let output = Command::new("bash")
        .args(["-c", &script_of_action()])
        .env("PATH", format!("{}:{path}", own.display()))
        .env("ARCHIVE", &archive)
        .env("RUNNER_TEMP", folder.path())
        .env("GITHUB_PATH", folder.path().join("path"))
        .output()
        .unwrap();
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let added = fs::read_to_string(folder.path().join("path")).unwrap();
    let gdr = Path::new(added.trim_end()).join("gdr");
    let version = Command::new(gdr).arg("version").output().unwrap();
    assert_eq!(code(&version), 0);
}

#[test]
fn the_development_container_names_a_file_that_is_there_and_what_hosts_need() {
    let text = fs::read_to_string(file("devcontainer.json")).unwrap();
    let container: Value = serde_json::from_str(&text).unwrap();
    let image = container["build"]["dockerfile"].as_str().unwrap();
    assert!(file(image).is_file());
    let options = container["runArgs"].as_array().unwrap();
    // As the message of `gdr net` and docs/run.md have them.
    for option in [
        "--cap-add=SYS_ADMIN",
        "--security-opt=systempaths=unconfined",
    ] {
        assert!(options.iter().any(|it| it == option), "{option}");
    }
}

#[test]
fn a_launcher_of_mpi_reaches_the_hosts_and_all_end_with_it() {
    let folder = tempfile::tempdir().unwrap();
    // As mpirun: it starts a process on other hosts, and waits for it.
    let launcher = folder.path().join("mpirun");
    let body = "#!/bin/sh\nhostname\n$OMPI_MCA_plm_rsh_agent host1 hostname\nexec $HYDRA_LAUNCHER_EXEC -x host0 \
                'wc -l <$OMPI_MCA_orte_default_hostfile'\n";
    fs::write(&launcher, body).unwrap();
    fs::set_permissions(&launcher, fs::Permissions::from_mode(0o755)).unwrap();
    // host2 has nothing to do.
    let output = command(&["net", "--hosts", "3", "--"])
        .arg(file("mpi-hosts.sh"))
        .arg(&launcher)
        .env("MPI_HOSTS", folder.path())
        .output()
        .unwrap();
    if stderr(&output).contains("hosts need network namespaces") {
        return skip::skip("no user and network namespaces");
    }
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let said = stdout(&output);
    let mut lines: Vec<_> = said.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["host0: 3", "host0: host0", "host1: host1"]);
}
