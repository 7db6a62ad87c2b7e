//! RDMA WRITE from one process into the memory of another, without RDMA hardware.
//!
//! ```text
//! cargo run -p gdr-rdma --example write_between_processes
//! ```
//!
//! The program starts itself a second time. Both processes open a soft device at a loopback address, meet over TCP, and
//! exchange queue pair numbers and keys; then one writes into a buffer of the other. On two hosts, the same works with
//! two addresses and a `Security::Key`.

use std::env;
use std::error::Error;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::{Command, ExitCode};
use std::time::Duration;

use gdr_rdma::{
    Access, Buffer, CompletionQueue, ConnectionOptions, Deadline, Device, Listener, MemoryRegion,
    PeerInfo, QueuePair, QueuePairOptions, RemoteMemory, Security, SendRequest, Session,
    SoftOptions, WcStatus, WrId,
};

const TEXT: &[u8] = b"written by another process";

/// Returns the deadline of a step: each ends within this time, or with an error.
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
        Some(address) => write(address.parse()?),
        None => receive(),
    }
}

/// Runs the first process: waits for the second one, and for what it writes.
fn receive() -> Result<(), Box<dyn Error>> {
    let listener = Listener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
    let address = listener.address()?;
    let mut writer = Command::new(env::current_exe()?)
        .arg(address.to_string())
        .spawn()?;
    let mut session = listener.accept(&Security::Loopback, deadline())?;

    let side = Side::connect(&mut session)?;
    // The writer sends this after its WRITE has completed, so the bytes have arrived.
    session.receive(deadline())?;
    let mut bytes = vec![0; TEXT.len()];
    side.region.buffer().read_at(0, &mut bytes)?;
    // Both processes keep their queue pairs until both are done.
    session.barrier(deadline())?;
    if !writer.wait()?.success() {
        return Err("the writing process failed".into());
    }
    println!("received: {}", String::from_utf8(bytes)?);
    Ok(())
}

/// Runs the second process: writes.
fn write(address: SocketAddr) -> Result<(), Box<dyn Error>> {
    let mut session = Session::connect(address, &Security::Loopback, deadline())?;
    let side = Side::connect(&mut session)?;
    let target = side.peer.ok_or("the peer offers no region")?;

    side.region.buffer().write_at(0, TEXT)?;
    let segment = side.region.segment(0, TEXT.len() as u64)?;
    side.pair
        .post_send(SendRequest::write(WrId(1), target.at(0)).segment(segment))?;
    let completion = side.queue.wait(deadline())?;
    if completion.status != WcStatus::Success {
        return Err(format!("the WRITE ended with {}", completion.status).into());
    }
    println!("process {}: WRITE complete", std::process::id());
    session.send(b"done", deadline())?;
    session.barrier(deadline())?;
    Ok(())
}

/// Objects of each process: a connected queue pair and a registered buffer.
struct Side {
    pair: QueuePair,
    queue: CompletionQueue,
    region: MemoryRegion,
    /// The peer's region.
    peer: Option<RemoteMemory>,
}

impl Side {
    fn connect(session: &mut Session) -> Result<Self, Box<dyn Error>> {
        // Port 0: the processes share the address, so they cannot both have RoCE's port 4791.
        let options = SoftOptions::new(IpAddr::V4(Ipv4Addr::LOCALHOST)).port(0);
        let device = Device::soft_with(options)?;
        let domain = device.protection_domain();
        let queue = device.completion_queue(16);
        let pair = domain.queue_pair(&QueuePairOptions::new(&queue))?;
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let region = domain.register(&Buffer::host(4096)?, access)?;

        let path_mtu = device.path_mtu(session.peer()?.ip())?;
        let ours = PeerInfo {
            endpoint: pair.endpoint(),
            path_mtu,
            regions: vec![region.remote()],
        };
        let theirs = session.introduce(&ours, deadline())?;
        pair.connect(&theirs.endpoint, &ConnectionOptions::new(path_mtu))?;
        // After the barrier, both queue pairs accept packets.
        session.barrier(deadline())?;
        Ok(Self {
            pair,
            queue,
            region,
            peer: theirs.regions.first().copied(),
        })
    }
}
