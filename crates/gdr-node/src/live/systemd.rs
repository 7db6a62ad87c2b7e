//! The systemd units that start jobs or serve GPUs and RDMA devices.

use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use super::Directory;
use crate::source::{Absence, Datum, Errno, MAX_FILE};

/// The units.
const UNITS: [&str; 16] = [
    "containerd.service",
    "crio.service",
    "docker.service",
    "irqbalance.service",
    "k3s.service",
    "kubelet.service",
    "nv_peer_mem.service",
    "nvidia-fabricmanager.service",
    "nvidia-peermem.service",
    "nvidia-persistenced.service",
    "openibd.service",
    "opensm.service",
    "pbs.service",
    "slurmd.service",
    "ssh.service",
    "sshd.service",
];

const OF_A_UNIT: &str = "--property=Id,LoadState,ActiveState,SubState,UnitFileState,FragmentPath,\
                         LimitMEMLOCK,LimitMEMLOCKSoft";
const OF_THE_MANAGER: &str = "--property=Version,DefaultLimitMEMLOCK,DefaultLimitMEMLOCKSoft";

/// The deadline for `systemctl`.
const LIMIT: Duration = Duration::from_secs(3);
/// `ETIMEDOUT` of Linux.
const TOO_LATE: Errno = Errno(110);

pub(super) fn read() -> Datum<Directory> {
    // Like sd_booted(3): systemd is the init system if this directory exists.
    if !Path::new("/run/systemd/system").is_dir() {
        return Err(Absence::Missing);
    }
    let mut arguments = vec!["show", "--no-pager", OF_A_UNIT];
    arguments.extend(UNITS);
    show(&arguments).and_then(|text| {
        show(&["show", "--no-pager", OF_THE_MANAGER]).map(|manager| {
            let mut units = units(&text);
            let manager = Ok(manager.into_bytes());
            units.insert("manager".to_owned(), manager);
            units
        })
    })
}

/// Parses the loaded units from the output of `systemctl show`: blocks separated by empty lines.
fn units(text: &str) -> Directory {
    let mut units = Directory::new();
    for block in text.split("\n\n") {
        let value = |name: &str| {
            let mut lines = block.lines();
            lines.find_map(|line| line.strip_prefix(name)?.strip_prefix('='))
        };
        // systemctl prints a unit again for each alias; the first block is kept.
        if let Some(id) = value("Id")
            && value("LoadState") == Some("loaded")
        {
            let text = format!("{}\n", block.trim());
            units.entry(id.to_owned()).or_insert(Ok(text.into_bytes()));
        }
    }
    units
}

/// Runs `systemctl` and returns its output, if it ends in time.
fn show(arguments: &[&str]) -> Datum<String> {
    let child = Command::new("systemctl")
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let mut child = match child {
        Ok(child) => child,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Err(Absence::Missing),
        Err(error) => return Err(Absence::Failed(Errno(error.raw_os_error().unwrap_or(0)))),
    };
    let Some(output) = child.stdout.take() else {
        return Err(Absence::NotCollected);
    };
    let (send, receive) = mpsc::channel();
    thread::spawn(move || {
        let mut text = Vec::new();
        let read = output.take(MAX_FILE as u64).read_to_end(&mut text);
        // The receiver is gone if the deadline passed.
        let _ = send.send(read.map(|_| String::from_utf8_lossy(&text).into_owned()));
    });
    let text = match receive.recv_timeout(LIMIT) {
        Ok(Ok(text)) => Ok(text),
        Ok(Err(error)) => Err(Absence::Failed(Errno(error.raw_os_error().unwrap_or(0)))),
        Err(_) => Err(Absence::Failed(TOO_LATE)),
    };
    if text.is_err() {
        // Otherwise the wait below might not end.
        let _ = child.kill();
    }
    match child.wait() {
        Ok(status) if !status.success() && text.is_ok() => Err(Absence::NotCollected),
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_that_are_not_installed_are_left_out() {
        let units = units(
            "Id=sshd.service\nLoadState=loaded\nLimitMEMLOCK=infinity\n\n\
             Id=slurmd.service\nLoadState=not-found\nLimitMEMLOCK=65536\n\n\
             garbage\n",
        );
        assert_eq!(units.keys().collect::<Vec<_>>(), ["sshd.service"]);
        let text = units["sshd.service"].as_ref().unwrap();
        assert!(text.ends_with(b"LimitMEMLOCK=infinity\n"));
    }

    #[test]
    fn a_machine_without_systemctl_is_no_error() {
        assert!(!matches!(show(&["--version"]), Err(Absence::Failed(_))));
    }
}
