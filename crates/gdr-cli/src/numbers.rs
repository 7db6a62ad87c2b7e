//! Numbers on the command line.

/// A number of bytes: decimal or 0x hexadecimal, with an optional K, M or G for powers of 1024.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let wrong = || format!("`{text}` is no size: give bytes, such as 4096, 0x1000, 4K, 16M or 1G");
    let (digits, scale) = match text.char_indices().next_back() {
        Some((at, 'k' | 'K')) => (&text[..at], 1 << 10),
        Some((at, 'm' | 'M')) => (&text[..at], 1 << 20),
        Some((at, 'g' | 'G')) => (&text[..at], 1 << 30),
        _ => (text, 1),
    };
    number(digits)
        .and_then(|value| value.checked_mul(scale))
        .ok_or_else(wrong)
}

/// A count, decimal or 0x hexadecimal, at least 1.
pub(crate) fn count(text: &str) -> Result<u32, String> {
    number(text)
        .and_then(|value| u32::try_from(value).ok())
        .filter(|&value| value > 0)
        .ok_or_else(|| format!("`{text}` is no count: give a number from 1 to {}", u32::MAX))
}

fn number(digits: &str) -> Option<u64> {
    let (digits, radix) = match digits
        .strip_prefix("0x")
        .or_else(|| digits.strip_prefix("0X"))
    {
        Some(hex) => (hex, 16),
        None => (digits, 10),
    };
    let plain = digits.chars().all(|c| c.is_digit(radix));
    plain
        .then(|| u64::from_str_radix(digits, radix).ok())
        .flatten()
}

/// Six significant digits without trailing zeros, as C++ streams print a number.
pub(crate) fn six_digits(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return format!("{value}");
    }
    // The exponent after rounding to six digits: 999999.7 is a million.
    let scientific = format!("{value:.5e}");
    let exponent = scientific
        .split_once('e')
        .and_then(|(_, e)| e.parse::<i32>().ok());
    let decimals = (5 - exponent.unwrap_or(0)).clamp(0, 12) as usize;
    let plain = format!("{value:.decimals$}");
    if plain.contains('.') {
        plain.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        plain
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("0x1000", 4096),
            ("4K", 4096),
            ("16m", 16 << 20),
            ("1G", 1 << 30),
        ] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for bad in [
            "",
            "K",
            "-1",
            "+1",
            "1.5M",
            "4KB",
            "0x",
            "99999999999G",
            "1é",
        ] {
            assert!(
                size(bad).unwrap_err().contains(&format!("`{bad}`")),
                "{bad}"
            );
        }
    }

    #[test]
    fn a_count_is_at_least_one() {
        assert_eq!(count("100"), Ok(100));
        assert!(count("0").is_err());
        assert!(count("4294967296").is_err());
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
