//! Calls of libibverbs' C interface in any order, with live, stale and invented handles and keys.
//!
//! Whatever a program passes, a call returns 0 or an errno value, the queues give out no more
//! completions than requests were posted, and what is left at the end can be destroyed. Pointers to
//! the caller's own memory are valid: C promises that.
//!
//! All inputs use one open device. A queue pair that stays connected with the device's own address,
//! to which all others connect as well, keeps the filter of the device's socket as it is: the kernel
//! exchanges filters slowly.

#![no_main]

use std::collections::HashMap;
use std::ffi::{c_int, c_uint, c_void};
use std::ptr;
use std::sync::OnceLock;

use arbitrary::Arbitrary;
use gdr_verbs as _;
use gdr_verbs_sys::ibv_qp_attr_mask as Mask;
use gdr_verbs_sys::ibv_qp_create_send_ops_flags as Operations;
use gdr_verbs_sys::ibv_qp_state as State;
use gdr_verbs_sys::ibv_qp_type as Type;
use gdr_verbs_sys::*;
use libfuzzer_sys::fuzz_target;

/// `struct ibv_srq_init_attr`.
#[repr(C)]
struct SrqInit {
    context: *mut c_void,
    attr: ibv_srq_attr,
}

// SAFETY: the declarations of rdma-core's header; `ibv_srq` and `ibv_ah` are opaque here.
unsafe extern "C" {
    fn ibv_get_device_list(count: *mut c_int) -> *mut *mut ibv_device;
    fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context;
    fn ibv_query_gid(c: *mut ibv_context, port: u8, index: c_int, gid: *mut ibv_gid) -> c_int;
    fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd;
    fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int;
    fn ibv_reg_mr(pd: *mut ibv_pd, at: *mut c_void, len: usize, access: c_int) -> *mut ibv_mr;
    fn ibv_rereg_mr(
        mr: *mut ibv_mr,
        flags: c_int,
        pd: *mut ibv_pd,
        at: *mut c_void,
        len: usize,
        access: c_int,
    ) -> c_int;
    fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int;
    fn ibv_create_cq(
        context: *mut ibv_context,
        entries: c_int,
        own: *mut c_void,
        channel: *mut ibv_comp_channel,
        vector: c_int,
    ) -> *mut ibv_cq;
    fn ibv_resize_cq(cq: *mut ibv_cq, entries: c_int) -> c_int;
    fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int;
    fn ibv_create_qp(pd: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> *mut ibv_qp;
    fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int;
    fn ibv_query_qp(
        qp: *mut ibv_qp,
        attr: *mut ibv_qp_attr,
        mask: c_int,
        init: *mut ibv_qp_init_attr,
    ) -> c_int;
    fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int;
    fn ibv_create_srq(pd: *mut ibv_pd, init: *mut SrqInit) -> *mut ibv_srq;
    fn ibv_modify_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr, mask: c_int) -> c_int;
    fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int;
    fn ibv_create_ah(pd: *mut ibv_pd, path: *mut ibv_ah_attr) -> *mut ibv_ah;
    fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int;
    fn ibv_get_async_event(context: *mut ibv_context, event: *mut ibv_async_event) -> c_int;
    fn ibv_ack_async_event(event: *mut ibv_async_event);
    fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex;
}

/// The memory that regions are parts of.
const BUFFER: usize = 1 << 17;
const MOST_CALLS: usize = 96;
const ADDRESS: &str = "127.77.9.1";

/// Which handle or key a call gets.
#[derive(Arbitrary, Clone, Copy, Debug)]
enum Which {
    /// One that was given out, live or stale, of whatever kind.
    Known(u8),
    /// One that was made up.
    Invented(u32),
}

/// A part of the buffer.
#[derive(Arbitrary, Clone, Copy, Debug)]
struct Part {
    at: u16,
    len: u16,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
struct Sge {
    key: Which,
    part: Part,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Service {
    Reliable,
    Unreliable,
    Datagrams,
    Other(u8),
}

/// A part of a request that is built by calls.
#[derive(Arbitrary, Clone, Copy, Debug)]
enum Build {
    Start,
    Send,
    Write(Which, Part),
    Read(Which, Part),
    FetchAdd(Which, Part),
    Address(Which, u8),
    Segments([Sge; 2], u8),
    Inline(Part),
    Complete,
    Abort,
}

#[derive(Arbitrary, Debug)]
enum Call {
    AllocPd,
    Register(Which, Part, u16),
    Reregister(Which, u8, Which, Part, u16),
    CreateQueue(u16),
    Resize(Which, i16),
    Notify(Which, bool),
    CreatePair {
        pd: Which,
        queues: [Which; 2],
        srq: Option<Which>,
        service: Service,
        sizes: [u8; 4],
        extended: bool,
    },
    CreateSrq(Which, u8),
    LimitSrq(Which, u8, u8),
    CreateAh(Which, bool),
    /// A change with the attributes that it needs, or with others.
    Modify {
        pair: Which,
        to: u8,
        mask: Option<u32>,
        peer: Which,
        values: [u8; 4],
    },
    Query(Which),
    Send {
        pair: Which,
        opcode: u8,
        flags: u8,
        list: [Sge; 2],
        count: i8,
        remote: Sge,
        ah: Which,
        peer: Which,
    },
    Receive(Which, [Sge; 2], i8),
    ReceiveShared(Which, [Sge; 2], i8),
    Build(Which, Vec<Build>),
    Poll(Which, i8),
    DestroyPair(Which),
    DestroyQueue(Which),
    DestroySrq(Which),
    DestroyAh(Which),
    Deregister(Which),
    DeallocPd(Which),
}

/// The open device.
struct Device {
    context: *mut ibv_context,
    path: ibv_ah_attr,
    buffer: *mut u8,
}

// SAFETY: the library may be called from any thread; the buffer is used by the library only.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

fn device() -> &'static Device {
    static DEVICE: OnceLock<Device> = OnceLock::new();
    DEVICE.get_or_init(|| {
        // SAFETY: no other thread of the fuzzer runs yet; the objects live as long as the process.
        unsafe {
            std::env::set_var("GDR_NICS", ADDRESS);
            let list = ibv_get_device_list(ptr::null_mut());
            let context = ibv_open_device(*list);
            assert!(!context.is_null(), "no device at {ADDRESS}");
            let fd = (*context).async_fd;
            let flags = libc::fcntl(fd, libc::F_GETFL);
            libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK);
            let mut path = ibv_ah_attr {
                is_global: 1,
                port_num: 1,
                ..Default::default()
            };
            assert_eq!(ibv_query_gid(context, 1, 0, &mut path.grh.dgid), 0);
            let buffer = Box::leak(vec![0_u64; BUFFER / 8].into_boxed_slice());
            let device = Device {
                context,
                path,
                buffer: buffer.as_mut_ptr().cast(),
            };
            let pd = ibv_alloc_pd(context);
            let cq = ibv_create_cq(context, 1, ptr::null_mut(), ptr::null_mut(), 0);
            let mut init = ibv_qp_init_attr {
                send_cq: cq,
                recv_cq: cq,
                qp_type: Type::IBV_QPT_RC,
                ..Default::default()
            };
            let qp = ibv_create_qp(pd, &mut init);
            for to in [State::IBV_QPS_INIT, State::IBV_QPS_RTR] {
                let (mut attr, mask) =
                    device.attributes(to, Type::IBV_QPT_RC, (*qp).qp_num, [0; 4]);
                assert_eq!(ibv_modify_qp(qp, &mut attr, mask.0 as c_int), 0);
            }
            device
        }
    })
}

impl Device {
    /// The attributes that a change to this state needs.
    fn attributes(&self, to: State, kind: Type, peer: u32, values: [u8; 4]) -> (ibv_qp_attr, Mask) {
        let [access, reads, retries, timeout] = values;
        let attr = ibv_qp_attr {
            qp_state: to,
            port_num: 1,
            qp_access_flags: c_uint::from(access & 0xf),
            path_mtu: ibv_mtu::IBV_MTU_1024,
            dest_qp_num: peer,
            max_dest_rd_atomic: reads % 20,
            max_rd_atomic: reads % 18,
            min_rnr_timer: 1,
            timeout: timeout % 14,
            retry_cnt: retries % 8,
            rnr_retry: retries % 7,
            ah_attr: self.path,
            ..Default::default()
        };
        let port = Mask::IBV_QP_PKEY_INDEX | Mask::IBV_QP_PORT;
        let path =
            Mask::IBV_QP_AV | Mask::IBV_QP_PATH_MTU | Mask::IBV_QP_DEST_QPN | Mask::IBV_QP_RQ_PSN;
        let of_reads = Mask::IBV_QP_MAX_DEST_RD_ATOMIC | Mask::IBV_QP_MIN_RNR_TIMER;
        let of_retries = Mask::IBV_QP_TIMEOUT
            | Mask::IBV_QP_RETRY_CNT
            | Mask::IBV_QP_RNR_RETRY
            | Mask::IBV_QP_MAX_QP_RD_ATOMIC;
        let mask = match (to, kind) {
            (State::IBV_QPS_INIT, Type::IBV_QPT_UD) => port | Mask::IBV_QP_QKEY,
            (State::IBV_QPS_INIT, _) => port | Mask::IBV_QP_ACCESS_FLAGS,
            (State::IBV_QPS_RTR, Type::IBV_QPT_UC) => path,
            (State::IBV_QPS_RTR, _) => path | of_reads,
            (State::IBV_QPS_RTS, Type::IBV_QPT_RC) => Mask::IBV_QP_SQ_PSN | of_retries,
            (State::IBV_QPS_RTS, _) => Mask::IBV_QP_SQ_PSN,
            _ => Mask::NONE,
        };
        (attr, mask | Mask::IBV_QP_STATE)
    }

    fn address(&self, part: Part) -> *mut c_void {
        // SAFETY: 64 KiB at most, in a buffer of twice as much.
        unsafe { self.buffer.add(part.at.into()) }.cast()
    }
}

/// What an input has made.
struct Program {
    device: &'static Device,
    /// All that were given out.
    handles: Vec<usize>,
    keys: Vec<u32>,
    numbers: Vec<u32>,
    pairs: HashMap<usize, Type>,
    queues: Vec<usize>,
    srqs: Vec<usize>,
    ahs: Vec<usize>,
    regions: Vec<usize>,
    domains: Vec<usize>,
    posted: u64,
    polled: u64,
}

/// The result of a call that returns 0 or an errno.
fn check(status: c_int) -> bool {
    assert!((0..4096).contains(&status), "{status}");
    status == 0
}

impl Program {
    fn handle<T>(&self, which: Which) -> *mut T {
        let address = match which {
            Which::Known(n) if !self.handles.is_empty() => {
                self.handles[usize::from(n) % self.handles.len()]
            }
            Which::Known(_) => 0,
            Which::Invented(n) => n as usize,
        };
        ptr::with_exposed_provenance_mut(address)
    }

    fn number(of: &[u32], which: Which) -> u32 {
        match which {
            Which::Known(n) if !of.is_empty() => of[usize::from(n) % of.len()],
            Which::Known(_) => 0,
            Which::Invented(n) => n,
        }
    }

    fn sge(&self, sge: Sge) -> ibv_sge {
        ibv_sge {
            addr: self.device.address(sge.part).expose_provenance() as u64,
            length: sge.part.len.into(),
            lkey: Self::number(&self.keys, sge.key),
        }
    }

    /// Records an object, unless its creation failed.
    fn made<T>(handles: &mut Vec<usize>, object: *mut T) -> Option<usize> {
        let address = object.expose_provenance();
        (address != 0).then(|| {
            handles.push(address);
            address
        })
    }

    fn call(&mut self, call: Call) {
        let device = self.device;
        let context = device.context;
        // SAFETY: the context is open, and every structure is the caller's own; the library checks
        // handles and keys.
        unsafe {
            let ops = &(*context).ops;
            match call {
                Call::AllocPd => {
                    let made = ibv_alloc_pd(context);
                    self.domains.extend(Self::made(&mut self.handles, made));
                }
                Call::Register(pd, part, access) => {
                    let (at, len) = (device.address(part), part.len.into());
                    let mr = ibv_reg_mr(self.handle(pd), at, len, access.into());
                    if let Some(address) = Self::made(&mut self.handles, mr) {
                        self.regions.push(address);
                        self.keys.push((*mr).lkey);
                    }
                }
                Call::Reregister(mr, flags, pd, part, access) => {
                    let mr: *mut ibv_mr = self.handle(mr);
                    let (at, len) = (device.address(part), part.len.into());
                    let (flags, pd) = (flags.into(), self.handle(pd));
                    if ibv_rereg_mr(mr, flags, pd, at, len, access.into()) == 0 {
                        self.keys.push((*mr).lkey);
                    }
                }
                Call::CreateQueue(entries) => {
                    let (own, channel) = (ptr::null_mut(), ptr::null_mut());
                    let cq = ibv_create_cq(context, (entries % 512).into(), own, channel, 0);
                    self.queues.extend(Self::made(&mut self.handles, cq));
                }
                Call::Resize(cq, entries) => {
                    check(ibv_resize_cq(self.handle(cq), entries.into()));
                }
                Call::Notify(cq, solicited) => {
                    let notify = ops.req_notify_cq.expect("set");
                    check(notify(self.handle(cq), solicited.into()));
                }
                Call::CreatePair {
                    pd,
                    queues,
                    srq,
                    service,
                    sizes,
                    extended,
                } => self.create_pair(pd, queues, srq, service, sizes, extended),
                Call::CreateSrq(pd, size) => {
                    let mut init = SrqInit {
                        context: ptr::null_mut(),
                        attr: ibv_srq_attr {
                            max_wr: size.into(),
                            max_sge: 2,
                            srq_limit: 0,
                        },
                    };
                    let srq = ibv_create_srq(self.handle(pd), &mut init);
                    self.srqs.extend(Self::made(&mut self.handles, srq));
                }
                Call::LimitSrq(srq, limit, mask) => {
                    let mut attr = ibv_srq_attr {
                        max_wr: 1,
                        max_sge: 1,
                        srq_limit: limit.into(),
                    };
                    check(ibv_modify_srq(self.handle(srq), &mut attr, mask.into()));
                }
                Call::CreateAh(pd, global) => {
                    let mut path = device.path;
                    path.is_global = global.into();
                    let ah = ibv_create_ah(self.handle(pd), &mut path);
                    self.ahs.extend(Self::made(&mut self.handles, ah));
                }
                Call::Modify {
                    pair,
                    to,
                    mask,
                    peer,
                    values,
                } => {
                    let qp: *mut ibv_qp = self.handle(pair);
                    let kind = self.pairs.get(&qp.addr()).copied();
                    let to = State((to % 8).into());
                    // Datagrams of any host are received from RTR on, which changes the filter.
                    if kind == Some(Type::IBV_QPT_UD) && to == State::IBV_QPS_RTR {
                        return;
                    }
                    let peer = Self::number(&self.numbers, peer);
                    let kind = kind.unwrap_or(Type::IBV_QPT_RC);
                    let (mut attr, needed) = device.attributes(to, kind, peer, values);
                    let mask = mask.unwrap_or(needed.0);
                    check(ibv_modify_qp(qp, &mut attr, mask.cast_signed()));
                }
                Call::Query(pair) => {
                    let (mut attr, mut init) = Default::default();
                    check(ibv_query_qp(self.handle(pair), &mut attr, 0, &mut init));
                }
                Call::Send {
                    pair,
                    opcode,
                    flags,
                    list,
                    count,
                    remote,
                    ah,
                    peer,
                } => {
                    let mut list = list.map(|sge| self.sge(sge));
                    let remote = self.sge(remote);
                    let mut wr = ibv_send_wr {
                        sg_list: list.as_mut_ptr(),
                        num_sge: c_int::from(count).min(2),
                        opcode: ibv_wr_opcode(opcode.into()),
                        send_flags: flags.into(),
                        ..Default::default()
                    };
                    if opcode & 0x80 == 0 {
                        wr.wr.rdma.remote_addr = remote.addr;
                        wr.wr.rdma.rkey = remote.lkey;
                    } else {
                        wr.opcode = ibv_wr_opcode::IBV_WR_SEND;
                        wr.wr.ud.ah = self.handle(ah);
                        wr.wr.ud.remote_qpn = Self::number(&self.numbers, peer);
                    }
                    let mut bad = ptr::null_mut();
                    let post = ops.post_send.expect("set");
                    self.posted += u64::from(check(post(self.handle(pair), &mut wr, &mut bad)));
                }
                Call::Receive(pair, list, count) => {
                    let post = ops.post_recv.expect("set");
                    let pair = self.handle(pair);
                    self.receive(list, count, |wr, bad| post(pair, wr, bad));
                }
                Call::ReceiveShared(srq, list, count) => {
                    let post = ops.post_srq_recv.expect("set");
                    let srq = self.handle(srq);
                    self.receive(list, count, |wr, bad| post(srq, wr, bad));
                }
                Call::Build(pair, calls) => self.build(pair, &calls),
                Call::Poll(cq, room) => {
                    let mut wcs = [ibv_wc::default(); 8];
                    let room = c_int::from(room).min(8);
                    let poll = ops.poll_cq.expect("set");
                    let found = poll(self.handle(cq), room, wcs.as_mut_ptr());
                    assert!(found <= room.max(0), "{found} completions for {room}");
                    self.polled += u64::try_from(found).unwrap_or(0);
                }
                Call::DestroyPair(pair) => {
                    let pair = self.handle::<ibv_qp>(pair);
                    if check(ibv_destroy_qp(pair)) {
                        assert!(self.pairs.remove(&pair.addr()).is_some());
                    }
                }
                Call::DestroyQueue(cq) => {
                    let cq = self.handle(cq);
                    Self::end(&mut self.queues, cq, check(ibv_destroy_cq(cq)));
                }
                Call::DestroySrq(srq) => {
                    let srq = self.handle(srq);
                    Self::end(&mut self.srqs, srq, check(ibv_destroy_srq(srq)));
                }
                Call::DestroyAh(ah) => {
                    let ah = self.handle(ah);
                    Self::end(&mut self.ahs, ah, check(ibv_destroy_ah(ah)));
                }
                Call::Deregister(mr) => {
                    let mr = self.handle(mr);
                    Self::end(&mut self.regions, mr, check(ibv_dereg_mr(mr)));
                }
                Call::DeallocPd(pd) => {
                    let pd = self.handle(pd);
                    Self::end(&mut self.domains, pd, check(ibv_dealloc_pd(pd)));
                }
            }
        }
    }

    /// Records that an object was destroyed, which must have existed.
    fn end<T>(objects: &mut Vec<usize>, object: *mut T, destroyed: bool) {
        if destroyed {
            let found = objects.iter().position(|address| *address == object.addr());
            objects.swap_remove(found.expect("a handle that was given out"));
        }
    }

    fn create_pair(
        &mut self,
        pd: Which,
        queues: [Which; 2],
        srq: Option<Which>,
        service: Service,
        sizes: [u8; 4],
        extended: bool,
    ) {
        let kind = match service {
            Service::Reliable => Type::IBV_QPT_RC,
            Service::Unreliable => Type::IBV_QPT_UC,
            Service::Datagrams => Type::IBV_QPT_UD,
            Service::Other(kind) => Type(kind.into()),
        };
        let [send_cq, recv_cq] = queues.map(|queue| self.handle(queue));
        let mut init = ibv_qp_init_attr_ex {
            send_cq,
            recv_cq,
            srq: srq.map_or(ptr::null_mut(), |srq| self.handle(srq)),
            qp_type: kind,
            pd: self.handle(pd),
            comp_mask: (ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_PD).0,
            ..Default::default()
        };
        let [sends, receives, segments, inline] = sizes.map(u32::from);
        init.cap.max_send_wr = sends;
        init.cap.max_recv_wr = receives;
        init.cap.max_send_sge = segments % 40;
        init.cap.max_recv_sge = segments % 40;
        init.cap.max_inline_data = inline * 8;
        if extended {
            init.comp_mask |= ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS.0;
            let mut operations = Operations::IBV_QP_EX_WITH_SEND;
            if kind != Type::IBV_QPT_UD {
                operations |= Operations::IBV_QP_EX_WITH_RDMA_WRITE;
            }
            if kind == Type::IBV_QPT_RC {
                operations |= Operations::IBV_QP_EX_WITH_RDMA_READ;
                operations |= Operations::IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
            }
            init.send_ops_flags = u64::from(operations.0);
        }
        let context = self.device.context;
        // SAFETY: the context is part of a `verbs_context`, and the attributes are the caller's own.
        let qp = unsafe {
            let offset = std::mem::offset_of!(verbs_context, context);
            let whole = context.byte_sub(offset).cast::<verbs_context>();
            ((*whole).create_qp_ex.expect("set"))(context, &mut init)
        };
        if let Some(address) = Self::made(&mut self.handles, qp) {
            self.pairs.insert(address, kind);
            // SAFETY: the queue pair is alive.
            self.numbers.push(unsafe { (*qp).qp_num });
        }
    }

    fn receive(
        &mut self,
        list: [Sge; 2],
        count: i8,
        post: impl FnOnce(*mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int,
    ) {
        let mut list = list.map(|sge| self.sge(sge));
        let mut wr = ibv_recv_wr {
            sg_list: list.as_mut_ptr(),
            num_sge: c_int::from(count).min(2),
            ..Default::default()
        };
        let mut bad = ptr::null_mut();
        self.posted += u64::from(check(post(&mut wr, &mut bad)));
    }

    /// Builds requests on a live extended queue pair: the functions are in its own structure.
    fn build(&mut self, pair: Which, calls: &[Build]) {
        let qp: *mut ibv_qp = self.handle(pair);
        if !self.pairs.contains_key(&qp.addr()) {
            return;
        }
        let mut built = 0;
        // SAFETY: the queue pair is alive, and each function is called if it is there.
        unsafe {
            let ex = ibv_qp_to_qp_ex(qp);
            if ex.is_null() {
                return;
            }
            for call in calls.iter().take(16) {
                match *call {
                    Build::Start => {
                        built = 0;
                        (*ex).wr_start.expect("set")(ex);
                    }
                    Build::Send => {
                        built += 1;
                        (*ex).wr_send.expect("set")(ex);
                    }
                    Build::Write(key, part) => {
                        if let Some(write) = (*ex).wr_rdma_write {
                            let to = self.sge(Sge { key, part });
                            built += 1;
                            write(ex, to.lkey, to.addr);
                        }
                    }
                    Build::Read(key, part) => {
                        if let Some(read) = (*ex).wr_rdma_read {
                            let to = self.sge(Sge { key, part });
                            built += 1;
                            read(ex, to.lkey, to.addr);
                        }
                    }
                    Build::FetchAdd(key, part) => {
                        if let Some(add) = (*ex).wr_atomic_fetch_add {
                            let to = self.sge(Sge { key, part });
                            built += 1;
                            add(ex, to.lkey, to.addr, 1);
                        }
                    }
                    Build::Address(ah, number) => {
                        let ah = self.handle(ah);
                        let number = Self::number(&self.numbers, Which::Known(number));
                        (*ex).wr_set_ud_addr.expect("set")(ex, ah, number, 0);
                    }
                    Build::Segments(list, count) => {
                        let list = list.map(|sge| self.sge(sge));
                        let count = usize::from(count % 3);
                        (*ex).wr_set_sge_list.expect("set")(ex, count, list.as_ptr());
                    }
                    Build::Inline(part) => {
                        let at = self.device.address(part);
                        (*ex).wr_set_inline_data.expect("set")(ex, at, part.len.into());
                    }
                    Build::Complete => {
                        // Part of a batch that is refused may have been posted.
                        check((*ex).wr_complete.expect("set")(ex));
                        self.posted += built;
                        built = 0;
                    }
                    Build::Abort => {
                        built = 0;
                        (*ex).wr_abort.expect("set")(ex);
                    }
                }
            }
        }
    }

    /// Destroys what is left, in the order of its dependencies.
    fn close(self) {
        assert!(
            self.polled <= self.posted,
            "{} > {}",
            self.polled,
            self.posted
        );
        // SAFETY: the objects are alive, and the event is the caller's own.
        unsafe {
            let mut event = ibv_async_event::default();
            while ibv_get_async_event(self.device.context, &mut event) == 0 {
                ibv_ack_async_event(&mut event);
            }
            let at = ptr::with_exposed_provenance_mut;
            for pair in self.pairs.into_keys() {
                assert_eq!(ibv_destroy_qp(at(pair)), 0);
            }
            for srq in self.srqs {
                assert_eq!(ibv_destroy_srq(ptr::with_exposed_provenance_mut(srq)), 0);
            }
            for ah in self.ahs {
                assert_eq!(ibv_destroy_ah(ptr::with_exposed_provenance_mut(ah)), 0);
            }
            for cq in self.queues {
                assert_eq!(ibv_destroy_cq(ptr::with_exposed_provenance_mut(cq)), 0);
            }
            for mr in self.regions {
                assert_eq!(ibv_dereg_mr(ptr::with_exposed_provenance_mut(mr)), 0);
            }
            for pd in self.domains {
                assert_eq!(ibv_dealloc_pd(ptr::with_exposed_provenance_mut(pd)), 0);
            }
        }
    }
}

fuzz_target!(|calls: Vec<Call>| {
    let mut program = Program {
        device: device(),
        handles: Vec::new(),
        keys: Vec::new(),
        numbers: Vec::new(),
        pairs: HashMap::new(),
        queues: Vec::new(),
        srqs: Vec::new(),
        ahs: Vec::new(),
        regions: Vec::new(),
        domains: Vec::new(),
        posted: 0,
        polled: 0,
    };
    for call in calls.into_iter().take(MOST_CALLS) {
        program.call(call);
    }
    program.close();
});
