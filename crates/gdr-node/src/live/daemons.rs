//! The limits of this process and of the daemons that start jobs.

use super::Directory;
use super::LiveRoot;
use crate::source::{Datum, Source};

/// The daemons, by process name. A job inherits its limits from one of these.
const DAEMONS: [&str; 10] = [
    "containerd",
    "crio",
    "dockerd",
    "k3s",
    "kubelet",
    "pbs_mom",
    "slurmd",
    "sshd",
    "systemd",
    "torque_mom",
];

pub(super) fn limits() -> Datum<Directory> {
    let root = LiveRoot::new();
    let mut limits = Directory::from([("self".to_owned(), root.read("/proc/self/limits"))]);
    let mut pids: Vec<u32> = root
        .list("/proc")
        .ok()
        .unwrap_or_default()
        .iter()
        .filter_map(|name| name.parse().ok())
        .collect();
    // The process with the lowest id is the daemon, and the others are its children.
    pids.sort_unstable();
    for pid in pids {
        let name = root.text(&format!("/proc/{pid}/comm"));
        if let Ok(name) = name
            && DAEMONS.contains(&name.as_str())
            && !limits.contains_key(&name)
        {
            limits.insert(name, root.read(&format!("/proc/{pid}/limits")));
        }
    }
    Ok(limits)
}
