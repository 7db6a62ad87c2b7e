//! A number that one process changes and another watches.
//!
//! ```text
//! cargo run -p gdr-object --example scalar
//! ```
//!
//! The number is a live object: a single copy, changed in place. Each change wakes the watcher. It does not see every
//! value, but never an old one after a new one. The program starts itself as the watcher.

use std::env;
use std::error::Error;
use std::net::SocketAddr;
use std::process::{Command, ExitCode};
use std::time::Duration;

use gdr_object::{
    Deadline, Element, Link, LinkOptions, Mode, ObjectName, ObjectOptions, ObjectServer, Place,
    Security, ServerOptions, Shape,
};

const LAST: u64 = 1000;

fn deadline() -> Deadline {
    Deadline::after(Duration::from_secs(30))
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
        Some(owner) => watch(owner.parse()?),
        None => change(),
    }
}

fn change() -> Result<(), Box<dyn Error>> {
    let server = ObjectServer::bind(
        "127.0.0.1:0".parse()?,
        ServerOptions::new(Security::Loopback),
    )?;
    let options = ObjectOptions::new(Element::U64, Shape::new([])?).mode(Mode::Live);
    let step = server.create(ObjectName::new("step")?, options, &Place::host())?;
    let mut watcher = Command::new(env::current_exe()?)
        .arg(server.address().to_string())
        .spawn()?;
    for number in 1..=LAST {
        step.publish(&number.to_le_bytes(), deadline())?;
        std::thread::sleep(Duration::from_micros(100));
    }
    if !watcher.wait()?.success() {
        return Err("the watcher failed".into());
    }
    println!("the watcher saw the number {LAST}");
    Ok(())
}

fn watch(owner: SocketAddr) -> Result<(), Box<dyn Error>> {
    let link = Link::connect(owner, LinkOptions::new(Security::Loopback), deadline())?;
    let step = link.open(ObjectName::new("step")?, deadline())?;
    let memory = link.host_memory(8)?;
    let (mut seen, mut last) = (None, 0);
    while last < LAST {
        let epoch = step.wait_newer(seen, deadline())?;
        step.get_into(&memory, deadline())?;
        let number = u64::from_le(memory.buffer().load_u64(0)?);
        if number < last {
            return Err(format!("{number} came after {last}").into());
        }
        (seen, last) = (Some(epoch), number);
    }
    Ok(())
}
