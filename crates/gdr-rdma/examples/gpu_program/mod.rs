//! Common part of programs that need an NVIDIA GPU.

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;

use gdr_cuda::Cuda;

/// Runs `work` with the driver, and prints what a success has shown. Exits with 77 without a GPU.
pub(crate) fn run(
    program: impl FnOnce(Arc<Cuda>) -> Result<(), Box<dyn Error>>,
    shown: &str,
) -> ExitCode {
    let driver = match Cuda::load() {
        Ok(driver) => driver,
        Err(error) => {
            eprintln!("no GPU: {error}");
            return ExitCode::from(77);
        }
    };
    match program(driver) {
        Ok(()) => {
            println!("PASS: {shown}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}
