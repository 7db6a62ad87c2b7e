//! Messages of the kernel log, in each format of its printers.

/// One message.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Message<'a> {
    /// Its time in seconds since an unspecified origin; `None` if the line has no time.
    pub(super) seconds: Option<f64>,
    /// The text without the time.
    pub(super) text: &'a str,
    /// The line, with its time.
    pub(super) line: &'a str,
}

/// The messages of a log in the format of `dmesg`, with either kind of time, or of `/dev/kmsg`.
pub(super) fn messages(log: &str) -> impl Iterator<Item = Message<'_>> {
    log.lines().map(str::trim).filter_map(|line| {
        let (seconds, text) = split(line);
        (!text.is_empty()).then_some(Message {
            seconds,
            text,
            line,
        })
    })
}

fn split(line: &str) -> (Option<f64>, &str) {
    if let Some((time, text)) = line.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        let seconds = time.trim().parse().ok().or_else(|| time_of_day(time));
        if seconds.is_some() {
            return (seconds, text.trim_start());
        }
    }
    // `6,3973,227996636,-;text` of /dev/kmsg, whose times are microseconds.
    if let Some((prefix, text)) = line.split_once(';') {
        let mut fields = prefix.split(',');
        let numbers = [fields.next(), fields.next(), fields.next()];
        if let [Some(Ok(_)), Some(Ok(_)), Some(Ok(micros))] =
            numbers.map(|field| field.map(str::parse::<u64>))
        {
            return (Some(micros as f64 / 1e6), text);
        }
    }
    (None, line)
}

/// The seconds since the beginning of the month for `Sun Feb 23 16:24:18 2025`: only differences
/// between messages matter.
fn time_of_day(text: &str) -> Option<f64> {
    let mut words = text.split_whitespace().skip(2);
    let day: f64 = words.next()?.parse().ok()?;
    let mut clock = words.next()?.split(':').map(str::parse::<f64>);
    let (hours, minutes, seconds) = (
        clock.next()?.ok()?,
        clock.next()?.ok()?,
        clock.next()?.ok()?,
    );
    Some(day * 86_400.0 + hours * 3_600.0 + minutes * 60.0 + seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_every_format_are_parsed() {
        let log = "[   12.500000] mlx5_core 0000:19:00.0: up\n\
                   [Sun Feb 23 16:24:18 2025] NVRM: Xid\n\
                   6,3973,227996636,-;nvidia-peermem x\n\
                   \n\
                   [mlx5] no time; here\n";
        let all: Vec<(Option<f64>, &str)> = messages(log)
            .map(|message| (message.seconds, message.text))
            .collect();
        assert_eq!(
            all,
            [
                (Some(12.5), "mlx5_core 0000:19:00.0: up"),
                (
                    Some(f64::from(23 * 86_400 + 16 * 3_600 + 24 * 60 + 18)),
                    "NVRM: Xid"
                ),
                (Some(227.996_636), "nvidia-peermem x"),
                (None, "[mlx5] no time; here"),
            ]
        );
    }
}
