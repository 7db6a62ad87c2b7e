//! A UDP datagram as a whole Ethernet frame into GPU memory, by raw packet queue pairs and a flow rule.
//!
//! ```text
//! cargo build --release -p gdr-verbs --example raw_packets
//! gdr run --nic 127.0.0.1 -- target/release/examples/raw_packets gdr0 gdr0
//! ```
//!
//! The arguments are the device that receives and the one that sends. Frames go from host and from GPU
//! memory to both; each is checked where it arrived, with its checksums and with the bytes before and
//! after it. Needs an NVIDIA GPU and CAP_NET_RAW; exits with 77 without a GPU.

use std::error::Error;
use std::ffi::{CStr, c_void};
use std::mem::{self, MaybeUninit};
use std::process::ExitCode;
use std::ptr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gdr_cuda::{Cuda, DeviceBuffer, Gpu, MemoryKind, Ordinal};
use gdr_verbs_sys::ibv_qp_attr_mask as Mask;
use gdr_verbs_sys::*;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// How many frames go from each kind of memory to each.
const FRAMES: u8 = 100;
/// The limit of one frame.
const LIMIT: Duration = Duration::from_secs(5);
const PORT: u16 = 12_345;
const RECEIVER: [u8; 4] = [10, 77, 1, 1];
const SENDER: [u8; 4] = [10, 77, 1, 2];
/// Where the IPv4 header, the UDP header and the payload begin in a frame, and its length.
const IP: usize = 14;
const UDP: usize = IP + 20;
const PAYLOAD: usize = UDP + 8;
const LEN: usize = PAYLOAD + 1400;
/// Bytes before and after the place of a frame, and what is in them.
const GUARD: usize = 64;
const ROOM: usize = GUARD + LEN + GUARD;
const BEFORE: u8 = 0x55;

fn main() -> ExitCode {
    let driver = match Cuda::load() {
        Ok(driver) => driver,
        Err(error) => {
            eprintln!("no GPU: {error}");
            return ExitCode::from(77);
        }
    };
    match run(driver) {
        Ok(()) => {
            println!("PASS: every frame arrived where it should, and nothing else");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}

fn run(driver: Arc<Cuda>) -> Outcome<()> {
    let mut names = std::env::args().skip(1);
    let (Some(to), Some(from)) = (names.next(), names.next()) else {
        return Err("the devices that receive and send are missing".into());
    };
    let gpu = Gpu::open(driver, Ordinal(0))?;
    // SAFETY: it behaves as libibverbs.
    let verbs = unsafe { Verbs::open("libibverbs.so.1") }?;
    let receiver = End::open(verbs, &to)?;
    let sender = End::open(verbs, &from)?;
    let flow = receiver.steer()?;
    let memories = || -> Outcome<[Memory; 2]> {
        let device = gpu.allocate(MemoryKind::Plain, ROOM as u64)?;
        Ok([Memory::Host(vec![0; ROOM].into()), Memory::Gpu(device)])
    };
    for mut target in memories()? {
        for mut source in memories()? {
            let into = receiver.register(&mut target)?;
            let out_of = sender.register(&mut source)?;
            for number in 0..FRAMES {
                let sent = frame(number);
                target.write(0, &[BEFORE; ROOM])?;
                source.write(GUARD, &sent)?;
                receiver.receive(into)?;
                sender.send(out_of)?;
                sender.completion("the frame was not sent")?;
                let length = receiver.completion("no frame arrived")?.byte_len;
                if length as usize != LEN {
                    return Err(format!("{length} bytes arrived instead of {LEN}").into());
                }
                check(&sent, &target.read()?)?;
            }
            println!(
                "{FRAMES} frames from {} to {}",
                source.name(),
                target.name()
            );
            // SAFETY: both are alive, and no request uses them.
            unsafe {
                verbs.ibv_dereg_mr(into)?;
                verbs.ibv_dereg_mr(out_of)?;
            }
        }
    }
    // SAFETY: it is alive, and not used again.
    unsafe { ibv_destroy_flow(flow) }?;
    receiver.close()?;
    sender.close()
}

/// Memory of a frame and of the bytes around it.
enum Memory {
    Host(Box<[u8]>),
    Gpu(DeviceBuffer),
}

impl Memory {
    fn name(&self) -> &'static str {
        match self {
            Self::Host(_) => "host memory",
            Self::Gpu(_) => "GPU memory",
        }
    }

    fn address(&mut self) -> *mut c_void {
        match self {
            Self::Host(bytes) => bytes.as_mut_ptr().cast(),
            Self::Gpu(buffer) => ptr::without_provenance_mut(buffer.ptr().get() as usize),
        }
    }

    fn write(&mut self, at: usize, bytes: &[u8]) -> Outcome<()> {
        match self {
            Self::Host(all) => all[at..at + bytes.len()].copy_from_slice(bytes),
            Self::Gpu(buffer) => buffer.write(at as u64, bytes)?,
        }
        Ok(())
    }

    fn read(&self) -> Outcome<Vec<u8>> {
        match self {
            Self::Host(bytes) => Ok(bytes.to_vec()),
            Self::Gpu(buffer) => {
                let mut bytes = vec![0; ROOM];
                buffer.read(0, &mut bytes)?;
                Ok(bytes)
            }
        }
    }
}

/// A raw packet queue pair in RTS with its own context and queue.
struct End {
    verbs: &'static Verbs,
    context: *mut ibv_context,
    domain: *mut ibv_pd,
    queue: *mut ibv_cq,
    pair: *mut ibv_qp,
}

impl End {
    fn open(verbs: &'static Verbs, name: &str) -> Outcome<Self> {
        let devices = verbs.devices()?;
        let device = devices
            .as_slice()
            .iter()
            .find(|device| {
                // SAFETY: the device is in the list, and its name is a C string.
                let own = unsafe { CStr::from_ptr(verbs.ibv_get_device_name(**device)) };
                own.to_bytes() == name.as_bytes()
            })
            .ok_or_else(|| format!("there is no device {name}"))?;
        // SAFETY: the device came from the library, and each object is made of earlier ones.
        unsafe {
            let context = verbs.ibv_open_device(*device)?.as_ptr();
            let domain = verbs.ibv_alloc_pd(context)?.as_ptr();
            let none = ptr::null_mut::<c_void>();
            let queue = verbs.ibv_create_cq(context, 8, none, none.cast(), 0)?;
            let queue = queue.as_ptr();
            let mut attr = ibv_qp_init_attr {
                send_cq: queue,
                recv_cq: queue,
                qp_type: ibv_qp_type::IBV_QPT_RAW_PACKET,
                sq_sig_all: 1,
                ..Default::default()
            };
            (attr.cap.max_send_wr, attr.cap.max_recv_wr) = (4, 4);
            (attr.cap.max_send_sge, attr.cap.max_recv_sge) = (1, 1);
            let pair = verbs.ibv_create_qp(domain, &mut attr)?.as_ptr();
            let end = Self {
                verbs,
                context,
                domain,
                queue,
                pair,
            };
            end.change(ibv_qp_state::IBV_QPS_INIT, Mask::IBV_QP_PORT)?;
            end.change(ibv_qp_state::IBV_QPS_RTR, Mask::NONE)?;
            end.change(ibv_qp_state::IBV_QPS_RTS, Mask::NONE)?;
            Ok(end)
        }
    }

    fn change(&self, to: ibv_qp_state, mask: Mask) -> Outcome<()> {
        let mut attr = ibv_qp_attr {
            qp_state: to,
            port_num: 1,
            ..Default::default()
        };
        let mask = (mask | Mask::IBV_QP_STATE).0 as i32;
        // SAFETY: the queue pair is alive.
        unsafe { self.verbs.ibv_modify_qp(self.pair, &mut attr, mask) }?;
        Ok(())
    }

    fn register(&self, memory: &mut Memory) -> Outcome<*mut ibv_mr> {
        let access = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE;
        // SAFETY: the memory lives until the region is deregistered.
        let region = unsafe {
            self.verbs
                .reg_mr(self.domain, memory.address(), ROOM, access)
        }?;
        Ok(region.as_ptr())
    }

    /// The place of the frame.
    fn segment(region: *mut ibv_mr) -> ibv_sge {
        // SAFETY: the region is alive.
        let (addr, lkey) = unsafe { ((*region).addr.addr() + GUARD, (*region).lkey) };
        ibv_sge {
            addr: addr as u64,
            length: LEN as u32,
            lkey,
        }
    }

    fn receive(&self, region: *mut ibv_mr) -> Outcome<()> {
        let mut list = Self::segment(region);
        let mut wr = ibv_recv_wr {
            sg_list: &mut list,
            num_sge: 1,
            ..Default::default()
        };
        // SAFETY: the queue pair and the region are alive.
        unsafe { ibv_post_recv(self.pair, &mut wr) }.map_err(|_| "a receive was refused".into())
    }

    fn send(&self, region: *mut ibv_mr) -> Outcome<()> {
        let mut list = Self::segment(region);
        let mut wr = ibv_send_wr {
            sg_list: &mut list,
            num_sge: 1,
            opcode: ibv_wr_opcode::IBV_WR_SEND,
            send_flags: ibv_send_flags::IBV_SEND_IP_CSUM.0,
            ..Default::default()
        };
        // SAFETY: as for a receive.
        unsafe { ibv_post_send(self.pair, &mut wr) }.map_err(|_| "a send was refused".into())
    }

    fn completion(&self, otherwise: &str) -> Outcome<ibv_wc> {
        let until = Instant::now() + LIMIT;
        while Instant::now() < until {
            let mut room = [MaybeUninit::uninit(); 1];
            // SAFETY: the queue is alive.
            let found = unsafe { ibv_poll_cq(self.queue, &mut room) }?;
            match found.first() {
                Some(wc) if wc.status == ibv_wc_status::IBV_WC_SUCCESS => return Ok(*wc),
                Some(wc) => return Err(format!("{otherwise}: {:?}", wc.status).into()),
                None => std::thread::yield_now(),
            }
        }
        Err(format!("{otherwise} within {LIMIT:?}").into())
    }

    /// Lets the queue pair receive the datagrams of [`frame`].
    fn steer(&self) -> Outcome<*mut ibv_flow> {
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
        rule.ip.val.dst_ip = u32::from_ne_bytes(RECEIVER);
        rule.ip.mask.dst_ip = u32::MAX;
        rule.udp.val.dst_port = PORT.to_be();
        rule.udp.mask.dst_port = u16::MAX;
        // SAFETY: the queue pair is alive, and the specifications follow the attributes.
        let flow = unsafe { ibv_create_flow(self.pair, (&raw mut rule).cast()) }?;
        Ok(flow.as_ptr())
    }

    fn close(self) -> Outcome<()> {
        // SAFETY: each object is destroyed before what it depends on.
        unsafe {
            self.verbs.ibv_destroy_qp(self.pair)?;
            self.verbs.ibv_destroy_cq(self.queue)?;
            self.verbs.ibv_dealloc_pd(self.domain)?;
            self.verbs.ibv_close_device(self.context)?;
        }
        Ok(())
    }
}

/// A UDP datagram in an Ethernet frame, without the checksums, which the device fills in.
fn frame(number: u8) -> Vec<u8> {
    let mut frame = Vec::with_capacity(LEN);
    // The receiver has no such address: what a flow accepts is received all the same.
    frame.extend([0x02, 0, 0, 0, 0, 1, 0x02, 0, 0, 0, 0, 2]);
    frame.extend(0x0800_u16.to_be_bytes());
    frame.extend([0x45, 0]);
    frame.extend(((LEN - IP) as u16).to_be_bytes());
    frame.extend([0, number, 0, 0, 64, 17, 0, 0]);
    frame.extend(SENDER);
    frame.extend(RECEIVER);
    frame.extend(PORT.to_be_bytes());
    frame.extend(PORT.to_be_bytes());
    frame.extend(((LEN - UDP) as u16).to_be_bytes());
    frame.extend([0, 0]);
    frame.extend((PAYLOAD..LEN).map(|at| (at as u8).wrapping_mul(7).wrapping_add(number)));
    frame
}

/// Computes the sum of 16-bit words in one's complement; bytes with their checksum sum to 0xffff.
fn sum<'a>(bytes: impl IntoIterator<Item = &'a [u8]>) -> u32 {
    let words = bytes.into_iter().flat_map(|part| part.chunks(2));
    let words =
        words.map(|pair| u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |low| (*low).into()));
    words.fold(0, |sum, word| {
        let sum = sum + word;
        (sum & 0xffff) + (sum >> 16)
    })
}

/// Compares what arrived, and the bytes around it.
fn check(sent: &[u8], room: &[u8]) -> Outcome<()> {
    let (before, rest) = room.split_at(GUARD);
    let (frame, behind) = rest.split_at(LEN);
    if before.iter().chain(behind).any(|byte| *byte != BEFORE) {
        return Err("bytes beside the frame were written".into());
    }
    if sum([&frame[IP..UDP]]) != 0xffff {
        return Err("the checksum of the IPv4 header is wrong".into());
    }
    let length = ((LEN - UDP) as u16).to_be_bytes();
    if sum([&frame[IP + 12..UDP], &[0, 17], &length, &frame[UDP..]]) != 0xffff {
        return Err("the checksum of the datagram is wrong".into());
    }
    let mut received = frame.to_vec();
    received[IP + 10..IP + 12].fill(0);
    received[UDP + 6..UDP + 8].fill(0);
    match received
        .iter()
        .zip(sent)
        .position(|(one, other)| one != other)
    {
        None => Ok(()),
        Some(at) => Err(format!("byte {at} of the frame is not the one that was sent").into()),
    }
}
