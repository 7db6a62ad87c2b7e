//! Camera frames that one process records and another processes, all of them in order.
//!
//! ```text
//! cargo run -p gdr-object --example frames
//! ```
//!
//! The frames are in a blocking ring of four slots: the recorder waits for the other process if that lags by four
//! frames. The program starts itself as that process.

use std::env;
use std::error::Error;
use std::net::SocketAddr;
use std::process::{Command, ExitCode};
use std::time::Duration;

use gdr_object::{
    Deadline, Element, Link, LinkOptions, Mode, ObjectName, ObjectOptions, ObjectServer, Place,
    Rights, Security, ServerOptions, Shape, WhenFull,
};

/// Pixels of a frame.
const FRAME: [u64; 2] = [240, 320];
const FRAMES: u8 = 200;

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
        Some(owner) => process(owner.parse()?),
        None => record(),
    }
}

fn record() -> Result<(), Box<dyn Error>> {
    let server = ObjectServer::bind(
        "127.0.0.1:0".parse()?,
        ServerOptions::new(Security::Loopback),
    )?;
    let ring = Mode::Ring {
        slots: 4,
        when_full: WhenFull::Block,
    };
    let options = ObjectOptions::new(Element::U8, Shape::new(FRAME)?).mode(ring);
    let frames = server.create(ObjectName::new("frames")?, options, &Place::host())?;
    // The other process stores its number of frames here, when it starts to follow and when it has ended.
    let options = ObjectOptions::new(Element::U64, Shape::row(1)?)
        .grant(gdr_object::Grantee::Everyone, Rights::ReadWrite);
    let processed = server.create(ObjectName::new("processed")?, options, &Place::host())?;

    let mut other = Command::new(env::current_exe()?)
        .arg(server.address().to_string())
        .spawn()?;
    while processed.newest().is_none() {
        if other.try_wait()?.is_some() {
            return Err("the other process failed".into());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let pixels = usize::try_from(FRAME[0] * FRAME[1])?;
    for number in 0..FRAMES {
        frames.publish(&vec![number; pixels], deadline())?;
    }
    if !other.wait()?.success() {
        return Err("the other process failed".into());
    }
    println!("{FRAMES} frames recorded, and every one was processed");
    Ok(())
}

fn process(owner: SocketAddr) -> Result<(), Box<dyn Error>> {
    let link = Link::connect(owner, LinkOptions::new(Security::Loopback), deadline())?;
    let frames = link.open(ObjectName::new("frames")?, deadline())?;
    let mut follower = frames.follow(deadline())?;
    let processed = link.open(ObjectName::new("processed")?, deadline())?;
    processed.put_from(&link.host_memory(8)?, deadline())?;

    let memory = link.host_memory(frames.info().bytes)?;
    for number in 0..FRAMES {
        let received = follower.next_into(&memory, deadline())?;
        let last = memory.buffer().load_u8(memory.len() - 1)?;
        if received.missed > 0 || last != number {
            return Err(format!("frame {number} is missing").into());
        }
    }
    Ok(())
}
