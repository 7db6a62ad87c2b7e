//! What a test tells the library, and what it is told.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::panic::{self, AssertUnwindSafe};
use std::slice;

use serde::{Deserialize, Serialize};

use crate::spec::{DeviceSpec, GpuPath};
use crate::wire;
use crate::world::{World, world};

/// What an event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Element {
    /// A port, or the device (0).
    Port(u8),
    /// The queue pair with this number.
    Pair(u32),
}

/// What the library is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Request {
    /// There is a device more.
    Add(DeviceSpec),
    /// The device is gone: it is not listed, and its verbs fail with `EIO`.
    Remove {
        /// Its name.
        device: String,
    },
    /// Listing devices fails from now on.
    RefuseList {
        /// With this.
        errno: i32,
    },
    /// A verb fails.
    Refuse {
        /// Where.
        device: String,
        /// Which, as in [`DeviceSpec::refusals`].
        verb: String,
        /// With this.
        errno: i32,
        /// How often.
        times: u32,
    },
    /// GPU memory is treated otherwise from now on.
    DmaBuf {
        /// Where.
        device: String,
        /// How.
        path: GpuPath,
    },
    /// A port changes its state, with the event that says so.
    Port {
        /// Where.
        device: String,
        /// Which.
        port: u8,
        /// `ibv_port_state`.
        state: u32,
    },
    /// The device fails, with the event that says so; its queue pairs are in ERR.
    Fatal {
        /// Which.
        device: String,
    },
    /// Transfers that begin at the device wait, or do so no more.
    Hold {
        /// Which.
        device: String,
        /// Whether they wait.
        held: bool,
    },
    /// The next transfer that begins at the device ends thus, with no byte moved.
    EndNext {
        /// Which.
        device: String,
        /// `ibv_wc_status`, or any number.
        status: u32,
        /// The vendor's number.
        vendor_err: u32,
    },
    /// An event.
    Raise {
        /// Where.
        device: String,
        /// `ibv_event_type`, or any number.
        event: u32,
        /// About what.
        element: Element,
    },
    /// These device addresses are GPU memory, which a peer-memory module can claim.
    GpuMemory {
        /// Where it begins.
        base: u64,
        /// Bytes.
        size: u64,
        /// A descriptor of this process for the memory; it is duplicated.
        fd: i32,
    },
    /// Nothing: only the report is wanted.
    Report,
}

/// A verb that was called. Polling is not noted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// Which.
    pub verb: String,
    /// On which device; empty for the library's own.
    pub device: String,
    /// With what.
    pub detail: String,
    /// What came of it: 0 or an `errno`.
    pub errno: i32,
}

/// What is alive on a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Live {
    /// Open contexts.
    pub contexts: usize,
    /// Protection domains.
    pub domains: usize,
    /// Memory regions.
    pub regions: usize,
    /// Channels of completion events.
    pub channels: usize,
    /// Completion queues.
    pub queues: usize,
    /// Queue pairs.
    pub pairs: usize,
}

impl Live {
    /// Nothing at all.
    pub const NOTHING: Self = Self {
        contexts: 0,
        domains: 0,
        regions: 0,
        channels: 0,
        queues: 0,
        pairs: 0,
    };
}

/// What the library has seen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Why the request was not done, if it was not.
    pub error: Option<String>,
    /// What is alive, by device.
    pub live: BTreeMap<String, Live>,
    /// Every call, in order.
    pub calls: Vec<Call>,
    /// What no program may do and this one did.
    pub violations: Vec<String>,
}

/// Takes what the library has to say.
pub(crate) type Reply = unsafe extern "C" fn(user: *mut c_void, text: *const u8, len: usize);

/// The control's type.
pub(crate) type Control =
    unsafe extern "C" fn(request: *const u8, len: usize, reply: Reply, user: *mut c_void);

/// Does what the request, JSON of [`Request`], says and replies with JSON of [`Report`].
///
/// # Safety
///
/// `len` bytes at `request` are readable; `reply` takes `user` and text.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fake_ibverbs_control(
    request: *const u8,
    len: usize,
    reply: Reply,
    user: *mut c_void,
) {
    // SAFETY: this function's contract.
    let request = unsafe { slice::from_raw_parts(request, len) };
    let text = panic::catch_unwind(AssertUnwindSafe(|| {
        let mut world = world();
        let outcome = serde_json::from_slice(request)
            .map_err(|error| error.to_string())
            .and_then(|request| perform(&mut world, request));
        wire::advance(&mut world);
        let mut report = world.report();
        report.error = outcome.err();
        serde_json::to_vec(&report).unwrap_or_default()
    }));
    let text = text.unwrap_or_default();
    // SAFETY: the function and its argument belong together, and the text is there.
    unsafe { reply(user, text.as_ptr(), text.len()) };
}

fn perform(world: &mut World, request: Request) -> Result<(), String> {
    match request {
        Request::Add(spec) => world.add_device(spec),
        Request::Remove { device } => {
            let id = world.named(&device)?;
            world.devices[id].gone = true;
            world.fail_device(id);
        }
        Request::RefuseList { errno } => world.list_errno = errno,
        Request::Refuse {
            device,
            verb,
            errno,
            times,
        } => {
            let id = world.named(&device)?;
            world.devices[id].refuse(verb, errno, times);
        }
        Request::DmaBuf { device, path } => {
            let id = world.named(&device)?;
            world.devices[id].spec.dma_buf = path;
        }
        Request::Port {
            device,
            port,
            state,
        } => {
            let id = world.named(&device)?;
            world.set_port(id, port, state)?;
        }
        Request::Fatal { device } => {
            let id = world.named(&device)?;
            world.fail_device(id);
        }
        Request::Hold { device, held } => {
            let id = world.named(&device)?;
            world.devices[id].held = held;
        }
        Request::EndNext {
            device,
            status,
            vendor_err,
        } => {
            let id = world.named(&device)?;
            world.devices[id].endings.push_back((status, vendor_err));
        }
        Request::Raise {
            device,
            event,
            element,
        } => {
            let id = world.named(&device)?;
            world.raise_named(id, event, element)?;
        }
        Request::GpuMemory { base, size, fd } => world.add_gpu_memory(base, size, fd)?,
        Request::Report => {}
    }
    Ok(())
}
