//! Requests for services on which no process listens.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use crate::Mad;

use gdr_udp::Deadline;

/// How often, and at which interval, a listening process is searched for. A program that accepts one connection at a
/// time does not listen in between, and its peer may be faster.
const ATTEMPTS: u8 = 10;
const INTERVAL: Duration = Duration::from_millis(20);
/// The most requests held; further ones are answered immediately.
const MOST: usize = 64;

/// A request and its sender.
pub(super) struct Stray {
    pub(super) from: IpAddr,
    pub(super) mad: Mad,
    due: Instant,
    attempts: u8,
}

/// Requests that the keeper holds before it replies that there is no such service.
#[derive(Default)]
pub(super) struct Strays(Vec<Stray>);

impl Strays {
    /// Holds a request. Returns whether there is room.
    pub(super) fn hold(&mut self, from: IpAddr, mad: Mad) -> bool {
        self.hold_again(Stray {
            from,
            mad,
            due: Instant::now(),
            attempts: ATTEMPTS,
        })
    }

    /// Holds a request for which still no process was found. Returns false after its last attempt.
    pub(super) fn hold_again(&mut self, stray: Stray) -> bool {
        let is_held = stray.attempts > 0 && self.0.len() < MOST;
        if is_held {
            self.0.push(Stray {
                due: Instant::now() + INTERVAL,
                attempts: stray.attempts - 1,
                ..stray
            });
        }
        is_held
    }

    /// Returns when the first request is due.
    pub(super) fn deadline(&self) -> Option<Deadline> {
        self.0.iter().map(|it| it.due).min().map(Deadline::at)
    }

    /// Takes a request that is due.
    pub(super) fn take(&mut self) -> Option<Stray> {
        let now = Instant::now();
        let at = self.0.iter().position(|it| it.due <= now)?;
        Some(self.0.remove(at))
    }
}
