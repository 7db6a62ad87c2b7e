//! Posting of requests.

use gdr_process::lock::try_lock;
use gdr_roce::{Qpn, SendRequest, State};

use super::{EngineGuard, SharedEngine};
use crate::connection::Connection;
use crate::error::Result;
use crate::poller::Poller;
use crate::recv_queue::RecvQueue;
use crate::send_queue::SendQueue;
use crate::service::Service;
use crate::shard::engine::SentAtOnce;
use crate::shard::intake::Terms;
use crate::shard::left_send::LeftSend;
use crate::shard::qp_context::IntakeUse;
use crate::shard::qp_table::unknown_qp;
use crate::shard::ring_writer::ShardRegions;

/// Opens the intake of a queue pair whose poster had to wait for the engine.
const WAITED: IntakeUse = IntakeUse::Open {
    unused: 0,
    promised: 0,
};

/// A posting call, with the engine locked.
pub(crate) struct PostingCall<'a> {
    engine: EngineGuard<'a>,
    /// When the call began.
    begin: u64,
    /// Whether this call opens the intake.
    intake: IntakeUse,
}

impl SharedEngine {
    /// Begins a posting call.
    pub(crate) fn begin_posts(&self) -> PostingCall<'_> {
        PostingCall {
            // A long list and a wait for the lock are parts of the call: the program does not compute meanwhile.
            begin: self.now(Poller::Program),
            engine: self.lock(),
            intake: IntakeUse::Closed,
        }
    }

    /// Posts a request of a connection. If it is short, it is left to the thread that holds the engine's lock, if there
    /// is one.
    pub(crate) fn post_send(&self, qpn: Qpn, request: &SendRequest<'_>) -> Result<()> {
        let begin = self.now(Poller::Program);
        let call = match try_lock(&self.engine.0) {
            Some(engine) => match self.post_and_transmit(self.guard(engine), qpn, request, begin) {
                Some(engine) => PostingCall {
                    engine,
                    begin,
                    intake: IntakeUse::Closed,
                },
                None => return Ok(()),
            },
            None => {
                let leave = |terms: &Terms| LeftSend::of(request, terms);
                if self.intake.leave(qpn.get(), leave) {
                    self.callers.0.begin(begin);
                    self.serve_intake();
                    self.callers.0.end(self.now(Poller::Program));
                    return Ok(());
                }
                PostingCall {
                    begin,
                    engine: self.lock(),
                    intake: WAITED,
                }
            }
        };
        let post = |queue: &mut SendQueue<'_, Connection>| queue.push(request);
        Ok(self.post_sends(call, qpn, post)??)
    }

    fn regions(&self) -> ShardRegions<'_> {
        ShardRegions {
            table: &self.device.regions,
            shard: self.shard,
        }
    }

    /// Posts and sends a request at once, if it is a usual one. Returns the engine if not.
    fn post_and_transmit<'a>(
        &self,
        mut engine: EngineGuard<'a>,
        qpn: Qpn,
        request: &SendRequest<'_>,
        now: u64,
    ) -> Option<EngineGuard<'a>> {
        let Some(sent) = engine.post_and_transmit(qpn, request, now, self.regions()) else {
            return Some(engine);
        };
        let callers = &self.callers.0;
        callers.begin(now);
        match sent {
            SentAtOnce::Hidden => drop(engine),
            SentAtOnce::Shown => self.unlock(engine),
        }
        callers.end(now);
        None
    }

    /// Runs `post` on the send queue of a queue pair, and sends what it posted.
    pub(crate) fn post_sends<S: Service, T>(
        &self,
        call: PostingCall<'_>,
        qpn: Qpn,
        post: impl FnOnce(&mut SendQueue<'_, S>) -> T,
    ) -> Result<T> {
        let mut engine = call.engine;
        let before = engine.close_intake(qpn);
        let Some(qp) = engine.schedule(qpn) else {
            return Err(unknown_qp(State::ReadyToSend));
        };
        let left_to_thread = qp.is_left_to_thread();
        let had_outstanding = qp.transport.has_outstanding();
        let Some(mut queue) = engine.send_queue(qpn, call.begin, self.regions()) else {
            return Err(unknown_qp(State::ReadyToSend));
        };
        let outcome = post(&mut queue);
        if queue.has_written {
            engine.follow_list(qpn);
        }
        match (call.intake, before) {
            (IntakeUse::Open { unused, .. }, _) => engine.open_intake(qpn, unused),
            (IntakeUse::Closed, IntakeUse::Open { unused, .. }) => {
                engine.open_intake(qpn, unused + 1);
            }
            (IntakeUse::Closed, IntakeUse::Closed) => {}
        }
        let Some(mut engine) = self.lock_of_caller(engine, left_to_thread) else {
            return Ok(outcome);
        };
        let callers = &self.callers.0;
        // Those that were just written do not count.
        let may_defer = had_outstanding && engine.may_defer(qpn);
        let now = self.now(Poller::Program);
        callers.begin(call.begin);
        if may_defer {
            callers.end(now);
        } else {
            engine.send(&self.device.regions.read(self.shard), now);
            self.unlock(engine);
            callers.end(self.now(Poller::Program));
        }
        Ok(outcome)
    }

    /// Posts and sends the requests in the intake, unless another thread holds the lock, which then does so.
    pub(super) fn serve_intake(&self) {
        self.intake.serve(
            || try_lock(&self.engine.0),
            |engine| {
                let mut engine = self.guard(engine);
                // `serve` checks again by itself.
                engine.leave_intake();
                self.send_now(engine, self.now(Poller::Program));
            },
        );
    }

    /// Returns the locked engine if the posting thread is to send. If the progress thread is awake and drives this
    /// shard, it sends instead, while the poster goes on to other shards.
    fn lock_of_caller<'a>(
        &self,
        engine: EngineGuard<'a>,
        left_to_thread: bool,
    ) -> Option<EngineGuard<'a>> {
        if !left_to_thread || engine.sleep.is_some() || engine.is_failed() {
            return Some(engine);
        }
        self.unlock(engine);
        self.leave_to_thread();
        None
    }

    /// Runs `post` on the receive queue of a queue pair.
    pub(crate) fn post_recvs<T>(
        &self,
        qpn: Qpn,
        post: impl FnOnce(&mut RecvQueue<'_>) -> T,
    ) -> Result<T> {
        let mut engine = self.lock();
        let Some(qp) = engine.schedule(qpn) else {
            return Err(unknown_qp(State::Init));
        };
        let left_to_thread = qp.is_left_to_thread();
        let outcome = post(&mut RecvQueue::of(qp));
        // A queue pair in ERR flushes its receives immediately.
        if let Some(engine) = self.lock_of_caller(engine, left_to_thread) {
            self.send_now(engine, self.now(Poller::Program));
        }
        Ok(outcome)
    }
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use gdr_roce::{
        AckTimeout, Capabilities, Completion, PostError, Reliability, RetryCount, WcStatus, WrId,
    };
    use gdr_udp::Deadline;

    use super::*;
    use crate::completion_queue::CompletionQueue;
    use crate::connection::Connection;
    use crate::device::Device;
    use crate::error::Error;
    use crate::loopback::{self, connect, message, post_receive};
    use crate::queue_pair::{QueuePair, Queues};
    use crate::types::{Domain, SoftOptions, Wires};

    /// The requests that the send queue takes.
    const ROOM: u32 = 8;

    /// A queue pair that is connected with itself, after a post has waited for the engine.
    struct Contended {
        device: Device,
        queue: CompletionQueue,
        pair: QueuePair<Connection>,
    }

    impl Contended {
        fn new() -> Self {
            let device = loopback::device();
            let queue = device.completion_queue(64, None);
            let sizes = Capabilities {
                max_send_wr: ROOM,
                max_recv_wr: 64,
                max_inline: 64,
            };
            let queues = Queues::completing_in(&queue);
            let pair = device.queue_pair(Domain::new(), queues, sizes, Reliability::Reliable);
            let pair = pair.unwrap();
            pair.to_init(gdr_roce::Access::all()).unwrap();
            connect(&pair, &pair).unwrap();
            let it = Self {
                device,
                queue,
                pair,
            };
            it.receives(1);
            let engine = it.engine().lock();
            thread::scope(|scope| {
                let posted = scope.spawn(|| it.post(0, &[]));
                it.await_waiter();
                drop(engine);
                posted.join().unwrap().unwrap();
            });
            it.finish(1);
            it
        }

        fn engine(&self) -> &SharedEngine {
            self.device.shards().first()
        }

        fn receives(&self, count: usize) {
            (0..count).for_each(|_| post_receive(&self.pair));
        }

        fn post(&self, id: u64, bytes: &[u8]) -> Result<()> {
            self.pair.post_send(&message(WrId(id), bytes))
        }

        /// Until a thread waits for the engine.
        fn await_waiter(&self) {
            let deadline = Deadline::after(Duration::from_secs(60));
            while self
                .engine()
                .lock_waiters
                .0
                .count
                .load(std::sync::atomic::Ordering::Relaxed)
                == 0
            {
                assert!(!deadline.has_passed(), "no thread waits");
                thread::yield_now();
            }
        }

        fn completion(&self) -> Completion {
            let deadline = Deadline::after(Duration::from_secs(60));
            self.queue.wait(deadline).unwrap().expect("a completion")
        }

        /// Waits for `messages` sends and as many receives. Returns the identifiers and statuses of the sends.
        fn finish(&self, messages: usize) -> Vec<(u64, WcStatus)> {
            let all = (0..2 * messages).map(|_| self.completion());
            let sends = all.filter(|completion| !completion.opcode.is_receive());
            sends
                .map(|completion| (completion.id.0, completion.status))
                .collect()
        }
    }

    /// Waits until the progress thread sleeps, and has nothing to do.
    fn await_sleep(engine: &SharedEngine) {
        let (mut idle, deadline) = (0, Deadline::after(Duration::from_secs(60)));
        // Permanently: a wake-up that is still due would end its sleep by itself.
        while idle < 1000 {
            assert!(!deadline.has_passed(), "the progress thread never sleeps");
            let sleep = engine.lock().sleep;
            let has_no_tick = sleep.is_some_and(|sleep| sleep.at.is_none());
            idle = if has_no_tick { idle + 1 } else { 0 };
            thread::yield_now();
        }
    }

    /// Two devices, and a queue pair of each that is connected to the other by rings.
    fn pairs_on_rings() -> (
        [Device; 2],
        [CompletionQueue; 2],
        [QueuePair<Connection>; 2],
    ) {
        let options = SoftOptions::default().port(0).wires(Wires::All);
        let devices = [(); 2].map(|()| Device::open(&options, None).unwrap());
        let queues = devices.each_ref().map(|it| it.completion_queue(8, None));
        let pairs = queues
            .each_ref()
            .map(|queue| loopback::pair(Domain::new(), queue).unwrap());
        let [near, far] = &pairs;
        let limits = (AckTimeout::new(14), RetryCount::new(7));
        for (pair, peer) in [(near, far), (far, near)] {
            let address = peer.device().address().into();
            loopback::connect_to(pair, address, peer, limits).unwrap();
        }
        (devices, queues, pairs)
    }

    #[test]
    fn a_list_behind_nothing_is_published_whole() {
        let (devices, queues, [near, far]) = pairs_on_rings();
        (0..3).for_each(|_| post_receive(&far));
        let engine = devices[0].shards().first();
        await_sleep(engine);
        // From here on the thread counts as awake, but looks no more.
        engine.lock().wake_up();
        let posted =
            near.post_sends(|queue| (1..=3).try_for_each(|id| queue.push(&message(WrId(id), &[]))));
        posted.unwrap().unwrap();
        let deadline = Deadline::after(Duration::from_secs(60));
        for _ in 0..3 {
            let received = queues[1].wait(deadline).unwrap();
            assert!(received.is_some(), "it waits for a poll of its sender");
        }
    }

    #[test]
    fn an_inline_request_on_a_ring_needs_nothing_but_the_engine() {
        let (devices, queues, [near, far]) = pairs_on_rings();
        // What is sent later needs the regions, as any poll does. The progress thread may have the engine by chance.
        let has_returned = (0..10).any(|_| {
            post_receive(&far);
            await_sleep(devices[0].shards().first());
            let regions = devices[0].shards().regions().write(0);
            let outcome = thread::scope(|scope| {
                let (posted, wait) = std::sync::mpsc::channel();
                let near = &near;
                scope.spawn(move || posted.send(near.post_send(&message(WrId(1), &[]))));
                let outcome = wait.recv_timeout(Duration::from_secs(1));
                // Lets the thread end.
                drop(regions);
                outcome
            });
            let deadline = Deadline::after(Duration::from_secs(60));
            for queue in &queues {
                let completion = queue.wait(deadline).unwrap().expect("a completion");
                assert_eq!(completion.status, WcStatus::Success);
            }
            outcome.is_ok()
        });
        assert!(has_returned, "a post waits for the regions");
    }

    #[test]
    fn a_post_to_a_locked_engine_returns_and_what_unlocks_the_engine_sends_it() {
        let it = Contended::new();
        it.receives(3);
        let engine = it.engine().lock();
        for id in 1..=2 {
            it.post(id, &[]).unwrap();
        }
        drop(engine);
        it.pair
            .post_sends(|queue| queue.push(&message(WrId(3), &[])))
            .unwrap()
            .unwrap();
        let expected = [1, 2, 3].map(|id| (id, WcStatus::Success));
        assert_eq!(it.finish(3), expected);
    }

    #[test]
    fn what_was_left_needs_no_other_call_and_no_thread_that_is_awake() {
        let it = Contended::new();
        it.receives(1);
        await_sleep(it.engine());
        let deadline = Deadline::after(Duration::from_secs(60));
        let engine = it.engine().lock();
        it.post(1, &[]).unwrap();
        drop(engine);
        for _ in 0..2 {
            let completion = it.queue.entries().pop_wait(deadline).expect("a completion");
            assert_eq!(completion.status, WcStatus::Success);
        }
    }

    #[test]
    fn a_full_queue_refuses_what_is_posted_to_a_locked_engine() {
        let it = Contended::new();
        let engine = it.engine().lock();
        // Half of the room is promised.
        for id in 0..ROOM / 2 {
            it.post(id.into(), &[]).unwrap();
        }
        thread::scope(|scope| {
            // These must ask the queue itself.
            let last = scope.spawn(|| {
                let posts = (ROOM / 2..ROOM).map(|id| it.post(id.into(), &[]));
                let all_fit = posts.collect::<Result<Vec<_>>>();
                (all_fit, it.post(99, &[]))
            });
            it.await_waiter();
            drop(engine);
            // There are no receives, so none of the others completes.
            let (all_fit, refused) = last.join().unwrap();
            all_fit.unwrap();
            let refused = refused.unwrap_err();
            assert!(
                matches!(refused, Error::Post(PostError::Full(ROOM))),
                "{refused}"
            );
        });
    }

    #[test]
    fn what_a_queue_pair_would_refuse_is_not_left() {
        let it = Contended::new();
        let engine = it.engine().lock();
        thread::scope(|scope| {
            let long = scope.spawn(|| it.post(1, &[0; 65]));
            it.await_waiter();
            drop(engine);
            let refused = long.join().unwrap().unwrap_err();
            let too_long = PostError::InlineTooLong { len: 65, max: 64 };
            assert!(
                matches!(refused, Error::Post(why) if why == too_long),
                "{refused}"
            );
        });
    }

    #[test]
    fn what_was_left_is_flushed_in_err_and_discarded_in_reset() {
        let it = Contended::new();
        let mut engine = it.engine().lock();
        it.post(1, &[]).unwrap();
        engine
            .schedule(it.pair.qpn())
            .unwrap()
            .transport
            .enter_error();
        drop(engine);
        let flushed = it.completion();
        assert_eq!((flushed.id.0, flushed.status), (1, WcStatus::WrFlushed));

        let it = Contended::new();
        let mut engine = it.engine().lock();
        it.post(1, &[]).unwrap();
        drop(engine.reset(it.pair.qpn()));
        drop(engine);
        assert_eq!(it.pair.state(), State::Reset);
        let refused = it.post(2, &[]).unwrap_err();
        assert!(
            matches!(refused, Error::Post(PostError::State(State::Reset))),
            "{refused}"
        );
        assert_eq!(it.queue.poll_one().unwrap(), None);
    }
}
