//! Parsing and printing the values of keys.

use std::fmt;
use std::time::Duration;

/// A proportion, in billionths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Share(pub(crate) u32);

impl Share {
    const ALL: u32 = 1_000_000_000;

    /// Parses `1%`, `0.25%` or `0.01`, above 0 and at most 1.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (number, digits) = match text.strip_suffix('%') {
            Some(percent) => (percent, 7),
            None => (text, 9),
        };
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        if whole.is_empty() || !is_number(whole) || !is_number(fraction) || fraction.len() > digits
        {
            return None;
        }
        let scaled = format!("{whole}{fraction:0<digits$}");
        let share = scaled.parse().ok().filter(|share| *share <= Self::ALL)?;
        (share > 0).then_some(Self(share))
    }

    /// Returns whether a random number falls into this share.
    pub(crate) fn has(self, random: u64) -> bool {
        random % u64::from(Self::ALL) < u64::from(self.0)
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, fraction) = (self.0 / 10_000_000, self.0 % 10_000_000);
        if fraction == 0 {
            return write!(f, "{whole}%");
        }
        let fraction = format!("{fraction:07}");
        write!(f, "{whole}.{}%", fraction.trim_end_matches('0'))
    }
}

/// Units, largest first.
const TIMES: [(&str, u64); 4] = [
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
];
const SIZES: [(&str, u64); 4] = [("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10), ("", 1)];

/// Parses an integer with one of these units.
fn with_unit(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, name) = text.split_at(digits);
    let (_, unit) = units.iter().find(|(unit, _)| *unit == name)?;
    number.parse::<u64>().ok()?.checked_mul(*unit)
}

fn text_of(value: u64, units: &[(&str, u64)]) -> String {
    let unit = units.iter().find(|(_, unit)| value.is_multiple_of(*unit));
    unit.map_or_else(
        || value.to_string(),
        |(name, unit)| format!("{}{name}", value / unit),
    )
}

/// Parses `200us`, `3ms` or `2s`.
pub(crate) fn duration(text: &str) -> Option<Duration> {
    with_unit(text, &TIMES).map(Duration::from_nanos)
}

pub(crate) fn duration_text(value: Duration) -> String {
    text_of(u64::try_from(value.as_nanos()).unwrap_or(u64::MAX), &TIMES)
}

/// Parses `4096`, `64K` or `1G`.
pub(crate) fn size(text: &str) -> Option<u64> {
    with_unit(text, &SIZES)
}

pub(crate) fn size_text(value: u64) -> String {
    text_of(value, &SIZES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_a_percentage_or_a_fraction() {
        for (text, share) in [
            ("1%", 10_000_000),
            ("0.5%", 5_000_000),
            ("0.01", 10_000_000),
            ("1", 1_000_000_000),
            ("100%", 1_000_000_000),
            ("0.0000001%", 1),
        ] {
            assert_eq!(Share::parse(text), Some(Share(share)), "{text}");
        }
        for text in [
            "",
            "%",
            "0",
            "0%",
            "101%",
            "1.1",
            "-1%",
            "0.00000001%",
            "1e-3",
        ] {
            assert_eq!(Share::parse(text), None, "{text}");
        }
    }

    #[test]
    fn times_and_sizes_have_units() {
        assert_eq!(duration("200us"), Some(Duration::from_micros(200)));
        assert_eq!(duration_text(Duration::from_millis(1500)), "1500ms");
        assert_eq!(
            (size("64K"), size_text(1 << 20)),
            (Some(65536), "1M".into())
        );
        assert_eq!(
            (duration("200"), duration("us"), size("64k")),
            (None, None, None)
        );
    }
}
