//! One end of the RDMA connection, and waits for its completions.

use std::hint;
use std::slice;
use std::thread;
use std::time::{Duration, Instant};

use gdr_rdma::{
    AckTimeout, AsyncEvent, Completion, CompletionQueue, ConnectionOptions, Deadline, Endpoint,
    Mtu, ProtectionDomain, QueuePair, QueuePairOptions, RetryCount, Stripe, StripedPart, Watch,
    WcStatus,
};

use super::event::{Event, Observer};
use super::report::Ended;
use crate::error::{Error, PEER_ENDED, Result, TransferFailure};

/// Completion queue entries for each direction of a queue pair. An iteration has fewer messages.
const ENTRIES: usize = 128;
/// Empty polls between two readings of the clock.
const POLLS: u32 = 64;
/// How often a wait notifies the observer, which may stop the run, or checks whether the peer is still there.
const LOOK: Duration = Duration::from_millis(100);

/// One end of a connection.
#[derive(Debug)]
pub(super) struct Connection {
    /// One queue pair, or several for long transfers.
    pairs: Vec<QueuePair>,
    queue: CompletionQueue,
    /// The session with a peer that sends nothing while requests are measured.
    peer: Option<Watch>,
}

impl Connection {
    pub(super) fn new(domain: &ProtectionDomain) -> Result<Self> {
        Self::over(domain, 1)
    }

    /// Creates a connection over several queue pairs.
    pub(super) fn over(domain: &ProtectionDomain, queue_pairs: usize) -> Result<Self> {
        let queue = domain.device().completion_queue(2 * ENTRIES * queue_pairs);
        let options = QueuePairOptions::new(&queue);
        let pairs = (0..queue_pairs).map(|_| domain.queue_pair(&options));
        Ok(Self {
            pairs: pairs.collect::<Result<_, _>>()?,
            queue,
            peer: None,
        })
    }

    /// Ends [`Connection::spin`] when the peer sends a message or closes the session.
    pub(super) fn watch(&mut self, peer: Watch) {
        self.peer = Some(peer);
    }

    /// Returns the first queue pair.
    pub(super) fn pair(&self) -> &QueuePair {
        &self.pairs[0]
    }

    /// Returns every queue pair.
    pub(super) fn pairs(&self) -> &[QueuePair] {
        &self.pairs
    }

    /// Returns what the peer must know about each queue pair.
    pub(super) fn endpoints(&self) -> Vec<Endpoint> {
        self.pairs.iter().map(QueuePair::endpoint).collect()
    }

    /// Connects the only queue pair; requests without an answer fail after `give_up_after`.
    pub(super) fn connect(&self, peer: &Endpoint, mtu: Mtu, give_up_after: Duration) -> Result<()> {
        self.connect_all(slice::from_ref(peer), mtu, give_up_after)
    }

    /// Connects each queue pair with one of the peer.
    pub(super) fn connect_all(
        &self,
        peers: &[Endpoint],
        mtu: Mtu,
        give_up_after: Duration,
    ) -> Result<()> {
        let options = ConnectionOptions {
            timeout: ack_timeout(give_up_after),
            retry_count: RetryCount::new(7),
            give_up_after: Some(give_up_after),
            ..ConnectionOptions::new(mtu)
        };
        for (pair, peer) in self.pairs.iter().zip(peers) {
            pair.connect(peer, &options)?;
        }
        Ok(())
    }

    /// Takes the next completion from the queue.
    fn poll(&self) -> Result<Option<Completion>> {
        Ok(self.queue.poll()?)
    }

    /// Polls for the next completion until `deadline` without sleeping, as perftest does. The completion must be a
    /// success of `what`, an operation and its size.
    pub(super) fn spin(
        &self,
        deadline: Instant,
        limit: Duration,
        what: (&'static str, u64),
    ) -> Result<()> {
        let (operation, size) = what;
        let failed = |failure| Error::Transfer {
            operation,
            size,
            failure,
        };
        let mut polls = 0_u32;
        let mut look = None;
        loop {
            if let Some(completion) = self.poll()? {
                let has_ended = || self.peer.as_ref().is_some_and(Watch::is_due);
                return match is_without_answer(completion.status) && has_ended() {
                    true => Err(failed(TransferFailure::Interrupted)),
                    false => success(&completion, operation, size),
                };
            }
            polls += 1;
            if !polls.is_multiple_of(POLLS) {
                hint::spin_loop();
                continue;
            }
            let now = Instant::now();
            if now >= deadline {
                return Err(failed(TransferFailure::Deadline { limit }));
            }
            if now >= *look.get_or_insert(now + LOOK) {
                look = Some(now + LOOK);
                if self.peer.as_ref().is_some_and(Watch::is_due) {
                    return Err(failed(TransferFailure::Interrupted));
                }
            }
            thread::yield_now();
        }
    }

    /// Waits until `limit` after `start` for `due` completions. Each must be a success to which `right` raises no
    /// objection.
    pub(super) fn wait(
        &self,
        start: Instant,
        limit: Duration,
        due: u32,
        observer: &mut Observer<'_>,
        right: impl Fn(&Completion) -> Option<String>,
    ) -> Result<Ended> {
        for completions in 0..due {
            match self.next(start, limit, observer)? {
                Next::Completion(completion) => {
                    if let Some(reason) = right(&completion) {
                        return Ok(Ended::Failed { reason });
                    }
                }
                Next::Late => return Ok(late(limit, completions, due)),
                Next::Ended(ended) => return Ok(ended),
            }
        }
        Ok(done(start))
    }

    /// Executes requests over all queue pairs, and waits until `limit` after `start` for their
    /// completions.
    pub(super) fn execute(
        &self,
        parts: Vec<StripedPart>,
        start: Instant,
        limit: Duration,
        observer: &mut Observer<'_>,
    ) -> Result<Ended> {
        let due = parts.len() as u32;
        let mut parts = parts.into_iter();
        let mut stripe = Stripe::over(&self.pairs);
        let mut completions = 0;
        let mut refusal = None;
        loop {
            if refusal.is_none() {
                refusal = stripe.post(&mut parts).err();
            }
            if stripe.outstanding() == 0 {
                return Ok(match refusal {
                    Some(error) => Ended::Failed {
                        reason: error.to_string(),
                    },
                    None => done(start),
                });
            }
            // Also after a refusal, because the completions of earlier requests explain more than the refusal does.
            match self.next(start, limit, observer)? {
                Next::Completion(completion) => {
                    completions += u32::from(stripe.completed(&completion));
                }
                Next::Late => return Ok(late(limit, completions, due)),
                Next::Ended(ended) => return Ok(ended),
            }
        }
    }

    /// Waits until `limit` after `start` for the next completion.
    fn next(&self, start: Instant, limit: Duration, observer: &mut Observer<'_>) -> Result<Next> {
        loop {
            let left = (start + limit).saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(Next::Late);
            }
            match self.queue.wait(Deadline::after(left.min(LOOK))) {
                Ok(completion) if completion.status != WcStatus::Success => {
                    let is_unanswered = is_without_answer(completion.status);
                    return Ok(Next::Ended(
                        match is_unanswered && observer.is_interrupted() {
                            true => interrupted(),
                            false => self.explain(completion.status),
                        },
                    ));
                }
                Ok(completion) => return Ok(Next::Completion(completion)),
                Err(gdr_rdma::Error::Deadline { .. }) => {
                    observer.notify(Event::Waiting)?;
                    if observer.is_interrupted() {
                        return Ok(Next::Ended(interrupted()));
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn explain(&self, status: WcStatus) -> Ended {
        let (name, remedy) = name_and_advice(status);
        let mut meaning = status.to_string();
        if status == WcStatus::WrFlushed
            && let Some(event) = self.fatal_event()
        {
            meaning += &format!("; before that, {event}");
        }
        Ended::Error {
            status: name.to_owned(),
            meaning,
            remedy: remedy.to_owned(),
        }
    }

    /// Returns the asynchronous event that explains why a queue pair failed.
    fn fatal_event(&self) -> Option<&'static str> {
        let device = self.pair().domain().device();
        let is_own = |qpn| self.pairs.iter().any(|pair| pair.qpn() == qpn);
        std::iter::from_fn(|| device.poll_event()).find_map(|event| match event {
            AsyncEvent::QueuePair { qpn, event } if is_own(qpn) => match event {
                gdr_rdma::Event::InvalidRequest => {
                    Some("the peer sent a request that breaks the protocol")
                }
                gdr_rdma::Event::AccessViolation => {
                    Some("the peer sent a request that this side's memory does not permit")
                }
                gdr_rdma::Event::Fatal => {
                    Some("the device moved the queue pair to the error state")
                }
                _ => None,
            },
            AsyncEvent::DeviceFatal => Some("the device failed permanently"),
            AsyncEvent::PortDown { .. } => Some("the port's link went down"),
            AsyncEvent::CompletionQueueLost => Some("the completion queue overran"),
            _ => None,
        })
    }
}

/// What a wait for a completion found.
enum Next {
    /// A success.
    Completion(Completion),
    /// The limit has passed.
    Late,
    /// A request failed, or the peer ended.
    Ended(Ended),
}

/// Returns whether a request may have failed because the peer has ended.
fn is_without_answer(status: WcStatus) -> bool {
    matches!(status, WcStatus::RetryExceeded | WcStatus::WrFlushed)
}

fn interrupted() -> Ended {
    let reason = PEER_ENDED.to_owned();
    Ended::Failed { reason }
}

fn late(limit: Duration, completions: u32, due: u32) -> Ended {
    Ended::Late {
        waited_ms: limit.as_millis() as u64,
        completions,
        due,
    }
}

fn done(start: Instant) -> Ended {
    let ns = start.elapsed().as_nanos() as u64;
    Ended::Done { ns }
}

/// Fails unless `completion` is a success of `operation` on `size` bytes.
pub(crate) fn success(completion: &Completion, operation: &'static str, size: u64) -> Result<()> {
    let status = completion.status;
    if status == WcStatus::Success {
        return Ok(());
    }
    let (name, advice) = name_and_advice(status);
    Err(Error::Transfer {
        operation,
        size,
        failure: TransferFailure::Completion {
            name,
            status,
            advice,
        },
    })
}

/// Returns how long to wait for an acknowledgement before a request is retransmitted: at most 268 ms, which is enough
/// for a busy machine and short enough for eight attempts within `limit`.
pub(crate) fn ack_timeout(limit: Duration) -> AckTimeout {
    let fits = |exponent: &u8| {
        let wait = AckTimeout::new(*exponent).duration();
        wait.is_some_and(|wait| wait * 8 <= limit)
    };
    AckTimeout::new((1..=16).rev().find(fits).unwrap_or(1))
}

/// Returns the name of an error status in `enum ibv_wc_status`, and what to do.
fn name_and_advice(status: WcStatus) -> (&'static str, &'static str) {
    match status {
        WcStatus::LocalLength => ("LOC_LEN_ERR", "this is a bug in gdr: report it"),
        WcStatus::LocalProtection => (
            "LOC_PROT_ERR",
            "the memory of this side failed or was unmapped; for GPU memory see `dmesg` for Xid \
             messages",
        ),
        WcStatus::WrFlushed => (
            "WR_FLUSH_ERR",
            "the connection had failed before, perhaps by an error at the peer: see its message",
        ),
        WcStatus::BadResponse => (
            "BAD_RESP_ERR",
            "the peer speaks another protocol: use the same version of gdr on both sides",
        ),
        WcStatus::RemoteInvalidRequest => (
            "REM_INV_REQ_ERR",
            "use the same version of gdr on both sides; if it is the same, this is a bug: report it",
        ),
        WcStatus::RemoteAccess => (
            "REM_ACCESS_ERR",
            "the peer withdrew its memory or gave another key: see its message",
        ),
        WcStatus::RemoteOperation => (
            "REM_OP_ERR",
            "the peer could not place or fetch the bytes; for GPU memory see `dmesg` there for Xid \
             messages, and compare a staged run with a direct one",
        ),
        WcStatus::RetryExceeded => (
            "RETRY_EXC_ERR",
            "check whether the peer still runs, and whether a firewall drops UDP between the two \
             addresses",
        ),
        WcStatus::RnrRetryExceeded => (
            "RNR_RETRY_EXC_ERR",
            "the peer posted no receive: see its message",
        ),
        _ => ("an unknown status", "see the peer's message"),
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::ops::ControlFlow;

    use fake_ibverbs::{DeviceSpec, Fake, Fault};
    use gdr_rdma::{
        Access, Buffer, Device, RecvRequest, Rkey, SendRequest, SoftOptions, VerbsOptions, WrId,
    };

    use super::*;

    /// Returns the message of a wait for a completion that failed.
    fn explanation(link: &Connection) -> String {
        let mut observe = |_: Event<'_>| ControlFlow::Continue(());
        let mut observer = Observer::new(&mut observe);
        let limit = Duration::from_secs(60);
        match link.wait(Instant::now(), limit, 1, &mut observer, |_| None) {
            Ok(Ended::Error {
                status, meaning, ..
            }) => format!("{status}: {meaning}"),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn flushed_requests_are_explained_by_what_the_device_said_of_their_queue_pair() {
        let device = Device::soft_with(SoftOptions::default().port(0)).unwrap();
        let domain = device.protection_domain();
        let (near, far) = (
            Connection::new(&domain).unwrap(),
            Connection::new(&domain).unwrap(),
        );
        let limit = Duration::from_secs(60);
        near.connect(&far.pair().endpoint(), Mtu::B1024, limit)
            .unwrap();
        far.connect(&near.pair().endpoint(), Mtu::B1024, limit)
            .unwrap();
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let region = domain.register(&Buffer::host(64).unwrap(), access).unwrap();
        near.pair().post_recv(RecvRequest::new(WrId(1))).unwrap();
        let mut target = region.remote();
        target.rkey = Rkey(target.rkey.0 ^ 1);
        let write = SendRequest::write(WrId(2), target.at(0));
        far.pair()
            .post_send(write.segment(region.segment(0, 8).unwrap()))
            .unwrap();
        let refused = explanation(&far);
        assert!(refused.starts_with("REM_ACCESS_ERR"), "{refused}");
        assert!(!refused.contains("before that"), "{refused}");
        let flushed = explanation(&near);
        assert!(flushed.starts_with("WR_FLUSH_ERR"), "{flushed}");
        let why = "before that, the peer sent a request that this side's memory does not permit";
        assert!(flushed.ends_with(why), "{flushed}");
        // An event explains a single end.
        assert_eq!(near.fatal_event(), None);
    }

    #[test]
    fn events_of_the_device_and_of_this_queue_pair_end_a_run_and_those_of_others_do_not() {
        let fake = Fake::load();
        fake.add(DeviceSpec::roce("mlx5_0", Ipv4Addr::new(10, 1, 0, 1)));
        let options = VerbsOptions::new().library(fake.verbs());
        let device = Device::verbs(&options.device("mlx5_0")).unwrap();
        let domain = device.protection_domain();
        let (link, other) = (
            Connection::new(&domain).unwrap(),
            Connection::new(&domain).unwrap(),
        );
        let [own, others] = [&link, &other].map(|link| Some(link.pair().qpn().get()));
        // The numbers come from `enum ibv_event_type`.
        for (event, element, says) in [
            (
                1,
                own,
                Some("the device moved the queue pair to the error state"),
            ),
            (2, own, Some("breaks the protocol")),
            (3, own, Some("does not permit")),
            (4, own, None),
            (1, others, None),
            (2, others, None),
            (3, others, None),
            (9, None, None),
            (10, None, Some("link went down")),
            (8, None, Some("the device failed")),
        ] {
            fake.fault("mlx5_0", Fault::Raise(event, element));
            let said = link.fatal_event();
            match says {
                Some(says) => assert!(said.is_some_and(|said| said.contains(says)), "{event}"),
                None => assert_eq!(said, None, "{event}"),
            }
        }
        // An event without meaning for the run does not hide the next one.
        for event in [9, 10] {
            fake.fault("mlx5_0", Fault::Raise(event, None));
        }
        assert_eq!(link.fatal_event(), Some("the port's link went down"));
    }

    #[test]
    fn all_attempts_fit_into_the_limit() {
        for seconds in [1, 2, 3, 10, 1000] {
            let limit = Duration::from_secs(seconds);
            let wait = ack_timeout(limit).duration().unwrap();
            assert!(wait * 8 <= limit, "{seconds}");
            assert!(wait >= Duration::from_millis(67), "{seconds}");
        }
    }
}
