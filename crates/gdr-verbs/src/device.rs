//! Devices and their list.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{c_char, c_int};
use std::net::{IpAddr, Ipv6Addr};
use std::ptr;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use gdr_rdma::raw::{self, WeakDevice};
use gdr_rdma::{AsyncEvent, Mtu, PortUse, SoftAddress, SoftOptions, SrqNumber};
use gdr_verbs_sys::{__be64, ibv_device, ibv_event_type, ibv_node_type, ibv_transport_type};

use crate::errno::Errno;
use crate::event::{self, Subject};
use crate::event_queue::EventQueue;
use crate::nics;
use crate::ret::{number, plain, pointer};
use crate::table::CObject;

/// The most requests of a send or receive queue.
pub(crate) const MOST_REQUESTS: u32 = 1 << 15;
/// The most segments of a request.
pub(crate) const MOST_SEGMENTS: u32 = 32;
/// The most inline bytes of a request.
pub(crate) const MOST_INLINE: u32 = 1024;
/// The most READs and atomics that a queue pair has outstanding.
pub(crate) const MOST_READS: u8 = 16;

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
    nic: SoftAddress,
    /// The engine, while a context uses it.
    engine: Mutex<WeakDevice>,
    owners: Arc<Owners>,
}

/// Who receives the events of an engine. It holds no engine, as the hooks of an engine hold it.
#[derive(Default)]
pub(crate) struct Owners {
    /// By number of the queue pair.
    pub(crate) pairs: Mutex<BTreeMap<u32, PairOwner>>,
    /// By number of the shared receive queue.
    shared: Mutex<HashMap<SrqNumber, SharedOwner>>,
    pub(crate) contexts: Mutex<Vec<Arc<EventQueue<event::Event>>>>,
}

/// Who receives the events of a shared receive queue: the queue, and the events of its context.
type SharedOwner = (Subject, Arc<EventQueue<event::Event>>);

/// Who receives the events of a queue pair.
pub(crate) struct PairOwner {
    pub(crate) subject: Subject,
    /// Those of its context.
    pub(crate) events: Arc<EventQueue<event::Event>>,
    /// Its completion queues, and their sizes.
    pub(crate) queues: [(Subject, usize); 2],
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How many polls in 250 us mean that the program polls all the time. Each takes below a microsecond
/// if there is nothing to do. Programs that post and poll once for a message, and wait for bytes in
/// memory in between, stay below it.
const LOOP_POLLS: u64 = 100;

static DEVICES: LazyLock<Vec<Arc<Device>>> = LazyLock::new(|| {
    let nics = nics::addresses().into_iter();
    nics.zip(0..)
        .map(|(nic, n)| Arc::new(Device::new(nic, n)))
        .collect()
});

impl Device {
    fn new(nic: SoftAddress, index: c_int) -> Self {
        let name = format!("gdr{index}");
        // SAFETY: numbers, and functions that may be null.
        let object = unsafe {
            CObject::<DeviceBlock>::new(|block| {
                block.device.node_type = ibv_node_type::IBV_NODE_CA;
                block.device.transport_type = ibv_transport_type::IBV_TRANSPORT_IB;
                put_text(&mut block.device.name, &name);
                put_text(&mut block.device.dev_name, &format!("uverbs{index}"));
                let path = format!("/sys/class/infiniband_verbs/uverbs{index}");
                put_text(&mut block.device.dev_path, &path);
                let path = format!("/sys/class/infiniband/{name}");
                put_text(&mut block.device.ibdev_path, &path);
            })
        };
        Self {
            object,
            index,
            nic,
            engine: Mutex::default(),
            owners: Arc::default(),
        }
    }

    /// The device of a handle.
    pub(crate) fn of(device: *mut ibv_device) -> Result<Arc<Self>, Errno> {
        let found = DEVICES.iter().find(|own| own.as_ptr() == device);
        found.cloned().ok_or(Errno::INVAL)
    }

    pub(crate) fn as_ptr(&self) -> *mut ibv_device {
        self.object.as_ptr().cast()
    }

    /// The index of the network interface of its address; 0 if it is gone.
    pub(crate) fn interface_index(&self) -> u32 {
        let path = format!("/sys/class/net/{}/ifindex", self.nic.interface);
        let text = std::fs::read_to_string(path).unwrap_or_default();
        text.trim().parse().unwrap_or(0)
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

    /// The largest path MTU of its interface.
    pub(crate) fn mtu(&self) -> Mtu {
        self.nic.path_mtu.unwrap_or(Mtu::B1024)
    }

    pub(crate) fn owners(&self) -> &Arc<Owners> {
        &self.owners
    }

    /// The engine, which is opened unless a context of this process has it open.
    pub(crate) fn engine(&self) -> Result<raw::Device, Errno> {
        let mut engine = lock(&self.engine);
        // A forked child opens an engine of its own.
        if let Some(open) = engine.upgrade().filter(|open| open.check_process().is_ok()) {
            return Ok(open);
        }
        let owners = Arc::clone(&self.owners);
        let on_event = move |event: &AsyncEvent| owners.tell(event);
        // Programs of other processes may have the address open, too.
        let options = SoftOptions::new(self.nic.address)
            .port_use(PortUse::Shared)
            .loop_polls(LOOP_POLLS);
        let opened = raw::Device::open(&options, Some(Box::new(on_event)))
            .inspect_err(|error| tracing::error!(%error, "gdr{} cannot be used", self.index))?;
        *engine = opened.downgrade();
        Ok(opened)
    }
}

impl Owners {
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
            if let Some(owner) = lock(&self.pairs).get(&qpn) {
                event::raise(&owner.events, kind, &owner.subject);
            }
        } else if let AsyncEvent::SharedReceiveQueueLimit { srq } = event {
            if let Some((subject, events)) = lock(&self.shared).get(srq) {
                event::raise(events, ibv_event_type::IBV_EVENT_SRQ_LIMIT_REACHED, subject);
            }
        } else if let Some((qpn, capacity)) = event::of_queue(event) {
            if let Some(owner) = lock(&self.pairs).get(&qpn) {
                // The engine does not say which of the two; a queue of another size it is not.
                let kind = ibv_event_type::IBV_EVENT_CQ_ERR;
                let queue = owner.queues.iter().find(|(_, size)| *size == capacity);
                if let Some((subject, _)) = queue {
                    event::raise(&owner.events, kind, subject);
                }
            }
        } else if let Some(kind) = event::of_device(event) {
            for events in lock(&self.contexts).iter() {
                event::raise(events, kind, &Subject::Port(1));
            }
        }
    }
}

/// Writes a C string, cut to its room.
pub(crate) fn put_text(room: &mut [c_char], text: &str) {
    let most = room.len().saturating_sub(1);
    for (byte, place) in text.bytes().take(most).zip(room) {
        *place = byte as c_char;
    }
}

/// # Safety
/// `count` is null or writable.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_list(count: *mut c_int) -> *mut *mut ibv_device {
    pointer(|| {
        let mut list: Vec<_> = DEVICES.iter().map(|device| device.as_ptr()).collect();
        let found = list.len() as c_int;
        list.push(ptr::null_mut());
        if !count.is_null() {
            // SAFETY: the contract of this function.
            unsafe { count.write(found) };
        }
        Ok(Box::into_raw(list.into_boxed_slice()).cast())
    })
}

/// # Safety
/// `list` is null, or from [`ibv_get_device_list`] and not freed.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    plain((), || {
        if list.is_null() {
            return Ok(());
        }
        let mut entries = 1;
        // SAFETY: the list ends with null.
        while !unsafe { list.add(entries - 1).read() }.is_null() {
            entries += 1;
        }
        let list = ptr::slice_from_raw_parts_mut(list, entries);
        // SAFETY: from a box of this length, and freed once.
        drop(unsafe { Box::from_raw(list) });
        Ok(())
    });
}

#[unsafe(no_mangle)]
extern "C" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
    plain(ptr::null(), || {
        let device = Device::of(device)?.as_ptr();
        // SAFETY: devices are never freed; this only computes an address in it.
        Ok(unsafe { (&raw const (*device).name).cast() })
    })
}

#[unsafe(no_mangle)]
extern "C" fn ibv_get_device_guid(device: *mut ibv_device) -> __be64 {
    plain(0, || Ok(Device::of(device)?.guid().to_be()))
}

#[unsafe(no_mangle)]
extern "C" fn ibv_get_device_index(device: *mut ibv_device) -> c_int {
    number(|| Ok(Device::of(device)?.index)).max(-1)
}
