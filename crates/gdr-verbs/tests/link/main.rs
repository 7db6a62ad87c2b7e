//! The port follows its network interface: state, MTU, GID and events, in a network namespace of the test.

#![allow(clippy::unwrap_used)]

#[path = "../library/built.rs"]
mod built;
#[path = "../raw_packets/namespace.rs"]
mod namespace;

use std::env;
use std::mem::MaybeUninit;
use std::net::Ipv4Addr;
use std::os::fd::BorrowedFd;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::ptr;
use std::thread;
use std::time::{Duration, Instant};

use gdr_verbs_sys::ibv_qp_attr_mask as Mask;
use gdr_verbs_sys::*;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::OFlags;

use crate::built::libraries;

/// The limit of each wait. The Linux kernel may report a carrier a second late.
const LIMIT: Duration = Duration::from_secs(30);
/// The environment variable with the path of the library, for the child process.
const LIBRARY: &str = "GDR_TEST_LIBRARY";
const ADDRESSES: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 77, 2, 1), Ipv4Addr::new(10, 77, 2, 2)];

type Kind = ibv_event_type;

/// `ENODATA`.
const NO_DATA: Errno = Errno(libc::ENODATA);

#[test]
fn a_port_follows_its_interface() {
    let mut child = Command::new(env::current_exe().unwrap());
    child
        .args(["--exact", "in_a_namespace", "--ignored", "--nocapture"])
        .env(LIBRARY, libraries().join("libgdr-verbs.so"))
        .env("GDR_NICS", "v0,v1,lo")
        .env_remove("GDR_LIBIBVERBS");
    // SAFETY: the closure only makes system calls.
    unsafe { child.pre_exec(namespace::enter) };
    match child.status() {
        Ok(status) => assert!(status.success()),
        Err(error) => skip::skip(format_args!("the kernel refuses a namespace: {error}")),
    }
}

#[test]
#[ignore = "runs in a child process"]
fn in_a_namespace() {
    let Some(library) = env::var_os(LIBRARY) else {
        return;
    };
    namespace::set_up(c"lo").unwrap();
    make_interfaces();
    // SAFETY: the file behaves as libibverbs does.
    let verbs = unsafe { Verbs::open(library) }.unwrap();
    let devices = verbs.devices().unwrap();
    let [v0, v1, lo] = *devices.as_slice() else {
        panic!("{} devices", devices.len());
    };
    state_and_events_follow_the_carrier(&Port::open(verbs, v0));
    a_thread_that_waits_gets_the_event(&Port::open(verbs, v0));
    the_mtu_is_that_of_the_interface(&Port::open(verbs, v0));
    the_gid_goes_and_comes_with_the_address(&Port::open(verbs, v0));
    requests_without_an_address_end_in_time(verbs, [v0, v1]);
    the_loopback_interface_is_always_active(&Port::open(verbs, lo));
    an_interface_that_is_gone_may_come_back(&Port::open(verbs, v0));
}

fn make_interfaces() {
    namespace::add_veth_pair(c"v0", c"v1").unwrap();
    for (name, address) in [(c"v0", ADDRESSES[0]), (c"v1", ADDRESSES[1])] {
        namespace::set_address(name, address).unwrap();
        namespace::set_up(name).unwrap();
    }
}

/// An open device without any other object, so that no engine runs.
struct Port {
    verbs: &'static Verbs,
    context: *mut ibv_context,
}

impl Port {
    /// Opens a device, and waits until its port is active.
    fn open(verbs: &'static Verbs, device: *mut ibv_device) -> Self {
        // SAFETY: a device of the library.
        let context = unsafe { verbs.ibv_open_device(device) }.unwrap().as_ptr();
        let port = Self { verbs, context };
        port.wait_for(ibv_port_state::IBV_PORT_ACTIVE);
        // Discards the events that were reported before.
        port.set_blocking(OFlags::NONBLOCK);
        while port.take().is_ok() {}
        port.set_blocking(OFlags::empty());
        port
    }

    fn attributes(&self) -> ibv_port_attr {
        // SAFETY: the context is open.
        unsafe { self.verbs.query_port(self.context, 1) }.unwrap()
    }

    fn wait_for(&self, state: ibv_port_state) {
        wait_until(|| self.attributes().state == state);
    }

    /// Returns state and physical state, as numbers of the specification.
    fn states(&self) -> (ibv_port_state, u8) {
        let attributes = self.attributes();
        (attributes.state, attributes.phys_state)
    }

    /// Returns the index of the interface of the GID.
    fn interface_of_gid(&self) -> Result<u32, Errno> {
        // SAFETY: the context is open.
        let entry = unsafe { self.verbs.query_gid(self.context, 1, 3) };
        entry
            .map(|entry| entry.ndev_ifindex)
            .map_err(|error| error.errno())
    }

    fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as the context.
        unsafe { BorrowedFd::borrow_raw((*self.context).async_fd) }
    }

    fn set_blocking(&self, flags: OFlags) {
        rustix::fs::fcntl_setfl(self.fd(), flags).unwrap();
    }

    fn take(&self) -> Result<Kind, VerbError> {
        let mut event = ibv_async_event::default();
        // SAFETY: the context is open; events of a port have a port number.
        unsafe {
            self.verbs.ibv_get_async_event(self.context, &mut event)?;
            assert_eq!(event.element.port_num, 1);
            self.verbs.ibv_ack_async_event(&mut event);
        }
        Ok(event.event_type)
    }

    /// Waits until the descriptor is readable; returns the next event.
    fn event(&self) -> Kind {
        let limit = Timespec::try_from(LIMIT).unwrap();
        let mut fds = [PollFd::from_borrowed_fd(self.fd(), PollFlags::IN)];
        assert_eq!(rustix::event::poll(&mut fds, Some(&limit)), Ok(1));
        self.take().unwrap()
    }

    /// Checks that the descriptor is not readable: a program that finds it readable takes an event, which must not
    /// block.
    fn assert_no_event(&self) {
        let now = Timespec::default();
        let mut fds = [PollFd::from_borrowed_fd(self.fd(), PollFlags::IN)];
        assert_eq!(rustix::event::poll(&mut fds, Some(&now)), Ok(0));
        self.set_blocking(OFlags::NONBLOCK);
        assert_eq!(self.take().unwrap_err().errno(), Errno::EAGAIN);
        self.set_blocking(OFlags::empty());
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        // SAFETY: it is open, and not used again.
        unsafe { self.verbs.ibv_close_device(self.context) }.unwrap();
    }
}

fn wait_until(mut done: impl FnMut() -> bool) {
    let until = Instant::now() + LIMIT;
    while !done() {
        assert!(Instant::now() < until, "nothing came within {LIMIT:?}");
        thread::yield_now();
    }
}

fn state_and_events_follow_the_carrier(port: &Port) {
    let (down, active) = (
        ibv_port_state::IBV_PORT_DOWN,
        ibv_port_state::IBV_PORT_ACTIVE,
    );
    assert_eq!(port.states(), (active, 5));
    port.assert_no_event();
    namespace::set_down(c"v0").unwrap();
    assert_eq!(port.event(), Kind::IBV_EVENT_PORT_ERR);
    assert_eq!(port.states(), (down, 3), "disabled");
    namespace::set_up(c"v0").unwrap();
    assert_eq!(port.event(), Kind::IBV_EVENT_PORT_ACTIVE);
    assert_eq!(port.states(), (active, 5));
    namespace::set_down(c"v1").unwrap();
    assert_eq!(port.event(), Kind::IBV_EVENT_PORT_ERR);
    assert_eq!(port.states(), (down, 2), "no carrier");
    namespace::set_up(c"v1").unwrap();
    assert_eq!(port.event(), Kind::IBV_EVENT_PORT_ACTIVE);
    port.assert_no_event();
    // Two changes between two checks of the device.
    namespace::set_down(c"v0").unwrap();
    namespace::set_up(c"v0").unwrap();
    assert_eq!(port.event(), Kind::IBV_EVENT_PORT_ERR);
    assert_eq!(port.event(), Kind::IBV_EVENT_PORT_ACTIVE);
    port.assert_no_event();
}

/// Waits like `ibv_asyncwatch`: in `ibv_get_async_event`, without polling the descriptor.
fn a_thread_that_waits_gets_the_event(port: &Port) {
    let (context, verbs) = (port.context.expose_provenance(), port.verbs);
    let waiter = thread::spawn(move || {
        let context = ptr::with_exposed_provenance_mut(context);
        let mut event = ibv_async_event::default();
        // SAFETY: the context is open until this thread is joined.
        unsafe { verbs.ibv_get_async_event(context, &mut event) }.unwrap();
        event.event_type
    });
    namespace::set_down(c"v1").unwrap();
    wait_until(|| waiter.is_finished());
    assert_eq!(waiter.join().unwrap(), Kind::IBV_EVENT_PORT_ERR);
    namespace::set_up(c"v1").unwrap();
    assert_eq!(port.event(), Kind::IBV_EVENT_PORT_ACTIVE);
}

fn the_mtu_is_that_of_the_interface(port: &Port) {
    for (mtu, expected) in [
        (9000, ibv_mtu::IBV_MTU_4096),
        (600, ibv_mtu::IBV_MTU_512),
        (1500, ibv_mtu::IBV_MTU_1024),
    ] {
        namespace::set_mtu(c"v0", mtu).unwrap();
        assert_eq!(port.attributes().active_mtu, expected);
    }
    namespace::set_mtu(c"v1", 1400).unwrap();
    namespace::add_veth_pair(c"other", c"another").unwrap();
    namespace::set_address(c"other", Ipv4Addr::new(10, 77, 4, 1)).unwrap();
    namespace::set_up(c"other").unwrap();
    namespace::remove(c"other").unwrap();
    port.assert_no_event();
}

fn the_gid_goes_and_comes_with_the_address(port: &Port) {
    let own = ADDRESSES[0].to_ipv6_mapped().octets();
    let listed = || {
        let mut room = [const { MaybeUninit::uninit() }; 4];
        // SAFETY: the context is open.
        let listed = unsafe { port.verbs.query_gid_table(port.context, &mut room) };
        listed.unwrap().len()
    };
    let plain = || {
        let mut gid = ibv_gid { raw: [1; 16] };
        // SAFETY: the context is open; every value of the union is valid.
        unsafe {
            let found = port.verbs.ibv_query_gid(port.context, 1, 1, &mut gid);
            found.unwrap();
            gid.raw
        }
    };
    assert_eq!((plain(), listed()), (own, 1));
    namespace::remove_address(c"v0").unwrap();
    assert_eq!(port.event(), Kind::IBV_EVENT_GID_CHANGE);
    assert_eq!(port.interface_of_gid(), Err(NO_DATA));
    assert_eq!((plain(), listed()), ([0; 16], 0));
    // Another address of the interface does not belong to the device.
    namespace::set_address(c"v0", Ipv4Addr::new(10, 77, 3, 1)).unwrap();
    port.assert_no_event();
    assert_eq!(port.interface_of_gid(), Err(NO_DATA));
    namespace::set_address(c"v0", ADDRESSES[0]).unwrap();
    assert_eq!(port.event(), Kind::IBV_EVENT_GID_CHANGE);
    assert_eq!((plain(), listed()), (own, 1));
    assert!(port.interface_of_gid().unwrap() > 0);
    assert_eq!(port.attributes().state, ibv_port_state::IBV_PORT_ACTIVE);
    port.assert_no_event();
}

fn the_loopback_interface_is_always_active(port: &Port) {
    namespace::set_down(c"lo").unwrap();
    assert_eq!(port.attributes().state, ibv_port_state::IBV_PORT_ACTIVE);
    port.assert_no_event();
    namespace::set_up(c"lo").unwrap();
}

fn an_interface_that_is_gone_may_come_back(port: &Port) {
    namespace::remove(c"v0").unwrap();
    let mut events = [port.event(), port.event()];
    events.sort_by_key(|kind| kind.0);
    let lost = [Kind::IBV_EVENT_PORT_ERR, Kind::IBV_EVENT_GID_CHANGE];
    assert_eq!(events, lost);
    assert_eq!(port.states(), (ibv_port_state::IBV_PORT_DOWN, 3));
    assert_eq!(port.attributes().active_mtu, ibv_mtu::IBV_MTU_1024);
    make_interfaces();
    port.wait_for(ibv_port_state::IBV_PORT_ACTIVE);
    wait_until(|| port.interface_of_gid().is_ok());
}

/// A connected queue pair with its context and queue.
struct End {
    port: Port,
    queue: *mut ibv_cq,
    pair: *mut ibv_qp,
}

impl End {
    fn new(verbs: &'static Verbs, device: *mut ibv_device) -> Self {
        let port = Port::open(verbs, device);
        // SAFETY: each object is created from the objects before it.
        unsafe {
            let domain = verbs.ibv_alloc_pd(port.context).unwrap().as_ptr();
            let (own, none) = (ptr::null_mut(), ptr::null_mut());
            let queue = verbs.ibv_create_cq(port.context, 8, own, none, 0);
            let queue = queue.unwrap().as_ptr();
            let mut attr = ibv_qp_init_attr {
                send_cq: queue,
                recv_cq: queue,
                qp_type: ibv_qp_type::IBV_QPT_RC,
                ..Default::default()
            };
            (attr.cap.max_send_wr, attr.cap.max_recv_wr) = (4, 4);
            let pair = verbs.ibv_create_qp(domain, &mut attr).unwrap().as_ptr();
            Self { port, queue, pair }
        }
    }

    fn number(&self) -> u32 {
        // SAFETY: it is alive.
        unsafe { (*self.pair).qp_num }
    }

    fn connect(&self, peer: u32, to: Ipv4Addr) {
        use ibv_qp_state as State;
        let mut attr = ibv_qp_attr {
            port_num: 1,
            path_mtu: ibv_mtu::IBV_MTU_1024,
            dest_qp_num: peer,
            min_rnr_timer: 12,
            // A second including retries, so that an end that gets no CPU for a while has not failed.
            timeout: 16,
            retry_cnt: 3,
            rnr_retry: 7,
            ..Default::default()
        };
        attr.ah_attr.is_global = 1;
        attr.ah_attr.port_num = 1;
        attr.ah_attr.grh.sgid_index = 1;
        attr.ah_attr.grh.dgid.raw = to.to_ipv6_mapped().octets();
        let path =
            Mask::IBV_QP_AV | Mask::IBV_QP_PATH_MTU | Mask::IBV_QP_DEST_QPN | Mask::IBV_QP_RQ_PSN;
        let reads = Mask::IBV_QP_MAX_DEST_RD_ATOMIC | Mask::IBV_QP_MIN_RNR_TIMER;
        let retries = Mask::IBV_QP_TIMEOUT
            | Mask::IBV_QP_RETRY_CNT
            | Mask::IBV_QP_RNR_RETRY
            | Mask::IBV_QP_MAX_QP_RD_ATOMIC;
        let init = Mask::IBV_QP_PKEY_INDEX | Mask::IBV_QP_PORT | Mask::IBV_QP_ACCESS_FLAGS;
        for (state, mask) in [
            (State::IBV_QPS_INIT, init),
            (State::IBV_QPS_RTR, path | reads),
            (State::IBV_QPS_RTS, Mask::IBV_QP_SQ_PSN | retries),
        ] {
            attr.qp_state = state;
            let mask = (mask | Mask::IBV_QP_STATE).0 as i32;
            // SAFETY: the queue pair is alive.
            unsafe { self.port.verbs.ibv_modify_qp(self.pair, &mut attr, mask) }.unwrap();
        }
    }

    fn receive(&self) {
        let mut wr = ibv_recv_wr::default();
        // SAFETY: the queue pair is alive.
        assert!(unsafe { ibv_post_recv(self.pair, &mut wr) }.is_ok());
    }

    /// Sends an empty message; returns its status.
    fn send(&self) -> ibv_wc_status {
        let mut wr = ibv_send_wr {
            opcode: ibv_wr_opcode::IBV_WR_SEND,
            send_flags: ibv_send_flags::IBV_SEND_SIGNALED.0,
            ..Default::default()
        };
        // SAFETY: the queue pair is alive.
        assert!(unsafe { ibv_post_send(self.pair, &mut wr) }.is_ok());
        self.completion(ibv_wc_opcode::IBV_WC_SEND)
    }

    fn completion(&self, of: ibv_wc_opcode) -> ibv_wc_status {
        let mut found = None;
        wait_until(|| {
            let mut room = [MaybeUninit::uninit(); 1];
            // SAFETY: the queue is alive.
            let polled = unsafe { ibv_poll_cq(self.queue, &mut room) }.unwrap();
            found = polled.first().map(|done| (done.opcode, done.status));
            // The opcode of a failed request is undefined.
            found.is_some_and(|(opcode, status)| {
                opcode == of || status != ibv_wc_status::IBV_WC_SUCCESS
            })
        });
        found.unwrap().1
    }
}

/// Both addresses belong to one host, so the packets go over the loopback interface.
fn requests_without_an_address_end_in_time(verbs: &'static Verbs, devices: [*mut ibv_device; 2]) {
    for lost in [c"v0", c"v1"] {
        let [a, b] = devices.map(|device| End::new(verbs, device));
        a.connect(b.number(), ADDRESSES[1]);
        b.connect(a.number(), ADDRESSES[0]);
        b.receive();
        b.receive();
        assert_eq!(a.send(), ibv_wc_status::IBV_WC_SUCCESS);
        namespace::remove_address(lost).unwrap();
        // Shared memory carries packets until the device's thread has noticed the change.
        let mut status = ibv_wc_status::IBV_WC_SUCCESS;
        wait_until(|| {
            b.receive();
            status = a.send();
            if status != ibv_wc_status::IBV_WC_SUCCESS {
                return true;
            }
            b.completion(ibv_wc_opcode::IBV_WC_RECV);
            false
        });
        assert_eq!(status, ibv_wc_status::IBV_WC_RETRY_EXC_ERR, "{lost:?}");
        namespace::set_address(c"v0", ADDRESSES[0]).unwrap();
        namespace::set_address(c"v1", ADDRESSES[1]).unwrap();
    }
    // The devices work as before.
    let [a, b] = devices.map(|device| End::new(verbs, device));
    a.connect(b.number(), ADDRESSES[1]);
    b.connect(a.number(), ADDRESSES[0]);
    b.receive();
    assert_eq!(a.send(), ibv_wc_status::IBV_WC_SUCCESS);
}
