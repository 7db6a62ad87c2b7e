//! Long transfers over several queue pairs.

use std::collections::VecDeque;

use gdr_roce::{Completion, Remote, WrId};

use crate::error::Result;
use crate::memory_region::MemoryRegion;
use crate::queue_pair::QueuePair;
use crate::work_request::SendRequest;

/// Maximum length of a part, and of a part in a transfer with at least [`PARTS`] of them. Long parts detect a stalled
/// transfer late, and short ones add overhead.
const PART: u64 = 1 << 20;
const LONGEST_PART: u64 = 4 << 20;
const PARTS: u64 = 64;
/// Parts begin at multiples of a page.
const PART_ALIGNMENT: u64 = 4096;
/// Outstanding requests per queue pair, which is the number of READs that it may have outstanding.
const WINDOW: usize = 16;
/// The low bits of a request's identifier that hold its number; the high bits are its queue pair.
const NUMBER_BITS: u32 = 48;

/// Spreads requests over several queue pairs. The queue pair with the fewest outstanding requests gets
/// the next request.
///
/// All queue pairs must be connected to the same device, and use the same completion queue for their
/// sends, with room for the [window](Stripe::window) of each. The caller polls that queue, passes the
/// completions to the stripe, and posts again:
///
/// ```no_run
/// # use gdr_rdma::{Deadline, QueuePair, Stripe, StripedRange, WcStatus};
/// # fn transfer(
/// #     pairs: &[QueuePair],
/// #     range: &StripedRange<'_>,
/// #     deadline: Deadline,
/// # ) -> Result<(), Box<dyn std::error::Error>> {
/// let mut parts = range.writes(pairs.len())?.into_iter();
/// let mut stripe = Stripe::over(pairs);
/// loop {
///     stripe.post(&mut parts)?;
///     if stripe.outstanding() == 0 {
///         break;
///     }
///     let completion = pairs[0].send_queue().wait(deadline)?;
///     if completion.status != WcStatus::Success {
///         return Err(completion.status.to_string().into());
///     }
///     stripe.completed(&completion);
/// }
/// # Ok(())
/// # }
/// ```
///
/// After an error, requests may still be outstanding; they end with their queue pairs.
///
/// Queue pairs in different shards of the soft provider use different processors, and each queue pair
/// has its own window on the network.
#[derive(Debug)]
pub struct Stripe<'a> {
    pairs: Vec<&'a QueuePair>,
    requests: Outstanding,
}

/// A request of a [`Stripe`].
#[derive(Clone, Debug)]
#[must_use]
pub struct StripedPart {
    /// The request, which must be signalled. The stripe replaces its identifier.
    pub request: SendRequest,
    /// The number of bytes that [`Stripe::moved`] counts for it.
    pub bytes: u64,
}

/// The memory of both sides of a transfer, and its length.
#[derive(Clone, Copy, Debug)]
pub struct StripedRange<'a> {
    /// The memory of this side.
    pub local: &'a MemoryRegion,
    /// The offset of the first byte in it.
    pub offset: u64,
    /// The first byte of the peer's memory.
    pub remote: Remote,
    /// The number of bytes.
    pub len: u64,
}

impl<'a> Stripe<'a> {
    /// The length from which on a transfer gains from several queue pairs; shorter transfers end before
    /// all queue pairs are busy.
    pub const LONG_TRANSFER: u64 = 16 << 20;

    /// Spreads requests over these queue pairs, with up to 16 outstanding requests on each.
    pub fn over(pairs: impl IntoIterator<Item = &'a QueuePair>) -> Self {
        let pairs: Vec<_> = pairs.into_iter().collect();
        let requests = Outstanding::new(pairs.len());
        Self { pairs, requests }
    }

    /// Sets how many requests may be outstanding per queue pair, at least one.
    #[must_use]
    pub fn window(mut self, window: usize) -> Self {
        self.requests.window = window.max(1);
        self
    }

    /// Numbers the requests from `number` on, which has at most 48 bits. Completions with lower numbers do
    /// not belong to this stripe.
    #[must_use]
    pub fn numbered_from(mut self, number: u64) -> Self {
        self.requests.first = number;
        self.requests.next = number;
        self
    }

    /// Returns the number of the next request.
    pub fn next_number(&self) -> u64 {
        self.requests.next
    }

    /// Takes as many requests from `parts` as the windows have room for, and posts them. Each queue pair
    /// gets its requests in the order of `parts`, whose `next` may be called again after it has returned
    /// `None`.
    ///
    /// # Errors
    /// The errors of [`QueuePair::post_sends`]. Requests that were taken but not posted are lost.
    pub fn post(&mut self, parts: &mut impl Iterator<Item = StripedPart>) -> Result<()> {
        let mut requests: Vec<Vec<SendRequest>> = vec![Vec::new(); self.pairs.len()];
        while let Some(pair) = self.requests.idlest()
            && let Some(StripedPart { mut request, bytes }) = parts.next()
        {
            request.id = self.requests.begin(pair, bytes);
            requests[pair].push(request);
        }
        let mut outcome = Ok(());
        for (pair, requests) in requests.into_iter().enumerate() {
            let taken = requests.len();
            if taken == 0 {
                continue;
            }
            let posted = match &outcome {
                Ok(()) => self.pairs[pair].post_sends(requests),
                Err(_) => {
                    self.requests.withdraw(pair, taken);
                    continue;
                }
            };
            if let Err(refused) = posted {
                self.requests.withdraw(pair, taken - refused.posted);
                outcome = Err(refused.error);
            }
        }
        outcome
    }

    /// Records a completion, and returns whether it belongs to this stripe. The caller has to check its
    /// status.
    pub fn completed(&mut self, completion: &Completion) -> bool {
        !completion.opcode.is_receive() && self.requests.end(completion.id)
    }

    /// Returns the number of requests that are posted but not complete.
    pub fn outstanding(&self) -> usize {
        self.requests.outstanding.iter().map(VecDeque::len).sum()
    }

    /// Returns the number of bytes in completed requests.
    pub fn moved(&self) -> u64 {
        self.requests.moved
    }

    /// Returns the offsets and lengths of the parts into which a transfer of `len` bytes over this many
    /// queue pairs is split. Parts have at most 1 MiB, or 4 MiB in transfers of 64 MiB or more; short
    /// transfers are split into whole pages for each queue pair.
    pub fn parts(len: u64, queue_pairs: usize) -> impl Iterator<Item = (u64, u64)> {
        let share = len.div_ceil(queue_pairs.max(1) as u64);
        let most = (len / PARTS).clamp(PART, LONGEST_PART);
        let part = share.min(most).next_multiple_of(PART_ALIGNMENT);
        let starts = (0..len.div_ceil(part.max(1))).map(move |number| number * part);
        starts.map(move |start| (start, part.min(len - start)))
    }
}

impl StripedRange<'_> {
    /// Returns WRITEs for all its parts.
    ///
    /// # Errors
    /// [`NicError::OutOfRange`](crate::NicError::OutOfRange) if it ends past this side's region.
    pub fn writes(&self, queue_pairs: usize) -> Result<Vec<StripedPart>> {
        self.requests(queue_pairs, |remote| SendRequest::write(WrId(0), remote))
    }

    /// Returns READs for all its parts.
    ///
    /// # Errors
    /// Same as [`StripedRange::writes`].
    pub fn reads(&self, queue_pairs: usize) -> Result<Vec<StripedPart>> {
        self.requests(queue_pairs, |remote| SendRequest::read(WrId(0), remote))
    }

    fn requests(
        &self,
        queue_pairs: usize,
        request: impl Fn(Remote) -> SendRequest,
    ) -> Result<Vec<StripedPart>> {
        let parts = Stripe::parts(self.len, queue_pairs);
        let parts = parts.map(|(start, bytes)| {
            let remote = Remote {
                addr: self.remote.addr.wrapping_add(start),
                ..self.remote
            };
            let segment = self
                .local
                .segment(self.offset.saturating_add(start), bytes)?;
            let request = request(remote).segment(segment);
            Ok(StripedPart { request, bytes })
        });
        parts.collect()
    }
}

/// Tracks which requests each queue pair has, using only the order of their numbers.
#[derive(Debug)]
struct Outstanding {
    /// Bytes of the requests of each queue pair, which complete in this order.
    outstanding: Vec<VecDeque<u64>>,
    window: usize,
    first: u64,
    next: u64,
    moved: u64,
}

impl Outstanding {
    fn new(pairs: usize) -> Self {
        Self {
            outstanding: vec![VecDeque::new(); pairs],
            window: WINDOW,
            first: 0,
            next: 0,
            moved: 0,
        }
    }

    /// Returns the queue pair with the fewest outstanding requests, unless its window is full.
    fn idlest(&self) -> Option<usize> {
        let pairs = self.outstanding.iter().map(VecDeque::len).enumerate();
        let (pair, outstanding) = pairs.min_by_key(|(_, outstanding)| *outstanding)?;
        (outstanding < self.window).then_some(pair)
    }

    /// Records that the queue pair `pair` gets the next request, with `bytes` bytes, and returns its identifier.
    fn begin(&mut self, pair: usize, bytes: u64) -> WrId {
        self.outstanding[pair].push_back(bytes);
        let id = WrId((pair as u64) << NUMBER_BITS | self.next);
        self.next += 1;
        id
    }

    /// Takes back the last requests of a queue pair.
    fn withdraw(&mut self, pair: usize, requests: usize) {
        let pair = &mut self.outstanding[pair];
        pair.truncate(pair.len() - requests);
    }

    /// Records a completion, and returns whether its request belongs to these queue pairs.
    fn end(&mut self, WrId(id): WrId) -> bool {
        let number = id & ((1 << NUMBER_BITS) - 1);
        let pair = self.outstanding.get_mut((id >> NUMBER_BITS) as usize);
        let is_own = (self.first..self.next).contains(&number);
        let Some(bytes) = pair.filter(|_| is_own).and_then(VecDeque::pop_front) else {
            return false;
        };
        self.moved += bytes;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_a_transfer_once() {
        for pairs in [1, 2, 3, 8, 64] {
            for len in [
                1,
                4095,
                4097,
                PART - 1,
                PART,
                PART + 1,
                5 * PART + 7,
                64 * PART,
                64 * PART + 1,
                1000 * PART,
            ] {
                let mut end = 0;
                for (at, part) in Stripe::parts(len, pairs) {
                    assert_eq!(at, end);
                    assert!(at.is_multiple_of(PART_ALIGNMENT));
                    let most = if len > 64 * PART { LONGEST_PART } else { PART };
                    assert!(part > 0 && part <= most);
                    end += part;
                }
                assert_eq!(end, len);
            }
            assert_eq!(Stripe::parts(0, pairs).count(), 0);
        }
    }

    #[test]
    fn a_short_transfer_has_a_part_for_each_queue_pair_and_for_one_is_not_divided() {
        assert_eq!(Stripe::parts(64 << 10, 8).count(), 8);
        assert_eq!(Stripe::parts(PART, 1).count(), 1);
        assert_eq!(Stripe::parts(4096, 8).count(), 1);
    }

    #[test]
    fn the_queue_pair_with_the_fewest_requests_gets_the_next_until_all_windows_are_full() {
        let mut requests = Outstanding::new(3);
        requests.window = 2;
        let mut begun = Vec::new();
        while let Some(pair) = requests.idlest() {
            begun.push((pair, requests.begin(pair, 10)));
            assert!(begun.len() <= 6, "{begun:?}");
        }
        let order: Vec<_> = begun.iter().map(|(pair, _)| *pair).collect();
        assert_eq!(order, [0, 1, 2, 0, 1, 2]);
        assert!(requests.end(begun[4].1));
        assert_eq!((requests.idlest(), requests.moved), (Some(1), 10));
    }

    #[test]
    fn completions_of_other_requests_are_not_counted() {
        let mut requests = Outstanding::new(2);
        (requests.first, requests.next) = (7, 7);
        let own = requests.begin(1, 5);
        // A number before it, one that was not posted, one of another queue pair, and one of a receive.
        let later = WrId(own.0 + 1);
        for other in [WrId(6), later, WrId(2 << NUMBER_BITS | 7), WrId(u64::MAX)] {
            assert!(!requests.end(other), "{other:?}");
        }
        assert!(requests.end(own));
        assert!(!requests.end(own), "it is complete already");
        assert_eq!(requests.moved, 5);
    }
}
