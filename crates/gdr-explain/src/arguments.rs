//! Lists of arguments, which programs print between the name of a call and its result.

use memchr::memchr;

/// Shorter lists do not get in the way of expressions.
const SHORTEST: usize = 20;
/// If a line has more unclosed lists than this, its parentheses do not belong to calls.
const MOST_UNCLOSED: usize = 8;

/// Copies a line without its long lists of arguments to `buffer`: `ibv_create_ah() failed` for
/// `ibv_create_ah(dlid=49152 sl=0 ...) failed`. Returns whether there were any.
pub(crate) fn without_arguments(line: &[u8], buffer: &mut Vec<u8>) -> bool {
    buffer.clear();
    let mut copied = 0;
    let mut at = 0;
    let mut unclosed = 0;
    while let Some(open) = memchr(b'(', &line[at..]) {
        let open = at + open;
        at = open + 1;
        let is_call =
            open > 0 && (line[open - 1].is_ascii_alphanumeric() || line[open - 1] == b'_');
        if !is_call {
            continue;
        }
        let Some(close) = closing(line, open) else {
            unclosed += 1;
            if unclosed > MOST_UNCLOSED {
                break;
            }
            continue;
        };
        let list = &line[open + 1..close];
        if list.len() > SHORTEST && list.iter().any(|byte| matches!(byte, b'=' | b',')) {
            buffer.extend_from_slice(&line[copied..=open]);
            copied = close;
        }
        at = close + 1;
    }
    if copied == 0 {
        return false;
    }
    buffer.extend_from_slice(&line[copied..]);
    true
}

/// Returns where the parenthesis closes that opens at `open`.
fn closing(line: &[u8], open: usize) -> Option<usize> {
    let mut depth = 0_usize;
    for (at, byte) in line.iter().enumerate().skip(open) {
        match byte {
            b'(' => depth += 1,
            b')' => {
                depth -= 1;
                if depth == 0 {
                    return Some(at);
                }
            }
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shortened(line: &str) -> Option<String> {
        let mut buffer = Vec::new();
        without_arguments(line.as_bytes(), &mut buffer).then(|| String::from_utf8(buffer).unwrap())
    }

    #[test]
    fn long_lists_of_arguments_are_left_out() {
        let line = "ibv_create_ah(dlid=49152 sl=0 dgid=f(1) x=2) for x on mlx5_0(port 1) failed: a";
        let expected = "ibv_create_ah() for x on mlx5_0(port 1) failed: a";
        assert_eq!(shortened(line).as_deref(), Some(expected));
        let two = "a(aaaaaaaaaaaa, bbbbbbbbbbbbbb) and b(aaaaaaaaaaaa, bbbbbbbbbbbbbb) failed";
        assert_eq!(shortened(two).as_deref(), Some("a() and b() failed"));
    }

    #[test]
    fn other_lines_stay_as_they_are() {
        for line in [
            "",
            "failed (see the log for what the reason may be, please)",
            "Xid (PCI:0000:18:00): 79",
            "open(a=1",
            "call(short=1) failed",
            "))((",
        ] {
            assert_eq!(shortened(line), None, "{line}");
        }
    }
}
