//! Requests of a test to the library.

use std::ffi::c_void;
use std::panic::{self, AssertUnwindSafe};
use std::slice;

use gdr_verbs_sys::{ibv_event_type, ibv_port_state};
use serde::{Deserialize, Serialize};

use crate::device::Device;
use crate::event::Subject;
use crate::pair;
use crate::spec::{DeviceSpec, GpuPath};
use crate::state::{DeviceId, LibraryState, lock_state};

/// The subject of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Element {
    /// A port, or the device if 0.
    Port(u8),
    /// The queue pair with this number.
    Pair(u32),
}

/// A request to the library.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Request {
    /// Adds a device.
    Add(DeviceSpec),
    /// Removes a device: it is not listed, and its verbs fail with `EIO`.
    Remove {
        /// The name of the device.
        device: String,
    },
    /// Makes the list of devices fail from now on.
    RefuseList {
        /// The error number.
        errno: i32,
    },
    /// Makes a verb fail.
    Refuse {
        /// The name of the device.
        device: String,
        /// The verb, as in [`DeviceSpec::refusals`].
        verb: String,
        /// The error number.
        errno: i32,
        /// How many times it fails.
        times: u32,
    },
    /// Changes the treatment of GPU memory.
    DmaBuf {
        /// The name of the device.
        device: String,
        /// The new treatment.
        path: GpuPath,
    },
    /// Changes the state of a port, and raises its event.
    Port {
        /// The name of the device.
        device: String,
        /// The name of the device.
        port: u8,
        /// The `ibv_port_state`.
        state: u32,
    },
    /// Fails a device: raises its event, and changes its queue pairs to ERR.
    Fatal {
        /// The name of the device.
        device: String,
    },
    /// Holds or releases the transfers that start at the device.
    Hold {
        /// The name of the device.
        device: String,
        /// Whether they are held.
        held: bool,
    },
    /// Makes calls that destroy a queue pair of the device block after it is destroyed, or ends
    /// that.
    Detain {
        /// The name of the device.
        device: String,
        /// Whether they are held.
        detained: bool,
    },
    /// Reports another status for the next transfer that starts at the device and succeeds.
    EndNext {
        /// The name of the device.
        device: String,
        /// `ibv_wc_status`, or any number.
        status: u32,
        /// The vendor error.
        vendor_err: u32,
    },
    /// Raises an event.
    Raise {
        /// The name of the device.
        device: String,
        /// `ibv_event_type`, or any number.
        event: u32,
        /// The subject of the event.
        element: Element,
    },
    /// Declares device addresses as GPU memory, which a peer-memory module can support.
    GpuMemory {
        /// The first address.
        base: u64,
        /// The length in bytes.
        size: u64,
        /// A descriptor of this process for the memory; it is duplicated.
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
        let outcome = serde_json::from_slice(request)
            .map_err(|error| error.to_string())
            .and_then(|request| perform(&mut library, request));
        library.direct_traffic();
        let mut report = library.report();
        report.error = outcome.err();
        serde_json::to_vec(&report).unwrap_or_default()
    }));
    let text = text.unwrap_or_default();
    // SAFETY: the function accepts this argument by contract, and the text is readable.
    unsafe { reply(user, text.as_ptr(), text.len()) };
}

fn perform(library: &mut LibraryState, request: Request) -> Result<(), String> {
    match request {
        Request::Add(spec) => library.devices.push(Device::new(spec)),
        Request::Remove { device } => {
            let id = library.named(&device)?;
            library.devices[id].gone = true;
            library.fail_device(id);
        }
        Request::RefuseList { errno } => library.list_errno = errno,
        Request::Refuse {
            device,
            verb,
            errno,
            times,
        } => {
            let id = library.named(&device)?;
            library.devices[id].refuse(verb, errno, times);
        }
        Request::DmaBuf { device, path } => {
            let id = library.named(&device)?;
            library.devices[id].spec.dma_buf = path;
        }
        Request::Port {
            device,
            port,
            state,
        } => {
            let id = library.named(&device)?;
            library.set_port(id, port, state)?;
        }
        Request::Fatal { device } => {
            let id = library.named(&device)?;
            library.fail_device(id);
        }
        Request::Hold { device, held } => {
            let id = library.named(&device)?;
            library.devices[id].held = held;
        }
        Request::Detain { device, detained } => {
            let id = library.named(&device)?;
            library.devices[id].detains = detained;
            pair::RELEASED.notify_all();
        }
        Request::EndNext {
            device,
            status,
            vendor_err,
        } => {
            let id = library.named(&device)?;
            library.devices[id].endings.push_back((status, vendor_err));
        }
        Request::Raise {
            device,
            event,
            element,
        } => {
            let id = library.named(&device)?;
            library.raise_named(id, event, element)?;
        }
        Request::GpuMemory { base, size, fd } => library.add_gpu_memory(base, size, fd)?,
        Request::Report => {}
    }
    Ok(())
}

impl LibraryState {
    fn set_port(&mut self, id: DeviceId, port: u8, state: u32) -> Result<(), String> {
        let index = usize::from(port).checked_sub(1);
        let ports = &mut self.devices[id].spec.ports;
        let Some(spec) = index.and_then(|index| ports.get_mut(index)) else {
            return Err(format!("there is no port {port}"));
        };
        spec.state = state;
        let event = match ibv_port_state(state) {
            ibv_port_state::IBV_PORT_ACTIVE => ibv_event_type::IBV_EVENT_PORT_ACTIVE,
            _ => ibv_event_type::IBV_EVENT_PORT_ERR,
        };
        self.raise(id, event.0, Subject::Port(port));
        Ok(())
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
        self.raise(id, event.0, Subject::Port(0));
    }

    fn raise_named(&mut self, id: DeviceId, event: u32, element: Element) -> Result<(), String> {
        let subject = match element {
            Element::Port(port) => Subject::Port(port),
            Element::Pair(number) => {
                let mut pairs = self.pairs.iter();
                let found = pairs.find(|(_, pair)| pair.device == id && pair.number == number);
                let (address, _) =
                    found.ok_or_else(|| format!("there is no queue pair {number}"))?;
                Subject::Pair(*address)
            }
        };
        self.raise(id, event, subject);
        Ok(())
    }
}
