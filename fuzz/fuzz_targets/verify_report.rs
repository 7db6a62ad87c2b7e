//! The report that a kernel leaves in GPU memory.

#![no_main]

use gdr_cuda::VerifyReport;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: [u8; VerifyReport::LEN]| {
    let report = VerifyReport::from_bytes(&bytes);
    assert_eq!(report.mismatches.to_le_bytes(), bytes[0..8]);
    assert_eq!(report.first.to_le_bytes(), bytes[8..16]);
});
