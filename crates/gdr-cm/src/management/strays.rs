//! Requests for services that no process has.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use crate::Mad;

use gdr_udp::Deadline;

/// How often a process that listens is sought, and after how long again. A program that takes one connection after
/// another does not listen in between, and its peer may be quicker.
const ATTEMPTS: u8 = 10;
const INTERVAL: Duration = Duration::from_millis(20);
/// How many requests are held. More are answered at once.
const MOST: usize = 64;

/// A request, and who sent it.
pub(super) struct Stray {
    pub(super) from: IpAddr,
    pub(super) mad: Mad,
    due: Instant,
    attempts: u8,
}

/// What the keeper holds before it answers that there is no such service.
#[derive(Default)]
pub(super) struct Strays(Vec<Stray>);

impl Strays {
    /// Holds a request; returns whether there is room.
    pub(super) fn hold(&mut self, from: IpAddr, mad: Mad) -> bool {
        self.hold_again(Stray {
            from,
            mad,
            due: Instant::now(),
            attempts: ATTEMPTS,
        })
    }

    /// Holds a request for which no process was found again; returns false after its last attempt.
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

    /// When the first one is due.
    pub(super) fn deadline(&self) -> Option<Deadline> {
        self.0.iter().map(|it| it.due).min().map(Deadline::at)
    }

    /// Takes one that is due.
    pub(super) fn take(&mut self) -> Option<Stray> {
        let now = Instant::now();
        let at = self.0.iter().position(|it| it.due <= now)?;
        Some(self.0.remove(at))
    }
}
