//! Devices and their list.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{c_char, c_int};
use std::fs;
use std::net::{IpAddr, Ipv6Addr};
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gdr_nic::{self as nic, WeakDevice};
use gdr_nic::{AsyncEvent, Counters, CqNumber, PortUse, SoftAddress, SoftOptions, SrqNumber};
use gdr_process::Inherited;
use gdr_process::PerProcess;
use gdr_verbs_sys::{__be64, ibv_device, ibv_event_type, ibv_node_type, ibv_transport_type};

use crate::device_use::{self, Step};
use crate::errno::Errno;
use crate::event::{self, Subject};
use crate::event_queue::EventQueue;
use crate::files;
use crate::gpu_memory;
use crate::nics;
use crate::ret::{number, plain, pointer};
use crate::slab::{CObject, is_own};
use crate::system::{self, call_system, forward};

/// The most requests of a send or receive queue.
pub(crate) const MOST_REQUESTS: u32 = 1 << 15;
/// The most segments of a request.
pub(crate) const MOST_SEGMENTS: u32 = 32;
/// The most inline bytes of a request.
pub(crate) const MOST_INLINE: u32 = 1024;
/// The bytes inline that every queue pair takes: as many as fit one entry, which other providers have room for. The
/// programs of librdmacm send so many without asking for them.
pub(crate) const LEAST_INLINE: u32 = 16;
/// The most READs and atomics that a queue pair has outstanding.
pub(crate) const MOST_READS: u8 = 16;

/// The index in RDMA netlink of the first device. The kernel's devices begin at 0.
const FIRST_NETLINK_INDEX: c_int = 1 << 16;

/// How many entries the table of GIDs has: the module of the table says why.
pub(crate) const GIDS_LISTED: c_int = 1;
/// How many indices name the GID.
const GID_INDICES: u32 = 4;

/// # Errors
/// `EINVAL` if no GID has this index.
pub(crate) fn check_gid_index(index: u32) -> Result<(), Errno> {
    if index < GID_INDICES {
        Ok(())
    } else {
        Err(Errno::INVAL)
    }
}

/// The start of the names of character devices, and their folder in sysfs.
const NODE: &str = "uverbs";
const NODES: &str = "/sys/class/infiniband_verbs";
/// The major number of character devices of verbs: `IB_UVERBS_MAJOR`.
pub(crate) const NODE_MAJOR: u32 = 231;
/// The minor number of the first one, by the kernel's `IB_UVERBS_BASE_MINOR`.
const FIRST_MINOR: u32 = 192;

/// The structure of C. Libraries of other vendors read a little beyond `ibv_device` to see whether
/// a device is theirs.
#[repr(C)]
pub(crate) struct DeviceBlock {
    device: ibv_device,
    rest: [usize; 32],
}

/// A device: an address of this host. It is never freed.
pub(crate) struct Device {
    object: CObject<DeviceBlock>,
    index: c_int,
    /// The number of its character device.
    node: u32,
    nic: SoftAddress,
    /// A forked child opens an engine of its own.
    state: PerProcess<DeviceState>,
}

/// What a process has of a device.
#[derive(Default)]
struct DeviceState {
    /// The engine, while a context uses it.
    engine: Mutex<WeakDevice>,
    owners: Arc<Owners>,
}

/// Who receives the events of an engine. It holds no engine, as the hooks of an engine hold it.
#[derive(Default)]
pub(crate) struct Owners {
    /// By number of the queue pair.
    pub(crate) pairs: Mutex<BTreeMap<u32, PairOwner>>,
    /// By number of the completion queue.
    queues: Mutex<HashMap<CqNumber, QueueOwner>>,
    /// By number of the shared receive queue.
    shared: Mutex<HashMap<SrqNumber, QueueOwner>>,
    pub(crate) contexts: Mutex<Vec<Arc<EventQueue<event::Event>>>>,
}

/// Who receives the events of a queue: the queue, and the events of its context.
type QueueOwner = (Subject, Arc<EventQueue<event::Event>>);

/// Who receives the events of a queue pair.
pub(crate) struct PairOwner {
    pub(crate) subject: Subject,
    /// The attributes of its context.
    pub(crate) events: Arc<EventQueue<event::Event>>,
    /// Whether the program asked for the event of its change to SQD.
    pub(crate) announces_drain: bool,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The devices of this host's addresses.
fn devices() -> Vec<Arc<Device>> {
    let first_node = first_node();
    let nics = nics::addresses().into_iter();
    nics.zip(0..)
        .map(|(nic, n)| Arc::new(Device::new(nic, n, first_node + n.cast_unsigned())))
        .collect()
}

/// The variable with the number of the first character device, where the files of these devices are mounted, so that
/// the kernel has them, too.
const FIRST_NODE: &str = "GDR_VERBS_FIRST_NODE";

/// The number of the first character device, after the kernel's.
fn first_node() -> u32 {
    let known = gdr_process::variable(FIRST_NODE);
    if let Some(number) = known.and_then(|number| number.to_str()?.parse().ok()) {
        return number;
    }
    let nodes = files::hidden(|| fs::read_dir(NODES));
    let numbers = nodes.into_iter().flatten().filter_map(|node| {
        let name = node.ok()?.file_name();
        name.to_str()?.strip_prefix(NODE)?.parse::<u32>().ok()
    });
    numbers.max().map_or(0, |last| last.saturating_add(1))
}

impl Device {
    fn new(nic: SoftAddress, index: c_int, node: u32) -> Self {
        let name = name_of(index);
        // SAFETY: numbers, and functions that may be null.
        let object = unsafe {
            CObject::<DeviceBlock>::new(|block| {
                block.device.node_type = ibv_node_type::IBV_NODE_CA;
                block.device.transport_type = ibv_transport_type::IBV_TRANSPORT_IB;
                put_text(&mut block.device.name, &name);
                put_text(&mut block.device.dev_name, &format!("{NODE}{node}"));
                let path = format!("{NODES}/{NODE}{node}");
                put_text(&mut block.device.dev_path, &path);
                let path = format!("/sys/class/infiniband/{name}");
                put_text(&mut block.device.ibdev_path, &path);
            })
        };
        Self {
            object,
            index,
            node,
            nic,
            state: PerProcess::new(),
        }
    }

    /// The device of an address.
    pub(crate) fn at(address: IpAddr) -> Option<Arc<Self>> {
        let found = Self::all().iter().find(|own| own.nic.address == address);
        found.cloned()
    }

    /// Its place among them.
    pub(crate) fn index(&self) -> c_int {
        self.index
    }

    /// The index in RDMA netlink, by which programs ask there for the device that libibverbs has given them, and
    /// librdmacm finds it again.
    pub(crate) fn netlink_index(&self) -> c_int {
        FIRST_NETLINK_INDEX + self.index
    }

    /// The device of a handle.
    pub(crate) fn of(device: *mut ibv_device) -> Result<Arc<Self>, Errno> {
        let found = Self::all().iter().find(|own| own.as_ptr() == device);
        found.cloned().ok_or(Errno::INVAL)
    }

    /// The devices, in the order of their names.
    pub(crate) fn all() -> &'static [Arc<Self>] {
        static DEVICES: Inherited<Vec<Arc<Device>>> = Inherited::new();
        DEVICES.get_or_init(devices)
    }

    /// The name of its character device.
    pub(crate) fn node(&self) -> String {
        format!("{NODE}{}", self.node)
    }

    /// The minor number of its character device.
    pub(crate) fn minor(&self) -> u32 {
        FIRST_MINOR + self.node
    }

    /// The number of its character device, as `st_rdev` has it.
    pub(crate) fn node_number(&self) -> libc::dev_t {
        libc::makedev(NODE_MAJOR, self.minor())
    }

    pub(crate) fn name(&self) -> String {
        name_of(self.index)
    }

    pub(crate) fn as_ptr(&self) -> *mut ibv_device {
        self.object.as_ptr().cast()
    }

    /// Its address and interface, as they were when the devices were listed.
    pub(crate) fn nic(&self) -> &SoftAddress {
        &self.nic
    }

    /// Its only GID.
    pub(crate) fn gid(&self) -> Ipv6Addr {
        match self.nic.address {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        }
    }

    /// A locally administered identifier, which is the same in every process.
    pub(crate) fn guid(&self) -> u64 {
        let [.., a, b, c, d] = self.gid().octets();
        let low = u32::from_be_bytes([a, b, c, d]);
        let folded = self
            .gid()
            .octets()
            .chunks(4)
            .take(3)
            .fold(0_u32, |sum, part| {
                part.iter()
                    .fold(sum, |sum, byte| sum.rotate_left(5) ^ u32::from(*byte))
            });
        (0x02 << 56) | (u64::from(folded & 0xff_ffff) << 32) | u64::from(low)
    }

    /// What its engine has counted in this process.
    pub(crate) fn counters(&self) -> Counters {
        let engine = lock(&self.state.get().engine).upgrade();
        engine.map_or_else(Counters::default, |engine| engine.counters())
    }

    pub(crate) fn owners(&self) -> &Arc<Owners> {
        &self.state.get().owners
    }

    /// The engine, which is opened unless a context of this process has it open.
    pub(crate) fn engine(&self) -> Result<nic::Device, Errno> {
        let state = self.state.get();
        let mut engine = lock(&state.engine);
        if let Some(open) = engine.upgrade() {
            return Ok(open);
        }
        let owners = Arc::clone(&state.owners);
        let on_event = move |event: &AsyncEvent| owners.tell(event);
        // Refuse an invalid value here, rather than at the first registration.
        gpu_memory::reads()?;
        // Other processes may have the address open, too.
        let options = SoftOptions::new(self.nic.address).port_use(PortUse::Shared);
        let opened = nic::Device::open(&options, Some(Box::new(on_event)))
            .inspect_err(|error| tracing::error!(%error, "gdr{} cannot be used", self.index))?;
        *engine = opened.downgrade();
        Ok(opened)
    }
}

impl Owners {
    pub(crate) fn add_queue(
        &self,
        number: CqNumber,
        subject: Subject,
        events: &Arc<EventQueue<event::Event>>,
    ) {
        lock(&self.queues).insert(number, (subject, Arc::clone(events)));
    }

    pub(crate) fn remove_queue(&self, number: CqNumber) {
        lock(&self.queues).remove(&number);
    }

    pub(crate) fn add_shared(
        &self,
        number: SrqNumber,
        subject: Subject,
        events: &Arc<EventQueue<event::Event>>,
    ) {
        lock(&self.shared).insert(number, (subject, Arc::clone(events)));
    }

    pub(crate) fn remove_shared(&self, number: SrqNumber) {
        lock(&self.shared).remove(&number);
    }

    /// Passes an event of the engine on. It runs while the engine is locked.
    fn tell(&self, event: &AsyncEvent) {
        if let Some((qpn, kind)) = event::of_pair(event) {
            let pairs = lock(&self.pairs);
            let owner = pairs.get(&qpn);
            let is_wanted = |owner: &&PairOwner| {
                kind != ibv_event_type::IBV_EVENT_SQ_DRAINED || owner.announces_drain
            };
            if let Some(owner) = owner.filter(is_wanted) {
                event::raise(&owner.events, kind, &owner.subject);
            }
        } else if let AsyncEvent::SharedReceiveQueueLimit { srq } = event {
            if let Some((subject, events)) = lock(&self.shared).get(srq) {
                event::raise(events, ibv_event_type::IBV_EVENT_SRQ_LIMIT_REACHED, subject);
            }
        } else if let AsyncEvent::CompletionQueueOverrun { queue, .. } = event {
            if let Some((subject, events)) = lock(&self.queues).get(queue) {
                event::raise(events, ibv_event_type::IBV_EVENT_CQ_ERR, subject);
            }
        } else if let Some(kind) = event::of_device(event) {
            for events in lock(&self.contexts).iter() {
                event::raise(events, kind, &Subject::Port(1));
            }
        }
    }
}

fn name_of(index: c_int) -> String {
    format!("gdr{index}")
}

/// Writes a C string, cut to its room.
pub(crate) fn put_text(room: &mut [c_char], text: &str) {
    let most = room.len().saturating_sub(1);
    for (byte, place) in text.bytes().take(most).zip(room) {
        *place = byte as c_char;
    }
}

/// The devices of the installed libibverbs.
struct InstalledList(*mut *mut ibv_device);

// SAFETY: a list that nothing changes until it is freed; libibverbs is safe to call from any thread.
unsafe impl Send for InstalledList {}

/// Those that a list of this library was made with, by its address. A forked child knows its own only, and
/// waits for no lock of its parent.
static INSTALLED_LISTS: PerProcess<Mutex<BTreeMap<usize, InstalledList>>> = PerProcess::new();

impl InstalledList {
    /// An empty list if there is no such library, or if the kernel has no RDMA devices.
    fn new() -> Self {
        let mut found: c_int = 0;
        let count = &raw mut found;
        // It must find its devices in the kernel's files: otherwise it would take this library's devices
        // for the kernel's.
        let list = files::hidden(|| call_system!(ibv_get_device_list(count)));
        let list = list.unwrap_or(ptr::null_mut());
        if found > 0 {
            system::found_devices();
        }
        Self(list)
    }

    fn devices(&self) -> impl Iterator<Item = *mut ibv_device> {
        let mut next = self.0;
        std::iter::from_fn(move || {
            if next.is_null() {
                return None;
            }
            // SAFETY: the list ends with null, and the iterator with it.
            let device = unsafe { next.read() };
            if device.is_null() {
                return None;
            }
            // SAFETY: as above.
            next = unsafe { next.add(1) };
            Some(device)
        })
    }
}

impl Drop for InstalledList {
    fn drop(&mut self) {
        let list = self.0;
        if !list.is_null() {
            let _unit = call_system!(ibv_free_device_list(list));
        }
    }
}

/// Lists the devices of this library, then the installed libibverbs' ones.
///
/// # Safety
/// `count` is null or writable.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_list(count: *mut c_int) -> *mut *mut ibv_device {
    pointer(|| {
        device_use::reached(Step::Listed);
        let own = Device::all().iter().map(|device| device.as_ptr());
        let installed = InstalledList::new();
        let mut list: Vec<_> = own.chain(installed.devices()).collect();
        let found = list.len() as c_int;
        list.push(ptr::null_mut());
        if !count.is_null() {
            // SAFETY: the contract of this function.
            unsafe { count.write(found) };
        }
        let list: *mut *mut ibv_device = Box::into_raw(list.into_boxed_slice()).cast();
        lock(INSTALLED_LISTS.get_fast()).insert(list.addr(), installed);
        Ok(list)
    })
}

/// # Safety
/// `list` is null, or from [`ibv_get_device_list`] and not freed.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    plain((), || {
        // An unknown list was already freed, belongs to the parent of this process, or was made up by the
        // program.
        let Some(installed) = lock(INSTALLED_LISTS.get_fast()).remove(&list.addr()) else {
            return Ok(());
        };
        let mut entries = 1;
        // SAFETY: the list ends with null.
        while !unsafe { list.add(entries - 1).read() }.is_null() {
            entries += 1;
        }
        let list = ptr::slice_from_raw_parts_mut(list, entries);
        // SAFETY: from a box of this length, and freed once.
        drop(unsafe { Box::from_raw(list) });
        drop(installed);
        Ok(())
    });
}

#[unsafe(no_mangle)]
extern "C" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
    forward!(unless is_own(device), ibv_get_device_name(device));
    plain(ptr::null(), || {
        let device = Device::of(device)?.as_ptr();
        // SAFETY: devices are never freed; this only computes an address in it.
        Ok(unsafe { (&raw const (*device).name).cast() })
    })
}

#[unsafe(no_mangle)]
extern "C" fn ibv_get_device_guid(device: *mut ibv_device) -> __be64 {
    forward!(unless is_own(device), ibv_get_device_guid(device));
    plain(0, || Ok(Device::of(device)?.guid().to_be()))
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_get_device_index(device: *mut ibv_device) -> c_int {
    forward!(unless is_own(device), ibv_get_device_index(device));
    number(|| Ok(Device::of(device)?.netlink_index())).max(-1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_freed_once_and_memory_of_the_program_is_not() {
        let mut made_up = vec![ptr::null_mut::<ibv_device>()];
        // SAFETY: no count is asked for. That lists which are not known stay as they are is what is
        // tested.
        unsafe {
            let list = ibv_get_device_list(ptr::null_mut());
            assert!(!list.is_null());
            ibv_free_device_list(list);
            ibv_free_device_list(list);
            ibv_free_device_list(made_up.as_mut_ptr());
        }
        made_up.push(ptr::null_mut());
        assert_eq!(made_up.len(), 2);
    }
}
