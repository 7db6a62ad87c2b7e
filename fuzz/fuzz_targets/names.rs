//! PCI addresses and backends by name: text from users, files and the environment.

#![no_main]

use gdr_copy::BackendKind;
use gdr_cuda::Bdf;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    match text.parse::<Bdf>() {
        Ok(bdf) => {
            assert!(bdf.device < 32 && bdf.function < 8);
            assert_eq!(
                bdf.to_string().parse(),
                Ok(bdf),
                "what is printed is read back"
            );
        }
        Err(error) => assert!(error.to_string().contains(text)),
    }
    if let Ok(kind) = text.parse::<BackendKind>() {
        assert_eq!(kind.name().parse(), Ok(kind));
    }
});
