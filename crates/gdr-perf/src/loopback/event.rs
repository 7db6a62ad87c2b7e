//! Events of a run, and how it is stopped.

use std::net::SocketAddr;
use std::ops::ControlFlow;

use gdr_rdma::{Session, Watch};

use super::report::{Iteration, Path};
use super::settings::Settings;
use crate::error::{Result, proceed};
use crate::memory_facts::{Memory, MemoryFacts};

/// Progress of a run.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A peer may connect.
    Listening(SocketAddr),
    /// The peer has connected.
    Connected {
        /// Its TCP address.
        peer: SocketAddr,
        /// Whether it proved that it knows the shared key.
        authenticated: bool,
        /// Number of connections that were closed before because the program at the other end was not a peer.
        failed_connections: u64,
    },
    /// Both ends agree on what is transferred.
    Ready {
        /// How much to transfer, and how often.
        settings: &'a Settings,
        /// The receiving GPU memory.
        memory: &'a Memory,
        /// The sending memory.
        source: &'a MemoryFacts,
        /// The devices.
        path: &'a Path,
    },
    /// A step begins.
    Step {
        /// The iteration, from 1.
        number: u32,
        /// The step.
        step: Step,
    },
    /// No completion arrived for some time. The run may be stopped here.
    Waiting,
    /// An iteration has ended.
    Ended(&'a Iteration),
}

/// The steps of an iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A kernel fills GPU memory.
    Fill,
    /// RDMA WRITE.
    Write,
    /// GPU memory is compared.
    Verify,
    /// RDMA READ.
    Read,
}

/// Receives the events of a run and may stop it.
pub(super) struct Observer<'a> {
    observe: &'a mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
    /// Connection to the peer, which sends nothing while this end waits for completions.
    watch: Option<Watch>,
}

impl<'a> Observer<'a> {
    pub(super) fn new(observe: &'a mut dyn FnMut(Event<'_>) -> ControlFlow<()>) -> Self {
        Self {
            observe,
            watch: None,
        }
    }

    /// Watches the peer's connection from now on.
    pub(super) fn watch(&mut self, session: &Session) -> Result<()> {
        self.watch = Some(session.watch()?);
        Ok(())
    }

    pub(super) fn notify(&mut self, event: Event<'_>) -> Result<()> {
        proceed((self.observe)(event))
    }

    pub(super) fn step(&mut self, number: u32, step: Step) -> Result<()> {
        self.notify(Event::Step { number, step })
    }

    /// Returns whether the peer sent a message or closed the connection while this end waits for
    /// completions.
    pub(super) fn is_interrupted(&self) -> bool {
        self.watch.as_ref().is_some_and(Watch::is_due)
    }
}
