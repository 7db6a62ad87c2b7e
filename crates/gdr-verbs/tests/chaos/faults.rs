//! How each fault appears to a program.

use std::mem::MaybeUninit;
use std::net::Ipv4Addr;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use gdr_verbs_sys::*;

use crate::side::*;

const WRITE: ibv_wr_opcode = ibv_wr_opcode::IBV_WR_RDMA_WRITE;
pub(crate) const SUCCESS: ibv_wc_status = ibv_wc_status::IBV_WC_SUCCESS;
/// Longer than any operation without a fault, and shorter than each fault.
const SOON: Duration = Duration::from_millis(40);

/// Two sides, each with a registered region of some words.
pub(crate) struct Pair {
    pub(crate) a: Side,
    pub(crate) b: Side,
    pub(crate) near: Box<[AtomicU64]>,
    pub(crate) far: Box<[AtomicU64]>,
    pub(crate) source: std::ptr::NonNull<ibv_mr>,
    pub(crate) target: std::ptr::NonNull<ibv_mr>,
}

fn words(count: u64, word: impl Fn(u64) -> u64) -> Box<[AtomicU64]> {
    (0..count).map(|n| AtomicU64::new(word(n))).collect()
}

/// Registers words that the tests read only by atomic loads.
fn registered(side: &Side, words: &[AtomicU64]) -> std::ptr::NonNull<ibv_mr> {
    let (address, len) = (words.as_ptr().cast_mut().cast(), size_of_val(words));
    // SAFETY: the words exist as long as the region; they are atomics, which may change at any time.
    unsafe { library().reg_mr(side.domain, address, len, all_access()) }.unwrap()
}

/// Connects two sides. A request that is not answered is retransmitted after 4.096 us times two to the power of
/// `timeout`.
pub(crate) fn connect(a: &Side, b: &Side, timeout: u8) {
    for (side, peer) in [(a, b), (b, a)] {
        side.to_init().unwrap();
        side.to_rtr(peer.number()).unwrap();
        let (mut attr, mask) = side.change_to(ibv_qp_state::IBV_QPS_RTS, 0);
        attr.timeout = timeout;
        side.modify(&mut attr, mask).unwrap();
    }
}

/// A time-out of one second.
pub(crate) const LONG: u8 = 18;
/// A time-out of one millisecond.
pub(crate) const SHORT: u8 = 8;

impl Pair {
    pub(crate) fn new(count: u64) -> Self {
        Self::with_timeout(count, LONG)
    }

    pub(crate) fn with_timeout(count: u64, timeout: u8) -> Self {
        let [a, b] = [(); 2].map(|()| Side::new(ibv_qp_type::IBV_QPT_RC));
        connect(&a, &b, timeout);
        Self::of((a, b), count)
    }

    fn of((a, b): (Side, Side), count: u64) -> Self {
        let (near, far) = (words(count, |n| n + 1), words(count, |_| 0));
        let (source, target) = (registered(&a, &near), registered(&b, &far));
        Self {
            a,
            b,
            near,
            far,
            source,
            target,
        }
    }

    /// Posts a WRITE of `len` bytes to the same offset of the target as in the source.
    pub(crate) fn post(&self, id: u64, offset: u64, len: u32) {
        let wr = request(id, WRITE, self.target, offset);
        let list = &mut [segment(self.source, offset, len)];
        self.a.send(wr, list).unwrap();
    }

    /// Posts a READ of a range of the target to this offset of the source.
    pub(crate) fn post_read(&self, id: u64, (from, len): (u64, u32), to: u64) {
        let read = request(id, ibv_wr_opcode::IBV_WR_RDMA_READ, self.target, from);
        let list = &mut [segment(self.source, to, len)];
        self.a.send(read, list).unwrap();
    }

    /// Writes word `n`; returns its status and how long it took.
    pub(crate) fn write(&self, n: u64) -> (ibv_wc_status, Duration) {
        let begin = Instant::now();
        self.post(n, n * 8, 8);
        let done = self.a.completion();
        assert_eq!(done.wr_id, n);
        (done.status, begin.elapsed())
    }

    pub(crate) fn word(&self, n: u64) -> u64 {
        self.far[n as usize].load(Ordering::Acquire)
    }

    pub(crate) fn close(self) {
        deregister(self.source);
        deregister(self.target);
        self.a.close();
        self.b.close();
        drop((self.near, self.far));
    }
}

/// Writes three words; returns the result of the third. The others are quick.
fn third_write(pair: &Pair) -> (ibv_wc_status, Duration) {
    for n in 0..2 {
        assert_eq!(pair.write(n).0, SUCCESS);
    }
    pair.write(2)
}

pub(crate) fn the_third_write_is_not_answered() {
    let pair = Pair::with_timeout(4, SHORT);
    assert_eq!(
        third_write(&pair).0,
        ibv_wc_status::IBV_WC_RETRY_EXC_ERR,
        "the packet never arrives"
    );
    assert_eq!(pair.word(2), 0);
    pair.close();
}

pub(crate) fn the_third_write_is_sent_again() {
    let pair = Pair::new(4);
    let (status, took) = third_write(&pair);
    assert_eq!((status, pair.word(2)), (SUCCESS, 3));
    // A retransmission waits for at least some round trips.
    assert!(took >= Duration::from_millis(1), "{took:?}");
    pair.close();
}

pub(crate) fn atomics_count_once() {
    let pair = Pair::new(4);
    for n in 0..5 {
        let mut add = request(
            n,
            ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD,
            pair.target,
            0,
        );
        // SAFETY: the region exists.
        let rkey = unsafe { pair.target.as_ref() }.rkey;
        add.wr.atomic.remote_addr = pair.far.as_ptr().addr() as u64;
        add.wr.atomic.compare_add = 1;
        add.wr.atomic.rkey = rkey;
        pair.a.send(add, &mut [segment(pair.source, 0, 8)]).unwrap();
        assert_eq!(pair.a.completion().status, SUCCESS);
        assert_eq!(pair.near[0].load(Ordering::Acquire), n);
    }
    assert_eq!(pair.word(0), 5);
    pair.close();
}

pub(crate) fn the_third_write_is_slow() {
    let pair = Pair::new(4);
    let (status, took) = third_write(&pair);
    assert_eq!((status, pair.word(2)), (SUCCESS, 3));
    assert!(took > SOON, "{took:?}");
    pair.close();
}

/// The second packet of a message arrives before the first, so an unreliable connection drops it.
pub(crate) fn an_unreliable_write_lacks_its_end() {
    let pair = Pair::of(sides_of(ibv_qp_type::IBV_QPT_UC), 512);
    for (id, offset) in [(0, 0), (1, 2048)] {
        pair.post(id, offset, 2048);
        assert_eq!(pair.a.completion().status, SUCCESS);
    }
    wait_until(|| pair.word(511) == 512);
    assert_eq!(pair.word(255), 0);
    pair.close();
}

pub(crate) fn writes_are_slow_together() {
    let pair = Pair::new(1024);
    let begin = Instant::now();
    for n in 0..8 {
        pair.post(n, n * 512, 512);
    }
    for _ in 0..8 {
        assert_eq!(pair.a.completion().status, SUCCESS);
    }
    // 4096 bytes at 40960 bytes a second, less the last packet.
    let took = begin.elapsed();
    assert!(took > Duration::from_millis(80), "{took:?}");
    pair.close();
}

pub(crate) fn the_second_of_two_writes_arrives_first() {
    // Queue pairs 0 and 1 receive from 2 and 3.
    let [first, second, to_first, to_second] = [(); 4].map(|()| Side::new(ibv_qp_type::IBV_QPT_RC));
    connect(&first, &to_first, LONG);
    connect(&second, &to_second, LONG);
    let (near, far, other) = (words(1, |_| 7), words(1, |_| 0), words(1, |_| 0));
    let sources = [registered(&to_first, &near), registered(&to_second, &near)];
    let targets = [registered(&first, &far), registered(&second, &other)];
    for (n, side) in [&to_first, &to_second].into_iter().enumerate() {
        let wr = request(n as u64, WRITE, targets[n], 0);
        side.send(wr, &mut [segment(sources[n], 0, 8)]).unwrap();
    }
    wait_until(|| {
        to_first.poll();
        other[0].load(Ordering::Acquire) == 7
    });
    assert_eq!(far[0].load(Ordering::Acquire), 0, "it was posted first");
    wait_until(|| {
        to_first.poll();
        far[0].load(Ordering::Acquire) == 7
    });
    sources.into_iter().chain(targets).for_each(deregister);
    for side in [first, second, to_first, to_second] {
        side.close();
    }
}

/// Returns the next event of the side's context, and whether its port is active.
fn event(side: &Side) -> (ibv_event_type, bool) {
    let mut event = ibv_async_event::default();
    // SAFETY: the context is open.
    unsafe {
        library()
            .ibv_get_async_event(side.context, &mut event)
            .unwrap();
        library().ibv_ack_async_event(&mut event);
        let port = library().query_port(side.context, 1).unwrap();
        (
            event.event_type,
            port.state == ibv_port_state::IBV_PORT_ACTIVE,
        )
    }
}

pub(crate) fn the_port_goes_down_and_comes_back() {
    let pair = Pair::new(4);
    // The time of the rule counts from its first packet.
    let (status, _) = pair.write(0);
    assert_eq!(status, SUCCESS);
    assert_eq!(event(&pair.a), (ibv_event_type::IBV_EVENT_PORT_ERR, false));
    pair.post(1, 8, 8);
    assert_eq!(
        event(&pair.a),
        (ibv_event_type::IBV_EVENT_PORT_ACTIVE, true)
    );
    assert_eq!(pair.a.completion().status, SUCCESS);
    assert_eq!(pair.word(1), 2);
    pair.close();
}

pub(crate) fn the_address_goes_and_comes_back() {
    let pair = Pair::new(4);
    assert_eq!(pair.write(0).0, SUCCESS);
    for has_address in [false, true] {
        assert_eq!(event(&pair.a).0, ibv_event_type::IBV_EVENT_GID_CHANGE);
        // SAFETY: the context is open.
        let gid = unsafe { library().query_gid(pair.a.context, 1, 0) };
        assert_eq!(gid.is_ok(), has_address);
    }
    assert_eq!(pair.write(1).0, SUCCESS);
    pair.close();
}

pub(crate) fn the_device_fails() {
    let pair = Pair::new(64);
    pair.post(0, 0, 512);
    assert_eq!(event(&pair.a).0, ibv_event_type::IBV_EVENT_DEVICE_FATAL);
    wait_until(|| pair.a.state() == ibv_qp_state::IBV_QPS_ERR);
    pair.close();
}

pub(crate) fn the_third_write_never_completes() {
    let pair = Pair::new(8);
    for n in 0..2 {
        assert_eq!(pair.write(n).0, SUCCESS);
    }
    for n in 2..5 {
        pair.post(n, n * 8, 8);
    }
    wait_until(|| {
        assert!(pair.a.poll().is_none());
        pair.word(4) == 5
    });
    let begin = Instant::now();
    while begin.elapsed() < SOON {
        assert!(pair.a.poll().is_none());
    }
    pair.a.to_error().unwrap();
    for n in 2..5 {
        let done = pair.a.completion();
        assert_eq!(
            (done.wr_id, done.status),
            (n, ibv_wc_status::IBV_WC_WR_FLUSH_ERR)
        );
    }
    pair.close();
}

pub(crate) fn the_third_completion_is_late() {
    let pair = Pair::new(4);
    for n in 0..2 {
        assert_eq!(pair.write(n).0, SUCCESS);
    }
    let begin = Instant::now();
    pair.post(2, 16, 8);
    wait_until(|| pair.word(2) == 3);
    assert_eq!(pair.a.completion().wr_id, 2);
    assert!(begin.elapsed() > SOON);
    pair.close();
}

pub(crate) fn three_completions_come_at_once() {
    let pair = Pair::new(4);
    for n in 0..2 {
        pair.post(n, n * 8, 8);
        wait_until(|| {
            assert!(pair.a.poll().is_none());
            pair.word(n) == n + 1
        });
    }
    pair.post(2, 16, 8);
    assert_eq!(pair.a.completion().wr_id, 0);
    let mut room = [MaybeUninit::uninit(); 4];
    // SAFETY: the queue exists.
    let found = unsafe { ibv_poll_cq(pair.a.queue, &mut room) }.unwrap();
    assert_eq!(
        found.iter().map(|done| done.wr_id).collect::<Vec<_>>(),
        [1, 2]
    );
    pair.close();
}

pub(crate) fn the_third_write_fails() {
    let pair = Pair::new(4);
    assert_eq!(third_write(&pair).0, ibv_wc_status::IBV_WC_REM_OP_ERR);
    assert_eq!(pair.a.state(), ibv_qp_state::IBV_QPS_ERR);
    pair.close();
}

pub(crate) fn a_send_waits_for_a_receive() {
    let pair = Pair::new(4);
    pair.b
        .receive(1, &mut [segment(pair.target, 0, 8)])
        .unwrap();
    let begin = Instant::now();
    let send = request(2, ibv_wr_opcode::IBV_WR_SEND, pair.target, 0);
    pair.a
        .send(send, &mut [segment(pair.source, 0, 8)])
        .unwrap();
    assert_eq!(pair.a.completion().status, SUCCESS);
    // Two hundred RNR retries of 0.64 ms, from the receiver's RNR timer.
    assert!(begin.elapsed() > SOON, "{:?}", begin.elapsed());
    assert_eq!(pair.word(0), 1);
    pair.close();
}

pub(crate) fn a_queue_overruns() {
    let pair = Pair::new(8);
    for n in 0..3 {
        pair.post(n, n * 8, 8);
    }
    assert_eq!(event(&pair.a).0, ibv_event_type::IBV_EVENT_CQ_ERR);
    pair.close();
}

pub(crate) fn the_second_registration_is_refused() {
    let side = Side::new(ibv_qp_type::IBV_QPT_RC);
    let words = words(4, |_| 0);
    let register = || {
        let (address, len) = (words.as_ptr().cast_mut().cast(), size_of_val(&*words));
        // SAFETY: as in `registered`.
        unsafe { library().reg_mr(side.domain, address, len, all_access()) }
    };
    let first = register().unwrap();
    assert_eq!(register().unwrap_err().errno(), Errno(libc::ENOMEM));
    let third = register().unwrap();
    deregister(first);
    deregister(third);
    side.close();
}

pub(crate) fn the_second_registration_takes_long() {
    let begin = Instant::now();
    let pair = Pair::new(4);
    assert!(begin.elapsed() >= Duration::from_millis(80));
    pair.close();
}

pub(crate) fn a_compare_and_swap_finds_another_value() {
    let pair = Pair::new(4);
    for (found, after) in [(false, 0), (true, 9)] {
        let mut swap = request(1, ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP, pair.target, 0);
        // SAFETY: the region exists.
        let rkey = unsafe { pair.target.as_ref() }.rkey;
        swap.wr.atomic.remote_addr = pair.far.as_ptr().addr() as u64;
        swap.wr.atomic.compare_add = 0;
        swap.wr.atomic.swap = 9;
        swap.wr.atomic.rkey = rkey;
        pair.a
            .send(swap, &mut [segment(pair.source, 0, 8)])
            .unwrap();
        assert_eq!(pair.a.completion().status, SUCCESS);
        let original = pair.near[0].load(Ordering::Acquire);
        assert_eq!((original == 0, pair.word(0)), (found, after));
    }
    pair.close();
}

/// A UD queue pair that is attached to a group, with receives of a header of 40 bytes and a word each.
struct Member {
    side: Side,
    words: Box<[AtomicU64]>,
    region: NonNull<ibv_mr>,
}

impl Member {
    /// The number of words that a message takes.
    const WORDS: u64 = 6;

    fn of(side: Side, group: &ibv_gid) -> Self {
        let words = words(3 * Self::WORDS, |_| 0);
        let region = registered(&side, &words);
        for id in 0..3 {
            let list = &mut [segment(region, id * Self::WORDS * 8, 48)];
            side.receive(id, list).unwrap();
        }
        // SAFETY: the type of the function; the queue pair exists.
        unsafe {
            let attach: unsafe extern "C" fn(*mut ibv_qp, *const ibv_gid, u16) -> i32 =
                typed_function(c"ibv_attach_mcast");
            assert_eq!(attach(side.pair, group, 0), 0);
        }
        Self {
            side,
            words,
            region,
        }
    }

    /// Returns the word of the next message.
    fn next(&self) -> u64 {
        let done = self.side.completion();
        assert_eq!((done.status, done.byte_len), (SUCCESS, 48));
        let end = (done.wr_id + 1) * Self::WORDS;
        self.words[end as usize - 1].load(Ordering::Acquire)
    }

    fn close(self) {
        deregister(self.region);
        self.side.close();
    }
}

/// One group member loses the first of three messages and gets the second twice.
pub(crate) fn one_member_of_a_group_is_struck() {
    let (sender, struck) = sides_of(ibv_qp_type::IBV_QPT_UD);
    let other = Side::new(ibv_qp_type::IBV_QPT_UD);
    other.to_init().unwrap();
    other.to_rtr(0).unwrap();
    let group = ibv_gid {
        raw: Ipv4Addr::new(239, 3, 3, 5).to_ipv6_mapped().octets(),
    };
    let (struck, other) = (Member::of(struck, &group), Member::of(other, &group));
    let mut path = sender.path();
    path.grh.dgid = group;
    // SAFETY: the type of the function; the domain exists, and the attributes are readable.
    let ah = unsafe {
        let create: unsafe extern "C" fn(*mut ibv_pd, *mut ibv_ah_attr) -> *mut ibv_ah =
            typed_function(c"ibv_create_ah");
        create(sender.domain, &mut path)
    };
    assert!(!ah.is_null());
    for word in 1..=3_u64 {
        let mut wr = ibv_send_wr {
            opcode: ibv_wr_opcode::IBV_WR_SEND,
            send_flags: ibv_send_flags::IBV_SEND_INLINE.0,
            ..Default::default()
        };
        wr.wr.ud.ah = ah;
        wr.wr.ud.remote_qpn = 0xff_ffff;
        wr.wr.ud.remote_qkey = QKEY;
        let list = &mut [ibv_sge {
            addr: (&raw const word).addr() as u64,
            length: 8,
            lkey: 0,
        }];
        sender.send(wr, list).unwrap();
    }
    assert_eq!([(); 3].map(|()| other.next()), [1, 2, 3]);
    assert_eq!([(); 3].map(|()| struck.next()), [2, 2, 3]);
    // The header contains the group, as without faults.
    let address = struck.words[4].load(Ordering::Acquire).to_ne_bytes();
    assert_eq!(address[4..], [239, 3, 3, 5]);
    // SAFETY: the type of the function; the handle was created above.
    unsafe {
        let destroy: unsafe extern "C" fn(*mut ibv_ah) -> i32 = typed_function(c"ibv_destroy_ah");
        assert_eq!(destroy(ah), 0);
    }
    sender.close();
    struck.close();
    other.close();
}

/// Returns how many words of a WRITE of 128 have arrived.
fn arrived(pair: &Pair) -> usize {
    let words = pair.far.iter().zip(&pair.near);
    let is_there = |(far, near): &(&AtomicU64, &AtomicU64)| {
        far.load(Ordering::Acquire) == near.load(Ordering::Acquire)
    };
    words.filter(is_there).count()
}

pub(crate) fn the_last_word_is_there_before_the_first() {
    let pair = Pair::new(128);
    pair.post(1, 0, 1024);
    wait_until(|| {
        assert!(pair.a.poll().is_none(), "before all is there");
        pair.word(127) == 128
    });
    assert_eq!(pair.word(0), 0);
    assert_eq!(pair.a.completion().status, SUCCESS);
    assert_eq!(arrived(&pair), 128);
    pair.close();
}

pub(crate) fn some_words_are_there_before_all() {
    let pair = Pair::new(128);
    pair.post(1, 0, 1024);
    wait_until(|| {
        assert!(pair.a.poll().is_none(), "before all is there");
        (1..128).contains(&arrived(&pair))
    });
    assert_eq!(pair.a.completion().status, SUCCESS);
    assert_eq!(arrived(&pair), 128);
    pair.close();
}

/// Returns the completion of a request that was posted after `begin`. Before that time has passed, nothing arrives.
fn late_completion(pair: &Pair, begin: Instant) -> ibv_wc {
    loop {
        let (done, arrived) = (pair.a.poll(), arrived(pair));
        // Checked after the polls, because this thread may have got no CPU in between.
        if begin.elapsed() >= SOON {
            return done.unwrap_or_else(|| pair.a.completion());
        }
        assert!(done.is_none());
        assert_eq!(arrived, 0);
    }
}

pub(crate) fn no_byte_is_there_for_a_while() {
    let pair = Pair::new(128);
    let begin = Instant::now();
    pair.post(1, 0, 1024);
    assert_eq!(late_completion(&pair, begin).status, SUCCESS);
    assert_eq!(arrived(&pair), 128);
    pair.close();
}

pub(crate) fn no_byte_that_is_read_is_there_for_a_while() {
    let pair = Pair::new(128);
    let begin = Instant::now();
    // The target is all zeros, and the source is not.
    pair.post_read(1, (0, 1024), 0);
    assert_eq!(late_completion(&pair, begin).status, SUCCESS);
    assert_eq!(arrived(&pair), 128);
    pair.close();
}

pub(crate) fn write_for_long() {
    let pair = Pair::new(4);
    let begin = Instant::now();
    while begin.elapsed() < LIMIT {
        pair.write(1);
    }
}

pub(crate) fn the_process_stands_still() {
    let pair = Pair::new(4);
    let (begin, mut last) = (Instant::now(), Instant::now());
    while last.elapsed() < Duration::from_millis(200) {
        assert!(begin.elapsed() < LIMIT, "it never stood still");
        last = Instant::now();
        assert_eq!(pair.write(1).0, SUCCESS);
    }
    pair.close();
}

pub(crate) fn write_and_read_a_lot() {
    let pair = Pair::new(2048);
    for n in 0..100 {
        pair.post(n, 0, 6000);
        assert_eq!(pair.a.completion().status, SUCCESS);
        pair.post_read(n, (0, 3000), 8192);
        assert_eq!(pair.a.completion().status, SUCCESS);
    }
    for n in 0..375 {
        let read = pair.near[1024 + n].load(Ordering::Acquire);
        assert_eq!(read, n as u64 + 1);
    }
    pair.close();
}

pub(crate) fn there_is_no_domain() {
    let verbs = library();
    let devices = verbs.devices().unwrap();
    // SAFETY: a device in the list.
    let context = unsafe { verbs.ibv_open_device(devices.as_slice()[0]) }.unwrap();
    // SAFETY: an open context.
    let domain = unsafe { verbs.ibv_alloc_pd(context.as_ptr()) };
    assert_eq!(domain.unwrap_err().errno(), Errno(libc::EINVAL));
}
