//! Trace files: what is read of them is reported as text, without control characters, and as metrics.

#![no_main]

use arbitrary::Arbitrary;
use gdr_trace::layout::{FILE_LEN, MAGIC, VERSION, header};
use gdr_trace::{Ended, ProcessTrace, Report};
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    /// Numbers at places of an otherwise empty file, so that rows after the first page are reached.
    numbers: Vec<(u32, u64)>,
    used: [u8; 4],
    raw: &'a [u8],
}

fuzz_target!(|input: Input<'_>| {
    let _ = ProcessTrace::parse(input.raw);
    let mut file = vec![0; FILE_LEN];
    for (table, used) in input.used.iter().enumerate() {
        file[header::USED + 4 * table] = *used;
    }
    for (at, number) in &input.numbers {
        let at = *at as usize % (FILE_LEN - 8);
        file[at..at + 8].copy_from_slice(&number.to_le_bytes());
    }
    file[..8].copy_from_slice(&MAGIC);
    file[header::VERSION..header::VERSION + 4].copy_from_slice(&VERSION.to_le_bytes());
    let trace = ProcessTrace::parse(&file).expect("a file of this version");
    let report = Report::new(Vec::new(), Ended::Status(0), vec![trace]);
    assert!(
        report
            .to_string()
            .lines()
            .all(|line| !line.contains('\u{1b}'))
    );
    let _ = report.prometheus();
});
