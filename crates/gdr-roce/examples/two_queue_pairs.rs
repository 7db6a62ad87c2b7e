//! Two queue pairs exchange packets through memory: a WRITE that loses one packet.
//!
//! ```text
//! cargo run -p gdr-roce --example two_queue_pairs
//! ```
//!
//! There is no network and no clock. The program carries packets from one queue pair to the other, drops the second
//! one, and advances the time until the requester retransmits it.

mod connection;

use std::error::Error;
use std::process::ExitCode;

use gdr_roce::wire::{MAX_DATAGRAM, Packet};
use gdr_roce::{
    Access, Data, HeapMemory, Mtu, Operation, Qpn, QueuePair, Remote, Segment, SendFlags,
    SendRequest, StateError, Time, WcStatus, WrId,
};

const LEN: usize = 3000;

/// A queue pair and its memory.
struct Host {
    pair: QueuePair,
    memory: HeapMemory,
}

impl Host {
    fn connected(own: Qpn, peer: Qpn) -> Result<Self, StateError> {
        let pair = connection::connected(own, peer, Mtu::B1024)?;
        let memory = HeapMemory::new();
        Ok(Self { pair, memory })
    }
}

/// Carries packets until the sender has none. The packet numbered `lost` is dropped.
fn carry(
    now: Time,
    from: &mut Host,
    to: &mut Host,
    lost: Option<usize>,
) -> Result<(), Box<dyn Error>> {
    let mut room = vec![0; MAX_DATAGRAM];
    let mut number = 0;
    while let Some(len) = from.pair.poll_transmit(now, &mut from.memory, &mut room) {
        // A real network also needs the ICRC: `wire::icrc::seal` and `wire::icrc::matches`.
        let packet = Packet::new(&room[..len])?;
        number += 1;
        let fate = if lost == Some(number) { ", lost" } else { "" };
        println!(
            "{:?}, PSN {}{fate}",
            packet.opcode(),
            packet.bth().psn.get()
        );
        if lost != Some(number) {
            to.pair.receive(now, &packet, &mut to.memory);
        }
    }
    Ok(())
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
    let (a, b) = (Qpn::new(17), Qpn::new(18));
    let (mut near, mut far) = (Host::connected(a, b)?, Host::connected(b, a)?);

    let bytes: Vec<u8> = (0..LEN).map(|i| (i * 31) as u8).collect();
    let (lkey, _) = near.memory.register(0x1000, bytes.clone(), Access::empty());
    let (target, rkey) = far
        .memory
        .register(0x2000, vec![0; LEN], Access::REMOTE_WRITE);
    near.pair.post_send(&SendRequest {
        id: WrId(1),
        operation: Operation::Write {
            remote: Remote { rkey, addr: 0x2000 },
            immediate: None,
        },
        data: Data::Segments(&[Segment {
            lkey,
            addr: 0x1000,
            len: LEN as u32,
        }]),
        flags: SendFlags::SIGNALLED,
    })?;

    let mut now = Time::EPOCH;
    carry(now, &mut near, &mut far, Some(2))?;
    let completion = loop {
        carry(now, &mut far, &mut near, None)?;
        if let Some(completion) = near.pair.poll_completion() {
            break completion;
        }
        // Nothing is in flight: the next event is the time-out.
        if let Some(deadline) = near.pair.next_deadline() {
            now = now.max(deadline);
            near.pair.handle_deadline(now);
        }
        carry(now, &mut near, &mut far, None)?;
    };
    if completion.status != WcStatus::Success || far.memory.bytes(target) != Some(&bytes[..]) {
        return Err(format!("the WRITE ended with {}", completion.status).into());
    }
    println!("{LEN} bytes written; one packet was lost and sent again");
    Ok(())
}
