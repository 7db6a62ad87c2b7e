//! Faults on command: what `GDR_CHAOS` says goes wrong; and packets in the file that `GDR_PCAP` names.
//!
//! A device that is opened under a scenario has a [`DeviceChaos`], and each queue pair of it a [`QpChaos`]. Packets,
//! completions and registrations pass them on paths of their own, which a device without a scenario never takes. All
//! packets go by UDP where there are rules: what a ring of shared memory carries has no packets of its own to lose. Without
//! rules, packets go by rings as well, each with a copy of its payload, so that the file has the bytes that were sent.
//!
//! What is decided by chance follows from the seed, the queue pair in the order in which they were made, and the number
//! of the packet or operation: [`gdr_chaos`]. What depends on time is not decided here: a packet that is sent again is never struck
//! again, unless the rule says how often, and acknowledgements only where a rule names them.

mod capture;
mod device_chaos;
mod held_completions;
mod late_bytes;
mod log;
mod packet_line;
mod packet_stream;
mod qp_chaos;
mod stopped;

use std::ffi::OsString;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use gdr_chaos::{
    Class, Direction, Fault, Memory, Record, RefusedErrno, Rule, Scenario, Site, Strike,
};
use gdr_process::lock::lock;
use rustix::io::Errno;

pub(crate) use self::capture::Checksum;
pub(crate) use self::device_chaos::DeviceChaos;
pub(crate) use self::qp_chaos::{QpChaos, Verdict};

use self::capture::Capture;
use self::log::Log;
use crate::error::{Error, Result};
use gdr_udp::Socket;

/// Has the scenario, in the inline form.
const VARIABLE: &str = "GDR_CHAOS";
/// Names the file to which faults are appended; the standard error without it.
const LOG_VARIABLE: &str = "GDR_CHAOS_LOG";
/// Names the file to which packets are appended.
const PCAP_VARIABLE: &str = "GDR_PCAP";

/// The bit of an entry of the engine's timers that is a queue pair's fault, and the entry of the device's.
pub(crate) const ALARM: u32 = 1 << 31;
pub(crate) const DEVICE_ALARM: u32 = u32::MAX;

/// What is counted through the whole process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Counted {
    QueuePair,
    CompletionQueue,
    Registration,
}

/// A scenario, as a process runs it. It has no rules where packets are captured only.
#[derive(Debug)]
pub(crate) struct Chaos {
    scenario: Scenario,
    log: Log,
    capture: Option<Capture>,
    counts: [AtomicU64; 3],
    /// How often each rule that concerns no queue pair struck.
    strikes: Mutex<Vec<u64>>,
    /// When the first packet was sent or arrived.
    start: OnceLock<Instant>,
    bytes: AtomicU64,
}

impl Chaos {
    fn new(scenario: Scenario, log: Log, capture: Option<Capture>) -> Self {
        Self {
            strikes: Mutex::new(vec![0; scenario.rules.len()]),
            scenario,
            log,
            capture,
            counts: Default::default(),
            start: OnceLock::new(),
            bytes: AtomicU64::new(0),
        }
    }

    /// The scenario of this process, if it has one.
    ///
    /// # Errors
    /// [`Error::Chaos`]: it cannot be read, or the log or the packets cannot be written.
    pub(crate) fn of_process() -> Result<Option<Arc<Self>>> {
        static CHAOS: Mutex<Option<Arc<Chaos>>> = Mutex::new(None);
        let (text, packets) = (variable(VARIABLE), variable(PCAP_VARIABLE));
        if text.is_none() && packets.is_none() {
            return Ok(None);
        }
        let mut chaos = lock(&CHAOS);
        if let Some(chaos) = &*chaos {
            return Ok(Some(Arc::clone(chaos)));
        }
        let scenario = match text {
            Some(text) => Scenario::parse(&text.to_string_lossy()).map_err(of(VARIABLE))?,
            None => Scenario {
                seed: 0,
                rules: Vec::new(),
            },
        };
        let log = Log::open(variable(LOG_VARIABLE).as_deref()).map_err(of(LOG_VARIABLE))?;
        let capture = packets.map(|path| Capture::open(&path)).transpose();
        let capture = capture.map_err(of(PCAP_VARIABLE))?;
        let loaded = Arc::new(Self::new(scenario, log, capture));
        *chaos = Some(Arc::clone(&loaded));
        Ok(Some(loaded))
    }

    fn count(&self, counted: Counted) -> u64 {
        self.counts[counted as usize].fetch_add(1, Ordering::Relaxed)
    }

    /// The rules of a class, with their numbers.
    fn rules(&self, class: Class) -> impl Iterator<Item = (usize, &Rule)> {
        let rules = self.scenario.rules.iter().enumerate();
        rules.filter(move |(_, rule)| rule.fault.class() == class)
    }

    /// Counts a strike of a rule that concerns no queue pair; returns whether it may strike.
    fn may_strike(&self, number: usize, rule: &Rule) -> bool {
        let mut strikes = lock(&self.strikes);
        let struck = &mut strikes[number];
        if rule.most.is_some_and(|most| *struck >= most) {
            return false;
        }
        *struck += 1;
        true
    }

    /// Counts a strike of a rule of the process; returns whether it is the first.
    fn is_first_strike(&self, number: usize) -> bool {
        let mut strikes = lock(&self.strikes);
        strikes[number] += 1;
        strikes[number] == 1
    }

    /// Counts bytes of packets; returns how many there were in all.
    fn count_bytes(&self, len: usize) -> u64 {
        self.start.get_or_init(Instant::now);
        self.bytes.fetch_add(len as u64, Ordering::Relaxed) + len as u64
    }

    /// The time since the first packet.
    fn elapsed(&self) -> Option<Duration> {
        self.start.get().map(Instant::elapsed)
    }

    /// Whether anything may strike.
    pub(crate) fn has_rules(&self) -> bool {
        !self.scenario.rules.is_empty()
    }

    pub(crate) fn log_begin(&self, device: &str) {
        if !self.has_rules() {
            return;
        }
        self.log.write(&Record::Begun {
            pid: std::process::id(),
            device: device.to_owned(),
        });
    }

    /// Logs a strike. `place` is the same each time that the seed is run.
    fn log_strike(&self, rule: usize, place: String, details: &str) {
        let time = self.elapsed().unwrap_or_default();
        self.log.write(&Record::Struck(Strike {
            rule,
            fault: self.scenario.rules[rule].fault.name().to_owned(),
            place,
            pid: std::process::id(),
            details: format!("t={:.6}{}{details}", time.as_secs_f64(), separator(details)),
        }));
    }

    /// Writes a packet that has arrived at `own` from `other`, or leaves in the other direction, if packets are captured.
    pub(crate) fn capture(
        &self,
        direction: Direction,
        other: SocketAddr,
        bytes: &[u8],
        checksum: Checksum,
        own: SocketAddr,
    ) {
        let Some(capture) = &self.capture else {
            return;
        };
        let (from, to) = match direction {
            Direction::Out => (own, other),
            Direction::In => (other, own),
        };
        if let Some(path) = Socket::path(from, to, 0) {
            capture.write(direction, &path, bytes, checksum);
        }
    }

    /// How many entries a new completion queue has that was asked for with `capacity`.
    pub(crate) fn completion_room(&self, capacity: usize) -> usize {
        let operation = self.count(Counted::CompletionQueue);
        let mut room = capacity;
        for (number, rule) in self.rules(Class::CompletionQueue) {
            if let Fault::CqRoom { room: fewer } = rule.fault
                && (fewer as usize) < room
                && self.scenario.strikes(number, site_of(operation))
                && self.may_strike(number, rule)
            {
                room = fewer as usize;
                let place = format!("cq={operation} room={room}");
                self.log_strike(number, place, &format!("asked={capacity}"));
            }
        }
        room
    }

    /// Waits for a registration, or refuses it.
    ///
    /// # Errors
    /// [`SocketError::Os`](crate::SocketError::Os), as the kernel would refuse it.
    pub(crate) fn register(&self, memory: Memory, len: u64) -> Result<()> {
        let operation = self.count(Counted::Registration);
        for (number, rule) in self.rules(Class::Registration) {
            let selected = rule.memory.is_none_or(|wanted| wanted == memory)
                && self.scenario.strikes(number, site_of(operation))
                && self.may_strike(number, rule);
            if !selected {
                continue;
            }
            let place = format!("registration={operation} memory={}", memory.name());
            self.log_strike(number, place, &format!("bytes={len}"));
            match rule.fault {
                Fault::SlowRegistration { by } => std::thread::sleep(by),
                Fault::RefuseRegistration { errno } => {
                    let errno = match errno {
                        RefusedErrno::NoMemory => Errno::NOMEM,
                        RefusedErrno::Invalid => Errno::INVAL,
                        RefusedErrno::Unsupported => Errno::OPNOTSUPP,
                        RefusedErrno::Permission => Errno::PERM,
                    };
                    return Err(Error::os(
                        "the registration that the scenario refuses",
                        errno,
                    ));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// The value of a variable, unless it is empty.
fn variable(name: &str) -> Option<OsString> {
    gdr_process::variable(name).filter(|value| !value.is_empty())
}

/// What makes an error of this variable.
fn of<E: ToString>(variable: &'static str) -> impl Fn(E) -> Error {
    move |error| Error::Chaos {
        variable,
        why: error.to_string(),
    }
}

fn separator(details: &str) -> &'static str {
    match details.is_empty() {
        true => "",
        false => " ",
    }
}

/// The place of what belongs to no queue pair.
fn site_of(operation: u64) -> Site {
    Site {
        queue_pair: 0,
        operation,
        part: operation,
    }
}
