//! Random calls, one after the other.

use std::ffi::{c_int, c_void};
use std::mem;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use gdr_verbs_sys::ibv_qp_attr_mask as Mask;
use gdr_verbs_sys::ibv_qp_state as State;
use gdr_verbs_sys::ibv_qp_type as Type;
use gdr_verbs_sys::*;

use crate::handles::*;
use crate::random::Random;
use crate::verbs::{self, SrqInit};

/// The number of successful calls.
static SUCCEEDED: AtomicU64 = AtomicU64::new(0);
/// The latest call of each caller; callers share entries if there are more of them.
static LATEST: [AtomicUsize; 8] = [const { AtomicUsize::new(0) }; 8];
static CALLERS: AtomicUsize = AtomicUsize::new(0);

pub(crate) fn succeeded() -> u64 {
    SUCCEEDED.load(Ordering::Relaxed)
}

/// Returns the names of the latest calls.
pub(crate) fn latest() -> Vec<&'static str> {
    let names = LATEST
        .iter()
        .map(|call| CALLS[call.load(Ordering::Relaxed)].0);
    names.collect()
}

/// Memory for regions and requests, which is never freed.
pub(crate) struct Arena {
    pub(crate) writable: usize,
    read_only: usize,
}

/// The length of the memory in bytes.
pub(crate) const LEN: u64 = 4 << 20;

pub(crate) fn arena() -> &'static Arena {
    static ARENA: OnceLock<Arena> = OnceLock::new();
    ARENA.get_or_init(|| {
        let map = |len: u64, protection| {
            let (nowhere, flags) = (ptr::null_mut(), libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            // SAFETY: a new mapping.
            let mapped = unsafe { libc::mmap(nowhere, len as usize, protection, flags, -1, 0) };
            assert_ne!(mapped, libc::MAP_FAILED);
            mapped.expose_provenance()
        };
        Arena {
            writable: map(LEN, libc::PROT_READ | libc::PROT_WRITE),
            read_only: map(4096, libc::PROT_READ),
        }
    })
}

/// Maps the memory for all calls.
pub(crate) fn prepare() {
    arena();
}

/// The calls of a thread.
pub(crate) struct Caller {
    pub(crate) random: Random,
    number: usize,
    /// The requests of the latest post, and their segments.
    pub(crate) sends: [ibv_send_wr; 4],
    pub(crate) receives: [ibv_recv_wr; 4],
    pub(crate) segments: [[ibv_sge; 40]; 4],
}

/// The name of a call, its weight, and its function.
type Call = (&'static str, u32, fn(&mut Caller));

const CALLS: [Call; 33] = [
    ("open", 1, Caller::open),
    ("close", 1, Caller::close),
    ("alloc_pd", 2, Caller::alloc_pd),
    ("dealloc_pd", 1, Caller::dealloc_pd),
    ("reg_mr", 3, Caller::reg_mr),
    ("rereg_mr", 1, Caller::rereg_mr),
    ("dereg_mr", 1, Caller::dereg_mr),
    ("create_comp_channel", 1, Caller::create_channel),
    ("destroy_comp_channel", 1, Caller::destroy_channel),
    ("create_cq", 2, Caller::create_cq),
    ("resize_cq", 1, Caller::resize_cq),
    ("destroy_cq", 1, Caller::destroy_cq),
    ("create_cq_ex", 1, Caller::create_cq_ex),
    ("poll extended", 3, Caller::poll_extended),
    ("destroy extended", 1, Caller::destroy_extended),
    ("create_qp", 3, Caller::create_qp),
    ("create_qp_ex", 2, Caller::create_qp_ex),
    ("destroy_qp", 1, Caller::destroy_qp),
    ("modify_qp", 2, Caller::modify_qp),
    ("connect", 2, Caller::connect),
    ("post_send", 7, Caller::post_send),
    ("post_recv", 3, Caller::post_recv),
    ("wr_post", 3, Caller::wr_post),
    ("poll_cq", 4, Caller::poll_cq),
    ("req_notify_cq", 1, Caller::req_notify_cq),
    ("get_cq_event", 1, Caller::get_cq_event),
    ("get_async_event", 1, Caller::get_async_event),
    ("create_srq", 1, Caller::create_srq),
    ("use srq", 2, Caller::use_srq),
    ("create_ah", 1, Caller::create_ah),
    ("destroy_ah", 1, Caller::destroy_ah),
    ("query", 1, Caller::query),
    ("flow", 1, Caller::flow),
];

/// Usually forgets a handle whose object no longer exists.
fn gone<T>(place: &AtomicPtr<T>, random: &mut Random, status: c_int) {
    let is_stale = matches!(status, libc::EINVAL | -1) && random.once_in(2);
    if status == 0 && !random.once_in(4) || is_stale {
        place.store(ptr::null_mut(), Ordering::Relaxed);
    }
    count(status == 0);
}

pub(crate) fn count(has_succeeded: bool) {
    SUCCEEDED.fetch_add(has_succeeded.into(), Ordering::Relaxed);
}

/// Stores a new handle; replaces a handle that another thread stored in the meantime.
fn keep<T>(place: &AtomicPtr<T>, made: *mut T) {
    if !made.is_null() {
        place.store(made, Ordering::Relaxed);
    }
    count(!made.is_null());
}

fn is_free<T>(place: &AtomicPtr<T>) -> bool {
    place.load(Ordering::Relaxed).is_null()
}

impl Caller {
    pub(crate) fn new(random: Random) -> Self {
        Self {
            random,
            number: CALLERS.fetch_add(1, Ordering::Relaxed) % LATEST.len(),
            sends: [ibv_send_wr::default(); 4],
            receives: [ibv_recv_wr::default(); 4],
            segments: [[ibv_sge::default(); 40]; 4],
        }
    }

    /// Makes a random call.
    pub(crate) fn call(&mut self) {
        let all = CALLS.iter().map(|(_, often, _)| u64::from(*often)).sum();
        let mut left = self.random.below(all);
        for (n, (_, often, call)) in CALLS.iter().enumerate() {
            match left.checked_sub(u64::from(*often)) {
                Some(less) => left = less,
                None => {
                    LATEST[self.number].store(n, Ordering::Relaxed);
                    return call(self);
                }
            }
        }
    }

    fn open(&mut self) {
        let place = CONTEXTS.place(&mut self.random);
        if !is_free(place) {
            return;
        }
        // SAFETY: the list is freed once; the descriptor belongs to a new context.
        unsafe {
            let list = verbs::ibv_get_device_list(&mut 0);
            let context = verbs::ibv_open_device(list.read());
            verbs::ibv_free_device_list(list);
            if !context.is_null() {
                verbs::nonblocking((*context).async_fd);
            }
            keep(place, context);
        }
    }

    fn close(&mut self) {
        let random = &mut self.random;
        let place = CONTEXTS.place(random);
        if !is_free(place) && random.once_in(20) {
            // SAFETY: the library checks the handle, here and in all functions below. The memory of handles stays
            // readable.
            let status = unsafe { verbs::ibv_close_device(place.load(Ordering::Relaxed)) };
            gone(place, random, status);
        }
    }

    fn alloc_pd(&mut self) {
        let context = CONTEXTS.any(&mut self.random);
        let place = DOMAINS.place(&mut self.random);
        if is_free(place) {
            // SAFETY: as in `close`.
            keep(place, unsafe { verbs::ibv_alloc_pd(context) });
        }
    }

    fn dealloc_pd(&mut self) {
        let random = &mut self.random;
        let place = DOMAINS.place(random);
        if random.once_in(4) {
            // SAFETY: as in `close`.
            let status = unsafe { verbs::ibv_dealloc_pd(place.load(Ordering::Relaxed)) };
            gone(place, random, status);
        }
    }

    /// Returns access rights, usually all of them.
    fn access(&mut self) -> c_int {
        match self.random.once_in(8) {
            true => self.random.next() as c_int,
            false => 15,
        }
    }

    /// Returns a range of memory, usually within the arena.
    fn range(&mut self) -> (*mut c_void, usize) {
        let (arena, random) = (arena(), &mut self.random);
        let at = random.below(LEN / 2);
        let (address, len) = match random.below(24) {
            0 => (random.next() as usize, random.edge() as usize),
            1 => (arena.read_only, 4096),
            2 => (arena.writable, usize::MAX),
            3 => (arena.writable + at as usize, 0),
            4 => (arena.writable + LEN as usize - 8, 4096 * 64),
            _ => (arena.writable + at as usize, random.below(LEN / 2) as usize),
        };
        (ptr::with_exposed_provenance_mut(address), len)
    }

    fn reg_mr(&mut self) {
        let domain = DOMAINS.any(&mut self.random);
        let ((address, len), access) = (self.range(), self.access());
        let place = REGIONS.place(&mut self.random);
        if is_free(place) {
            // SAFETY: as in `close`; memory is checked, and the arena's stays mapped.
            keep(place, unsafe {
                verbs::ibv_reg_mr(domain, address, len, access)
            });
        }
    }

    fn rereg_mr(&mut self) {
        let (region, domain) = (REGIONS.any(&mut self.random), DOMAINS.any(&mut self.random));
        let ((address, len), access) = (self.range(), self.access());
        let flags = self.random.below(10) as c_int;
        if !region.is_null() {
            // SAFETY: as in `reg_mr`.
            let rereg = unsafe { verbs::ibv_rereg_mr(region, flags, domain, address, len, access) };
            count(rereg == 0);
        }
    }

    fn dereg_mr(&mut self) {
        let random = &mut self.random;
        let place = REGIONS.place(random);
        // SAFETY: as in `close`.
        let status = unsafe { verbs::ibv_dereg_mr(place.load(Ordering::Relaxed)) };
        gone(place, random, status);
    }

    fn create_channel(&mut self) {
        let context = CONTEXTS.any(&mut self.random);
        let place = CHANNELS.place(&mut self.random);
        if is_free(place) {
            // SAFETY: as in `close`; a new channel.
            unsafe {
                let channel = verbs::ibv_create_comp_channel(context);
                if !channel.is_null() {
                    verbs::nonblocking((*channel).fd);
                }
                keep(place, channel);
            }
        }
    }

    fn destroy_channel(&mut self) {
        let random = &mut self.random;
        let place = CHANNELS.place(random);
        if random.once_in(6) {
            // SAFETY: as in `close`.
            let status = unsafe { verbs::ibv_destroy_comp_channel(place.load(Ordering::Relaxed)) };
            gone(place, random, status);
        }
    }

    fn channel(&mut self) -> *mut ibv_comp_channel {
        match self.random.once_in(2) {
            true => CHANNELS.any(&mut self.random),
            false => ptr::null_mut(),
        }
    }

    fn create_cq(&mut self) {
        let (context, channel) = (CONTEXTS.any(&mut self.random), self.channel());
        let random = &mut self.random;
        let usual = random.below(300) as u32 + 1;
        let (entries, vector) = (random.mostly(usual), random.mostly(0));
        let place = QUEUES.place(random);
        if is_free(place) {
            let (entries, vector) = (entries.cast_signed(), vector.cast_signed());
            let own = ptr::null_mut();
            // SAFETY: as in `close`.
            let made = unsafe { verbs::ibv_create_cq(context, entries, own, channel, vector) };
            keep(place, made);
        }
    }

    fn resize_cq(&mut self) {
        let random = &mut self.random;
        let usual = random.below(400) as u32 + 1;
        let (queue, entries) = (QUEUES.any(random), random.mostly(usual));
        if !queue.is_null() {
            // SAFETY: as in `close`.
            count(unsafe { verbs::ibv_resize_cq(queue, entries.cast_signed()) } == 0);
        }
    }

    fn destroy_cq(&mut self) {
        let random = &mut self.random;
        let place = QUEUES.place(random);
        if random.once_in(6) {
            // SAFETY: as in `close`.
            let status = unsafe { verbs::ibv_destroy_cq(place.load(Ordering::Relaxed)) };
            gone(place, random, status);
        }
    }

    fn create_cq_ex(&mut self) {
        let (context, channel) = (CONTEXTS.any(&mut self.random), self.channel());
        let random = &mut self.random;
        let mut wanted = ibv_cq_init_attr_ex {
            cqe: random.mostly(16),
            channel,
            comp_vector: random.mostly(0),
            wc_flags: match random.once_in(8) {
                true => random.next(),
                false => 0x7f,
            },
            ..Default::default()
        };
        let place = EXTENDED.place(random);
        if !context.is_null() && is_free(place) {
            // SAFETY: as in `close`.
            let made = unsafe { ibv_create_cq_ex(context, &mut wanted) };
            keep(place, made.map_or(ptr::null_mut(), |queue| queue.as_ptr()));
        }
    }

    fn poll_extended(&mut self) {
        let queue = EXTENDED.any(&mut self.random);
        if queue.is_null() {
            return;
        }
        // SAFETY: as in `close`.
        unsafe {
            let polled = ibv_start_poll(queue);
            count(polled == Ok(Polled::Completion));
            if polled == Ok(Polled::Completion) {
                let _ = (ibv_wc_read_opcode(queue), ibv_wc_read_byte_len(queue));
                let _ = ibv_next_poll(queue);
            }
            // Sometimes a thread stays in the poll, or ends a poll that has not begun.
            if !self.random.once_in(30) {
                let _ = ibv_end_poll(queue);
            }
        }
    }

    fn destroy_extended(&mut self) {
        let random = &mut self.random;
        let place = EXTENDED.place(random);
        if random.once_in(6) {
            let queue = place.load(Ordering::Relaxed).cast();
            // SAFETY: as in `close`.
            let status = unsafe { verbs::ibv_destroy_cq(queue) };
            gone(place, random, status);
        }
    }

    /// Returns a completion queue of either kind.
    fn queue(&mut self) -> *mut ibv_cq {
        match self.random.once_in(4) {
            true => EXTENDED.any(&mut self.random).cast(),
            false => QUEUES.any(&mut self.random),
        }
    }

    fn init(&mut self) -> ibv_qp_init_attr {
        const KINDS: [Type; 4] = [
            Type::IBV_QPT_RC,
            Type::IBV_QPT_RC,
            Type::IBV_QPT_UC,
            Type::IBV_QPT_UD,
        ];
        let (send_cq, recv_cq) = (self.queue(), self.queue());
        let random = &mut self.random;
        let mut init = ibv_qp_init_attr {
            send_cq,
            recv_cq: if random.once_in(3) { recv_cq } else { send_cq },
            srq: if random.once_in(4) {
                SHARED.any(random)
            } else {
                ptr::null_mut()
            },
            qp_type: KINDS[random.below(4) as usize],
            sq_sig_all: random.below(2) as c_int,
            ..Default::default()
        };
        if random.once_in(20) {
            init.qp_type = Type(random.edge());
        }
        let usual = random.below(64) as u32 + 1;
        init.cap.max_send_wr = random.mostly(usual);
        init.cap.max_recv_wr = random.mostly(usual);
        init.cap.max_send_sge = random.mostly(4);
        init.cap.max_recv_sge = random.mostly(4);
        init.cap.max_inline_data = random.mostly(64);
        init
    }

    fn create_qp(&mut self) {
        let (domain, mut init) = (DOMAINS.any(&mut self.random), self.init());
        let place = PAIRS.place(&mut self.random);
        if is_free(place) {
            // SAFETY: as in `close`.
            keep(place, unsafe { verbs::ibv_create_qp(domain, &mut init) });
        }
    }

    fn create_qp_ex(&mut self) {
        let (domain, plain) = (DOMAINS.any(&mut self.random), self.init());
        let random = &mut self.random;
        let mut init = ibv_qp_init_attr_ex {
            send_cq: plain.send_cq,
            recv_cq: plain.recv_cq,
            srq: plain.srq,
            cap: plain.cap,
            qp_type: plain.qp_type,
            sq_sig_all: plain.sq_sig_all,
            pd: domain,
            comp_mask: (ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_PD
                | ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS)
                .0,
            send_ops_flags: match plain.qp_type {
                Type::IBV_QPT_RC => 0x7f,
                Type::IBV_QPT_UC => 0xf,
                _ => 0xc,
            },
            ..Default::default()
        };
        if random.once_in(10) {
            init.send_ops_flags = random.next();
        }
        if random.once_in(10) {
            init.comp_mask |= random.next() as u32 & 0x3f;
        }
        let place = PAIRS.place(random);
        if domain.is_null() || !is_free(place) {
            return;
        }
        // SAFETY: as in `close`. Domains keep the address of their context.
        unsafe {
            let context = (*domain).context;
            let create = (*mem::transmute::<*mut u8, *mut verbs_context>(
                context
                    .cast::<u8>()
                    .sub(mem::offset_of!(verbs_context, context)),
            ))
            .create_qp_ex;
            keep(place, create.unwrap()(context, &mut init));
        }
    }

    fn destroy_qp(&mut self) {
        let random = &mut self.random;
        let place = PAIRS.place(random);
        if random.once_in(6) {
            // SAFETY: as in `close`.
            let status = unsafe { verbs::ibv_destroy_qp(place.load(Ordering::Relaxed)) };
            gone(place, random, status);
        }
    }

    /// Returns attributes for any transition, usually valid ones, with this destination number.
    fn attributes(&mut self, number: u32) -> ibv_qp_attr {
        let random = &mut self.random;
        let mut attr = ibv_qp_attr {
            port_num: random.mostly(1) as u8,
            pkey_index: random.mostly(0) as u16,
            qp_access_flags: random.mostly(15),
            path_mtu: ibv_mtu(random.mostly(3)),
            dest_qp_num: random.mostly(number),
            max_dest_rd_atomic: random.mostly(4) as u8,
            max_rd_atomic: random.mostly(4) as u8,
            min_rnr_timer: random.mostly(1) as u8,
            timeout: random.mostly(8) as u8,
            retry_cnt: random.mostly(1) as u8,
            rnr_retry: random.mostly(1) as u8,
            qkey: 0x11,
            en_sqd_async_notify: 1,
            ..Default::default()
        };
        attr.ah_attr = self.path();
        attr
    }

    /// Returns the path to this host.
    fn path(&mut self) -> ibv_ah_attr {
        let random = &mut self.random;
        let mut raw = [0; 16];
        raw[10..].copy_from_slice(&[0xff, 0xff, 127, 77, 0, 2]);
        if random.once_in(10) {
            raw[random.below(16) as usize] = random.next() as u8;
        }
        let mut path = ibv_ah_attr {
            is_global: random.mostly(1) as u8,
            port_num: random.mostly(1) as u8,
            ..Default::default()
        };
        path.grh.dgid = ibv_gid { raw };
        path.grh.sgid_index = random.mostly(0) as u8;
        path
    }

    /// Returns the mask of the transition to a state.
    fn mask(kind: Type, to: State) -> Mask {
        let of_path =
            Mask::IBV_QP_AV | Mask::IBV_QP_PATH_MTU | Mask::IBV_QP_DEST_QPN | Mask::IBV_QP_RQ_PSN;
        let of_reads = Mask::IBV_QP_MAX_DEST_RD_ATOMIC | Mask::IBV_QP_MIN_RNR_TIMER;
        let of_retries = Mask::IBV_QP_TIMEOUT
            | Mask::IBV_QP_RETRY_CNT
            | Mask::IBV_QP_RNR_RETRY
            | Mask::IBV_QP_MAX_QP_RD_ATOMIC;
        let port = Mask::IBV_QP_PKEY_INDEX | Mask::IBV_QP_PORT;
        let more = match (to, kind) {
            (State::IBV_QPS_INIT, Type::IBV_QPT_UD) => port | Mask::IBV_QP_QKEY,
            (State::IBV_QPS_INIT, _) => port | Mask::IBV_QP_ACCESS_FLAGS,
            (State::IBV_QPS_RTR, Type::IBV_QPT_RC) => of_path | of_reads,
            (State::IBV_QPS_RTR, Type::IBV_QPT_UC) => of_path,
            (State::IBV_QPS_RTS, Type::IBV_QPT_RC) => Mask::IBV_QP_SQ_PSN | of_retries,
            (State::IBV_QPS_RTS, _) => Mask::IBV_QP_SQ_PSN,
            _ => Mask::NONE,
        };
        Mask::IBV_QP_STATE | more
    }

    fn modify_qp(&mut self) {
        let (pair, other) = (PAIRS.any(&mut self.random), PAIRS.any(&mut self.random));
        if pair.is_null() || other.is_null() {
            return;
        }
        // SAFETY: as in `close`.
        let (kind, number) = unsafe { ((*pair).qp_type, (*other).qp_num) };
        let mut attr = self.attributes(number);
        let random = &mut self.random;
        attr.qp_state = State(random.below(9) as u32);
        let mut mask = Self::mask(kind, attr.qp_state);
        if random.once_in(4) {
            mask = Mask(random.next() as u32);
        }
        // SAFETY: as in `close`.
        let changed = unsafe { verbs::ibv_modify_qp(pair, &mut attr, mask.0.cast_signed()) };
        count(changed == 0);
    }

    /// Moves two queue pairs to RTS.
    fn connect(&mut self) {
        let (one, other) = (PAIRS.any(&mut self.random), PAIRS.any(&mut self.random));
        if one.is_null() || other.is_null() || !self.random.once_in(3) {
            return;
        }
        for (pair, peer) in [(one, other), (other, one)] {
            for to in [
                State::IBV_QPS_RESET,
                State::IBV_QPS_INIT,
                State::IBV_QPS_RTR,
                State::IBV_QPS_RTS,
            ] {
                // SAFETY: as in `close`.
                unsafe {
                    let mut attr = self.attributes((*peer).qp_num);
                    attr.qp_state = to;
                    let mask = Self::mask((*pair).qp_type, to).0.cast_signed();
                    count(verbs::ibv_modify_qp(pair, &mut attr, mask) == 0);
                }
            }
        }
    }

    fn poll_cq(&mut self) {
        let queue = self.queue();
        if queue.is_null() {
            return;
        }
        let mut wc = [ibv_wc::default(); 64];
        let room = match self.random.once_in(10) {
            true => -(self.random.below(1 << 20) as c_int),
            false => self.random.below(65) as c_int,
        };
        // SAFETY: as in `close`; there is room for 64 completions.
        let found = unsafe { verbs::poll_cq(queue, room, wc.as_mut_ptr()) };
        assert!(found <= room.max(0), "{found} completions of {room}");
        count(found > 0);
    }

    fn req_notify_cq(&mut self) {
        let (queue, what) = (self.queue(), self.random.below(3) as c_int);
        if !queue.is_null() {
            // SAFETY: as in `close`.
            count(unsafe { verbs::req_notify_cq(queue, what) } == 0);
        }
    }

    fn get_cq_event(&mut self) {
        let channel = CHANNELS.any(&mut self.random);
        let (mut queue, mut own) = (ptr::null_mut(), ptr::null_mut());
        let events = self.random.mostly(1);
        if channel.is_null() {
            return;
        }
        // SAFETY: as in `close`; channels do not block.
        unsafe {
            let taken = verbs::ibv_get_cq_event(channel, &mut queue, &mut own) == 0;
            if taken {
                // At least the event that was taken.
                verbs::ibv_ack_cq_events(queue, events.max(1));
            }
            count(taken);
        }
    }

    fn get_async_event(&mut self) {
        let context = CONTEXTS.any(&mut self.random);
        let mut event = ibv_async_event::default();
        // SAFETY: as in `close`; contexts do not block.
        unsafe {
            let taken = verbs::ibv_get_async_event(context, &mut event) == 0;
            if taken {
                verbs::ibv_ack_async_event(&mut event);
                if self.random.once_in(4) {
                    verbs::ibv_ack_async_event(&mut event);
                }
            }
            count(taken);
        }
    }

    fn create_srq(&mut self) {
        let (domain, random) = (DOMAINS.any(&mut self.random), &mut self.random);
        let mut init = SrqInit {
            context: ptr::null_mut(),
            attr: ibv_srq_attr {
                max_wr: random.mostly(64),
                max_sge: random.mostly(4),
                srq_limit: random.mostly(0),
            },
        };
        let place = SHARED.place(random);
        if is_free(place) {
            // SAFETY: as in `close`.
            keep(place, unsafe { verbs::ibv_create_srq(domain, &mut init) });
        }
    }

    fn use_srq(&mut self) {
        let place = SHARED.place(&mut self.random);
        let queue = place.load(Ordering::Relaxed);
        let context = CONTEXTS.any(&mut self.random);
        if queue.is_null() || context.is_null() {
            return;
        }
        let mut attr = ibv_srq_attr {
            max_wr: self.random.mostly(64),
            max_sge: 1,
            srq_limit: self.random.mostly(2),
        };
        // SAFETY: as in `post_send`.
        unsafe {
            match self.random.below(8) {
                0 => {
                    let mask = self.random.below(5) as c_int;
                    count(verbs::ibv_modify_srq(queue, &mut attr, mask) == 0);
                }
                1 => count(verbs::ibv_query_srq(queue, &mut attr) == 0),
                2 if self.random.once_in(5) => {
                    gone(place, &mut self.random, verbs::ibv_destroy_srq(queue));
                }
                _ => {
                    let (list, mut bad) = (self.build_receives(), ptr::null_mut());
                    let status = verbs::post_srq_recv(context, queue, list, &mut bad);
                    assert!(status == 0 || !bad.is_null());
                    count(status == 0);
                }
            }
        }
    }

    fn create_ah(&mut self) {
        let (domain, mut path) = (DOMAINS.any(&mut self.random), self.path());
        let place = ADDRESSES.place(&mut self.random);
        if is_free(place) {
            // SAFETY: as in `close`.
            keep(place, unsafe { verbs::ibv_create_ah(domain, &mut path) });
        }
    }

    fn destroy_ah(&mut self) {
        let random = &mut self.random;
        let place = ADDRESSES.place(random);
        if random.once_in(3) {
            // SAFETY: as in `close`.
            let status = unsafe { verbs::ibv_destroy_ah(place.load(Ordering::Relaxed)) };
            gone(place, random, status);
        }
    }

    fn query(&mut self) {
        let (pair, context) = (PAIRS.any(&mut self.random), CONTEXTS.any(&mut self.random));
        let random = &mut self.random;
        let (mut attr, mut made) = (ibv_qp_attr::default(), ibv_qp_init_attr::default());
        let (mut device, mut port) = (ibv_device_attr::default(), ibv_port_attr::default());
        let (mut gid, mut pkey) = (ibv_gid { raw: [0; 16] }, 0);
        let (number, index) = (random.mostly(1) as u8, random.mostly(0).cast_signed());
        // SAFETY: as in `close`; the results have room.
        unsafe {
            let mask = random.next() as c_int;
            count(verbs::ibv_query_qp(pair, &mut attr, mask, &mut made) == 0);
            count(verbs::ibv_query_device(context, &mut device) == 0);
            count(verbs::ibv_query_port(context, number, &mut port) == 0);
            count(verbs::ibv_query_gid(context, number, index, &mut gid) == 0);
            count(verbs::ibv_query_pkey(context, number, index, &mut pkey) == 0);
        }
    }

    fn flow(&mut self) {
        let pair = PAIRS.any(&mut self.random);
        if pair.is_null() {
            return;
        }
        let mut attr = ibv_flow_attr {
            size: self.random.next() as u16,
            port: self.random.mostly(1) as u8,
            ..Default::default()
        };
        // SAFETY: as in `close`; the attributes have no specification.
        if let Ok(flow) = unsafe { ibv_create_flow(pair, &mut attr) } {
            // SAFETY: a new flow.
            count(unsafe { ibv_destroy_flow(flow.as_ptr()) }.is_ok());
        }
    }
}
