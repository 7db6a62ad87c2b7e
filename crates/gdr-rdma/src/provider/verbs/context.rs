//! An open kernel device, with the port and the GID in use.

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use gdr_copy::ProcessId;
use gdr_roce::{Event, Mtu, Qpn};
use gdr_verbs_sys::{
    Errno, IBV_LINK_LAYER_INFINIBAND, VerbError, Verbs, ibv_async_event, ibv_context, ibv_device,
    ibv_event_type, ibv_gid, ibv_odp_general_caps, ibv_port_attr, ibv_port_state,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use super::gid_table;
use crate::error::{Result, VerbsError};
use crate::provider::{FlushList, Verification};
use crate::types::{
    AsyncEvent, ChosenGid, GidEntry, GidType, Lid, LinkLayer, VerbsOptions, choose_gid,
};
use gdr_nic::Deadline;
use gdr_nic::{BoundedQueue, Loss};

/// On-demand paging, in `general_caps`.
const IBV_ODP_SUPPORT: u32 = ibv_odp_general_caps::IBV_ODP_SUPPORT.0;

/// Number of events to keep for a program that does not take them.
const EVENTS: usize = 1024;

/// The longest sleep of a waiter, in nanoseconds: another thread may have taken the event that would
/// have woken it.
pub(super) const SLICE_NS: i64 = 10_000_000;

/// An open device. It is closed when it and every object created from it have been dropped.
#[derive(Debug)]
pub(crate) struct Context {
    pub(super) verbs: &'static Verbs,
    pub(super) context: NonNull<ibv_context>,
    pub(super) name: String,
    pub(super) port: u8,
    pub(super) link_layer: u8,
    pub(super) lid: Option<Lid>,
    pub(super) mtu: Mtu,
    pub(super) gid: ChosenGid,
    pub(super) relaxed_ordering: bool,
    pub(super) on_demand: bool,
    pub(super) verification: Verification,
    pub(super) max_sge: u32,
    /// Maximum number of outstanding READs and atomics per queue pair.
    pub(super) max_reads: i32,
    pub(super) events: BoundedQueue<AsyncEvent>,
    pub(super) gone: AtomicBool,
    pub(super) flushes: Arc<FlushList>,
    pub(super) origin: ProcessId,
}

// SAFETY: libibverbs is thread-safe (`ibv_open_device(3)`, and rdma-core's Documentation/libibverbs.md), so its objects
// may be used from several threads at a time. They are destroyed only in drops, when there is no other owner.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// Opens a device.
    pub(crate) fn open(options: &VerbsOptions) -> Result<Self> {
        let verbs = match options.library {
            Some(verbs) => verbs,
            None => Verbs::load().map_err(VerbsError::from)?,
        };
        let context = Self::open_with(verbs, options)?;
        tracing::debug!(name = context.name, gid = context.gid.why, "device opened");
        Ok(context)
    }

    fn open_with(
        verbs: &'static Verbs,
        options: &VerbsOptions,
    ) -> std::result::Result<Self, VerbsError> {
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
                // Of several devices, users expect the first.
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
    ) -> std::result::Result<Self, VerbsError> {
        let failed = |source| VerbsError::Verb {
            device: name.clone(),
            limit: lock_limit(),
            source,
        };
        // SAFETY: the caller keeps the list with this device alive.
        let context = unsafe { verbs.ibv_open_device(device) }.map_err(failed)?;
        // From here on, dropping this closes the device.
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
            verification: match options.skip_verification {
                true => Verification::Skip,
                false => Verification::Run,
            },
            max_sge: 1,
            max_reads: 0,
            events: BoundedQueue::new(EVENTS, Loss::Tolerated),
            gone: AtomicBool::new(false),
            flushes: Arc::new(FlushList::new()),
            origin: ProcessId::current(),
        };
        opened.set_up(options)?;
        Ok(opened)
    }

    /// Selects port and GID.
    fn set_up(&mut self, options: &VerbsOptions) -> std::result::Result<(), VerbsError> {
        // Do this first, because every failure also reads the events.
        self.set_nonblocking()?;
        // SAFETY: the context is open, by this library.
        let attr = unsafe { self.verbs.ibv_query_device_ex(self.context.as_ptr()) }
            .map_err(|source| self.failed(source))?;
        // 0 also if the library has no extended query.
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
    ) -> std::result::Result<(u8, ibv_port_attr), VerbsError> {
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

    fn query_port(&self, port: u8) -> std::result::Result<ibv_port_attr, VerbsError> {
        // SAFETY: the context is open, by this library.
        unsafe { self.verbs.query_port(self.context.as_ptr(), port) }
            .map_err(|source| self.failed(source))
    }

    fn active(
        &self,
        port: u8,
        attr: ibv_port_attr,
    ) -> std::result::Result<(u8, ibv_port_attr), VerbsError> {
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
    ) -> std::result::Result<ChosenGid, VerbsError> {
        // SAFETY: the context is open, by this library.
        let table = unsafe { gid_table::read(self.verbs, self.context.as_ptr(), self.port, attr) };
        let table = table.map_err(|source| self.failed(source))?;
        let entries: Vec<GidEntry> = table.iter().map(|entry| entry.gid).collect();
        if let Some(index) = options.gid_index {
            let entry = entries.iter().find(|entry| entry.index == index);
            return match entry {
                Some(entry) => Ok(ChosenGid {
                    entry: *entry,
                    why: format!("GID {index} ({}): it was requested", entry.address()),
                }),
                None => Err(VerbsError::NoSuchGid {
                    device: self.name.clone(),
                    port: self.port,
                    index,
                }),
            };
        }
        choose_gid(LinkLayer::from_number(attr.link_layer), &entries).map_err(|_| {
            VerbsError::NoGid {
                device: self.name.clone(),
                port: self.port,
            }
        })
    }

    fn set_nonblocking(&self) -> std::result::Result<(), VerbsError> {
        nonblocking(self.async_fd())
    }

    pub(super) fn async_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the context is open as long as `self`, and so is its descriptor.
        unsafe { BorrowedFd::borrow_raw(self.context.as_ref().async_fd) }
    }

    pub(super) fn verbs(&self) -> &'static Verbs {
        self.verbs
    }

    pub(super) fn raw(&self) -> *mut ibv_context {
        self.context.as_ptr()
    }

    pub(super) fn port(&self) -> u8 {
        self.port
    }

    /// Returns what must be flushed before completions of arrived bytes are returned.
    pub(super) fn flushes(&self) -> &FlushList {
        &self.flushes
    }

    pub(super) fn chosen_gid(&self) -> &ChosenGid {
        &self.gid
    }

    /// Returns whether the port's link layer is InfiniBand.
    pub(super) fn is_infiniband(&self) -> bool {
        self.link_layer == IBV_LINK_LAYER_INFINIBAND
    }

    pub(super) fn failed(&self, source: VerbError) -> VerbsError {
        // The event that reports a failed device may not have been read yet.
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

    /// Returns whether this process may destroy an object of the device. A destroy verb of a forked child uses the same
    /// descriptor, and would destroy the parent's object.
    pub(super) fn may_destroy(&self) -> bool {
        self.origin.is_current()
    }

    /// Returns whether the device has reported that it failed permanently.
    pub(super) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// Reads the events of the device.
    pub(super) fn take_events(&self) {
        loop {
            let mut event = MaybeUninit::<ibv_async_event>::uninit();
            // SAFETY: the context is open and the event writable.
            let taken = unsafe {
                self.verbs
                    .ibv_get_async_event(self.raw(), event.as_mut_ptr())
            };
            if taken.is_err() {
                // No event: the descriptor is non-blocking.
                return;
            }
            // SAFETY: it was written.
            let mut event = unsafe { event.assume_init() };
            let translated = self.translate(&event);
            // SAFETY: the event is unchanged, and acknowledged once.
            unsafe { self.verbs.ibv_ack_async_event(&mut event) };
            tracing::debug!(device = self.name, event = ?translated, "asynchronous event");
            self.events.push(translated);
        }
    }

    fn translate(&self, event: &ibv_async_event) -> AsyncEvent {
        let pair = |event_of_pair| {
            // SAFETY: events of these types name a queue pair, which cannot be destroyed before the event is
            // acknowledged.
            let qpn = Qpn::new(unsafe { (*event.element.qp).qp_num });
            AsyncEvent::QueuePair {
                qpn,
                event: event_of_pair,
            }
        };
        // SAFETY: any bytes form a valid number, and it is used only for event types that set it.
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
            ibv_event_type::IBV_EVENT_SQ_DRAINED => pair(Event::SendQueueDrained),
            ibv_event_type::IBV_EVENT_COMM_EST => pair(Event::CommunicationEstablished),
            ibv_event_type::IBV_EVENT_CQ_ERR => AsyncEvent::CompletionQueueLost,
            ibv_event_type::IBV_EVENT_PORT_ACTIVE => AsyncEvent::PortActive { port },
            ibv_event_type::IBV_EVENT_PORT_ERR => AsyncEvent::PortDown { port },
            other => AsyncEvent::Other { number: other.0 },
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if !self.may_destroy() {
            return;
        }
        // SAFETY: every object created from it held it, and is gone.
        if let Err(error) = unsafe { self.verbs.ibv_close_device(self.context.as_ptr()) } {
            tracing::warn!(device = self.name, %error, "the device cannot be closed");
        }
    }
}

/// Sleeps until a descriptor is readable, for at most [`SLICE_NS`].
pub(super) fn sleep_on(fd: BorrowedFd<'_>, deadline: Deadline) {
    let left = i64::try_from(deadline.remaining().as_nanos()).unwrap_or(i64::MAX);
    let limit = Timespec {
        tv_sec: 0,
        tv_nsec: left.min(SLICE_NS),
    };
    // A signal or an error counts as the end of the slice: the caller checks again.
    let _ = poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&limit));
}

/// Makes a descriptor non-blocking.
pub(super) fn nonblocking(fd: BorrowedFd<'_>) -> std::result::Result<(), VerbsError> {
    fcntl_getfl(fd)
        .and_then(|flags| fcntl_setfl(fd, flags | OFlags::NONBLOCK))
        .map_err(|errno| VerbsError::Os {
            call: "fcntl(O_NONBLOCK)",
            source: errno.into(),
        })
}

/// Returns the name of a device.
pub(super) fn device_name(verbs: &Verbs, device: *mut ibv_device) -> String {
    // SAFETY: the device is in a list that the caller holds, and names are C strings.
    let name = unsafe { CStr::from_ptr(verbs.ibv_get_device_name(device)) };
    name.to_string_lossy().into_owned()
}

/// Returns a GID as an IPv6 address.
pub(super) fn address_of(gid: &ibv_gid) -> Ipv6Addr {
    // SAFETY: every variant of the union is sixteen bytes.
    Ipv6Addr::from(unsafe { gid.raw })
}

/// Returns an address as a GID: an IPv4 one mapped into IPv6.
pub(super) fn gid_of(address: IpAddr) -> ibv_gid {
    ibv_gid {
        raw: bytes_of(address),
    }
}

/// Returns the bytes of an address as a GID.
pub(super) fn bytes_of(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

/// Translates a value of `enum ibv_mtu`; an unknown one counts as the smallest.
fn mtu(code: u32) -> Mtu {
    [Mtu::B256, Mtu::B512, Mtu::B1024, Mtu::B2048, Mtu::B4096]
        .into_iter()
        .find(|mtu| u32::from(mtu.code()) == code)
        .unwrap_or(Mtu::B256)
}

/// Returns the limit of locked memory in bytes.
pub(super) fn lock_limit() -> Option<u64> {
    rustix::process::getrlimit(rustix::process::Resource::Memlock).current
}

/// Returns whether an error of a state change may be caused by the route to the peer.
pub(super) fn is_routing_error(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::ENODEV | Errno::ETIMEDOUT | Errno::EHOSTUNREACH | Errno::ENETUNREACH | Errno::EINVAL
    )
}
