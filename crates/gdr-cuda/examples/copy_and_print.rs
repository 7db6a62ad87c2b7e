//! Allocates GPU memory, copies a text to it and back, and prints it.
//!
//! ```text
//! cargo run -p gdr-cuda --example copy_and_print
//! ```
//!
//! Without a GPU the example uses a simulated one and reports that.

use std::error::Error;
use std::process::ExitCode;

use gdr_cuda::{DriverKind, Gpu, MemoryKind, Ordinal, SimDriver, open_driver};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let gpu = open_driver().and_then(|driver| Gpu::open(driver, Ordinal(0)));
    let gpu = match gpu {
        Ok(gpu) => gpu,
        Err(error) => {
            println!("no GPU can be used ({error}): simulating one");
            Gpu::open(SimDriver::new(1), Ordinal(0))?
        }
    };
    let info = gpu.info();
    let gib = info.total_memory >> 30;
    println!("{} at {}, {gib} GiB", info.name, info.bdf);

    let text = b"hello from GPU memory";
    let buffer = gpu.allocate(MemoryKind::Plain, 4096)?;
    buffer.write(0, text)?;
    let mut copy = vec![0; text.len()];
    buffer.read(0, &mut copy)?;

    let simulated = match gpu.driver().kind() {
        DriverKind::Simulated => " (simulated)",
        _ => "",
    };
    println!("{}{simulated}", String::from_utf8(copy)?);
    Ok(())
}
