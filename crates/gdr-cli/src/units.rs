//! Numbers on the command line.

use std::time::Duration;

/// The units of sizes. K, KB and KiB all mean 1024: sizes of memory are powers of two.
const UNITS: [(char, u32); 5] = [('k', 10), ('m', 20), ('g', 30), ('t', 40), ('p', 50)];

/// Parses a number of bytes: decimal, with a fraction before a unit, or 0x hexadecimal. The units K, M, G, T and P are
/// powers of 1024, and may also be written as KiB or KB.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let wrong = || {
        format!(
            "`{text}` is not a size: give bytes, such as 4096, 0x1000, 4K, 16MiB, 1.5M or 1G, with \
             units of 1024"
        )
    };
    let lower = text.to_ascii_lowercase();
    if lower.starts_with("0x") {
        return number(&lower).ok_or_else(wrong);
    }
    let end = lower.find(|c: char| !c.is_ascii_digit() && c != '.');
    let (digits, unit) = lower.split_at(end.unwrap_or(lower.len()));
    let unit = unit.trim_start_matches(' ');
    let unit = unit
        .strip_suffix("ib")
        .or(unit.strip_suffix('b'))
        .unwrap_or(unit);
    let shift = match (unit, lower.ends_with("ib")) {
        ("", false) => Some(0),
        _ => {
            let mut units = UNITS.iter();
            let named = units.find(|(name, _)| unit.chars().eq([*name]));
            named.map(|(_, shift)| *shift)
        }
    };
    shift
        .and_then(|shift| scaled(digits, shift))
        .ok_or_else(wrong)
}

/// Returns `digits`, which may have a fraction, times 2 to the power of `shift`, if that is a whole number.
fn scaled(digits: &str, shift: u32) -> Option<u64> {
    let (whole, fraction) = match digits.split_once('.') {
        Some((_, fraction)) if fraction.is_empty() || fraction.len() > 9 => return None,
        Some((whole, fraction)) => (whole, fraction),
        None => (digits, ""),
    };
    let scale = 1u128 << shift;
    let tenths = 10u128.pow(fraction.len().try_into().ok()?);
    let parts = match fraction {
        "" => 0,
        fraction => u128::from(number(fraction)?) * scale,
    };
    if parts % tenths != 0 {
        return None;
    }
    let bytes = u128::from(number(whole)?).checked_mul(scale)? + parts / tenths;
    u64::try_from(bytes).ok()
}

/// Parses a time: `200us`, `3ms` or `2s`.
pub(crate) fn time(text: &str) -> Result<Duration, String> {
    const TIMES: [(&str, u64); 4] = [
        ("ns", 1),
        ("us", 1_000),
        ("ms", 1_000_000),
        ("s", 1_000_000_000),
    ];
    let end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    let unit = TIMES.iter().find(|(name, _)| *name == unit);
    unit.and_then(|(_, unit)| number(digits)?.checked_mul(*unit))
        .map(Duration::from_nanos)
        .ok_or_else(|| format!("`{text}` is not a time: use a form like 200us, 3ms or 2s"))
}

/// Parses bits per second: `500K`, `100M` or `10G`, with units of 1000.
pub(crate) fn bit_rate(text: &str) -> Result<u64, String> {
    const RATES: [(&str, u64); 4] = [
        ("", 1),
        ("K", 1_000),
        ("M", 1_000_000),
        ("G", 1_000_000_000),
    ];
    let end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    let unit = RATES
        .iter()
        .find(|(name, _)| name.eq_ignore_ascii_case(unit));
    unit.and_then(|(_, unit)| number(digits)?.checked_mul(*unit))
        .filter(|rate| *rate >= 8)
        .ok_or_else(|| format!("`{text}` is not a rate: use bits per second, such as 100M or 10G"))
}

/// Parses a share in percent, `0.1%`, into a number from 0 to 1.
pub(crate) fn share(text: &str) -> Result<f64, String> {
    let percent = text.strip_suffix('%').and_then(|it| it.parse::<f64>().ok());
    percent
        .filter(|percent| (0.0..=100.0).contains(percent))
        .map(|percent| percent / 100.0)
        .ok_or_else(|| format!("`{text}` is not a share: use a percentage, such as 0.1%"))
}

/// Parses a count, decimal or 0x hexadecimal, of at least 1.
pub(crate) fn count(text: &str) -> Result<u32, String> {
    number(text)
        .and_then(|value| u32::try_from(value).ok())
        .filter(|&value| value > 0)
        .ok_or_else(|| {
            format!(
                "`{text}` is not a count: use a number from 1 to {}",
                u32::MAX
            )
        })
}

fn number(digits: &str) -> Option<u64> {
    let (digits, radix) = match digits
        .strip_prefix("0x")
        .or_else(|| digits.strip_prefix("0X"))
    {
        Some(hex) => (hex, 16),
        None => (digits, 10),
    };
    let plain = !digits.is_empty() && digits.chars().all(|c| c.is_digit(radix));
    plain
        .then(|| u64::from_str_radix(digits, radix).ok())
        .flatten()
}

/// Formats a number of bytes with the largest unit in which it is a whole number: `4 B`, `64 KiB`.
pub(crate) fn binary(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let (mut value, mut unit) = (bytes, 0);
    while value >= 1024 && value.is_multiple_of(1024) && unit + 1 < units.len() {
        value /= 1024;
        unit += 1;
    }
    format!("{value} {}", units[unit])
}

/// Formats a measured figure with four significant digits, or three below 1, without trailing zeros.
pub(crate) fn figure(value: f64) -> String {
    significant(value, if value < 1.0 { 3 } else { 4 })
}

/// Formats six significant digits without trailing zeros, as C++ streams print a number.
pub(crate) fn six_digits(value: f64) -> String {
    significant(value, 6)
}

fn significant(value: f64, digits: usize) -> String {
    if value == 0.0 || !value.is_finite() {
        return format!("{value}");
    }
    // The exponent after rounding: with six digits, 999999.7 is a million.
    let scientific = format!("{value:.places$e}", places = digits - 1);
    let exponent = scientific
        .split_once('e')
        .and_then(|(_, e)| e.parse::<i32>().ok());
    let decimals = (digits as i32 - 1 - exponent.unwrap_or(0)).clamp(0, 12) as usize;
    let plain = format!("{value:.decimals$}");
    if plain.contains('.') {
        plain.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        plain
    }
}

#[cfg(test)]
mod tests {
    use snapshot::assert_contains;

    use super::*;

    #[test]
    fn times_rates_and_shares_have_units() {
        assert_eq!(time("200us"), Ok(Duration::from_micros(200)));
        assert_eq!(time("2s"), Ok(Duration::from_secs(2)));
        assert_eq!(bit_rate("10G"), Ok(10_000_000_000));
        assert_eq!(bit_rate("400k"), Ok(400_000));
        assert_eq!(share("0.5%"), Ok(0.005));
        for bad in ["", "1", "us", "1.5ms", "-1s", "99999999999999s"] {
            assert!(time(bad).is_err(), "{bad}");
        }
        for bad in ["", "G", "7", "1.5G", "1T", "99999999999999G"] {
            assert!(bit_rate(bad).is_err(), "{bad}");
        }
        for bad in ["", "%", "1", "100.1%", "-1%", "NaN%"] {
            assert!(share(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("0x1000", 4096),
            ("4K", 4096),
            ("16m", 16 << 20),
            ("1G", 1 << 30),
            ("1g", 1 << 30),
            ("1MiB", 1 << 20),
            ("1MB", 1 << 20),
            ("1mb", 1 << 20),
            ("64 KiB", 64 << 10),
            ("1.5M", 3 << 19),
            ("0.5k", 512),
            ("2T", 2 << 40),
            ("512B", 512),
        ] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for bad in [
            "",
            "K",
            "-1",
            "+1",
            "1.5",
            "0.3K",
            "1.M",
            ".5M",
            "1..5M",
            "1iB",
            "4KBB",
            "4KK",
            "4Kibi",
            "MiB",
            "0x",
            "0xG",
            "0x1K",
            "99999999999G",
            "20000000000000000000",
            "1é",
        ] {
            assert_contains!(size(bad).unwrap_err(), format!("`{bad}`"), "{bad}");
        }
    }

    #[test]
    fn a_count_is_at_least_one() {
        assert_eq!(count("100"), Ok(100));
        assert!(count("0").is_err());
        assert!(count("4294967296").is_err());
    }

    #[test]
    fn a_number_of_bytes_is_whole_in_its_unit() {
        for (bytes, text) in [
            (0, "0 B"),
            (4, "4 B"),
            (1024, "1 KiB"),
            (1536, "1536 B"),
            (64 << 20, "64 MiB"),
            (1 << 63, "8 EiB"),
        ] {
            assert_eq!(binary(bytes), text);
        }
    }

    #[test]
    fn no_figure_is_so_small_that_it_becomes_nothing() {
        for (value, text) in [
            (0.000_190_24, "0.00019"),
            (0.000_085_89, "0.0000859"),
            (21.144, "21.14"),
            (660.08, "660.1"),
            (12_345.6, "12346"),
            (0.0, "0"),
        ] {
            assert_eq!(figure(value), text);
        }
    }

    #[test]
    fn numbers_are_printed_with_six_digits() {
        for (value, text) in [
            (9638.5432, "9638.54"),
            (0.945_000_1, "0.945"),
            (530.0, "530"),
            (999_999.7, "1000000"),
            (0.001_234_567_8, "0.00123457"),
            (0.0, "0"),
        ] {
            assert_eq!(six_digits(value), text);
        }
    }
}
