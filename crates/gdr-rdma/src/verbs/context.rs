//! An open device of the kernel, at one port and one GID.

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use gdr_roce::wire::UDP_PORT;
use gdr_roce::{Event, Mtu, Qpn};
use gdr_verbs_sys::{
    Errno, IBV_LINK_LAYER_INFINIBAND, VerbError, Verbs, ibv_async_event, ibv_context, ibv_device,
    ibv_event_type, ibv_gid, ibv_odp_general_caps, ibv_port_attr, ibv_port_state,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use super::error::VerbsError;
use super::flush::Flushes;
use super::gid::{ChosenGid, GidEntry, GidType};
use super::gid_table;
use super::options::VerbsOptions;
use crate::deadline::Deadline;
use crate::event::AsyncEvent;
use crate::lid::Lid;
use crate::mailbox::Mailbox;

/// On-demand paging, in `general_caps`.
const IBV_ODP_SUPPORT: u32 = ibv_odp_general_caps::IBV_ODP_SUPPORT.0;

/// Events kept for a program that does not ask for them.
const EVENTS: usize = 1024;

/// The longest sleep before a waiter looks again whether another thread took what it waits for.
pub(super) const SLICE_NS: i64 = 10_000_000;

/// An open device. It closes when the last that was made from it is gone.
#[derive(Debug)]
pub(crate) struct Context {
    verbs: &'static Verbs,
    context: NonNull<ibv_context>,
    name: String,
    port: u8,
    link_layer: u8,
    lid: Option<Lid>,
    mtu: Mtu,
    gid: ChosenGid,
    pub(super) relaxed_ordering: bool,
    pub(super) on_demand: bool,
    unproved: bool,
    pub(super) max_sge: u32,
    /// READs and atomics of a queue pair at a time.
    pub(super) max_reads: i32,
    events: Mailbox<AsyncEvent>,
    gone: AtomicBool,
    domains: AtomicU32,
    flushes: Flushes,
}

// SAFETY: libibverbs' objects may be used from any thread, several at a time (libibverbs is
// thread-safe, `ibv_open_device(3)` and rdma-core's Documentation/libibverbs.md); destruction
// happens in drops alone, when nobody else holds the object.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// Opens a device.
    pub(crate) fn open(options: &VerbsOptions) -> Result<Self, VerbsError> {
        let verbs = match options.library {
            Some(verbs) => verbs,
            None => Verbs::load()?,
        };
        Self::open_with(verbs, options)
    }

    fn open_with(verbs: &'static Verbs, options: &VerbsOptions) -> Result<Self, VerbsError> {
        let devices = verbs.devices()?;
        let mut known = Vec::new();
        let mut refusal = None;
        for &device in devices.as_slice() {
            let name = device_name(verbs, device);
            let wanted = options.name.as_ref().is_none_or(|wanted| *wanted == name);
            known.push(name.clone());
            if !wanted {
                continue;
            }
            match Self::open_device(verbs, device, name, options) {
                Ok(context) => return Ok(context),
                // Of several the first one's refusal is told: it is the one people expect.
                Err(error) => {
                    refusal.get_or_insert(error);
                }
            }
        }
        Err(refusal.unwrap_or_else(|| VerbsError::NoSuchDevice {
            name: options.name.clone().unwrap_or_default(),
            known,
        }))
    }

    fn open_device(
        verbs: &'static Verbs,
        device: *mut ibv_device,
        name: String,
        options: &VerbsOptions,
    ) -> Result<Self, VerbsError> {
        let failed = |source| VerbsError::Verb {
            device: name.clone(),
            limit: lock_limit(),
            source,
        };
        // SAFETY: the list that has the device is alive in the caller.
        let context = unsafe { verbs.ibv_open_device(device) }.map_err(failed)?;
        // From here on the drop closes it.
        let mut opened = Self {
            verbs,
            context,
            name,
            port: 1,
            link_layer: 0,
            lid: None,
            mtu: Mtu::B256,
            gid: ChosenGid {
                entry: GidEntry {
                    index: 0,
                    gid: Ipv6Addr::UNSPECIFIED,
                    kind: GidType::InfiniBand,
                },
                why: String::new(),
            },
            relaxed_ordering: options.relaxed_ordering,
            on_demand: options.on_demand,
            unproved: options.unproved,
            max_sge: 1,
            max_reads: 0,
            events: Mailbox::new(EVENTS),
            gone: AtomicBool::new(false),
            domains: AtomicU32::new(0),
            flushes: Flushes::default(),
        };
        opened.set_up(options)?;
        Ok(opened)
    }

    /// Chooses port and GID.
    fn set_up(&mut self, options: &VerbsOptions) -> Result<(), VerbsError> {
        // First of all: whatever fails looks at the events, too.
        self.set_nonblocking()?;
        // SAFETY: the context is open, by this library.
        let attr = unsafe { self.verbs.ibv_query_device_ex(self.context.as_ptr()) }
            .map_err(|source| self.failed(source))?;
        // 0 also where the device was not asked, for want of the newer query.
        let paging = attr.odp_caps.general_caps & u64::from(IBV_ODP_SUPPORT);
        if options.on_demand && paging == 0 {
            return Err(VerbsError::NoOnDemandPaging {
                device: self.name.clone(),
            });
        }
        let ports = attr.orig_attr.phys_port_cnt;
        self.max_sge = u32::try_from(attr.orig_attr.max_sge).unwrap_or(1).max(1);
        self.max_reads = attr.orig_attr.max_qp_rd_atom;
        let (port, attr) = self.choose_port(options, ports)?;
        self.port = port;
        self.link_layer = attr.link_layer;
        if self.is_infiniband() {
            self.lid = Lid::new(attr.lid);
        }
        self.mtu = mtu(attr.active_mtu.0);
        self.gid = self.choose_gid(options, &attr)?;
        Ok(())
    }

    fn choose_port(
        &self,
        options: &VerbsOptions,
        ports: u8,
    ) -> Result<(u8, ibv_port_attr), VerbsError> {
        if let Some(port) = options.port {
            if port == 0 || port > ports {
                return Err(VerbsError::NoSuchPort {
                    device: self.name.clone(),
                    port,
                    ports,
                });
            }
            let attr = self.query_port(port)?;
            return self.active(port, attr);
        }
        let mut first = None;
        for port in 1..=ports {
            let attr = self.query_port(port)?;
            match self.active(port, attr) {
                Ok(found) => return Ok(found),
                Err(error) => {
                    first.get_or_insert(error);
                }
            }
        }
        Err(first.unwrap_or_else(|| VerbsError::NoSuchPort {
            device: self.name.clone(),
            port: 1,
            ports,
        }))
    }

    fn query_port(&self, port: u8) -> Result<ibv_port_attr, VerbsError> {
        // SAFETY: the context is open, by this library.
        unsafe { self.verbs.query_port(self.context.as_ptr(), port) }
            .map_err(|source| self.failed(source))
    }

    fn active(&self, port: u8, attr: ibv_port_attr) -> Result<(u8, ibv_port_attr), VerbsError> {
        if attr.state == ibv_port_state::IBV_PORT_ACTIVE {
            return Ok((port, attr));
        }
        Err(VerbsError::PortDown {
            device: self.name.clone(),
            port,
            state: attr.state.to_string(),
        })
    }

    fn choose_gid(
        &self,
        options: &VerbsOptions,
        attr: &ibv_port_attr,
    ) -> Result<ChosenGid, VerbsError> {
        // SAFETY: the context is open, by this library.
        let table = unsafe { gid_table::read(self.verbs, self.context.as_ptr(), self.port, attr) };
        let table = table.map_err(|source| self.failed(source))?;
        let entries: Vec<GidEntry> = table.iter().map(|entry| entry.gid).collect();
        if let Some(index) = options.gid_index {
            let entry = entries.iter().find(|entry| entry.index == index);
            return match entry {
                Some(entry) => Ok(ChosenGid {
                    entry: *entry,
                    why: format!("GID {index} ({}): it was asked for", entry.address()),
                }),
                None => Err(VerbsError::NoSuchGid {
                    device: self.name.clone(),
                    port: self.port,
                    index,
                }),
            };
        }
        gid_table::choose_on(attr, &entries).ok_or_else(|| VerbsError::NoGid {
            device: self.name.clone(),
            port: self.port,
        })
    }

    fn set_nonblocking(&self) -> Result<(), VerbsError> {
        nonblocking(self.async_fd())
    }

    fn async_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the context is open as long as `self`, and so is its descriptor.
        unsafe { BorrowedFd::borrow_raw(self.context.as_ref().async_fd) }
    }

    pub(super) fn verbs(&self) -> &'static Verbs {
        self.verbs
    }

    pub(super) fn raw(&self) -> *mut ibv_context {
        self.context.as_ptr()
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn port(&self) -> u8 {
        self.port
    }

    /// What is to be flushed before completions tell of bytes that came.
    pub(super) fn flushes(&self) -> &Flushes {
        &self.flushes
    }

    /// Whether registrations of GPU memory are proved.
    pub(crate) fn proves(&self) -> bool {
        !self.unproved
    }

    /// Whether the port's link is InfiniBand.
    pub(super) fn is_infiniband(&self) -> bool {
        self.link_layer == IBV_LINK_LAYER_INFINIBAND
    }

    pub(crate) fn lid(&self) -> Option<Lid> {
        self.lid
    }

    pub(crate) fn mtu(&self) -> Mtu {
        self.mtu
    }

    pub(crate) fn gid(&self) -> &ChosenGid {
        &self.gid
    }

    pub(crate) fn address(&self) -> SocketAddr {
        SocketAddr::new(self.gid.entry.address(), UDP_PORT)
    }

    pub(super) fn next_domain(&self) -> u32 {
        self.domains.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn failed(&self, source: VerbError) -> VerbsError {
        // That the device failed may be known to nobody yet.
        self.take_events();
        if self.is_gone() {
            return VerbsError::DeviceGone {
                device: self.name.clone(),
            };
        }
        VerbsError::Verb {
            device: self.name.clone(),
            limit: lock_limit(),
            source,
        }
    }

    /// Whether the device has said that it failed for good.
    pub(super) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// Takes in what the device has to say.
    pub(super) fn take_events(&self) {
        loop {
            let mut event = MaybeUninit::<ibv_async_event>::uninit();
            // SAFETY: the context is open and the event writable.
            let taken = unsafe {
                self.verbs
                    .ibv_get_async_event(self.raw(), event.as_mut_ptr())
            };
            if taken.is_err() {
                // Nothing is there; the descriptor does not wait.
                return;
            }
            // SAFETY: it was written.
            let mut event = unsafe { event.assume_init() };
            let told = self.translate(&event);
            // SAFETY: it is as it was given, and acknowledged once.
            unsafe { self.verbs.ibv_ack_async_event(&mut event) };
            tracing::debug!(device = self.name, ?told, "asynchronous event");
            self.events.push(told);
        }
    }

    fn translate(&self, event: &ibv_async_event) -> AsyncEvent {
        let pair = |event_of_pair| {
            // SAFETY: these types name a queue pair, which cannot be destroyed before the event is
            // acknowledged.
            let qpn = Qpn::new(unsafe { (*event.element.qp).qp_num });
            AsyncEvent::QueuePair {
                qpn,
                event: event_of_pair,
            }
        };
        // SAFETY: any bytes are a number; it is used only where the type says it is one.
        let number = unsafe { event.element.port_num };
        let port = u8::try_from(number).unwrap_or(0);
        match event.event_type {
            ibv_event_type::IBV_EVENT_DEVICE_FATAL => {
                self.gone.store(true, Ordering::Release);
                AsyncEvent::DeviceFatal
            }
            ibv_event_type::IBV_EVENT_QP_FATAL => pair(Event::Fatal),
            ibv_event_type::IBV_EVENT_QP_REQ_ERR => pair(Event::InvalidRequest),
            ibv_event_type::IBV_EVENT_QP_ACCESS_ERR => pair(Event::AccessViolation),
            ibv_event_type::IBV_EVENT_COMM_EST => pair(Event::CommunicationEstablished),
            ibv_event_type::IBV_EVENT_CQ_ERR => AsyncEvent::CompletionQueueLost,
            ibv_event_type::IBV_EVENT_PORT_ACTIVE => AsyncEvent::PortActive { port },
            ibv_event_type::IBV_EVENT_PORT_ERR => AsyncEvent::PortDown { port },
            other => AsyncEvent::Other { number: other.0 },
        }
    }

    pub(crate) fn poll_event(&self) -> Option<AsyncEvent> {
        self.take_events();
        self.events.pop()
    }

    pub(crate) fn wait_event(&self, deadline: Deadline) -> Option<AsyncEvent> {
        loop {
            if let Some(event) = self.poll_event() {
                return Some(event);
            }
            if deadline.has_passed() {
                return None;
            }
            sleep_on(self.async_fd(), deadline);
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: whatever was made from it held it and is gone.
        if let Err(error) = unsafe { self.verbs.ibv_close_device(self.context.as_ptr()) } {
            tracing::warn!(device = self.name, %error, "the device does not close");
        }
    }
}

/// Sleeps until a descriptor can be read, for a slice of time at most.
pub(super) fn sleep_on(fd: BorrowedFd<'_>, deadline: Deadline) {
    let left = i64::try_from(deadline.remaining().as_nanos()).unwrap_or(i64::MAX);
    let limit = Timespec {
        tv_sec: 0,
        tv_nsec: left.min(SLICE_NS),
    };
    // A signal or an error is as good as a slice that has passed: the caller looks again.
    let _ = poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&limit));
}

/// Makes reads of a descriptor return at once.
pub(super) fn nonblocking(fd: BorrowedFd<'_>) -> Result<(), VerbsError> {
    fcntl_getfl(fd)
        .and_then(|flags| fcntl_setfl(fd, flags | OFlags::NONBLOCK))
        .map_err(|errno| VerbsError::Os {
            call: "fcntl(O_NONBLOCK)",
            source: errno.into(),
        })
}

/// The name of a device.
pub(super) fn device_name(verbs: &Verbs, device: *mut ibv_device) -> String {
    // SAFETY: the device is of a list that the caller holds, and names are strings in C.
    let name = unsafe { CStr::from_ptr(verbs.ibv_get_device_name(device)) };
    name.to_string_lossy().into_owned()
}

/// A GID as an IPv6 address.
pub(super) fn address_of(gid: &ibv_gid) -> Ipv6Addr {
    // SAFETY: a GID is sixteen bytes, however it is looked at.
    Ipv6Addr::from(unsafe { gid.raw })
}

/// An address as a GID: an IPv4 one mapped into IPv6.
pub(super) fn gid_of(address: IpAddr) -> ibv_gid {
    ibv_gid {
        raw: bytes_of(address),
    }
}

/// The bytes of an address as a GID.
pub(super) fn bytes_of(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

/// A code of `enum ibv_mtu`; one that is not known counts as the smallest.
fn mtu(code: u32) -> Mtu {
    [Mtu::B256, Mtu::B512, Mtu::B1024, Mtu::B2048, Mtu::B4096]
        .into_iter()
        .find(|mtu| u32::from(mtu.code()) == code)
        .unwrap_or(Mtu::B256)
}

/// The limit of locked memory, bytes.
pub(super) fn lock_limit() -> Option<u64> {
    rustix::process::getrlimit(rustix::process::Resource::Memlock).current
}

/// Whether the errno of a change of state is about the way to the peer.
pub(super) fn is_about_the_way(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::ENODEV | Errno::ETIMEDOUT | Errno::EHOSTUNREACH | Errno::ENETUNREACH | Errno::EINVAL
    )
}
