//! Weights that a trainer publishes after every step, and that two readers pull.
//!
//! ```text
//! cargo run -p gdr-object --example weights
//! ```
//!
//! The weights are in memory of the first GPU, or of the simulated one with `GDR_BACKEND=sim`. The
//! trainer queues the publication after the step, on the same stream, and waits for no reader. The
//! program starts itself as the readers; on other hosts they would take the address and a
//! `Security::Key`.

use std::env;
use std::error::Error;
use std::net::SocketAddr;
use std::process::{Child, Command, ExitCode};
use std::time::Duration;

use gdr_cuda::{Gpu, MemoryKind, Ordinal, open_driver, pattern_word};
use gdr_object::{
    Deadline, Element, Link, LinkOptions, ObjectName, ObjectOptions, ObjectServer, Place, Security,
    ServerOptions, Shape,
};

/// 32-bit words of the weights.
const WORDS: u64 = 1 << 18;
const STEPS: u32 = 20;
const LIMIT: Duration = Duration::from_secs(30);

fn deadline() -> Deadline {
    Deadline::after(LIMIT)
}

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
    match env::args().nth(1) {
        Some(owner) => read(owner.parse()?),
        None => train(),
    }
}

fn train() -> Result<(), Box<dyn Error>> {
    let gpu = Gpu::open(open_driver()?, Ordinal(0))?;
    let server = ObjectServer::bind(
        "127.0.0.1:0".parse()?,
        ServerOptions::new(Security::Loopback),
    )?;
    let options = ObjectOptions::new(Element::F32, Shape::new([512, WORDS / 512])?);
    let weights = server.create(ObjectName::new("weights")?, options, &Place::gpu(&gpu))?;
    let info = weights.info()?;
    println!(
        "weights: {} bytes in {}, {}",
        info.bytes, info.location, info.path
    );

    let start = || -> Result<Child, Box<dyn Error>> {
        let mut reader = Command::new(env::current_exe()?);
        Ok(reader.arg(server.address().to_string()).spawn()?)
    };
    let mut readers = [start()?, start()?];
    let stream = gpu.stream()?;
    let tensor = gpu.allocate(MemoryKind::Plain, WORDS * 4)?;
    for step in 1..=STEPS {
        // The step: a kernel that changes the weights.
        stream.fill_pattern(&tensor, 0, WORDS, step, LIMIT)?;
        weights.publish_from(&tensor, &stream)?;
    }
    stream.wait(LIMIT)?;
    for reader in &mut readers {
        if !reader.wait()?.success() {
            return Err("a reader failed".into());
        }
    }
    println!("{STEPS} steps published; both readers have the last one");
    Ok(())
}

fn read(owner: SocketAddr) -> Result<(), Box<dyn Error>> {
    let link = Link::connect(owner, LinkOptions::new(Security::Loopback), deadline())?;
    let weights = link.open(ObjectName::new("weights")?, deadline())?;
    let memory = link.host_memory(weights.info().bytes)?;
    let mut bytes = vec![0; usize::try_from(memory.len())?];
    let mut seen = None;
    loop {
        weights.wait_newer(seen, deadline())?;
        // There may be a newer epoch by now.
        let epoch = weights.get_into(&memory, deadline())?;
        memory.buffer().read_at(0, &mut bytes)?;
        // The step of these weights: their epoch, as each step is published once.
        let step = u32::try_from(epoch.get())?;
        let words = bytes.chunks_exact(4).enumerate();
        let expected = |at: usize| pattern_word(step, at as u64).to_le_bytes();
        if words.into_iter().any(|(at, word)| word != expected(at)) {
            return Err(format!("the weights of step {step} are torn").into());
        }
        if step == STEPS {
            return Ok(());
        }
        seen = Some(epoch);
    }
}
