//! Requests of a test to the library.

use std::ffi::c_void;
use std::panic::{self, AssertUnwindSafe};
use std::{ptr, slice};

use gdr_verbs_sys::{ibv_event_type, ibv_port_state, ibv_qp};
use serde::{Deserialize, Serialize};

use crate::device::Device;
use crate::event::of_port;
use crate::pair;
use crate::spec::{DeviceSpec, GpuPath};
use crate::state::{DeviceId, LibraryState, lock_state};

/// What happens to a device.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Fault {
    /// It is removed: it is not listed, and its verbs fail with `EIO`.
    Remove,
    /// It fails: its event is raised, and its queue pairs are in ERR.
    Fatal,
    /// A verb fails with this `errno` this many times; its name is as in [`DeviceSpec::refusals`].
    Refuse(String, i32, u32),
    /// GPU memory is treated in this way by dma-buf.
    DmaBuf(GpuPath),
    /// A port is in this `ibv_port_state`, and its event is raised.
    Port(u8, u32),
    /// Whether the transfers that start at the device are held.
    Hold(bool),
    /// Whether calls that destroy a queue pair block after it is destroyed.
    Detain(bool),
    /// The next transfer that starts at the device and succeeds has this status, which is `ibv_wc_status`
    /// or any number, and this vendor error.
    EndNext(u32, u32),
    /// An event is raised: `ibv_event_type`, or any number. It concerns the queue pair with this number, or port 1.
    Raise(u32, Option<u32>),
}

/// A request to the library.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Request {
    Add(DeviceSpec),
    /// Changes the device with this name.
    Fault(String, Fault),
    /// Declares `size` device addresses from `base` as GPU memory: the memory of this descriptor.
    GpuMemory {
        base: u64,
        size: u64,
        fd: i32,
    },
    /// Only returns the report.
    Report,
}

/// The callback that receives the report.
pub(crate) type Reply = unsafe extern "C" fn(user: *mut c_void, text: *const u8, len: usize);

/// The type of [`fake_ibverbs_control`].
pub(crate) type Control =
    unsafe extern "C" fn(request: *const u8, len: usize, reply: Reply, user: *mut c_void);

/// Executes a [`Request`] in JSON, and passes a [`Report`] in JSON to `reply`.
///
/// # Safety
///
/// `len` bytes at `request` are readable; `reply` accepts `user` and text.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fake_ibverbs_control(
    request: *const u8,
    len: usize,
    reply: Reply,
    user: *mut c_void,
) {
    // SAFETY: the contract of this function.
    let request = unsafe { slice::from_raw_parts(request, len) };
    let text = panic::catch_unwind(AssertUnwindSafe(|| {
        let mut library = lock_state();
        match serde_json::from_slice(request).expect("a request") {
            Request::Add(spec) => library.devices.push(Device::new(spec)),
            Request::Fault(device, fault) => library.change_device(&device, fault),
            Request::GpuMemory { base, size, fd } => library.add_gpu_memory(base, size, fd),
            Request::Report => {}
        }
        library.direct_traffic();
        serde_json::to_vec(&library.report()).unwrap_or_default()
    }));
    let text = text.unwrap_or_default();
    // SAFETY: the function accepts this argument by contract, and the text is readable.
    unsafe { reply(user, text.as_ptr(), text.len()) };
}

impl LibraryState {
    fn change_device(&mut self, name: &str, fault: Fault) {
        let id = self.named(name);
        let device = &mut self.devices[id];
        match fault {
            Fault::Remove => {
                device.gone = true;
                self.fail_device(id);
            }
            Fault::Fatal => self.fail_device(id),
            Fault::Refuse(verb, errno, times) => device.refuse(verb, errno, times),
            Fault::DmaBuf(path) => device.spec.dma_buf = path,
            Fault::Port(port, state) => self.set_port(id, port, state),
            Fault::Hold(held) => device.held = held,
            Fault::Detain(detained) => {
                device.detains = detained;
                pair::RELEASED.notify_all();
            }
            Fault::EndNext(status, vendor_err) => device.endings.push_back((status, vendor_err)),
            Fault::Raise(event, number) => {
                let mut raised = of_port(ibv_event_type(event), 1);
                if let Some(number) = number {
                    raised.element.qp = self.pair_with(id, number);
                }
                self.raise(id, raised);
            }
        }
    }

    fn set_port(&mut self, id: DeviceId, port: u8, state: u32) {
        self.devices[id].spec.ports[usize::from(port) - 1].state = state;
        let event = match ibv_port_state(state) {
            ibv_port_state::IBV_PORT_ACTIVE => ibv_event_type::IBV_EVENT_PORT_ACTIVE,
            _ => ibv_event_type::IBV_EVENT_PORT_ERR,
        };
        self.raise(id, of_port(event, port));
    }

    /// Fails the device, and raises an event.
    fn fail_device(&mut self, id: DeviceId) {
        self.devices[id].fatal = true;
        let of_device = self.pairs.iter().filter(|(_, pair)| pair.device == id);
        let pairs: Vec<usize> = of_device.map(|(address, _)| *address).collect();
        for pair in pairs {
            self.break_pair(pair);
        }
        let event = ibv_event_type::IBV_EVENT_DEVICE_FATAL;
        self.raise(id, of_port(event, 0));
    }

    fn pair_with(&self, id: DeviceId, number: u32) -> *mut ibv_qp {
        let mut pairs = self.pairs.iter();
        let found = pairs.find(|(_, pair)| pair.device == id && pair.number == number);
        ptr::with_exposed_provenance_mut(*found.expect("there is the queue pair").0)
    }
}
