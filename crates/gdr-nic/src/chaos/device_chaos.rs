//! Faults of a device.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use gdr_chaos::{Class, Fault, Trigger};
use gdr_process::lock::lock;
use gdr_roce::Time;

use super::{Chaos, stopped};
use crate::device_state::DeviceState;
use crate::error::Error;
use crate::types::AsyncEvent;

/// `IBV_EVENT_GID_CHANGE`.
const GID_CHANGE: u32 = 18;

/// The progress of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Waiting for its start time or byte count.
    Waiting,
    /// In effect until this time after the first packet.
    Until(Duration),
    Over,
}

/// The fault state of a device.
#[derive(Debug)]
pub(crate) struct DeviceChaos {
    pub(crate) chaos: Arc<Chaos>,
    /// The device rules by number, each with its phase.
    phases: Mutex<Vec<(usize, Phase)>>,
    /// The time of the first packet in either direction, by the device's clock.
    start: OnceLock<Time>,
    is_down: AtomicBool,
    has_no_address: AtomicBool,
}

impl DeviceChaos {
    pub(crate) fn new(chaos: Arc<Chaos>) -> Self {
        let rules = chaos.rules(Class::Device);
        let phases = rules.map(|(number, _)| (number, Phase::Waiting)).collect();
        Self {
            phases: Mutex::new(phases),
            start: OnceLock::new(),
            chaos,
            is_down: AtomicBool::new(false),
            has_no_address: AtomicBool::new(false),
        }
    }

    /// Returns whether the port is down.
    pub(crate) fn is_down(&self) -> bool {
        self.is_down.load(Ordering::Acquire)
    }

    /// Returns whether the address is gone.
    pub(crate) fn has_no_address(&self) -> bool {
        self.has_no_address.load(Ordering::Acquire)
    }

    /// Returns whether all packets are lost.
    pub(super) fn is_dark(&self) -> bool {
        self.is_down() || self.has_no_address()
    }

    /// Returns the device time at which the next rule strikes or ends; `None` if no rule depends on time.
    pub(super) fn next(&self, now: Time) -> Option<Time> {
        let elapsed = self.chaos.elapsed()?;
        // The start is the same for every call, so that a single timer entry is enough.
        let start = *self.start.get_or_init(|| {
            let before = now.elapsed().saturating_sub(elapsed);
            Time::since_epoch(before)
        });
        let bytes = self.chaos.bytes.load(Ordering::Relaxed);
        let phases = lock(&self.phases);
        let times = phases.iter().filter_map(|(number, phase)| {
            match (phase, self.chaos.scenario.rules[*number].trigger?) {
                (Phase::Waiting, Trigger::At(at)) => Some(start + at),
                (Phase::Waiting, Trigger::After(after)) => (bytes >= after).then_some(now),
                (Phase::Until(end), _) => Some(start + *end),
                (Phase::Over, _) => None,
            }
        });
        times.min()
    }

    /// Starts and ends the rules that are due.
    pub(crate) fn advance(&self, device: &DeviceState) {
        let Some(elapsed) = self.chaos.elapsed() else {
            return;
        };
        let bytes = self.chaos.bytes.load(Ordering::Relaxed);
        let mut changes = Vec::new();
        for (number, phase) in lock(&self.phases).iter_mut() {
            let fault = self.chaos.scenario.rules[*number].fault;
            match (*phase, self.chaos.scenario.rules[*number].trigger) {
                (Phase::Waiting, Some(trigger)) => {
                    let is_due = match trigger {
                        Trigger::At(at) => elapsed >= at,
                        Trigger::After(after) => bytes >= after,
                    };
                    if is_due {
                        *phase = match fault {
                            Fault::LinkDown { lasting } | Fault::GidChange { lasting } => {
                                Phase::Until(elapsed + lasting)
                            }
                            _ => Phase::Over,
                        };
                        changes.push((*number, fault, true));
                    }
                }
                (Phase::Until(end), _) if elapsed >= end => {
                    *phase = Phase::Over;
                    changes.push((*number, fault, false));
                }
                _ => {}
            }
        }
        for (number, fault, begins) in changes {
            // A process may have several devices, but must be stopped only once.
            let is_of_process = matches!(fault, Fault::Stop { .. } | Fault::Kill);
            if is_of_process && !self.chaos.is_first_strike(number) {
                continue;
            }
            let (place, details) = match begins {
                true => ("begins", format!("bytes={bytes}")),
                false => ("ends", String::new()),
            };
            self.chaos
                .log_strike(number, format!("device {place}"), &details);
            match fault {
                Fault::LinkDown { .. } => {
                    self.is_down.store(begins, Ordering::Release);
                    device.raise(match begins {
                        true => AsyncEvent::PortDown { port: 1 },
                        false => AsyncEvent::PortActive { port: 1 },
                    });
                }
                Fault::GidChange { .. } => {
                    self.has_no_address.store(begins, Ordering::Release);
                    device.raise(AsyncEvent::Other { number: GID_CHANGE });
                }
                Fault::DeviceFatal => device.fail(&Error::DeviceFailed {
                    why: "the scenario says so".to_owned(),
                }),
                Fault::Stop { lasting } => stopped::stop(lasting),
                Fault::Kill => stopped::kill(),
                _ => {}
            }
        }
    }
}
