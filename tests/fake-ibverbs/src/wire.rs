//! The simulated network: it executes requests, and ends those that wait too long.

use std::sync::{Condvar, Once, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use gdr_verbs_sys::{ibv_qp_attr, ibv_qp_state as State, ibv_wc_status as Status};

use crate::state::{LibraryState, lock_state};
use crate::transfer::Step;

/// Notified when a request starts to wait.
static WAITING: Condvar = Condvar::new();

/// The interval of RNR retries. A request waits `rnr_retry` times as long, and without a limit for 7.
/// Real devices use the timer of the peer.
const UNREADY: Duration = Duration::from_millis(10);

/// Executes every request that can be executed.
pub(crate) fn advance(library: &mut LibraryState) {
    loop {
        let numbers: Vec<u32> = library.pairs.keys().copied().collect();
        let mut moved = false;
        for number in numbers {
            moved |= advance_pair(library, number);
        }
        if !moved {
            break;
        }
    }
    if next_deadline(library).is_some() {
        watch();
        WAITING.notify_all();
    }
}

/// Tries to execute the first request of a queue pair, and returns whether it is complete.
fn advance_pair(library: &mut LibraryState, number: u32) -> bool {
    let Some(pair) = library.pairs.get(&number) else {
        return false;
    };
    let (Some(send), State::IBV_QPS_RTS) = (pair.sends.front().cloned(), pair.state) else {
        return false;
    };
    let step = library.perform(number, &send);
    let Some(pair) = library.pairs.get_mut(&number) else {
        return true;
    };
    let now = Instant::now();
    let (limit, status) = match step {
        Step::Ended => return true,
        Step::Outstanding => {
            pair.silent_since = None;
            return false;
        }
        Step::Silent => {
            pair.silent_since.get_or_insert(now);
            pair.unready_since = None;
            (
                silence_deadline(pair.silent_since, &pair.attr),
                Status::IBV_WC_RETRY_EXC_ERR,
            )
        }
        Step::Unready => {
            pair.unready_since.get_or_insert(now);
            pair.silent_since = None;
            let status = Status::IBV_WC_RNR_RETRY_EXC_ERR;
            (unready_deadline(pair.unready_since, &pair.attr), status)
        }
    };
    let over = limit.is_some_and(|limit| limit <= now);
    if over {
        library.end_first(number, status);
    }
    over
}

/// When a request without a response fails: 4.096 us times 2^timeout, for each try.
fn silence_deadline(since: Option<Instant>, attr: &ibv_qp_attr) -> Option<Instant> {
    if attr.timeout == 0 {
        return None;
    }
    let once = Duration::from_nanos(4096) * 2_u32.pow(u32::from(attr.timeout.min(31)));
    Some(since? + once * (u32::from(attr.retry_cnt) + 1))
}

fn unready_deadline(since: Option<Instant>, attr: &ibv_qp_attr) -> Option<Instant> {
    (attr.rnr_retry < 7).then_some(since? + UNREADY * u32::from(attr.rnr_retry))
}

fn next_deadline(library: &LibraryState) -> Option<Instant> {
    let deadlines = library.pairs.values().flat_map(|pair| {
        [
            silence_deadline(pair.silent_since, &pair.attr),
            unready_deadline(pair.unready_since, &pair.attr),
        ]
    });
    deadlines.flatten().min()
}

/// Starts the thread that ends requests after their timeout. It runs as long as the process.
fn watch() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        let builder = thread::Builder::new().name("fake-ibverbs".to_owned());
        let started = builder.spawn(|| {
            let mut library = lock_state();
            loop {
                let left = next_deadline(&library)
                    .map(|deadline| deadline.saturating_duration_since(Instant::now()));
                // A minimum pause, if the deadline has just passed.
                let pause = left.map_or(Duration::from_secs(3600), |left| {
                    left.max(Duration::from_millis(1))
                });
                let waited = WAITING.wait_timeout(library, pause);
                library = waited.unwrap_or_else(PoisonError::into_inner).0;
                advance(&mut library);
            }
        });
        if let Err(error) = started {
            eprintln!("fake-ibverbs: the timeout thread does not start: {error}");
        }
    });
}
