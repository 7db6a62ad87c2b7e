//! Checks that the search for literals misses nothing: logs give the same result with and without it.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};

use crate::{Answer, Explainer};

#[path = "../tests/explain/texts/mod.rs"]
mod texts;

/// Lines that storms consist of, lines that others depend on, and similar lines.
const LINES: &[&str] = &[
    "pcieport 0000:37:02.0: AER: Corrected error received: 0000:38:00.0",
    "pcieport 0000:37:02.0: AER: Multiple Uncorrectable (Fatal) error message received",
    "mlx5_core 0000:38:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)",
    "mlx5_core 0000:38:00.0: PCIe Bus Error: severity=Uncorrectable (Non-Fatal), type=Transaction",
    "mlx5_core 0000:38:00.0:   device [15b3:1021] error status/mask=00000001/0000e000",
    "mlx5_core 0000:38:00.0:    [ 0] RxErr                  (First)",
    "mlx5_core 0000:38:00.0:    [14] CmpltTO                (First)",
    "n0:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMA",
    "n0:1:2 [0] NCCL INFO Channel 00/0 : 8[0] -> 0[0] [receive] via NET/IB/0",
    "n0:1:2 [0] NCCL INFO Channel 00/0 : 8[0] -> 0[0] [receive] via NET/Socket/1",
    "/GDRDMA",
    "cuMemAlloc() of a 131072 bytes GPU buffer: allocated GPU buffer address at 00007f",
    " 65536      1000           24.30              24.29              0.046329",
    "Memory domain: mlx5_0",
    "memory types: host (access,reg,cache), cuda (reg,cache)",
    "key 0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef error 12",
    "",
    "nothing in particular",
];

/// Returns a line of a log as bytes, with its end.
fn line() -> impl Strategy<Value = Vec<u8>> {
    let all: Vec<&'static str> = (LINES.iter().copied())
        .cycle()
        // As many as there are of the others.
        .take(texts::texts().count())
        .chain(texts::texts().map(|(_, text)| text))
        .collect();
    let prefixes = select(vec![
        "",
        "",
        "",
        "[  812.345678] ",
        "Nov 22 07:31:54 gpu-node-17 kernel: ",
        "n0:1:2 [0] NCCL WARN ",
        "\u{1b}[1;31m",
        "> ",
        "{\"log\":\"",
    ]);
    let ends = select(vec!["\n", "\n", "\r\n", "\\n", " "]);
    // Text that is inserted somewhere: line ends of wrapped lines, and bytes that are not text.
    let breaks: Vec<&'static [u8]> = vec![b"", b"", b"\n", b"\r\n", b"\r", b"\x01", b"\xff\xfe"];
    (
        prefixes,
        select(all),
        vec((any::<Index>(), select(breaks)), 0..3),
        ends,
    )
        .prop_map(|(prefix, text, breaks, end)| {
            let mut line = text.as_bytes().to_vec();
            for (place, put_in) in breaks {
                let at = place.index(line.len() + 1);
                line.splice(at..at, put_in.iter().copied());
            }
            [prefix.as_bytes(), &line, end.as_bytes()].concat()
        })
}

/// Returns all that an answer says, to compare it.
fn said(answer: Answer) -> String {
    let causes: Vec<_> = (answer.causes.iter())
        .map(|it| (it.cause.id, &it.matches, &it.details, it.lines))
        .collect();
    format!("{causes:#?}\n{:#?}", answer.gpudirect)
}

fn read_by(mut explainer: Explainer, log: &[u8]) -> String {
    explainer.push(log);
    said(explainer.finish())
}

fn assert_same(log: &[u8]) {
    let fast = read_by(Explainer::new(), log);
    let simple = read_by(Explainer::unfiltered(), log);
    assert_eq!(fast, simple, "{}", log.escape_ascii());
}

#[test]
fn a_storm_says_the_same_with_and_without_prefixes() {
    for prefix in ["", "[  812.345678] ", "> "] {
        let lines: Vec<String> = (LINES[..7].iter().cycle().take(21))
            .map(|line| format!("{prefix}{line}"))
            .collect();
        assert_same(lines.join("\n").as_bytes());
        assert_same(lines.join("\r\n").as_bytes());
    }
}

#[test]
fn every_known_text_says_the_same_broken_in_two() {
    for (_, text) in texts::texts() {
        let at = text.len() / 2;
        let (start, end) = text.as_bytes().split_at(at);
        assert_same(&[start, b"\n", end].concat());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_log_says_the_same(lines in vec(line(), 1..12)) {
        assert_same(&lines.concat());
    }
}
