//! Hosts whose lines a log contains.

use std::collections::BTreeSet;

use gdr_node::Bdf;

/// Maximum number of hosts, and of addresses, to keep.
const MOST: usize = 64;

/// Returns the hosts that a log names in its lines: before the process in lines of NCCL, UCX and NVSHMEM, before
/// `kernel:` in lines of syslog and `journalctl`.
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

/// Returns the PCI addresses that a log names with their domain, as the kernel and drivers write them:
/// `0000:9b:00.0`, or `PCI:0000:9b:00` without a function, which is function 0.
pub fn addresses(log: &str) -> BTreeSet<Bdf> {
    let is_part = |c: char| c.is_ascii_hexdigit() || matches!(c, ':' | '.');
    log.split(|c| !is_part(c))
        .map(|word| word.trim_matches([':', '.']))
        .filter(|word| {
            let mut parts = word.split(':');
            matches!(parts.next().map(str::len), Some(4 | 8))
                && parts.next().is_some_and(|bus| bus.len() == 2)
                && parts.next().is_some_and(|slot| matches!(slot.len(), 2 | 4))
                && parts.next().is_none()
        })
        .filter_map(|word| {
            let with_function = word.parse().ok();
            with_function.or_else(|| format!("{word}.0").parse().ok())
        })
        .take(MOST)
        .collect()
}

fn is_name(word: &str) -> bool {
    let mut bytes = word.bytes();
    word.len() > 1
        && bytes.all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_'))
        && word.bytes().any(|b| b.is_ascii_alphabetic())
}

/// Parses `Feb 23 16:24:18 node01 kernel: text`.
fn of_kernel(line: &str) -> Option<&str> {
    let (before, _) = line.split_once(" kernel: ")?;
    let (time, host) = before.rsplit_once(' ')?;
    let is_time = time.contains(|c: char| c.is_ascii_digit());
    (is_time && is_name(host) && host != "UTC").then_some(host)
}

/// Parses `node01:1234:1250 [0] NCCL INFO` and `[1740327858.123456] [node01:1234 :0] ucp_worker.c:1`.
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
    fn addresses_with_a_domain_are_found() {
        let log = "NVRM: Xid (PCI:0000:1b:00): 79, pid=1, x\n\
                   pcieport 0000:37:02.0: AER: error received: 00010000:38:00.1\n\
                   12:34:56 fe80:11:22:33 1b:00.0 mlx5_0:1 0000:zz:00.0 2025:1:2\n";
        let found: Vec<String> = addresses(log).iter().map(Bdf::to_string).collect();
        assert_eq!(found, ["0000:1b:00.0", "0000:37:02.0", "10000:38:00.1"]);
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
