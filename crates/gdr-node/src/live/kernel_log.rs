//! The kernel log, read from `/dev/kmsg` without blocking.

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::source::{Absence, Datum, MAX_FILE};

/// The buffer size, which must hold a whole record with its escapes and dictionary; `PRINTKRB_RECORD_MAX` of Linux is
/// 1024 today.
const RECORD: usize = 16 << 10;
/// The most records to read, in case the kernel logs continuously.
const MOST_RECORDS: usize = 200_000;

pub(super) fn read() -> Datum<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let log = match rustix::fs::open("/dev/kmsg", flags, Mode::empty()) {
        Ok(log) => log,
        // Containers lack this node, although their kernel has a log.
        Err(Errno::NOENT) => return Err(Absence::NotCollected),
        Err(Errno::ACCESS | Errno::PERM) => return Err(Absence::Denied),
        Err(errno) => return Err(Absence::Failed(crate::Errno(errno.raw_os_error()))),
    };
    let mut text = String::new();
    let mut record = vec![0; RECORD];
    for _ in 0..MOST_RECORDS {
        match rustix::io::read(&log, &mut record) {
            Ok(0) | Err(Errno::AGAIN) => break,
            Ok(len) => text.push_str(&line(&String::from_utf8_lossy(&record[..len]))),
            // Overwritten before it was read, or implausibly long: skipped.
            Err(Errno::PIPE | Errno::INVAL | Errno::INTR) => {}
            Err(Errno::ACCESS | Errno::PERM) => return Err(Absence::Denied),
            Err(errno) => return Err(Absence::Failed(crate::Errno(errno.raw_os_error()))),
        }
        // Trimmed at twice the final length, so that not every line causes a copy.
        if text.len() > 2 * MAX_FILE {
            text = last_lines(&text).to_owned();
        }
    }
    Ok(last_lines(&text).as_bytes().to_vec())
}

/// Formats a record (Linux `Documentation/ABI/testing/dev-kmsg`) as `dmesg` prints it: `6,339,5140900,-;NET: Registered
/// protocol family 10`, then lines with properties.
fn line(record: &str) -> String {
    let Some((prefix, rest)) = record.split_once(';') else {
        return String::new();
    };
    let micros: u64 = prefix
        .split(',')
        .nth(2)
        .and_then(|micros| micros.parse().ok())
        .unwrap_or(0);
    let message = rest.lines().next().unwrap_or_default();
    let (seconds, micros) = (micros / 1_000_000, micros % 1_000_000);
    format!("[{seconds:5}.{micros:06}] {message}\n")
}

/// Returns the last lines that fit into a file.
fn last_lines(text: &str) -> &str {
    let Some(mut start) = text.len().checked_sub(MAX_FILE) else {
        return text;
    };
    while !text.is_char_boundary(start) {
        start += 1;
    }
    match text[start..].split_once('\n') {
        Some((_, whole)) => whole,
        None => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_becomes_a_line_of_dmesg() {
        let record = "3,900,12345678,-;mlx5_core 0000:19:00.0: Cable unplugged\n SUBSYSTEM=pci\n";
        assert_eq!(
            line(record),
            "[   12.345678] mlx5_core 0000:19:00.0: Cable unplugged\n"
        );
        assert_eq!(line("no record"), "");
        assert_eq!(line("x;y"), "[    0.000000] y\n");
    }

    #[test]
    fn the_end_of_a_long_log_is_kept_in_whole_lines() {
        let text = "a line of some words, ümläuts among them\n".repeat(40_000);
        let kept = last_lines(&text);
        assert!(kept.len() <= MAX_FILE && kept.len() > MAX_FILE - 100);
        assert!(kept.starts_with("a line") && kept.ends_with('\n'));
        assert_eq!(last_lines("short\n"), "short\n");
    }
}
