//! Large, bounded numbers of packets: transfers continue, and memory and descriptors do not grow.

use std::net::{IpAddr, Ipv4Addr};
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use gdr_rdma::LossRecovery;
use gdr_roce::wire::icrc;

use crate::attacker::{Connection, FIRST_PSN, MTU, Target, V4, socket};
use crate::packet::{ACK, Bytes, opcode};

/// The number of datagrams of each kind.
const FLOOD: usize = 100_000;

/// Returns the resident memory of this process in bytes.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

/// Returns the CPU time of this process so far.
fn cpu_time() -> std::time::Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    std::time::Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Each test measures the process, so only one runs at a time.
static ALONE: Mutex<()> = Mutex::new(());

#[test]
fn floods_use_no_more_memory_and_end_no_connection() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(target) = Target::new(V4) else {
        return;
    };
    let connection = target.connect();
    let stranger = socket(IpAddr::V4(Ipv4Addr::new(127, 81, 0, 4)));
    let to = target.address();
    let from = stranger.local_addr().unwrap();
    let good = target.write(&connection, FIRST_PSN, 0, 16);
    let mut foreign = good.clone();
    foreign.0[4..8].copy_from_slice(&0x12_3456_u32.to_be_bytes());
    let notification = Bytes::new(0x81, connection.qpn, 0).raw(&[0; 16]);
    let kinds: [(&str, Vec<u8>); 6] = [
        ("empty", vec![]),
        ("noise", vec![0xa5; 64]),
        ("a wrong ICRC", [&good.0[..], &[0; 4]].concat()),
        ("a long wrong ICRC", vec![0x0a; 4132]),
        ("another queue pair", foreign.sealed(from, to)),
        ("congestion notifications", notification.sealed(from, to)),
    ];
    // The device allocates memory when it is first used, so that must precede the measurement.
    stranger.send_to(&[0; 8], to).unwrap();
    target.answers();
    let (memory, files) = (resident(), descriptors());
    let mut psn = FIRST_PSN;
    for (name, datagram) in &kinds {
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..FLOOD {
                    // The kernel drops packets while the receive buffer is full.
                    let _ = stranger.send_to(datagram, to);
                }
                over.store(true, Ordering::Release);
            });
            let mut served = 0;
            while !over.load(Ordering::Acquire) || served == 0 {
                // Retransmits until the target acknowledges, as a peer does.
                target.send(&target.write(&connection, psn, 0, 16));
                let deadline = std::time::Duration::from_millis(50);
                target.attacker.set_read_timeout(Some(deadline)).unwrap();
                let mut datagram = [0; 9000];
                let Ok((len, from)) = target.attacker.recv_from(&mut datagram) else {
                    continue;
                };
                let here = target.attacker.local_addr().unwrap();
                let answer = crate::packet::Received::parse(&datagram[..len], from, here);
                if answer.opcode == opcode::ACKNOWLEDGE && answer.psn == psn {
                    assert_eq!(answer.syndrome, Some(ACK), "{name}");
                    psn = (psn + 1) & 0xff_ffff;
                    served += 1;
                }
            }
        });
    }
    // Without packets, no thread polls.
    let before = cpu_time();
    std::thread::sleep(std::time::Duration::from_secs(1));
    let spent = cpu_time() - before;
    assert!(
        spent.as_millis() < 300,
        "{spent:?} of CPU time in a second of silence"
    );
    let grown = resident().saturating_sub(memory);
    assert!(grown < 4 << 20, "{grown} bytes more after the floods");
    assert_eq!(descriptors(), files);
}

#[test]
fn memory_of_packets_that_were_kept_goes_back_to_the_operating_system() {
    /// Packets of more than 1 KiB each; fewer than a queue pair keeps.
    const KEPT: u32 = 3800;
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(target) = Target::new(V4) else {
        return;
    };
    let connect = || target.connect_with(LossRecovery::Selective);
    let (from, to) = (target.attacker.local_addr().unwrap(), target.address());
    let (IpAddr::V4(src), IpAddr::V4(dst)) = (from.ip(), to.ip()) else {
        panic!("IPv4 addresses");
    };
    // The tests' own ICRC takes seconds for this many bytes.
    let path = icrc::Path {
        ip: icrc::Ip::V4 {
            src,
            dst,
            identification: 0,
            dont_fragment: true,
        },
        src_port: from.port(),
        dst_port: to.port(),
    };
    let behind_a_gap = |connection: &Connection, numbers: RangeInclusive<u32>| {
        for number in numbers {
            let psn = FIRST_PSN + number;
            let middle = Bytes::new(opcode::WRITE_MIDDLE, connection.qpn, psn);
            let mut packet = middle.payload(&[0; MTU + icrc::LEN]).0;
            icrc::seal(&path, &mut packet);
            target.attacker.send_to(&packet, to).unwrap();
            if number % 32 == 0 {
                target.answers();
            }
        }
        target.answers();
    };
    let (flooded, last) = ([(); 4].map(|()| connect()), connect());
    behind_a_gap(&last, 1..=64);
    let before = resident();
    flooded.iter().for_each(|to| behind_a_gap(to, 1..=KEPT));
    // The allocator by itself returns only the free end of its heap, and this packet is allocated there.
    behind_a_gap(&last, 65..=65);
    for connection in &flooded {
        connection.pair.to_error();
    }
    let grown = resident().saturating_sub(before);
    // All but the packets of the last queue pair, a small part of the 16 MiB, has been returned.
    assert!(grown < 10 << 20, "{grown} bytes more");
}
