//! A fixed number of WRITE packets to a responder, for counting instructions.
//!
//! ```text
//! cargo run --release -p gdr-roce --example packets -- receive 1024 100000
//! ```
//!
//! `receive` builds packets of this many bytes, verifies and receives each, and collects the acknowledgements. `make`
//! only builds them, so the difference is the cost of receiving.

mod connection;

use std::error::Error;
use std::net::Ipv6Addr;
use std::process::ExitCode;

use gdr_roce::wire::icrc::{self, Ip};
use gdr_roce::wire::{MAX_DATAGRAM, Packet, UDP_PORT};
use gdr_roce::{
    Access, Data, HeapMemory, Mtu, Operation, Qpn, Remote, Segment, SendFlags, SendRequest, Time,
    WrId,
};

use connection::connected;

/// The position of the PSN in a base transport header.
const PSN: std::ops::Range<usize> = 9..12;
/// How often acknowledgements are collected, in packets.
const BATCH: u32 = 16;
const ADDRESS: u64 = 0x10000;

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
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [mode, len, count] = &arguments[..] else {
        return Err("usage: packets make|receive LEN COUNT".into());
    };
    let (receives, len, count) = (
        mode == "receive",
        len.parse::<u32>()?,
        count.parse::<u32>()?,
    );
    if len > 4096 || count >= 1 << 24 {
        return Err("at most 4096 bytes, and packets below 2^24".into());
    }

    let (a, b) = (Qpn::new(17), Qpn::new(18));
    let (mut near, mut far) = (connected(a, b, Mtu::B4096)?, connected(b, a, Mtu::B4096)?);
    let (mut here, mut there) = (HeapMemory::new(), HeapMemory::new());
    let size = len.max(1) as usize;
    let (source, _) = here.register(ADDRESS, vec![7; size], Access::empty());
    let (target, rkey) = there.register(ADDRESS, vec![0; size], Access::REMOTE_WRITE);
    let remote = Remote {
        rkey,
        addr: ADDRESS,
    };
    near.post_send(&SendRequest {
        id: WrId(1),
        operation: Operation::Write {
            remote,
            immediate: None,
        },
        data: Data::Segments(&[Segment {
            lkey: source,
            addr: ADDRESS,
            len,
        }]),
        flags: SendFlags::SIGNALLED,
    })?;
    let now = Time::EPOCH;
    let mut wire = vec![0; MAX_DATAGRAM];
    let sent = near.poll_transmit(now, &mut here, &mut wire);
    wire.truncate(sent.ok_or("nothing was sent")?);

    let path = icrc::Path {
        ip: Ip::V6 {
            src: Ipv6Addr::LOCALHOST,
            dst: Ipv6Addr::LOCALHOST,
        },
        src_port: 0xc000,
        dst_port: UDP_PORT,
    };
    let mut answer = vec![0; MAX_DATAGRAM];
    let mut answers = 0;
    for psn in 0..count {
        wire[PSN].copy_from_slice(&psn.to_be_bytes()[1..]);
        icrc::seal(&path, &mut wire);
        if !receives {
            continue;
        }
        if !icrc::matches(&path, &wire) {
            return Err("the check of a packet failed".into());
        }
        far.receive(now, &Packet::new(&wire)?, &mut there);
        if psn % BATCH == BATCH - 1 || psn == count - 1 {
            while far.poll_transmit(now, &mut there, &mut answer).is_some() {
                answers += 1;
            }
        }
    }
    let placed = there.bytes(target).is_some_and(|bytes| bytes[0] == 7);
    if receives && len > 0 && (!placed || answers == 0) {
        return Err("the packets were not taken".into());
    }
    println!("{count} packets of {len} bytes, {answers} answers");
    Ok(())
}
