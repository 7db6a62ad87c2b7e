//! Fault injection (`GDR_CHAOS`) and packet capture (`GDR_PCAP`).
//!
//! A device opened under a scenario has a [`DeviceChaos`], and each of its queue pairs a [`QpChaos`]. Packets,
//! completions and registrations pass through them on separate paths that a device without a scenario never takes. A
//! scenario with rules sends all packets by UDP, because a shared-memory ring has no packets of its own to lose.
//! Without rules, packets use rings as well, each with a copy of its payload, so that the capture has the bytes that
//! were sent.
//!
//! Random decisions follow from the seed, the position of the queue pair in creation order, and the number of the
//! packet or operation: see [`gdr_chaos`]. They never depend on time: a retransmitted packet is not struck again unless
//! the rule gives a repeat count, and acknowledgements are struck only by rules that name them.

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

/// The scenario, in inline form.
const VARIABLE: &str = "GDR_CHAOS";
/// The path of the fault log; standard error if unset.
const LOG_VARIABLE: &str = "GDR_CHAOS_LOG";
/// The path of the packet capture.
const PCAP_VARIABLE: &str = "GDR_PCAP";

/// Marks an entry of the engine's timers as a queue pair's fault timer; on its own, the entry of the device's fault
/// timer.
pub(crate) const ALARM: u32 = 1 << 31;
pub(crate) const DEVICE_ALARM: u32 = u32::MAX;

/// A counter of the whole process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Counted {
    QueuePair,
    CompletionQueue,
    Registration,
}

/// The scenario of a process. It has no rules if packets are only captured.
#[derive(Debug)]
pub(crate) struct Chaos {
    scenario: Scenario,
    log: Log,
    capture: Option<Capture>,
    counts: [AtomicU64; 3],
    /// How often each rule outside queue pairs has struck.
    strikes: Mutex<Vec<u64>>,
    /// The time of the first packet in either direction.
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

    /// Returns the scenario of this process, if it has one.
    ///
    /// # Errors
    /// [`Error::Chaos`] if the scenario is invalid, or if the log or the capture cannot be opened.
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

    /// Returns the rules of a class, with their numbers.
    fn rules(&self, class: Class) -> impl Iterator<Item = (usize, &Rule)> {
        let rules = self.scenario.rules.iter().enumerate();
        rules.filter(move |(_, rule)| rule.fault.class() == class)
    }

    /// Counts a strike of a rule outside queue pairs; returns whether the rule may strike.
    fn may_strike(&self, number: usize, rule: &Rule) -> bool {
        let mut strikes = lock(&self.strikes);
        let struck = &mut strikes[number];
        if rule.most.is_some_and(|most| *struck >= most) {
            return false;
        }
        *struck += 1;
        true
    }

    /// Counts a strike of a process-wide rule; returns whether it is the first.
    fn is_first_strike(&self, number: usize) -> bool {
        let mut strikes = lock(&self.strikes);
        strikes[number] += 1;
        strikes[number] == 1
    }

    /// Adds to the byte count of packets; returns the new total.
    fn count_bytes(&self, len: usize) -> u64 {
        self.start.get_or_init(Instant::now);
        self.bytes.fetch_add(len as u64, Ordering::Relaxed) + len as u64
    }

    /// Returns the time since the first packet.
    fn elapsed(&self) -> Option<Duration> {
        self.start.get().map(Instant::elapsed)
    }

    /// Returns whether there are rules.
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

    /// Logs a strike. `place` is the same in every run with the same seed.
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

    /// Captures a packet that arrived at `own` from `other`, or left in the other direction, if a capture is open.
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

    /// Returns the capacity of a new completion queue for which `capacity` entries were requested.
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

    /// Delays or fails a registration, if a rule says so.
    ///
    /// # Errors
    /// [`SocketError::Os`](crate::SocketError::Os), with the error code that a kernel device would return.
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

/// Returns the value of an environment variable, unless it is empty.
fn variable(name: &str) -> Option<OsString> {
    gdr_process::variable(name).filter(|value| !value.is_empty())
}

/// Returns a function that converts errors to [`Error::Chaos`] for this variable.
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

/// Returns the site of an operation outside queue pairs.
fn site_of(operation: u64) -> Site {
    Site {
        queue_pair: 0,
        operation,
        part: operation,
    }
}
