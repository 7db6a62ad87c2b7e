//! Ranks of a job, from their start until all have ended.

use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{Child, ExitStatus};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use gdr_trace::Ended;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::host::Host;
use crate::child_program::{announced, ended};
use crate::launch::LaunchError;
use crate::output::Output;
use crate::progress::{print_to_stderr, suspend};

/// Where ranks write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stream {
    Output,
    Error,
}

/// Events of a running job.
enum Event {
    Line(Stream, Vec<u8>),
    /// A stream of a rank has ended.
    Closed,
    Ended(usize, ExitStatus),
    Signal(Signal),
}

/// How a rank ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ending {
    pub(super) ended: Ended,
    pub(super) after: Duration,
    /// Whether it was asked to end, because another rank had failed or a signal arrived.
    pub(super) was_asked: bool,
}

impl Ending {
    const fn is_success(&self) -> bool {
        matches!(self.ended, Ended::Status(0))
    }
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.ended {
            Ended::Status(status) => write!(f, "ended with status {status}"),
            Ended::Signal(signal) => write!(f, "was ended by signal {signal}"),
        }
    }
}

struct Rank {
    label: String,
    process: OwnedFd,
    ending: Option<Ending>,
}

/// The ranks that run.
pub(super) struct Job {
    ranks: Vec<Rank>,
    events: Receiver<Event>,
    sender: SyncSender<Event>,
    /// Number of open streams.
    streams: usize,
    output: Stream,
    started: Instant,
    /// How long ranks may continue after they were asked to end.
    grace: Duration,
    phase: Phase,
}

/// What the remaining ranks may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Running,
    /// They were asked to end, and are killed at this time.
    Ending(Instant),
    Killed,
}

impl Job {
    /// Creates a job without ranks, whose output goes there.
    pub(super) fn new(output: Stream, grace: Duration) -> Result<Self, LaunchError> {
        /// Maximum number of lines waiting to be written.
        const WAITING: usize = 256;
        let (sender, events) = sync_channel(WAITING);
        watch_signals(sender.clone())?;
        Ok(Self {
            ranks: Vec::new(),
            events,
            sender,
            streams: 0,
            output,
            started: Instant::now(),
            grace,
            phase: Phase::Running,
        })
    }

    /// Adds a rank that was started. Its lines are marked with the label.
    pub(super) fn add(&mut self, label: String, mut child: Child) -> Result<(), LaunchError> {
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let process = pid
            .ok_or(Errno::SRCH)
            .and_then(|pid| pidfd_open(pid, PidfdFlags::empty()))
            .map_err(|error| LaunchError::Wait(error.into()))?;
        let output = child.stdout.take().map(OwnedFd::from);
        let error = child.stderr.take().map(OwnedFd::from);
        for (from, to) in [(output, self.output), (error, Stream::Error)] {
            let Some(from) = from else { continue };
            let (prefix, sender) = (format!("{label}: "), self.sender.clone());
            spawned(move || forward(from.into(), &prefix, to, &sender))?;
            self.streams += 1;
        }
        let (index, sender) = (self.ranks.len(), self.sender.clone());
        spawned(move || {
            if let Ok(status) = child.wait() {
                // If gdr is ending, the job is gone.
                let _ = sender.send(Event::Ended(index, status));
            }
        })?;
        self.ranks.push(Rank {
            label,
            process,
            ending: None,
        });
        Ok(())
    }

    /// Waits until all ranks have ended, writing their lines to the output, and ends the hosts.
    pub(super) fn finish(
        mut self,
        mut hosts: Vec<Host>,
        output: &mut Output,
    ) -> Result<Vec<Ending>> {
        let mut written = Ok(());
        loop {
            let is_over = self.ranks.iter().all(|rank| rank.ending.is_some());
            if is_over {
                // This also ends what the ranks have left there.
                hosts.clear();
            }
            if is_over && self.streams == 0 {
                written?;
                return Ok(self.ranks.iter().filter_map(|rank| rank.ending).collect());
            }
            match self.next() {
                Some(Event::Line(Stream::Output, line)) => {
                    if written.is_ok() {
                        written = output.content(&line);
                    }
                    if written.is_err() {
                        self.tell(Signal::TERM);
                    }
                }
                Some(Event::Line(Stream::Error, line)) => {
                    // A closed standard error cannot be reported anywhere.
                    let _ = suspend(|| io::stderr().write_all(&line));
                }
                Some(Event::Closed) => self.streams -= 1,
                Some(Event::Ended(index, status)) => self.ended(index, ended(status)),
                // A terminal has sent it to the ranks as well.
                Some(Event::Signal(Signal::INT)) => self.allow(),
                Some(Event::Signal(signal)) => self.tell(signal),
                None => {
                    hosts.clear();
                    self.phase = Phase::Killed;
                }
            }
        }
    }

    /// Waits for the next event; returns `None` once the deadline has passed.
    fn next(&self) -> Option<Event> {
        let Phase::Ending(deadline) = self.phase else {
            // The programs decide how long this takes, or the kernel, which kills them. The job itself holds a sender.
            return self.events.recv().ok();
        };
        let left = deadline.saturating_duration_since(Instant::now());
        self.events.recv_timeout(left).ok()
    }

    fn ended(&mut self, index: usize, ended: Ended) {
        let was_asked = self.phase != Phase::Running;
        let ending = Ending {
            ended,
            after: self.started.elapsed(),
            was_asked,
        };
        let rank = &mut self.ranks[index];
        rank.ending = Some(ending);
        let is_first = !ending.is_success() && !was_asked;
        if is_first && self.ranks.iter().any(|rank| rank.ending.is_none()) {
            print_to_stderr(format_args!(
                "gdr net: {} {ending}; the others get SIGTERM, and SIGKILL after {} s",
                self.ranks[index].label,
                self.grace.as_secs()
            ));
            self.tell(Signal::TERM);
        }
    }

    /// Sends a signal to the ranks that are left, which have to end soon.
    fn tell(&mut self, signal: Signal) {
        for rank in self.ranks.iter().filter(|rank| rank.ending.is_none()) {
            // An error means that it has just ended.
            let _ = pidfd_send_signal(&rank.process, signal);
        }
        self.allow();
    }

    /// Sets the deadline for the ranks that are left.
    fn allow(&mut self) {
        if self.phase == Phase::Running {
            self.phase = Phase::Ending(Instant::now() + self.grace);
        }
    }
}

fn spawned(work: impl FnOnce() + Send + 'static) -> Result<(), LaunchError> {
    let thread = thread::Builder::new().name("rank".to_owned()).spawn(work);
    thread.map(drop).map_err(LaunchError::Wait)
}

/// Sends the signals that this process gets.
fn watch_signals(sender: SyncSender<Event>) -> Result<(), LaunchError> {
    let signals = [
        (Signal::INT, announced(SIGINT)?),
        (Signal::TERM, announced(SIGTERM)?),
        (Signal::HUP, announced(SIGHUP)?),
    ];
    spawned(move || {
        loop {
            let mut fds = signals
                .each_ref()
                .map(|(_, stream)| PollFd::new(stream, PollFlags::IN));
            // Until this process ends.
            if !matches!(poll(&mut fds, None), Ok(_) | Err(Errno::INTR)) {
                return;
            }
            let is_set = fds.map(|fd| !fd.revents().is_empty());
            for ((signal, mut stream), _) in signals
                .each_ref()
                .map(|(signal, stream)| (*signal, stream))
                .into_iter()
                .zip(is_set)
                .filter(|(_, is_set)| *is_set)
            {
                // The stream does not block.
                let _ = stream.read(&mut [0_u8; 64]);
                if sender.send(Event::Signal(signal)).is_err() {
                    return;
                }
            }
        }
    })
}

/// Sends the lines of a stream, each with the prefix, until it ends. A partial line of [`LONGEST`] bytes counts as a
/// line of its own.
fn forward(from: std::fs::File, prefix: &str, to: Stream, sender: &SyncSender<Event>) {
    let mut from = BufReader::new(from);
    loop {
        let mut line = prefix.as_bytes().to_vec();
        let read = (&mut from).take(LONGEST).read_until(b'\n', &mut line);
        if !matches!(read, Ok(1..)) {
            break;
        }
        if line.last() != Some(&b'\n') {
            line.push(b'\n');
        }
        if sender.send(Event::Line(to, line)).is_err() {
            return;
        }
    }
    let _ = sender.send(Event::Closed);
}

const LONGEST: u64 = 1 << 16;
