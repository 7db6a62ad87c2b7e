//! Kernel log records, in every printed form: by `dmesg` with any options, by `journalctl` in any output format, by
//! syslog, in `/dev/kmsg`, with and without times, and with a host name or prompt in front of the line.
//!
//! ```
//! use gdr_node::kernel_log::records;
//!
//! let log = "[    9.5] NVRM: The NVIDIA GPU 0000:b3:00.0\n\
//!            \x20         NVRM: fallen off the bus and is not responding to commands.\n";
//! let record = records(log).next().unwrap();
//! assert_eq!(record.seconds, Some(9.5));
//! assert!(record.text.ends_with("0000:b3:00.0 fallen off the bus and is not responding to commands."));
//! ```

use std::borrow::Cow;
use std::iter::Peekable;
use std::str::Lines;

/// The most lines that are joined into one record.
const MOST_LINES: usize = 16;
/// The position in a line by which a kernel log marker must start.
const LONGEST_PREFIX: usize = 120;

/// A record: one kernel message, which may have several lines.
#[derive(Clone, Debug, PartialEq)]
pub struct Record<'a> {
    /// Its time in seconds since an unspecified origin; `None` if it has none.
    pub seconds: Option<f64>,
    /// The message, its lines joined by a space.
    pub text: Cow<'a, str>,
    /// Its first line, as it was printed.
    pub line: &'a str,
}

/// Returns the records of a log, in order.
pub fn records(log: &str) -> impl Iterator<Item = Record<'_>> {
    Records {
        lines: log.lines().peekable(),
    }
}

/// A record under construction, line by line.
#[derive(Clone, Debug)]
pub struct Growing<'a> {
    first: Split<'a>,
    text: Cow<'a, str>,
    lines: usize,
}

impl<'a> Growing<'a> {
    /// Starts a record with its first line.
    pub fn new(line: &'a str) -> Self {
        let first = Split::of(line);
        Self {
            text: unescaped(first.text),
            first,
            lines: 1,
        }
    }

    /// Adds a line if it continues the record. Returns whether it does.
    pub fn push(&mut self, next: &str) -> bool {
        let more = match self.lines < MOST_LINES {
            true => self.first.goes_on(&self.text, next),
            false => None,
        };
        if let Some(more) = more {
            self.text = Cow::Owned(format!("{} {more}", self.text));
            self.lines += 1;
        }
        more.is_some()
    }

    /// Returns the message so far, its lines joined by a space.
    pub fn text(&self) -> &str {
        &self.text
    }
}

/// Returns whether a line starts a record: it has a kernel log marker or a time in front of its message.
pub fn begins_record(line: &str) -> bool {
    Split::of(line).origin != Origin::Unknown
}

/// Returns whether a text is a kernel log, that is, most of its lines come from the kernel.
pub(crate) fn is_log(text: &str) -> bool {
    const SAMPLE: usize = 200;
    let lines = || {
        text.lines()
            .filter(|line| !line.trim().is_empty())
            .take(SAMPLE)
    };
    let of_kernel = lines().filter(|line| is_of_kernel(line)).count();
    2 * of_kernel > lines().count()
}

/// Returns the kernel's lines in a page of mixed text, with the lines that continue them.
pub(crate) fn lines_of_kernel(page: &str) -> String {
    let mut found = String::new();
    let mut is_inside = false;
    for line in page.lines() {
        let split = Split::of(line);
        is_inside = match split.origin {
            Origin::Kernel => true,
            Origin::Unknown if is_inside && line.starts_with([' ', '\t']) => true,
            Origin::Unknown | Origin::Dated => begins_like_a_driver(split.text),
        };
        if is_inside {
            found.push_str(line);
            found.push('\n');
        }
    }
    found
}

fn is_of_kernel(line: &str) -> bool {
    let split = Split::of(line);
    split.origin == Origin::Kernel
        || begins_like_a_driver(split.text)
        || split.text.contains("+0x") && split.text.contains("/0x")
}

/// Returns whether a message without a kernel log marker starts like those of its drivers.
fn begins_like_a_driver(text: &str) -> bool {
    const BEGINNINGS: [&str; 30] = [
        "NVRM: ",
        "nvidia 0",
        "nvidia: ",
        "nvidia-nvlink: ",
        "nvidia-nvswitch",
        "nvidia-peermem",
        "nvidia_peermem",
        "nvidia-modeset: ",
        "nvidia-uvm: ",
        "nvidia_uvm",
        "nvidia-fs",
        "nv_peer_mem",
        "mlx5_core 0",
        "mlx5_core.",
        "mlx4_core 0",
        "bnxt_en ",
        "pcieport 0",
        "pci 0",
        "gdrdrv",
        "DMAR: ",
        "AMD-Vi: ",
        "arm-smmu",
        "BUG: ",
        "Oops: ",
        "Unable to handle kernel",
        "general protection fault",
        "Lockdown: ",
        "Modules linked in",
        "Call Trace:",
        "Call trace:",
    ];
    BEGINNINGS.iter().any(|it| text.starts_with(it))
}

struct Records<'a> {
    lines: Peekable<Lines<'a>>,
}

impl<'a> Iterator for Records<'a> {
    type Item = Record<'a>;

    fn next(&mut self) -> Option<Record<'a>> {
        loop {
            let line = self.lines.next()?;
            let mut record = Growing::new(line);
            if record.text.is_empty() || is_property(line) {
                continue;
            }
            while self.lines.peek().is_some_and(|next| record.push(next)) {
                self.lines.next();
            }
            return Some(Record {
                seconds: record.first.seconds,
                text: record.text,
                line: line.trim(),
            });
        }
    }
}

/// Returns whether a line is a property, such as ` SUBSYSTEM=pci` below a record of `/dev/kmsg`.
fn is_property(line: &str) -> bool {
    let name = line.strip_prefix(' ').and_then(|line| line.split_once('='));
    name.is_some_and(|(name, _)| {
        !name.is_empty() && name.bytes().all(|b| b.is_ascii_uppercase() || b == b'_')
    })
}

/// Undoes the escapes of `/dev/kmsg` and JSON.
fn unescaped(text: &str) -> Cow<'_, str> {
    if !text.contains('\\') {
        return Cow::Borrowed(text);
    }
    let text = text.replace("\\x0a", "\n").replace("\\n", "\n");
    let text = text.replace("\\\"", "\"").replace("\\t", " ");
    let mut lines = text.lines().map(str::trim);
    let first = lines.next().unwrap_or_default().to_owned();
    Cow::Owned(lines.fold(first, |text, line| format!("{text} {}", without_name(line))))
}

/// Removes the driver's name, which the record's first line already has.
fn without_name(line: &str) -> &str {
    line.strip_prefix("NVRM:").map_or(line, str::trim_start)
}

/// How a line starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    /// With a marker that only the kernel log has.
    Kernel,
    /// With a time, as in many logs.
    Dated,
    /// With nothing known.
    Unknown,
}

/// A line, split into prefix and message.
#[derive(Clone, Copy, Debug)]
struct Split<'a> {
    seconds: Option<f64>,
    origin: Origin,
    text: &'a str,
}

impl<'a> Split<'a> {
    fn of(line: &'a str) -> Self {
        let line = line.trim();
        Self::structured(line)
            .or_else(|| Self::named(line))
            .unwrap_or_else(|| Self::stamped(without_level(line)))
    }

    fn kernel(seconds: Option<f64>, text: &'a str) -> Self {
        Self {
            seconds,
            origin: Origin::Kernel,
            text: text.trim(),
        }
    }

    /// Parses records of `/dev/kmsg`, and of `journalctl -o verbose`, `-o export` and `-o json`.
    fn structured(line: &'a str) -> Option<Self> {
        if line.starts_with(|first: char| first.is_ascii_digit())
            && let Some((prefix, text)) = line.split_once(';')
        {
            let mut fields = prefix.split(',').map(str::parse::<u64>);
            if let (Some(Ok(_)), Some(Ok(_)), Some(Ok(micros))) =
                (fields.next(), fields.next(), fields.next())
            {
                return Some(Self::kernel(Some(micros as f64 / 1e6), text));
            }
        }
        if let Some(text) = line.strip_prefix("MESSAGE=") {
            return Some(Self::kernel(None, text));
        }
        if !line.starts_with('{') {
            return None;
        }
        let value = |name: &str| {
            let (_, rest) = line.split_once(name)?;
            let rest = rest.trim_start().strip_prefix(':')?.trim_start();
            let rest = rest.strip_prefix('"')?;
            // A quotation mark inside is escaped.
            let end = (rest.match_indices('"'))
                .map(|(at, _)| at)
                .find(|at| !rest[..*at].ends_with('\\'))?;
            Some(&rest[..end])
        };
        let micros = value("\"__REALTIME_TIMESTAMP\"").and_then(|it| it.parse::<f64>().ok());
        Some(Self::kernel(
            micros.map(|micros| micros / 1e6),
            value("\"MESSAGE\"")?,
        ))
    }

    /// Parses a line of syslog or `journalctl`, which names the kernel in front of the message.
    fn named(line: &'a str) -> Option<Self> {
        const MARKS: [&str; 3] = ["kernel: ", "kernel - - - ", "kernel - - "];
        // Checked first, as few lines have any marker and this is the fastest test.
        if !line.contains("kernel") {
            return None;
        }
        let (at, mark) = MARKS
            .iter()
            .find_map(|mark| Some((line.find(mark)?, *mark)))
            .filter(|(at, _)| *at <= LONGEST_PREFIX)?;
        let (before, text) = (&line[..at], &line[at + mark.len()..]);
        if !before.is_empty() && !before.ends_with([' ', ':', '|', '>']) {
            return None;
        }
        let inner = Self::stamped(without_level(text));
        let seconds = inner.seconds.or_else(|| time(before));
        Some(Self::kernel(seconds, inner.text))
    }

    /// Parses a line of `dmesg`, whose time is in brackets or in ISO 8601 form.
    fn stamped(line: &'a str) -> Self {
        if let Some((seconds, text)) = bracketed(line) {
            return Self::kernel(seconds, text);
        }
        // `node01: [   12.345678] text` of pdsh, `$ [   12.345678] text`.
        let inner = line.match_indices('[').map(|(at, _)| at);
        for at in inner.take_while(|at| *at <= LONGEST_PREFIX) {
            let is_strong = |time: &str| {
                let (whole, part) = time.trim().split_once('.')?;
                let digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
                (digits(whole) && digits(part) && part.len() == 6).then_some(())
            };
            let time = line[at + 1..].split_once(']').map(|(time, _)| time);
            if time.and_then(is_strong).is_some()
                && let Some((seconds, text)) = bracketed(&line[at..])
            {
                return Self::kernel(seconds, text);
            }
        }
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        if word.len() >= 19
            && word.as_bytes()[10] == b'T'
            && let Some(seconds) = time(word)
        {
            return Self {
                seconds: Some(seconds),
                origin: Origin::Dated,
                text: rest.trim(),
            };
        }
        Self {
            seconds: None,
            origin: Origin::Unknown,
            text: line,
        }
    }

    /// Returns the continuation in the next line, if it continues this record: a line without a time after one with a
    /// time, or the rest of a message of NVIDIA's driver.
    fn goes_on<'b>(&self, so_far: &str, next: &'b str) -> Option<&'b str> {
        let split = Split::of(next);
        if split.text.is_empty() || is_property(next) {
            return None;
        }
        let is_indented = next.starts_with([' ', '\t']);
        let is_rest = self.origin != Origin::Unknown
            && split.origin == Origin::Unknown
            && (is_indented || split.text.starts_with("NVRM:"));
        // The driver's message has three lines, which some tools timestamp separately.
        let is_open = so_far.starts_with("NVRM: The NVIDIA") && !so_far.ends_with('.');
        let is_of_driver = is_open && split.text.starts_with("NVRM:");
        (is_rest || is_of_driver).then(|| without_name(split.text))
    }
}

/// Removes the level, `<6>` or as in `dmesg -x` (`kern  :err   : `).
fn without_level(line: &str) -> &str {
    if let Some((level, rest)) = line.strip_prefix('<').and_then(|it| it.split_once('>'))
        && level.bytes().all(|b| b.is_ascii_digit())
    {
        // `<4>1 2025-02-23T16:24:18Z host …` has a version there.
        return rest;
    }
    const FACILITIES: [&str; 5] = ["kern", "user", "daemon", "syslog", "local"];
    let mut parts = line.splitn(3, ':');
    match (parts.next(), parts.next(), parts.next()) {
        (Some(facility), Some(level), Some(rest))
            if FACILITIES.contains(&facility.trim()) && !level.trim().contains(' ') =>
        {
            rest.trim_start()
        }
        _ => line,
    }
}

/// Parses the bracketed time at the start of a line, and returns it with the rest. Times of `dmesg -e` and `-d` are
/// only relative.
fn bracketed(line: &str) -> Option<(Option<f64>, &str)> {
    let (inside, text) = line.strip_prefix('[')?.split_once(']')?;
    let inside = inside.trim();
    // `[   12.345678 <    0.000120>]` of `dmesg -d`.
    let absolute = inside.split('<').next().unwrap_or(inside).trim();
    if inside.starts_with('+') || inside.starts_with('<') {
        let number = inside.trim_matches(['+', '<', '>', ' ']);
        return number.parse::<f64>().ok().map(|_| (None, text));
    }
    let seconds = absolute.parse().ok().or_else(|| time(absolute));
    if seconds.is_some() {
        return Some((seconds, text));
    }
    // `[Feb23 16:24]`
    let (day, clock) = inside.split_once(' ')?;
    let is_short = MONTHS.iter().any(|month| day.starts_with(month)) && clock.contains(':');
    is_short.then_some((None, text))
}

const MONTHS: [&str; 12] = [
    "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
];

/// Parses a date with a time of day in any log format, and returns seconds since an unspecified origin: only
/// differences are meaningful.
fn time(text: &str) -> Option<f64> {
    let mut month = 0_usize;
    let mut day = None;
    for word in text.split([' ', 'T', '[', ']']).filter(|it| !it.is_empty()) {
        if let Some(number) = MONTHS.iter().position(|name| *name == word) {
            month = number;
            continue;
        }
        if let Some(seconds) = clock(word) {
            let days = (month * 31) as f64 + f64::from(day?);
            return Some(days * 86_400.0 + seconds);
        }
        let mut date = word.split('-').map(str::parse::<u32>);
        match (date.next(), date.next(), date.next()) {
            (Some(Ok(_)), Some(Ok(of_year)), Some(Ok(of_month))) => {
                month = (of_year as usize).saturating_sub(1).min(11);
                day = Some(of_month);
            }
            (Some(Ok(of_month)), None, None) => day = Some(of_month),
            _ => {}
        }
    }
    // Seconds since 1970 or since boot, before the name of the host.
    let first = text.split([' ', '[', ']']).find(|it| !it.is_empty())?;
    first.contains('.').then(|| first.parse().ok())?
}

/// Parses `16:24:18`, possibly with a fraction and a zone, and returns seconds.
fn clock(word: &str) -> Option<f64> {
    let mut parts = word.splitn(3, ':');
    let (hours, minutes, rest) = (parts.next()?, parts.next()?, parts.next()?);
    let rest = rest.replacen(',', ".", 1);
    let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.');
    let seconds: f64 = rest[..end.unwrap_or(rest.len())].parse().ok()?;
    let (hours, minutes): (u32, u32) = (hours.parse().ok()?, minutes.parse().ok()?);
    Some(f64::from(hours * 60 + minutes) * 60.0 + seconds)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const XID: &str = "NVRM: Xid (PCI:0000:41:00): 79, GPU has fallen off the bus.";

    #[test]
    fn every_printer_gives_the_same_message() {
        for prefix in [
            "",
            "[   12.345678] ",
            "<3>[   12.345678] ",
            "kern  :err   : [   12.345678] ",
            "[Sun Feb 23 16:24:18 2025] ",
            "[   12.345678 <    0.000120>] ",
            "[  +0.000003] ",
            "[Feb23 16:24] ",
            "2025-02-23T16:24:18,123456+00:00 ",
            "3,3973,12345678,-;",
            "3,3973,12345678,-,caller=T1;",
            "Feb 23 16:24:18 node01 kernel: ",
            "Feb  3 16:24:18.123456 node01 kernel: [   12.345678] ",
            "2025-02-23T16:24:18+0000 node01 kernel: ",
            "2025-02-23T16:24:18.123456+00:00 node01 kernel: ",
            "Sun 2025-02-23 16:24:18 UTC node01 kernel: ",
            "[   12.345678] node01 kernel: ",
            "1740327858.123456 node01 kernel: ",
            "<4>1 2025-02-23T16:24:18.123Z node01 kernel - - - ",
            "kernel: ",
            "node01: [   12.345678] ",
            "root@node01:~# [   12.345678] ",
            "node01: Feb 23 16:24:18 node01 kernel: ",
            "    MESSAGE=",
        ] {
            let log = format!("{prefix}{XID}\n");
            let all: Vec<Record<'_>> = records(&log).collect();
            assert_eq!(all.len(), 1, "{prefix}");
            assert_eq!(all[0].text, XID, "{prefix}");
            assert_eq!(all[0].line, log.trim(), "{prefix}");
            assert!(is_log(&log), "{prefix}");
            assert_eq!(lines_of_kernel(&log), log, "{prefix}");
        }
        let json = format!(
            "{{\"_HOSTNAME\":\"n\",\"MESSAGE\":\"{XID}\",\"__REALTIME_TIMESTAMP\" : \"1500000\"}}"
        );
        let record = records(&json).next().unwrap();
        assert_eq!((record.seconds, &*record.text), (Some(1.5), XID));
    }

    #[test]
    fn times_of_every_form_have_their_differences() {
        for (first, second) in [
            ("[   10.000000] ", "[   40.000000] "),
            ("6,1,10000000,-;", "6,2,40000000,-;"),
            ("[Sun Feb 23 16:24:18 2025] ", "[Sun Feb 23 16:24:48 2025] "),
            ("Feb 23 23:59:40 n kernel: ", "Feb 24 00:00:10 n kernel: "),
            (
                "2025-02-23T16:24:18.500000+00:00 n kernel: ",
                "2025-02-23T16:24:48.500000+00:00 n kernel: ",
            ),
            (
                "2025-02-23T16:24:18,250000+00:00 ",
                "2025-02-23T16:24:48,250000+00:00 ",
            ),
            ("1740327858.25 n kernel: ", "1740327888.25 n kernel: "),
            ("[   10.5] n kernel: ", "[   40.5] n kernel: "),
        ] {
            let log = format!("{first}a\n{second}b\n");
            let times: Vec<f64> = records(&log).filter_map(|it| it.seconds).collect();
            assert_eq!(times.len(), 2, "{first}");
            assert!((times[1] - times[0] - 30.0).abs() < 1e-6, "{first}");
        }
    }

    #[test]
    fn the_lines_of_one_record_are_one() {
        let whole = "NVRM: The NVIDIA GPU 0000:b3:00.0 (PCI ID: 10de:26b5) installed in this \
                     system has fallen off the bus and is not responding to commands.";
        let parts = [
            "NVRM: The NVIDIA GPU 0000:b3:00.0",
            "NVRM: (PCI ID: 10de:26b5) installed in this system has",
            "NVRM: fallen off the bus and is not responding to commands.",
        ];
        let indented = format!("[ 43.308145] {}\n", parts.join("\n             "));
        let bare = format!("{}\n", parts.join("\n"));
        let timed: String = (parts.iter())
            .map(|part| format!("[ 43.308145] {part}\n"))
            .collect();
        let escaped = format!(
            "3,9,43308145,-;{}\n DEVICE=+pci:0000:b3:00.0\n",
            parts.join("\\x0a")
        );
        for log in [indented, bare, timed, escaped] {
            let log = format!("{log}[ 44.000000] nvidia: next\n");
            let all: Vec<String> = records(&log).map(|it| it.text.into_owned()).collect();
            assert_eq!(all, [whole, "nvidia: next"], "{log}");
        }
    }

    #[test]
    fn other_texts_are_no_kernel_logs() {
        assert!(!is_log("01:00.0 3D controller: X\n[1] words\n\n"));
        assert!(!is_log(
            "2025-02-23T16:24:18Z INFO training\n2025-02-23T16:24:19Z step 1\n"
        ));
        assert!(!is_log(
            "host:1:2 [0] NCCL INFO x\nhost:1:2 [0] NCCL INFO y\n"
        ));
        assert!(!is_log(""));
        let page =
            "$ lspci\n01:00.0 3D controller: X\n$ dmesg\n[    1.5] mlx5_core 0000:01:00.0: x\n";
        assert_eq!(
            lines_of_kernel(page),
            "[    1.5] mlx5_core 0000:01:00.0: x\n"
        );
    }

    proptest! {
        #[test]
        fn any_text_is_split(text in "(?s).{0,200}", prefix in r"[\[<{;:., 0-9TZkernl-]{0,40}") {
            let log = format!("{prefix}{text}");
            for record in records(&log) {
                prop_assert!(!record.text.is_empty());
            }
            is_log(&log);
            lines_of_kernel(&log);
        }
    }
}
