//! State shared by the shards of a device.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use gdr_copy::ProcessId;
use gdr_process::lock::lock;
use gdr_roce::PacketBudget;
use rustix::event::EventfdFlags;

use crate::bounded_queue::{BoundedQueue, Loss, Pushed};
use crate::chaos::{Chaos, DeviceChaos};
use crate::error::{Error, Result};
use crate::shard::clock::Clock;
use crate::shard::cq_entries::{CqEntries, OnCompletion};
use crate::shard::region_table::RegionTable;
use crate::shard::send_limit::SendLimit;
use crate::shard::srq_context::SrqContext;
use crate::types::{AsyncEvent, SoftOptions};
use crate::wire::memory::RingRequests;

/// The maximum number of asynchronous events kept until they are taken.
pub(crate) const EVENTS: usize = 1024;

/// A function that is called for each asynchronous event. It may run while the engine is locked, so it must neither
/// call the engine nor wait.
pub type OnEvent = Box<dyn Fn(&AsyncEvent) + Send + Sync>;

/// The state that the shards of a device share.
pub(crate) struct DeviceState {
    /// The process that owns the sockets and the threads.
    pub(crate) origin: ProcessId,
    pub(crate) clock: Clock,
    pub(crate) regions: Arc<RegionTable>,
    /// Events not yet taken, unless a front end receives them at once.
    pub(crate) events: BoundedQueue<AsyncEvent>,
    on_event: Option<OnEvent>,
    pub(crate) busy_poll: Duration,
    /// The budget for packets that queue pairs keep until missing ones arrive.
    pub(crate) kept_packets: PacketBudget,
    completion_queues: Mutex<Vec<Weak<CqEntries>>>,
    /// Bytes of receives whose completions were removed from their queues, or are in queues that no longer
    /// exist.
    untaken: Arc<AtomicU64>,
    /// Eventfds that wake the progress threads, by shard.
    wakes: Box<[OwnedFd]>,
    /// Where engines request rings to devices on this host, if the device uses rings.
    pub(crate) ring_requests: OnceLock<RingRequests>,
    pub(crate) send_limit: SendLimit,
    /// The device's fault injection, under a scenario.
    pub(crate) chaos: Option<DeviceChaos>,
    /// The reason why a socket failed, after which no shard moves bytes.
    failure: OnceLock<String>,
}

impl DeviceState {
    pub(crate) fn new(
        shards: usize,
        options: &SoftOptions,
        on_event: Option<OnEvent>,
    ) -> Result<Self> {
        let origin = ProcessId::current();
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let eventfd =
            |_| rustix::event::eventfd(0, flags).map_err(|errno| Error::os("eventfd", errno));
        Ok(Self {
            origin,
            clock: Clock::start(),
            regions: Arc::new(RegionTable::new(origin, shards)),
            events: BoundedQueue::new(EVENTS, Loss::Tolerated),
            on_event,
            busy_poll: options.busy_poll,
            kept_packets: PacketBudget::new(options.reorder_buffer),
            completion_queues: Mutex::default(),
            untaken: Arc::default(),
            wakes: (0..shards).map(eventfd).collect::<Result<_>>()?,
            ring_requests: OnceLock::new(),
            send_limit: SendLimit::default(),
            chaos: Chaos::of_process()?.map(DeviceChaos::new),
            failure: OnceLock::new(),
        })
    }

    /// Fails in a child of the process that opened the device: sockets and filters are shared with
    /// the parent, and a lock may be held by a thread that exists only there.
    pub(crate) fn check_process(&self) -> Result<()> {
        if self.origin.is_current_fast() {
            Ok(())
        } else {
            Err(Error::ForkedChild)
        }
    }

    /// Creates the entries of a new completion queue.
    pub(crate) fn completion_entries(
        &self,
        capacity: usize,
        on_completion: Option<OnCompletion>,
    ) -> Arc<CqEntries> {
        let entries = CqEntries::new(capacity, on_completion, Arc::clone(&self.untaken));
        let entries = Arc::new(entries);
        let mut queues = lock(&self.completion_queues);
        queues.retain(|queue| queue.strong_count() > 0);
        queues.push(Arc::downgrade(&entries));
        entries
    }

    /// Returns the bytes of receives whose completions were never taken.
    pub(crate) fn untaken(&self) -> u64 {
        let queues = lock(&self.completion_queues).clone();
        let stored = queues.iter().filter_map(Weak::upgrade);
        let stored: u64 = stored.map(|entries| entries.received_bytes()).sum();
        stored + self.untaken.load(Ordering::Relaxed)
    }

    /// Passes an event on, or queues it. If there is no room, the event is lost and counted.
    pub(crate) fn raise(&self, event: AsyncEvent) {
        if let Some(on_event) = &self.on_event {
            return on_event(&event);
        }
        if self.events.push(event) != Pushed::Stored {
            tracing::debug!(?event, "too many events wait to be taken; this one is lost");
        }
    }

    /// Raises the event of a shared receive queue that has fallen below its limit.
    pub(crate) fn raise_limit(&self, srq: &SrqContext) {
        if srq.roce().poll_limit_reached() {
            let srq = srq.number();
            self.raise(AsyncEvent::SharedReceiveQueueLimit { srq });
        }
    }

    /// Records that a socket has failed permanently, and wakes the threads of all shards, which flush their queue
    /// pairs in the next poll.
    pub(crate) fn fail(&self, error: &Error) {
        if self.failure.set(error.to_string()).is_ok() {
            self.raise(AsyncEvent::DeviceFatal);
            (0..self.wakes.len()).for_each(|shard| self.wake(shard));
        }
    }

    /// Returns the reason why the device failed, if it did.
    pub(crate) fn failure(&self) -> Option<&str> {
        self.failure.get().map(String::as_str)
    }

    /// Returns the eventfd that wakes the progress thread of a shard.
    pub(crate) fn wake_fd(&self, shard: usize) -> &OwnedFd {
        &self.wakes[shard]
    }

    pub(crate) fn wake(&self, shard: usize) {
        // This only fails if the counter is at its limit, which wakes the thread as well.
        if let Err(error) = rustix::io::write(self.wake_fd(shard), &1_u64.to_ne_bytes()) {
            tracing::trace!(%error, "the eventfd of the progress thread is at its limit");
        }
    }

    pub(crate) fn clear_wake(&self, shard: usize) {
        let mut count = [0; 8];
        // EAGAIN means that no thread has woken it.
        if let Err(error) = rustix::io::read(self.wake_fd(shard), &mut count)
            && error != rustix::io::Errno::AGAIN
        {
            tracing::trace!(%error, "reading the eventfd of the progress thread failed");
        }
    }
}
