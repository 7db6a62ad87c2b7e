//! One end of the connection, and waiting for it.

use std::time::{Duration, Instant};

use gdr_rdma::{
    AckTimeout, Completion, CompletionQueue, ConnectionOptions, Deadline, Endpoint, Mtu,
    ProtectionDomain, QueuePair, QueuePairOptions, RetryCount, WcStatus,
};

use super::report::Ended;
use super::{Event, Observer};
use crate::error::{Error, Result};

/// Bytes of a message. RDMA allows 2 GiB; smaller ones show how far a path came that hangs.
pub(super) const MESSAGE: u64 = 16 << 20;
/// Requests in flight: more than the messages of an iteration.
const ENTRIES: usize = 128;
/// How often the observer is asked, while waiting, whether to go on.
const LOOK: Duration = Duration::from_millis(100);

/// One end of a connection.
#[derive(Debug)]
pub(super) struct Link {
    pair: QueuePair,
    queue: CompletionQueue,
}

impl Link {
    pub(super) fn new(domain: &ProtectionDomain) -> Result<Self> {
        let queue = domain.device().completion_queue(2 * ENTRIES);
        let pair = domain.queue_pair(&QueuePairOptions::new(&queue))?;
        Ok(Self { pair, queue })
    }

    pub(super) fn pair(&self) -> &QueuePair {
        &self.pair
    }

    pub(super) fn connect(&self, peer: &Endpoint, mtu: Mtu, limit: Duration) -> Result<()> {
        let options = ConnectionOptions {
            timeout: ack_timeout(limit),
            retry_count: RetryCount::new(7),
            ..ConnectionOptions::new(mtu)
        };
        Ok(self.pair.connect(peer, &options)?)
    }

    /// The next completion, if there is one.
    pub(super) fn poll(&self) -> Result<Option<Completion>> {
        Ok(self.queue.poll()?)
    }

    /// Waits for `due` completions since `start`, each of which must be a success that `right`
    /// finds nothing wrong with.
    pub(super) fn wait(
        &self,
        start: Instant,
        limit: Duration,
        due: u32,
        observer: &mut Observer<'_>,
        right: impl Fn(&Completion) -> Option<String>,
    ) -> Result<Ended> {
        for completions in 0..due {
            let completion = loop {
                let left = (start + limit).saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Ok(Ended::Late {
                        waited_ms: limit.as_millis() as u64,
                        completions,
                        due,
                    });
                }
                match self.queue.wait(Deadline::after(left.min(LOOK))) {
                    Ok(completion) => break completion,
                    Err(gdr_rdma::Error::Deadline { .. }) => observer.tell(Event::Waiting)?,
                    Err(error) => return Err(error.into()),
                }
            };
            if completion.status != WcStatus::Success {
                return Ok(explain(completion.status));
            }
            if let Some(reason) = right(&completion) {
                return Ok(Ended::Failed { reason });
            }
        }
        let ns = start.elapsed().as_nanos() as u64;
        Ok(Ended::Done { ns })
    }
}

/// That `completion` is a success of `what`.
pub(super) fn success(completion: &Completion, what: &str) -> Result<()> {
    let status = completion.status;
    if status == WcStatus::Success {
        return Ok(());
    }
    let (name, remedy) = name_and_remedy(status);
    Err(Error::Transfer {
        what: what.to_owned(),
        why: format!("completed with {name}: {status}"),
        remedy: remedy.to_owned(),
    })
}

/// How long to wait for an answer before sending again: 268 ms, so that a busy machine is not
/// taken for a dead one, and so little that all eight attempts fit into `limit`.
fn ack_timeout(limit: Duration) -> AckTimeout {
    let fits = |exponent: &u8| {
        let wait = AckTimeout::new(*exponent).duration();
        wait.is_some_and(|wait| wait * 8 <= limit)
    };
    AckTimeout::new((1..=16).rev().find(fits).unwrap_or(1))
}

fn explain(status: WcStatus) -> Ended {
    let (name, remedy) = name_and_remedy(status);
    Ended::Error {
        status: name.to_owned(),
        meaning: status.to_string(),
        remedy: remedy.to_owned(),
    }
}

/// An error status, as `enum ibv_wc_status` names it, and what to do.
fn name_and_remedy(status: WcStatus) -> (&'static str, &'static str) {
    match status {
        WcStatus::LocalLength => ("LOC_LEN_ERR", "this is a bug in gdr: report it"),
        WcStatus::LocalProtection => (
            "LOC_PROT_ERR",
            "the memory of this side failed or was unmapped; for GPU memory see `dmesg` for Xid \
             messages",
        ),
        WcStatus::WrFlushed => (
            "WR_FLUSH_ERR",
            "the connection failed before, perhaps by an error at the peer: look at its message",
        ),
        WcStatus::BadResponse => (
            "BAD_RESP_ERR",
            "the peer speaks another protocol: use one gdr on both sides",
        ),
        WcStatus::RemoteInvalidRequest => (
            "REM_INV_REQ_ERR",
            "use one gdr on both sides; the same on both is a bug: report it",
        ),
        WcStatus::RemoteAccess => (
            "REM_ACCESS_ERR",
            "the peer withdrew its memory or gave another key: look at its message",
        ),
        WcStatus::RemoteOperation => (
            "REM_OP_ERR",
            "the peer could not place or fetch the bytes; for GPU memory see `dmesg` there for Xid \
             messages, and compare --staged with --direct",
        ),
        WcStatus::RetryExceeded => (
            "RETRY_EXC_ERR",
            "see whether the peer still runs, and whether a firewall drops UDP between the two \
             addresses",
        ),
        WcStatus::RnrRetryExceeded => (
            "RNR_RETRY_EXC_ERR",
            "the peer posted no receive: look at its message",
        ),
        _ => ("an unknown status", "look at the peer's message"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
