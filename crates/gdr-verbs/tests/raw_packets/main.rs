//! Raw packet queue pairs and flows: a UDP datagram as a whole Ethernet frame from one device to another, over a pair
//! of virtual interfaces and over the loopback interface, in a network namespace of the test.

#![allow(clippy::unwrap_used)]

#[path = "../library/built.rs"]
mod built;
mod gpu;
mod looped;
mod namespace;
mod spread;

use std::env;
use std::ffi::c_void;
use std::mem::{self, MaybeUninit};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitStatus};
use std::ptr;
use std::time::{Duration, Instant};

use gdr_nic::BufferKind;
use gdr_verbs_sys::ibv_qp_attr_mask as Mask;
use gdr_verbs_sys::*;

use crate::built::libraries;

/// The limit of each wait, far longer than a wait takes.
const LIMIT: Duration = Duration::from_secs(30);
/// The time after which a frame is sent again: an interface that was just set up may drop the first one.
const AGAIN: Duration = Duration::from_millis(200);
/// Environment variables of the child processes: the interfaces and the library.
const INSIDE: &str = "GDR_TEST_INTERFACES";
const LIBRARY: &str = "GDR_TEST_LIBRARY";
const VETH: &str = "veth";
const LOOPBACK: &str = "loopback";
const ONE_END: &str = "one end of a veth pair, with two addresses,";
const GPU: &str = "loopback, and a simulated GPU";

const PORT: u16 = 12_345;
const OTHER_PORT: u16 = 12_346;
const RECEIVER: [u8; 4] = [10, 77, 1, 1];
const SENDER: [u8; 4] = [10, 77, 1, 2];
/// A tag of VLAN 5, which the Linux kernel removes from the frames that it receives.
const TAG: [u8; 4] = [0x81, 0, 0, 5];
/// The offset of a tag in a frame.
const ADDRESSES: usize = 12;
const HEADERS: usize = 14 + 20 + 8;
const PAYLOAD: &[u8] = b"thirty-two bytes of payload here";
/// A byte that is not in any frame at this position.
const BEFORE: u8 = 0xaa;

/// Runs [`in_a_namespace`] in a child process in a namespace of its own. Returns `None` if the Linux kernel refuses
/// that.
fn run_inside(interfaces: &str) -> Option<ExitStatus> {
    let mut child = Command::new(env::current_exe().unwrap());
    child
        .args(["--exact", "in_a_namespace", "--ignored", "--nocapture"])
        .env(INSIDE, interfaces)
        .env(LIBRARY, libraries().join("libgdr-verbs.so"))
        .env_remove("GDR_LIBIBVERBS");
    // SAFETY: the closure only makes system calls.
    unsafe { child.pre_exec(namespace::enter) };
    match child.status() {
        Ok(status) => Some(status),
        Err(error) => {
            skip::skip(format_args!(
                "the kernel refuses a namespace for {interfaces} interfaces: {error}"
            ));
            None
        }
    }
}

#[test]
fn a_frame_crosses_a_pair_of_interfaces() {
    if let Some(status) = run_inside(VETH) {
        assert!(status.success());
    }
}

#[test]
fn a_frame_comes_back_on_the_loopback_interface() {
    if let Some(status) = run_inside(LOOPBACK) {
        assert!(status.success());
    }
}

#[test]
fn a_frame_for_its_own_interface_or_a_group_comes_back_once() {
    if let Some(status) = run_inside(ONE_END) {
        assert!(status.success());
    }
}

#[test]
fn a_frame_goes_from_memory_of_a_gpu_to_memory_of_a_gpu() {
    if let Some(status) = run_inside(GPU) {
        assert!(status.success());
    }
}

#[test]
#[ignore = "runs in a child process"]
fn in_a_namespace() {
    let Ok(interfaces) = env::var(INSIDE) else {
        return;
    };
    namespace::set_up(c"lo").unwrap();
    if interfaces == GPU {
        for kind in [BufferKind::Direct, BufferKind::Staged] {
            gpu::exchange(kind);
        }
        return;
    }
    let nics = match interfaces.as_str() {
        VETH => {
            namespace::add_veth_pair(c"v0", c"v1").unwrap();
            namespace::set_address(c"v0", RECEIVER.into()).unwrap();
            namespace::set_address(c"v1", SENDER.into()).unwrap();
            namespace::set_up(c"v0").unwrap();
            namespace::set_up(c"v1").unwrap();
            "v0,v1"
        }
        ONE_END => {
            namespace::add_veth_pair(c"v0", c"v1").unwrap();
            namespace::set_address(c"v0", RECEIVER.into()).unwrap();
            // A second address of the same interface.
            namespace::set_address(c"v0:1", SENDER.into()).unwrap();
            namespace::set_up(c"v0").unwrap();
            namespace::set_up(c"v1").unwrap();
            "10.77.1.1,10.77.1.2"
        }
        _ => "127.0.0.1",
    };
    // SAFETY: no other thread uses the environment, because the harness waits for this test.
    unsafe { env::set_var("GDR_NICS", nics) };
    // SAFETY: the file behaves as libibverbs does.
    let verbs = unsafe { Verbs::open(env::var_os(LIBRARY).unwrap()) }.unwrap();
    let devices = verbs.devices().unwrap();
    let [receiver, sender] = match devices.as_slice() {
        [receiver, sender] => [*receiver, *sender],
        [device] => [*device, *device],
        devices => panic!("{} devices", devices.len()),
    };
    if interfaces == ONE_END {
        looped::by_an_interface(verbs, receiver, sender);
        return;
    }
    exchange(verbs, receiver, sender, &[]);
    if interfaces == LOOPBACK {
        looped::by_the_loopback_interface(verbs, receiver);
        spread::over_work_queues(verbs, receiver);
    }
    if interfaces == VETH {
        exchange(verbs, receiver, sender, &TAG);
    }
}

/// A raw packet queue pair with its own context and queue.
struct End {
    verbs: &'static Verbs,
    context: *mut ibv_context,
    domain: *mut ibv_pd,
    queue: *mut ibv_cq,
    pair: *mut ibv_qp,
}

impl End {
    fn new(verbs: &'static Verbs, device: *mut ibv_device) -> Self {
        // SAFETY: the device came from the library, and each object is created from earlier ones.
        unsafe {
            let context = verbs.ibv_open_device(device).unwrap().as_ptr();
            let domain = verbs.ibv_alloc_pd(context).unwrap().as_ptr();
            let none = ptr::null_mut::<c_void>();
            let queue = verbs
                .ibv_create_cq(context, 8, none, none.cast(), 0)
                .unwrap()
                .as_ptr();
            let mut attr = ibv_qp_init_attr {
                send_cq: queue,
                recv_cq: queue,
                qp_type: ibv_qp_type::IBV_QPT_RAW_PACKET,
                sq_sig_all: 1,
                ..Default::default()
            };
            attr.cap.max_send_wr = 4;
            attr.cap.max_recv_wr = 8;
            attr.cap.max_send_sge = 2;
            attr.cap.max_recv_sge = 2;
            let pair = verbs.ibv_create_qp(domain, &mut attr).unwrap().as_ptr();
            let end = Self {
                verbs,
                context,
                domain,
                queue,
                pair,
            };
            end.change(ibv_qp_state::IBV_QPS_INIT, Mask::IBV_QP_PORT);
            end.change(ibv_qp_state::IBV_QPS_RTR, Mask::NONE);
            end.change(ibv_qp_state::IBV_QPS_RTS, Mask::NONE);
            end
        }
    }

    fn change(&self, to: ibv_qp_state, mask: Mask) {
        let mut attr = ibv_qp_attr {
            qp_state: to,
            port_num: 1,
            ..Default::default()
        };
        let mask = (mask | Mask::IBV_QP_STATE).0 as i32;
        // SAFETY: the queue pair is alive.
        unsafe { self.verbs.ibv_modify_qp(self.pair, &mut attr, mask) }.unwrap();
    }

    fn register(&self, bytes: &mut [u8]) -> *mut ibv_mr {
        let access = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE;
        let (address, len) = (bytes.as_mut_ptr().cast(), bytes.len());
        // SAFETY: the test keeps the bytes until the region is deregistered.
        let region = unsafe { self.verbs.reg_mr(self.domain, address, len, access) };
        region.unwrap().as_ptr()
    }

    fn post_receive(&self, id: u64, region: *mut ibv_mr) {
        // SAFETY: the region is alive.
        let mut list = unsafe {
            ibv_sge {
                addr: (*region).addr.addr() as u64,
                length: (*region).length as u32,
                lkey: (*region).lkey,
            }
        };
        let mut wr = ibv_recv_wr {
            wr_id: id,
            sg_list: &mut list,
            num_sge: 1,
            ..Default::default()
        };
        // SAFETY: the queue pair and the memory exist.
        assert!(unsafe { ibv_post_recv(self.pair, &mut wr) }.is_ok());
    }

    /// Sends a whole region as two segments, and waits for the completion.
    fn send(&self, region: *mut ibv_mr) {
        // SAFETY: the region is alive.
        let (start, len, lkey) = unsafe {
            let region = &*region;
            (region.addr.addr() as u64, region.length as u32, region.lkey)
        };
        let mut list = [(start, 20), (start + 20, len - 20)].map(|(addr, length)| ibv_sge {
            addr,
            length,
            lkey,
        });
        let mut wr = ibv_send_wr {
            sg_list: list.as_mut_ptr(),
            num_sge: 2,
            opcode: ibv_wr_opcode::IBV_WR_SEND,
            send_flags: ibv_send_flags::IBV_SEND_IP_CSUM.0,
            ..Default::default()
        };
        // SAFETY: as for a receive.
        assert!(unsafe { ibv_post_send(self.pair, &mut wr) }.is_ok());
        let sent = self.completion(LIMIT).expect("the frame was not sent");
        assert_eq!(sent.opcode, ibv_wc_opcode::IBV_WC_SEND);
        assert_eq!(sent.status, ibv_wc_status::IBV_WC_SUCCESS);
    }

    fn completion(&self, limit: Duration) -> Option<ibv_wc> {
        let until = Instant::now() + limit;
        while Instant::now() < until {
            let mut room = [MaybeUninit::uninit(); 1];
            // SAFETY: the queue is alive.
            let found = unsafe { ibv_poll_cq(self.queue, &mut room) }.unwrap();
            if let Some(found) = found.first() {
                return Some(*found);
            }
            std::thread::yield_now();
        }
        None
    }

    fn steer(&self, address: [u8; 4], port: u16) -> *mut ibv_flow {
        steer(self.pair, address, port)
    }

    fn close(self, regions: &[*mut ibv_mr]) {
        // SAFETY: each object is destroyed before what it depends on.
        unsafe {
            self.verbs.ibv_destroy_qp(self.pair).unwrap();
            for region in regions {
                self.verbs.ibv_dereg_mr(*region).unwrap();
            }
            self.verbs.ibv_destroy_cq(self.queue).unwrap();
            self.verbs.ibv_dealloc_pd(self.domain).unwrap();
            self.verbs.ibv_close_device(self.context).unwrap();
        }
    }
}

/// Steers UDP datagrams over IPv4 to an address and a port to a queue pair.
fn steer(pair: *mut ibv_qp, address: [u8; 4], port: u16) -> *mut ibv_flow {
    #[repr(C, packed)]
    struct Rule {
        attr: ibv_flow_attr,
        ip: ibv_flow_spec_ipv4,
        udp: ibv_flow_spec_tcp_udp,
    }
    let mut rule = Rule {
        attr: ibv_flow_attr {
            type_: ibv_flow_attr_type::IBV_FLOW_ATTR_NORMAL,
            size: mem::size_of::<Rule>() as u16,
            num_of_specs: 2,
            port: 1,
            ..Default::default()
        },
        ip: ibv_flow_spec_ipv4 {
            type_: ibv_flow_spec_type::IBV_FLOW_SPEC_IPV4,
            size: mem::size_of::<ibv_flow_spec_ipv4>() as u16,
            ..Default::default()
        },
        udp: ibv_flow_spec_tcp_udp {
            type_: ibv_flow_spec_type::IBV_FLOW_SPEC_UDP,
            size: mem::size_of::<ibv_flow_spec_tcp_udp>() as u16,
            ..Default::default()
        },
    };
    rule.ip.val.dst_ip = u32::from_ne_bytes(address);
    rule.ip.mask.dst_ip = u32::MAX;
    rule.udp.val.dst_port = port.to_be();
    rule.udp.mask.dst_port = u16::MAX;
    // SAFETY: the queue pair exists, and the specifications follow the attributes.
    let flow = unsafe { ibv_create_flow(pair, (&raw mut rule).cast()) };
    flow.unwrap().as_ptr()
}

/// Returns a UDP datagram in an Ethernet frame, without checksums.
fn frame(port: u16) -> Vec<u8> {
    let mut frame = Vec::new();
    // The address of no interface, because frames that a flow matches are received anyway.
    frame.extend([0x0c, 0x42, 0xa1, 0x73, 0x8d, 0xe6]);
    frame.extend([0xb8, 0xce, 0xf6, 0xcc, 0x9e, 0xdd]);
    frame.extend(0x0800_u16.to_be_bytes());
    let udp = (8 + PAYLOAD.len()) as u16;
    frame.extend([0x45, 0]);
    frame.extend((20 + udp).to_be_bytes());
    frame.extend([0, 1, 0, 0, 64, 17, 0, 0]);
    frame.extend(SENDER);
    frame.extend(RECEIVER);
    frame.extend(port.to_be_bytes());
    frame.extend(port.to_be_bytes());
    frame.extend(udp.to_be_bytes());
    frame.extend([0, 0]);
    frame.extend(PAYLOAD);
    frame
}

/// Computes the sum of 16-bit words in one's complement; a header with its checksum sums to 0xffff.
fn sum(header: &[u8]) -> u16 {
    let words = header
        .chunks(2)
        .map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1]));
    let sum: u32 = words.sum();
    ((sum & 0xffff) + (sum >> 16)) as u16
}

/// Asserts that a received frame is [`frame`] with its checksums.
fn assert_is_sent_frame(received: &[u8]) {
    assert_eq!(sum(&received[14..34]), 0xffff, "the checksum of the header");
    // The pseudo header of UDP: addresses, protocol and length.
    let mut datagram = received[26..].to_vec();
    datagram.extend([0, 17]);
    datagram.extend((8 + PAYLOAD.len() as u16).to_be_bytes());
    assert_eq!(sum(&datagram), 0xffff, "the checksum of the datagram");
    let mut received = received.to_vec();
    received[24..26].fill(0);
    received[40..42].fill(0);
    assert_eq!(received, frame(PORT));
}

/// Inserts a tag, which may be empty, into a frame.
fn tagged(mut frame: Vec<u8>, tag: &[u8]) -> Vec<u8> {
    frame.splice(ADDRESSES..ADDRESSES, tag.iter().copied());
    frame
}

fn exchange(verbs: &'static Verbs, receiver: *mut ibv_device, sender: *mut ibv_device, tag: &[u8]) {
    let (receiver, sender) = (End::new(verbs, receiver), End::new(verbs, sender));
    let flow = receiver.steer(RECEIVER, PORT);
    let mut received = vec![BEFORE; 2048];
    let into = receiver.register(&mut received);
    receiver.post_receive(7, into);

    // No flow of the receiver has this port.
    let mut other = frame(OTHER_PORT);
    let foreign = sender.register(&mut other);
    sender.send(foreign);
    let mut sent = tagged(frame(PORT), tag);
    let from = sender.register(&mut sent);
    let until = Instant::now() + LIMIT;
    let completion = loop {
        assert!(Instant::now() < until, "nothing arrived within {LIMIT:?}");
        sender.send(from);
        if let Some(completion) = receiver.completion(AGAIN) {
            break completion;
        }
    };
    assert_eq!(completion.status, ibv_wc_status::IBV_WC_SUCCESS);
    assert_eq!(completion.opcode, ibv_wc_opcode::IBV_WC_RECV);
    assert_eq!(completion.wr_id, 7);
    let len = completion.byte_len as usize;
    assert_eq!(len, HEADERS + tag.len() + PAYLOAD.len());
    let flags = completion.wc_flags;
    assert_ne!(flags & ibv_wc_flags::IBV_WC_IP_CSUM_OK.0, 0, "{flags:#x}");
    // The frame starts with its own headers.
    assert_eq!(flags & ibv_wc_flags::IBV_WC_GRH.0, 0, "{flags:#x}");

    // SAFETY: the flow exists, and is not used again.
    unsafe { ibv_destroy_flow(flow) }.unwrap();
    receiver.close(&[into]);
    sender.close(&[foreign, from]);
    assert!(received[len..].iter().all(|byte| *byte == BEFORE));
    let behind = ADDRESSES + tag.len();
    assert_eq!(received[ADDRESSES..behind], *tag);
    received.drain(ADDRESSES..behind);
    assert_is_sent_frame(&received[..len - tag.len()]);
}
