//! State of the library, protected by one lock.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Display;
use std::fs;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use gdr_verbs_sys::{ibv_fork_status, ibv_wc};

use crate::device::{Context, Device};
use crate::pair::Pair;
use crate::region::{GpuMemory, Region};
pub(crate) use crate::report::Kind;
use crate::report::{Call, Report};
use crate::spec::DeviceSpec;
use crate::verb::Outcome;

/// An index in [`LibraryState::devices`].
pub(crate) type DeviceId = usize;

/// An object that the program has a handle to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Object {
    pub(crate) kind: Kind,
    pub(crate) device: DeviceId,
    /// The address of its context.
    pub(crate) context: usize,
}

/// All objects of the library, by the addresses that the program has.
#[derive(Default)]
pub(crate) struct LibraryState {
    pub(crate) devices: Vec<Device>,
    pub(crate) fork_status: ibv_fork_status,
    pub(crate) objects: BTreeMap<usize, Object>,
    pub(crate) contexts: BTreeMap<usize, Context>,
    pub(crate) pairs: BTreeMap<usize, Pair>,
    pub(crate) regions: BTreeMap<usize, Region>,
    pub(crate) gpu_memory: Vec<GpuMemory>,
    /// Completions of destroyed queue pairs that are still in a completion queue.
    pub(crate) kept: BTreeMap<usize, VecDeque<ibv_wc>>,
    pub(crate) calls: Vec<Call>,
    pub(crate) violations: Vec<String>,
}

static STATE: LazyLock<Mutex<LibraryState>> =
    LazyLock::new(|| Mutex::new(LibraryState::from_environment()));

/// Locks the state. A panic does not poison it.
pub(crate) fn lock_state() -> MutexGuard<'static, LibraryState> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl LibraryState {
    /// Returns the state with the devices in the file `FAKE_IBVERBS`, if it is set.
    fn from_environment() -> Self {
        let mut library = Self::default();
        let Some(file) = std::env::var_os("FAKE_IBVERBS") else {
            return library;
        };
        let text = fs::read_to_string(file).expect("FAKE_IBVERBS names a file");
        let devices: Vec<DeviceSpec> = serde_json::from_str(&text).expect("a list of devices");
        library.devices.extend(devices.into_iter().map(Device::new));
        library
    }

    pub(crate) fn named(&self, name: &str) -> DeviceId {
        let mut devices = self.devices.iter();
        let found = devices.position(|device| !device.gone && device.spec.name == name);
        found.unwrap_or_else(|| panic!("there is no device {name}"))
    }

    /// Records a violation of the API by the program.
    pub(crate) fn violation(&mut self, verb: &str, what: impl Display) {
        self.violations.push(format!("{verb}: {what}"));
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

    /// Like [`LibraryState::note`], for a verb that fails on a failed device.
    pub(crate) fn begin(&mut self, verb: &str, id: DeviceId, detail: impl Display) -> Outcome<()> {
        self.note(verb, id, detail)?;
        if self.devices[id].fatal {
            return Err(libc::EIO);
        }
        Ok(())
    }

    /// Returns the live object with this address.
    pub(crate) fn object(&mut self, verb: &str, kind: Kind, address: usize) -> Outcome<Object> {
        let found = self.objects.get(&address).copied();
        let found = found.filter(|object| object.kind == kind);
        if found.is_none() {
            let what = format!("{kind:?}").to_lowercase();
            self.violation(
                verb,
                format_args!("the {what} does not exist or was destroyed"),
            );
        }
        found.ok_or(libc::EINVAL)
    }

    /// Adds an object that was made from another one.
    pub(crate) fn add_object<T>(&mut self, kind: Kind, handle: *mut T, parent: usize) {
        if let Some(parent) = self.objects.get(&parent).copied() {
            let handle = handle.expose_provenance();
            self.objects.insert(handle, Object { kind, ..parent });
        }
    }

    pub(crate) fn report(&self) -> Report {
        let name = |object: &Object| self.devices[object.device].spec.name.clone();
        let live = self.objects.values();
        let live = live.map(|object| (name(object), object.kind)).collect();
        Report {
            live,
            calls: self.calls.clone(),
            violations: self.violations.clone(),
        }
    }
}
