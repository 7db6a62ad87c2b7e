//! Control messages of objects, and handles: what is read of them is written as it was read.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| gdr_object::check_untrusted(bytes));
