//! Packet captures, which do not depend on the wire.

use gdr_roce::wire::icrc;

use super::*;

/// Three packets at this path MTU, and long enough for a transfer by reference.
const LEN: u32 = 10_000;
/// The environment variable that names the wires of a child process.
const WIRES: &str = "MEMORY_WIRE_CAPTURED";

/// A packet of a reliable connection.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Captured {
    is_sent: bool,
    opcode: u8,
    psn: u32,
    /// The DMA length in its RDMA extended transport header.
    length: Option<u32>,
    payload: Vec<u8>,
}

/// Opcodes of IBTA vol. 1, table 38.
const SEND_FIRST: u8 = 0x00;
const SEND_MIDDLE: u8 = 0x01;
const SEND_LAST: u8 = 0x02;
const WRITE_FIRST: u8 = 0x06;
const WRITE_MIDDLE: u8 = 0x07;
const WRITE_LAST: u8 = 0x08;
const READ_REQUEST: u8 = 0x0c;
const RESPONSE_FIRST: u8 = 0x0d;
const RESPONSE_MIDDLE: u8 = 0x0e;
const RESPONSE_LAST: u8 = 0x0f;
const ACKNOWLEDGE: u8 = 0x11;

const BTH: usize = 12;
const RETH: usize = 16;
const AETH: usize = 4;

fn number<const N: usize>(bytes: &[u8]) -> u32 {
    let bytes = bytes[..N].iter();
    bytes.fold(0, |number, byte| number << 8 | u32::from(*byte))
}

/// Parses the packets of a capture: pcap, Linux cooked, IPv4, UDP, BTH.
fn of_file(path: &Path) -> Vec<Captured> {
    let bytes = fs::read(path).unwrap();
    let mut rest = &bytes[24..];
    let mut packets = Vec::new();
    while let Some((header, behind)) = rest.split_at_checked(16) {
        let len = u32::from_ne_bytes(*header[8..].first_chunk().unwrap());
        let (packet, behind) = behind.split_at(len as usize);
        packets.push(parse(packet));
        rest = behind;
    }
    packets
}

fn parse(packet: &[u8]) -> Captured {
    let (cooked, ip) = packet.split_at(16);
    let (ip, udp) = ip.split_at(20);
    let (udp, datagram) = udp.split_at(8);
    let ports = [number::<2>(udp), number::<2>(&udp[2..])].map(|port| port as u16);
    assert_eq!(
        ip[12..],
        [127, 0, 0, 1, 127, 0, 0, 1],
        "the addresses of the devices"
    );
    assert_eq!(number::<2>(&udp[4..]) as usize, 8 + datagram.len());
    let path = icrc::Path {
        ip: icrc::Ip::V4 {
            src: [127, 0, 0, 1].into(),
            dst: [127, 0, 0, 1].into(),
            identification: number::<2>(&ip[4..]) as u16,
            dont_fragment: true,
        },
        src_port: ports[0],
        dst_port: ports[1],
    };
    assert!(icrc::matches(&path, datagram));
    let opcode = datagram[0];
    let headers = match opcode {
        WRITE_FIRST | READ_REQUEST => BTH + RETH,
        // A gdr device fills the space that the RETH takes in the first packet.
        WRITE_MIDDLE | WRITE_LAST if datagram[8] & 0x40 != 0 => BTH + RETH,
        RESPONSE_FIRST | RESPONSE_LAST | ACKNOWLEDGE => BTH + AETH,
        _ => BTH,
    };
    let padding = usize::from(datagram[1] >> 4 & 3);
    let has_reth = matches!(opcode, WRITE_FIRST | READ_REQUEST);
    Captured {
        is_sent: cooked[1] == 4,
        opcode,
        psn: number::<3>(&datagram[9..]),
        length: has_reth.then(|| number::<4>(&datagram[BTH + 12..])),
        payload: datagram[headers..datagram.len() - padding - 4].to_vec(),
    }
}

/// A peer that captures packets needs the payload, so it does not accept references to this process's memory.
#[test]
fn a_long_message_of_a_peer_arrives_with_its_payload() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("packets");
    let mut other = Other::capturing(&path);
    let side = Side::new(Wires::All);
    let remote = other.connect(&side);
    let ((_source, from), _) = references::pattern(&side, 1);
    let some = Segment {
        len: LEN,
        ..references::all(&from)
    };
    let data = Data::Segments(std::slice::from_ref(&some));
    references::post(
        &side,
        &[references::request(references::write_to(remote), data)],
    );
    assert_eq!(side.completion().status, WcStatus::Success);
    let counters = side.device.counters();
    assert_eq!(
        (counters.sent_by_memory, counters.sent_by_reference),
        (3, 0)
    );
    let packets = of_file(&path).into_iter();
    let payload: Vec<_> = packets
        .filter(|it| !it.is_sent)
        .flat_map(|it| it.payload)
        .collect();
    assert!(payload == references::bytes(1)[..LEN as usize]);
}

/// Runs a WRITE, a READ and a SEND, one after the other.
#[test]
#[ignore = "runs in a process of its own"]
fn program() {
    let wires = match env::var(WIRES).unwrap().as_str() {
        "all" => Wires::All,
        _ => Wires::Udp,
    };
    let [a, b] = connected(wires, wires);
    let ((source, from), _) = references::pattern(&a, 1);
    let ((target, to), remote) = references::zeros(&b);
    let [near, far] = [&from, &to].map(|region| Segment {
        len: LEN,
        ..references::all(region)
    });
    let done = |operation| {
        let request = references::request(operation, Data::Segments(std::slice::from_ref(&near)));
        references::post(&a, &[request]);
        assert_eq!(a.completion().status, WcStatus::Success);
    };
    done(references::write_to(remote));
    target.write_at(0, &references::bytes(2)).unwrap();
    done(Operation::Read { remote });
    source.write_at(0, &references::bytes(3)).unwrap();
    let receive = RecvRequest {
        id: WrId(2),
        segments: &[far],
    };
    let posted = b.pair.post_recvs(|queue| queue.push(&receive));
    posted.unwrap().unwrap();
    done(Operation::Send { immediate: None });
    assert_eq!(b.completion().status, WcStatus::Success);
    let sent = &references::bytes(3)[..LEN as usize];
    assert_eq!(&references::content(&target)[..LEN as usize], sent);
    for side in [&a, &b] {
        let counters = side.device.counters();
        let by_memory = if wires == Wires::All {
            counters.packets_sent
        } else {
            0
        };
        assert_eq!(counters.sent_by_memory, by_memory);
        assert!(counters.packets_sent > 0);
    }
}

/// Returns the packets of [`program`] over these wires, without retransmissions, and without acknowledgements because
/// their number depends on timing.
fn packets(wires: &str) -> Vec<Captured> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("packets");
    let mut child = Command::new(env::current_exe().unwrap());
    let child = child
        .args(["--exact", "captured::program", "--ignored"])
        .env(WIRES, wires)
        .env("GDR_PCAP", &path);
    assert!(child.output().unwrap().status.success());
    let mut all: Vec<Captured> = Vec::new();
    for packet in of_file(&path) {
        if packet.opcode != ACKNOWLEDGE && !all.contains(&packet) {
            all.push(packet);
        }
    }
    all
}

#[test]
fn a_file_of_packets_is_the_same_for_both_wires_and_has_what_was_sent() {
    let [by_memory, by_udp] = ["all", "udp"].map(packets);
    let (sent, arrived): (Vec<_>, Vec<_>) = by_memory.iter().partition(|packet| packet.is_sent);
    let opcodes: Vec<_> = sent
        .iter()
        .map(|packet| (packet.opcode, packet.psn))
        .collect();
    let expected = [
        (WRITE_FIRST, 7),
        (WRITE_MIDDLE, 8),
        (WRITE_LAST, 9),
        (READ_REQUEST, 10),
        (RESPONSE_FIRST, 10),
        (RESPONSE_MIDDLE, 11),
        (RESPONSE_LAST, 12),
        (SEND_FIRST, 13),
        (SEND_MIDDLE, 14),
        (SEND_LAST, 15),
    ];
    assert_eq!(opcodes, expected);
    let lengths: Vec<_> = sent.iter().filter_map(|packet| packet.length).collect();
    assert_eq!(lengths, [LEN; 2]);
    for (seed, range) in [(1, 0..3), (2, 4..7), (3, 7..10)] {
        let payload: Vec<_> = sent[range]
            .iter()
            .flat_map(|it| it.payload.clone())
            .collect();
        assert!(
            payload == references::bytes(seed)[..LEN as usize],
            "message {seed}"
        );
    }
    let by_arrival = |packets: &[&Captured]| -> Vec<_> {
        packets
            .iter()
            .map(|it| (it.psn, it.opcode, it.payload.clone()))
            .collect()
    };
    assert!(
        by_arrival(&arrived) == by_arrival(&sent),
        "each is there once sent and once arrived"
    );
    let of_udp: (Vec<_>, Vec<_>) = by_udp.iter().partition(|packet| packet.is_sent);
    assert!(
        of_udp == (sent, arrived),
        "the other wire has other packets"
    );
}
