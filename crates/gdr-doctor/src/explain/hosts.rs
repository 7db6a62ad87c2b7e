//! The hosts whose lines a log has.

use std::collections::BTreeSet;

/// The most hosts that are kept.
const MOST: usize = 64;

/// The names of the hosts that a log says its lines are of: before the process in lines of NCCL, UCX
/// and NVSHMEM, before `kernel:` in those of syslog and `journalctl`.
pub fn hosts(log: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for line in log.lines() {
        let Some(host) = of_kernel(line).or_else(|| of_library(line)) else {
            continue;
        };
        if found.len() < MOST {
            found.insert(host.to_owned());
        }
    }
    found
}

fn is_name(word: &str) -> bool {
    let mut bytes = word.bytes();
    word.len() > 1
        && bytes.all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_'))
        && word.bytes().any(|b| b.is_ascii_alphabetic())
}

/// `Feb 23 16:24:18 node01 kernel: text`
fn of_kernel(line: &str) -> Option<&str> {
    let (before, _) = line.split_once(" kernel: ")?;
    let (time, host) = before.rsplit_once(' ')?;
    let is_time = time.contains(|c: char| c.is_ascii_digit());
    (is_time && is_name(host) && host != "UTC").then_some(host)
}

/// `node01:1234:1250 [0] NCCL INFO`, `[1740327858.123456] [node01:1234 :0] ucp_worker.c:1`
fn of_library(line: &str) -> Option<&str> {
    let is_number = |part: &str| {
        let part = part.trim();
        !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit())
    };
    let named = |word: &'_ str| -> Option<usize> {
        let mut parts = word.splitn(3, ':');
        let (host, process, thread) = (parts.next()?, parts.next()?, parts.next()?);
        let is_process = is_number(process) && is_number(thread);
        (is_process && is_name(host)).then_some(host.len())
    };
    let line = line.trim_start();
    let first = line.split(" [").next()?;
    if first.len() < line.len()
        && let Some(length) = named(first)
    {
        return line.get(..length);
    }
    let (_, rest) = line.strip_prefix('[')?.split_once("] [")?;
    let inside = rest.split(']').next()?;
    rest.get(..named(inside)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hosts_of_each_format_are_found() {
        let log = "gpu-07:1234:1250 [0] NCCL INFO x\n\
                   [1740327858.123456] [node-1:99   :0]  ucp_worker.c:1 UCX ERROR x\n\
                   Feb 23 16:24:18 h3.example kernel: NVRM: x\n\
                   [   12.5] h4 kernel: x\n\
                   2025-02-23T16:24:18+00:00 h5 kernel: x\n";
        let expected = ["gpu-07", "h3.example", "h4", "h5", "node-1"];
        assert_eq!(hosts(log).into_iter().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn other_lines_have_none() {
        let log = "[   12.5] NVRM: x\n07:31:54 [0] x\nkernel: x\nsrc/x.cc:12:5 [0] y\nmlx5_0:1\n";
        let found = hosts(log);
        assert!(!found.iter().any(|host| host.contains(':')), "{found:?}");
        assert!(
            !found.contains("07") && !found.contains("mlx5_0"),
            "{found:?}"
        );
    }
}
