//! Removes what surrounds a message: colours, quotation marks, logger prefixes, encoded data.

use gdr_node::kernel_log::begins_record;
use memchr::memchr;

/// Minimum length of a run of letters and digits without a space that counts as encoded data.
const ENCODED: usize = 64;

/// Returns a line without terminal colours, control characters and encoded data.
///
/// Most lines need no change, and are not copied.
pub(crate) fn clean<'a>(line: &'a [u8], buffer: &'a mut Vec<u8>) -> &'a [u8] {
    // Without an early exit, this takes a few vector instructions.
    let escapes = (line.iter()).fold(false, |found, byte| {
        found | (*byte < b' ' && *byte != b'\t')
    });
    if !escapes && !has_encoded(line) {
        return line;
    }
    buffer.clear();
    let mut rest = line;
    while let Some((byte, after)) = rest.split_first() {
        if *byte == 0x1b {
            rest = after_escape(after);
        } else if *byte < b' ' {
            buffer.push(b' ');
            rest = after;
        } else if let Some(length) = encoded_at_start(rest) {
            buffer.push(b' ');
            rest = &rest[length..];
        } else {
            // Copy a word whole, so that its middle is not taken for the start of a word.
            let word = run_length(rest).max(1);
            buffer.extend_from_slice(&rest[..word]);
            rest = &rest[word..];
        }
    }
    buffer
}

/// Removes the quote marks of a mail or a table.
pub(crate) fn unquoted(mut line: &[u8]) -> &[u8] {
    while let Some((b'>' | b'|', rest)) = line.split_first() {
        line = rest.trim_ascii_start();
    }
    line
}

/// Returns what follows the escape character's sequence.
fn after_escape(after: &[u8]) -> &[u8] {
    match after.split_first() {
        Some((b'[', rest)) => {
            let end = rest.iter().position(|byte| (b'@'..=b'~').contains(byte));
            end.map_or(&[], |end| &rest[end + 1..])
        }
        Some((_, rest)) => rest,
        None => after,
    }
}

/// Returns whether there is encoded data.
fn has_encoded(line: &[u8]) -> bool {
    let mut start = 0;
    // A run that is long enough fills this window, so most bytes of short words are skipped.
    while let Some(window) = line.get(start..start + ENCODED) {
        match window.iter().rposition(|byte| !is_encoding(*byte)) {
            Some(gap) => start += gap + 1,
            None if encoded_at_start(&line[start..]).is_some() => return true,
            None => start += run_length(&line[start..]),
        }
    }
    false
}

/// Returns the length of the encoded data at the start of the text: letters of both cases and digits, in a run longer
/// than any word or path.
fn encoded_at_start(text: &[u8]) -> Option<usize> {
    let run = run_length(text);
    if run < ENCODED {
        return None;
    }
    let run_text = &text[..run];
    let has = |kind: fn(&u8) -> bool| run_text.iter().any(kind);
    let mixed = has(u8::is_ascii_lowercase) && has(u8::is_ascii_uppercase);
    let hexadecimal = run_text.iter().all(u8::is_ascii_hexdigit);
    ((mixed && has(u8::is_ascii_digit)) || hexadecimal).then_some(run)
}

/// Returns how many bytes at the start of the text could be encoded data.
fn run_length(text: &[u8]) -> usize {
    text.iter().take_while(|byte| is_encoding(**byte)).count()
}

fn is_encoding(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'=')
}

/// Returns whether a line begins like a log line: with a time, a host, or a level. A line that does not may continue
/// the previous one.
pub(crate) fn has_log_prefix(line: &[u8]) -> bool {
    let Some(first) = line.first() else {
        return false;
    };
    if matches!(first, b'[' | b'<' | b'{' | b'$' | b'#') {
        return true;
    }
    let word_end = line
        .iter()
        .position(u8::is_ascii_whitespace)
        .unwrap_or(line.len());
    let (word, rest) = line.split_at(word_end);
    if starts_with_date(word) || is_host_and_process(word) {
        return true;
    }
    // Prefixes of the kernel's log, and times, contain one of these.
    let may_begin = word.contains(&b'-') || word.contains(&b';') || memchr(b'[', line).is_some();
    if may_begin && std::str::from_utf8(line).is_ok_and(begins_record) {
        return true;
    }
    let months: [&[u8]; 12] = [
        b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov",
        b"Dec",
    ];
    word.len() == 3 && months.contains(&word) && rest.contains(&b':')
}

/// Recognizes `I0115` and `E20240101` of glog, `2025-08-21` and `2025/08/21`.
fn starts_with_date(word: &[u8]) -> bool {
    let digits = |text: &[u8]| text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let leading = digits(word);
    match word.get(leading) {
        Some(b'-' | b'/') => leading == 4 && digits(&word[5..]) == 2,
        Some(b'I' | b'W' | b'E' | b'F') => {
            leading == 0 && digits(&word[1..]) >= 4 && digits(&word[1..]) + 1 == word.len()
        }
        _ => false,
    }
}

/// `host:12:34` of NCCL, `07:31:54`.
fn is_host_and_process(word: &[u8]) -> bool {
    let mut parts = word.split(|byte| *byte == b':').skip(1);
    let is_number = |part: Option<&[u8]>| {
        part.is_some_and(|part| !part.is_empty() && part.iter().all(u8::is_ascii_digit))
    };
    is_number(parts.next()) && is_number(parts.next())
}

/// Returns as much of a line as is shown, including the relevant place.
pub(crate) fn excerpt(line: &[u8], at: usize) -> String {
    const LONGEST: usize = 300;
    let text = String::from_utf8_lossy(line);
    let text = text.trim();
    if text.chars().count() <= LONGEST {
        return text.to_owned();
    }
    let before = String::from_utf8_lossy(&line[..at.min(line.len())])
        .chars()
        .count();
    let skipped = before.saturating_sub(LONGEST / 3);
    let shown: String = text.chars().skip(skipped).take(LONGEST).collect();
    let start = if skipped > 0 { "… " } else { "" };
    let more = text.chars().count() > skipped + LONGEST;
    format!("{start}{}{}", shown.trim(), if more { " …" } else { "" })
}

#[cfg(test)]
mod tests {
    use snapshot::assert_contains;

    use super::*;

    fn cleaned(line: &str) -> String {
        let mut buffer = Vec::new();
        let line = unquoted(line.as_bytes().trim_ascii());
        String::from_utf8_lossy(clean(line, &mut buffer)).into_owned()
    }

    #[test]
    fn colours_quotation_and_control_characters_are_taken_off() {
        assert_eq!(
            cleaned("  > > \u{1b}[1;31mERROR\u{1b}[0m here\r"),
            "ERROR here"
        );
        assert_eq!(cleaned("| a"), "a");
    }

    #[test]
    fn encoded_data_is_no_text_and_a_path_is() {
        let data =
            "QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVphYmNkZWZnaGlqa2xtbm9wcXJzdHV2d3h5eg/EFAULT/+1";
        assert_eq!(cleaned(&format!("key {data} end")), "key   end");
        let path = "/usr/local/lib/python3/dist/packages/torch/lib/nvidia/nccl/lib/LIBRARY";
        assert!(path.len() > ENCODED);
        let path = path.to_lowercase();
        assert_eq!(cleaned(&path), path);
    }

    #[test]
    fn encoded_data_is_found_wherever_it_begins() {
        let data = "0123456789abcdef".repeat(4);
        let word = "x".repeat(ENCODED + 3);
        for before in 0..3 * ENCODED {
            let spaces = " ".repeat(before);
            for line in [
                format!("{spaces}{data}"),
                format!("a{spaces} {word} b {data}"),
                format!("{} {data} z", "a b".repeat(before)),
            ] {
                assert!(has_encoded(line.as_bytes()), "{line}");
                let line = line.replace(&data, &data[1..]);
                assert!(!has_encoded(line.as_bytes()), "{line}");
            }
        }
    }

    #[test]
    fn lines_of_logs_differ_from_the_rest_of_a_wrapped_line() {
        for line in [
            "[  12.5] NVRM: x",
            "Nov 22 07:31:54 host kernel: x",
            "2025-08-21T10:00:00Z x",
            "gpu01:12:34 [0] NCCL INFO x",
            "E0115 05:20:19.9 309 x.cpp:1] x",
            "6,3973,227996636,-;text",
            "node01: [   12.345678] text",
        ] {
            assert!(has_log_prefix(line.as_bytes()), "{line}");
        }
        for line in [
            "error Bad address",
            "11279546368 bytes: Bad address",
            "len=65544 p2p_token=0",
            "dgid=fe80::1 sgid_index=3) failed",
            "NET/IB/0(8)",
            "11279546368 bytes: Bad address",
            "len=65544 p2p_token=0",
            "dgid=fe80::1 sgid_index=3) failed",
            "NET/IB/0(8)",
            "failed with 110",
            "",
            "Failed to create MR",
        ] {
            assert!(!has_log_prefix(line.as_bytes()), "{line}");
        }
    }

    #[test]
    fn a_long_line_is_shown_around_what_matters() {
        let line = format!("{}needle{}", "x ".repeat(1000), " y".repeat(1000));
        let shown = excerpt(line.as_bytes(), 2000);
        assert_contains!(shown, "needle");
        assert!(shown.starts_with('…') && shown.ends_with('…'));
        assert!(shown.chars().count() < 320);
    }
}
