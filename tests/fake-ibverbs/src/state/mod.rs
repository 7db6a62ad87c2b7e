//! The state of the library, behind one lock.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::fs;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use gdr_verbs_sys::{ibv_context, ibv_fork_status, ibv_pd};

use crate::c_abi::{Errno, Outcome};
use crate::report::{Call, Live, Report};
use crate::spec::DeviceSpec;

pub(crate) use self::device::{
    Channel, Context, Device, DeviceId, Domain, Event, Subject, put_text,
};
pub(crate) use self::pair::Pair;
pub(crate) use self::queue::{Armed, Entry, Queue};
pub(crate) use self::region::{Backing, File, GpuMemory, Region};
pub(crate) use self::request::{Data, Operation, Receive, Send, Target};

mod device;
mod pair;
mod queue;
mod region;
mod request;

/// The first queue pair number of devices that assign the lowest free one. Other devices assign
/// larger ones.
const FIRST_REUSED: u32 = 0x11;

/// All objects of the library: regions by key, queue pairs by number, the others by the address that
/// the program has.
#[derive(Default)]
pub(crate) struct LibraryState {
    pub(crate) devices: Vec<Device>,
    pub(crate) list_errno: Errno,
    pub(crate) fork_status: ibv_fork_status,
    pub(crate) contexts: BTreeMap<usize, Context>,
    pub(crate) domains: BTreeMap<usize, Domain>,
    pub(crate) channels: BTreeMap<usize, Channel>,
    pub(crate) queues: BTreeMap<usize, Queue>,
    pub(crate) pairs: BTreeMap<u32, Pair>,
    pub(crate) regions: BTreeMap<u32, Region>,
    pub(crate) gpu_memory: Vec<GpuMemory>,
    /// Numbers of events that were returned and not acknowledged.
    pub(crate) unacknowledged: BTreeMap<Subject, usize>,
    pub(crate) calls: Vec<Call>,
    pub(crate) violations: Vec<String>,
    last_number: u32,
}

static STATE: LazyLock<Mutex<LibraryState>> =
    LazyLock::new(|| Mutex::new(LibraryState::from_environment()));

/// Locks the state. A panic does not poison it.
pub(crate) fn lock_state() -> MutexGuard<'static, LibraryState> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl LibraryState {
    /// The state with the devices in the file `FAKE_IBVERBS`, if it is set.
    fn from_environment() -> Self {
        let mut library = Self::default();
        let Some(file) = std::env::var_os("FAKE_IBVERBS") else {
            return library;
        };
        let devices = fs::read_to_string(&file)
            .map_err(|error| error.to_string())
            .and_then(|text| {
                serde_json::from_str::<Vec<DeviceSpec>>(&text).map_err(|error| error.to_string())
            });
        match devices {
            Ok(devices) => devices
                .into_iter()
                .for_each(|spec| library.add_device(spec)),
            Err(error) => {
                let what = format!("FAKE_IBVERBS={}: {error}", file.display());
                eprintln!("{what}");
                library.violations.push(what);
            }
        }
        library
    }

    /// A unique number for handles, keys and queue pairs.
    pub(crate) fn number(&mut self) -> u32 {
        // Neither small nor consecutive, so that a program that confuses numbers fails.
        self.last_number = self.last_number.wrapping_add(0x0101);
        self.last_number
    }

    /// The number of a new queue pair.
    pub(crate) fn pair_number(&mut self, id: DeviceId) -> u32 {
        if !self.devices[id].spec.reuses_numbers {
            return self.number();
        }
        let free = (FIRST_REUSED..).find(|number| !self.pairs.contains_key(number));
        free.unwrap_or(FIRST_REUSED)
    }

    pub(crate) fn named(&self, name: &str) -> Result<DeviceId, String> {
        let found = self
            .devices
            .iter()
            .position(|device| !device.gone && device.spec.name == name);
        found.ok_or_else(|| format!("there is no device {name}"))
    }

    pub(crate) fn add_device(&mut self, spec: DeviceSpec) {
        self.devices.push(Device::new(spec));
    }

    /// Records a violation of the API by the program.
    pub(crate) fn violation(&mut self, verb: &str, what: impl Display) {
        self.violations.push(format!("{verb}: {what}"));
    }

    /// Records a call that belongs to no device.
    pub(crate) fn note_of_library(&mut self, verb: &str) {
        self.calls.push(Call {
            verb: verb.to_owned(),
            device: String::new(),
            detail: String::new(),
            errno: 0,
        });
    }

    /// Records a call. Fails if the verb is configured to fail.
    pub(crate) fn note(&mut self, verb: &str, id: DeviceId, detail: impl Display) -> Outcome<()> {
        self.calls.push(Call {
            verb: verb.to_owned(),
            device: self.devices[id].spec.name.clone(),
            detail: detail.to_string(),
            errno: 0,
        });
        self.devices[id].check_refusals(verb)
    }

    /// As [`LibraryState::note`], for a verb that fails on a failed device.
    pub(crate) fn begin(&mut self, verb: &str, id: DeviceId, detail: impl Display) -> Outcome<()> {
        self.note(verb, id, detail)?;
        let device = &self.devices[id];
        if device.gone || device.fatal {
            return Err(libc::EIO);
        }
        Ok(())
    }

    /// Fails if the verb, by a name with details, is configured to fail.
    pub(crate) fn check_refusals(&mut self, verb: &str, id: DeviceId) -> Outcome<()> {
        self.devices[id].check_refusals(verb)
    }

    fn unknown_object(&mut self, verb: &str, what: &str) -> Errno {
        self.violation(
            verb,
            format_args!("the {what} does not exist or was destroyed"),
        );
        libc::EINVAL
    }

    /// The device of an open context.
    pub(crate) fn device_of(&mut self, verb: &str, context: *mut ibv_context) -> Outcome<DeviceId> {
        match self.contexts.get(&context.addr()) {
            Some(context) => Ok(context.device),
            None => Err(self.unknown_object(verb, "context")),
        }
    }

    /// Device and context of a live protection domain.
    pub(crate) fn domain(&mut self, verb: &str, pd: *mut ibv_pd) -> Outcome<(DeviceId, usize)> {
        match self.domains.get(&pd.addr()) {
            Some(domain) => Ok((domain.device, domain.context)),
            None => Err(self.unknown_object(verb, "protection domain")),
        }
    }

    /// The device of a live completion queue.
    pub(crate) fn queue(&mut self, verb: &str, address: usize) -> Outcome<DeviceId> {
        match self.queues.get(&address) {
            Some(queue) => Ok(queue.device),
            None => Err(self.unknown_object(verb, "completion queue")),
        }
    }

    /// Number and device of a live queue pair.
    pub(crate) fn pair(&mut self, verb: &str, address: usize) -> Outcome<(u32, DeviceId)> {
        let found = self
            .pairs
            .iter()
            .find(|(_, pair)| pair.object.address() == address);
        match found {
            Some((number, pair)) => Ok((*number, pair.device)),
            None => Err(self.unknown_object(verb, "queue pair")),
        }
    }

    pub(crate) fn report(&self) -> Report {
        let mut live = BTreeMap::<String, Live>::new();
        // A removed device may have a successor of the same name.
        for (id, device) in self.devices.iter().enumerate() {
            let sum = live.entry(device.spec.name.clone()).or_default();
            sum.contexts += self.contexts.values().filter(|it| it.device == id).count();
            sum.domains += self.domains.values().filter(|it| it.device == id).count();
            sum.regions += self.regions.values().filter(|it| it.device == id).count();
            sum.channels += self.channels.values().filter(|it| it.device == id).count();
            sum.queues += self.queues.values().filter(|it| it.device == id).count();
            sum.pairs += self.pairs.values().filter(|it| it.device == id).count();
        }
        Report {
            error: None,
            live,
            calls: self.calls.clone(),
            violations: self.violations.clone(),
        }
    }
}
