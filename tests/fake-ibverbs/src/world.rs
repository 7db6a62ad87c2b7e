//! Everything that there is, behind one lock.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Display;
use std::fs;
use std::io::{PipeReader, PipeWriter};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use gdr_verbs_sys::{
    ibv_context, ibv_device, ibv_event_type, ibv_pd, ibv_port_state, verbs_context,
};

use crate::answer::{Errno, Outcome};
use crate::completion::Queue;
use crate::control::{Call, Element, Live, Report};
use crate::event::{Event, Subject};
use crate::handle::Handle;
use crate::pair::Pair;
use crate::region::{GpuMemory, Region};
use crate::spec::{DeviceSpec, PortSpec};

/// Which of [`World::devices`].
pub(crate) type DeviceId = usize;

/// A verb that is to fail some times.
#[derive(Debug)]
struct Refusal {
    verb: String,
    errno: Errno,
    times: u32,
}

pub(crate) struct Device {
    pub(crate) spec: DeviceSpec,
    pub(crate) object: Handle<ibv_device>,
    pub(crate) gone: bool,
    pub(crate) fatal: bool,
    pub(crate) held: bool,
    /// Status and vendor's number with which the next transfers end.
    pub(crate) endings: VecDeque<(u32, u32)>,
    refusals: Vec<Refusal>,
}

impl Device {
    pub(crate) fn refuse(&mut self, verb: String, errno: Errno, times: u32) {
        self.refusals.push(Refusal { verb, errno, times });
    }

    pub(crate) fn port(&self, number: u8) -> Option<&PortSpec> {
        self.spec.ports.get(usize::from(number).checked_sub(1)?)
    }

    pub(crate) fn port_is_up(&self, number: u8) -> bool {
        let active = ibv_port_state::IBV_PORT_ACTIVE.0;
        !self.fatal && self.port(number).is_some_and(|port| port.state == active)
    }

    /// Whether the verb was told to fail.
    fn check_refusals(&mut self, verb: &str) -> Outcome<()> {
        let due = |refusal: &&mut Refusal| refusal.verb == verb && refusal.times > 0;
        if let Some(refusal) = self.refusals.iter_mut().find(due) {
            refusal.times -= 1;
            return Err(refusal.errno);
        }
        self.spec
            .refusals
            .get(verb)
            .map_or(Ok(()), |errno| Err(*errno))
    }
}

/// An open device.
pub(crate) struct Context {
    pub(crate) device: DeviceId,
    pub(crate) object: Handle<verbs_context>,
    pub(crate) events: VecDeque<Event>,
    /// The descriptor behind `async_fd`, and what makes it readable.
    pub(crate) pipe: (PipeReader, PipeWriter),
}

impl Context {
    pub(crate) fn as_ptr(&self) -> *mut ibv_context {
        // SAFETY: the object is there for ever; this only computes an address in it.
        unsafe { &raw mut (*self.object.as_ptr()).context }
    }
}

pub(crate) struct Domain {
    pub(crate) device: DeviceId,
    pub(crate) context: usize,
}

pub(crate) struct Channel {
    pub(crate) device: DeviceId,
    /// The queues that have something to tell, by address.
    pub(crate) events: VecDeque<usize>,
    pub(crate) pipe: (PipeReader, PipeWriter),
}

/// Objects are found by the address that the program knows them by, regions by key, queue pairs by
/// number.
#[derive(Default)]
pub(crate) struct World {
    pub(crate) devices: Vec<Device>,
    pub(crate) list_errno: Errno,
    pub(crate) contexts: BTreeMap<usize, Context>,
    pub(crate) domains: BTreeMap<usize, Domain>,
    pub(crate) channels: BTreeMap<usize, Channel>,
    pub(crate) queues: BTreeMap<usize, Queue>,
    pub(crate) pairs: BTreeMap<u32, Pair>,
    pub(crate) regions: BTreeMap<u32, Region>,
    pub(crate) gpu_memory: Vec<GpuMemory>,
    /// Events that were taken and not acknowledged.
    pub(crate) unacknowledged: BTreeMap<Subject, usize>,
    pub(crate) calls: Vec<Call>,
    pub(crate) violations: Vec<String>,
    last_number: u32,
}

static WORLD: LazyLock<Mutex<World>> = LazyLock::new(|| Mutex::new(World::from_environment()));

/// The world, locked. What a panic left of it is still the world.
pub(crate) fn world() -> MutexGuard<'static, World> {
    WORLD.lock().unwrap_or_else(PoisonError::into_inner)
}

impl World {
    /// With the devices that the file named by `FAKE_IBVERBS` lists, if it is set.
    fn from_environment() -> Self {
        let mut world = Self::default();
        let Some(file) = std::env::var_os("FAKE_IBVERBS") else {
            return world;
        };
        let devices = fs::read_to_string(&file)
            .map_err(|error| error.to_string())
            .and_then(|text| {
                serde_json::from_str::<Vec<DeviceSpec>>(&text).map_err(|error| error.to_string())
            });
        match devices {
            Ok(devices) => devices.into_iter().for_each(|spec| world.add_device(spec)),
            Err(error) => {
                let said = format!("FAKE_IBVERBS={}: {error}", file.display());
                eprintln!("{said}");
                world.violations.push(said);
            }
        }
        world
    }

    /// A number that nothing else has: handles, keys and queue pair numbers.
    pub(crate) fn number(&mut self) -> u32 {
        // Neither small nor consecutive: a program that mixes numbers up should notice.
        self.last_number = self.last_number.wrapping_add(0x0101);
        self.last_number
    }

    pub(crate) fn named(&self, name: &str) -> Result<DeviceId, String> {
        let found = self
            .devices
            .iter()
            .position(|device| !device.gone && device.spec.name == name);
        found.ok_or_else(|| format!("there is no device {name}"))
    }

    pub(crate) fn add_device(&mut self, spec: DeviceSpec) {
        let object = crate::device::object(&spec);
        self.devices.push(Device {
            spec,
            object,
            gone: false,
            fatal: false,
            held: false,
            endings: VecDeque::new(),
            refusals: Vec::new(),
        });
    }

    /// Notes what no program may do.
    pub(crate) fn violation(&mut self, verb: &str, what: impl Display) {
        self.violations.push(format!("{verb}: {what}"));
    }

    /// Notes a call. Whether the verb was told to fail comes back.
    pub(crate) fn note(&mut self, verb: &str, id: DeviceId, detail: impl Display) -> Outcome<()> {
        self.calls.push(Call {
            verb: verb.to_owned(),
            device: self.devices[id].spec.name.clone(),
            detail: detail.to_string(),
            errno: 0,
        });
        self.devices[id].check_refusals(verb)
    }

    /// As [`World::note`], for a verb that a device which failed does not do.
    pub(crate) fn begin(&mut self, verb: &str, id: DeviceId, detail: impl Display) -> Outcome<()> {
        self.note(verb, id, detail)?;
        let device = &self.devices[id];
        if device.gone || device.fatal {
            return Err(libc::EIO);
        }
        Ok(())
    }

    /// Whether a verb whose name says more than its function's was told to fail.
    pub(crate) fn check_refusals(&mut self, verb: &str, id: DeviceId) -> Outcome<()> {
        self.devices[id].check_refusals(verb)
    }

    fn stranger(&mut self, verb: &str, what: &str) -> Errno {
        self.violation(verb, format_args!("the {what} is none, or was destroyed"));
        libc::EINVAL
    }

    /// The device of an open context.
    pub(crate) fn device_of(&mut self, verb: &str, context: *mut ibv_context) -> Outcome<DeviceId> {
        match self.contexts.get(&context.addr()) {
            Some(context) => Ok(context.device),
            None => Err(self.stranger(verb, "context")),
        }
    }

    /// Device and context of a live protection domain.
    pub(crate) fn domain(&mut self, verb: &str, pd: *mut ibv_pd) -> Outcome<(DeviceId, usize)> {
        match self.domains.get(&pd.addr()) {
            Some(domain) => Ok((domain.device, domain.context)),
            None => Err(self.stranger(verb, "protection domain")),
        }
    }

    /// The device of a live completion queue.
    pub(crate) fn queue(&mut self, verb: &str, address: usize) -> Outcome<DeviceId> {
        match self.queues.get(&address) {
            Some(queue) => Ok(queue.device),
            None => Err(self.stranger(verb, "completion queue")),
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
            None => Err(self.stranger(verb, "queue pair")),
        }
    }

    pub(crate) fn set_port(&mut self, id: DeviceId, port: u8, state: u32) -> Result<(), String> {
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

    /// The device works no more, and says so.
    pub(crate) fn fail_device(&mut self, id: DeviceId) {
        self.devices[id].fatal = true;
        let of_device = |(number, pair): (&u32, &Pair)| (pair.device == id).then_some(*number);
        let pairs: Vec<u32> = self.pairs.iter().filter_map(of_device).collect();
        for pair in pairs {
            self.break_pair(pair);
        }
        let event = ibv_event_type::IBV_EVENT_DEVICE_FATAL;
        self.raise(id, event.0, Subject::Port(0));
    }

    pub(crate) fn raise_named(
        &mut self,
        id: DeviceId,
        event: u32,
        element: Element,
    ) -> Result<(), String> {
        let subject = match element {
            Element::Port(port) => Subject::Port(port),
            Element::Pair(number) => {
                let pair = self.pairs.get(&number);
                let pair = pair.ok_or_else(|| format!("there is no queue pair {number}"))?;
                Subject::Pair(pair.object.address())
            }
        };
        self.raise(id, event, subject);
        Ok(())
    }

    pub(crate) fn report(&self) -> Report {
        let mut live = BTreeMap::<String, Live>::new();
        // A device that is gone may have one of the same name after it.
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
