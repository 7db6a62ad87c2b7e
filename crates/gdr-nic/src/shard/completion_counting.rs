//! Completion counters, for programs that need only the number of completions.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use gdr_roce::{Completion, Served, WcOpcode, WcStatus};

use crate::shard::cq_entries::received_bytes;

/// The unit of a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CounterUnit {
    /// Requests.
    Requests,
    /// Bytes of successful requests. A failed request adds one to the failures.
    Bytes,
}

/// Operations that a counter can count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CountedOperation {
    /// SENDs.
    Send,
    /// Receives, including those consumed by a WRITE with immediate data.
    Recv,
    /// READs.
    Read,
    /// The peer's READs, counted when their last response is sent.
    RemoteRead,
    /// WRITEs.
    Write,
    /// The peer's WRITEs, counted when all bytes are placed.
    RemoteWrite,
}

/// The number of operations.
const OPERATIONS: usize = 6;

impl CountedOperation {
    fn of(completion: &Completion) -> Option<Self> {
        match completion.opcode {
            WcOpcode::Send => Some(Self::Send),
            WcOpcode::Recv | WcOpcode::RecvWriteImmediate => Some(Self::Recv),
            WcOpcode::Read => Some(Self::Read),
            WcOpcode::Write => Some(Self::Write),
            WcOpcode::FetchAdd
            | WcOpcode::CompareSwap
            | WcOpcode::AtomicWrite
            | WcOpcode::Flush
            | WcOpcode::BindWindow
            | WcOpcode::Invalidate => None,
        }
    }
}

/// Counts completions of any number of queue pairs, including those of unsignalled requests. Clones refer to the same
/// counter. Every value wraps from `u64::MAX` to 0.
///
/// A counted completion gives the same guarantees as a polled one: values are read with acquire ordering.
#[derive(Clone, Debug)]
pub struct CompletionCounter(Arc<Values>);

#[derive(Debug)]
struct Values {
    unit: CounterUnit,
    completed: AtomicU64,
    failed: AtomicU64,
}

impl CompletionCounter {
    /// Returns a counter at zero.
    pub fn new(unit: CounterUnit) -> Self {
        Self(Arc::new(Values {
            unit,
            completed: AtomicU64::new(0),
            failed: AtomicU64::new(0),
        }))
    }

    /// Returns the successful total, in the counter's unit.
    pub fn completed(&self) -> &AtomicU64 {
        &self.0.completed
    }

    /// Returns the number of failed requests.
    pub fn failed(&self) -> &AtomicU64 {
        &self.0.failed
    }

    fn count(&self, completion: &Completion) {
        if completion.status != WcStatus::Success {
            self.0.failed.fetch_add(1, Ordering::AcqRel);
            return;
        }
        let bytes = match completion.opcode.is_receive() {
            true => received_bytes(completion),
            false => completion.byte_len.into(),
        };
        self.add(1, bytes);
    }

    fn add(&self, requests: u64, bytes: u64) {
        let amount = match self.0.unit {
            CounterUnit::Requests => requests,
            CounterUnit::Bytes => bytes,
        };
        self.0.completed.fetch_add(amount, Ordering::AcqRel);
    }
}

/// The counters of a queue pair.
#[derive(Debug)]
pub(crate) struct CompletionCounting {
    counters: [Option<CompletionCounter>; OPERATIONS],
    /// Numbers of posted unsignalled sends, whose success is counted but not put into the completion queue.
    silent: VecDeque<u64>,
    /// If set, receives all completions in place of the completion queue, each with whether it is silent.
    diverted: Option<VecDeque<(Completion, bool)>>,
    served: Served,
}

impl CompletionCounting {
    /// Returns no counters, for a connection that has already served this much.
    pub(crate) fn new(served: Served) -> Self {
        Self {
            counters: Default::default(),
            silent: VecDeque::new(),
            diverted: None,
            served,
        }
    }

    /// Attaches a counter to an operation, replacing any previous one.
    pub(crate) fn attach(&mut self, operation: CountedOperation, counter: &CompletionCounter) {
        self.counters[operation as usize] = Some(counter.clone());
    }

    /// Starts over with a queue pair that was in RESET.
    pub(crate) fn reset(&mut self) {
        self.silent.clear();
        if let Some(diverted) = &mut self.diverted {
            diverted.clear();
        }
    }

    /// Diverts all further completions to [`CompletionCounting::take_diverted`].
    pub(crate) fn divert(&mut self) {
        self.diverted.get_or_insert_default();
    }

    /// Returns the next diverted completion, and whether it is silent.
    pub(crate) fn take_diverted(&mut self) -> Option<(Completion, bool)> {
        self.diverted.as_mut()?.pop_front()
    }

    /// Records an unsignalled send with this number.
    pub(crate) fn posted_silent(&mut self, number: u64) {
        self.silent.push_back(number);
    }

    /// Forgets the withdrawn requests from this number on.
    pub(crate) fn withdraw(&mut self, first: u64) {
        self.silent.retain(|number| *number < first);
    }

    /// Counts the completion of the request with this number. Returns whether the completion queue gets it; as on other
    /// devices, it gets every failure.
    pub(crate) fn count(&mut self, completion: &Completion, number: u64) -> bool {
        let operation = CountedOperation::of(completion);
        let counter = operation.and_then(|operation| self.counters[operation as usize].as_ref());
        if let Some(counter) = counter {
            counter.count(completion);
        }
        // Sends complete in order, so only the oldest silent one can match.
        let is_silent = !completion.opcode.is_receive() && self.silent.front() == Some(&number);
        if is_silent {
            self.silent.pop_front();
        }
        let is_delivered = !is_silent || completion.status != WcStatus::Success;
        if let Some(diverted) = &mut self.diverted {
            diverted.push_back((*completion, !is_delivered));
            return false;
        }
        is_delivered
    }

    /// Counts what a connection has served until now, before it is reset.
    pub(crate) fn end_serving(&mut self, served: Served) {
        self.count_served(served);
        self.served = Served::default();
    }

    /// Counts what the connection has served since the last call.
    pub(crate) fn count_served(&mut self, served: Served) {
        let before = std::mem::replace(&mut self.served, served);
        let add = |operation: CountedOperation, requests: u64, bytes: u64| {
            if requests > 0
                && let Some(counter) = &self.counters[operation as usize]
            {
                counter.add(requests, bytes);
            }
        };
        add(
            CountedOperation::RemoteWrite,
            served.writes - before.writes,
            served.written_bytes - before.written_bytes,
        );
        add(
            CountedOperation::RemoteRead,
            served.reads - before.reads,
            served.read_bytes - before.read_bytes,
        );
    }
}
