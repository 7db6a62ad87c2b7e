//! What carries requests: as far as they get, and how long they wait.

use std::sync::{Condvar, Once, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use gdr_verbs_sys::{ibv_qp_attr, ibv_qp_state as State, ibv_wc_status as Status};

use crate::transfer::Step;
use crate::world::{World, world};

/// Notified when a request begins to wait.
static WAITING: Condvar = Condvar::new();

/// How long a peer without a receive is asked again for: `rnr_retry` times 10 ms, and for ever
/// for 7. Real ones use the peer's timer.
const UNREADY: Duration = Duration::from_millis(10);

/// Performs every request that can be.
pub(crate) fn advance(world: &mut World) {
    loop {
        let numbers: Vec<u32> = world.pairs.keys().copied().collect();
        let mut moved = false;
        for number in numbers {
            moved |= advance_pair(world, number);
        }
        if !moved {
            break;
        }
    }
    if next_deadline(world).is_some() {
        watch();
        WAITING.notify_all();
    }
}

/// Performs the first request of a queue pair; whether it ended.
fn advance_pair(world: &mut World, number: u32) -> bool {
    let Some(pair) = world.pairs.get(&number) else {
        return false;
    };
    let (Some(send), State::IBV_QPS_RTS) = (pair.sends.front().cloned(), pair.state) else {
        return false;
    };
    let step = world.perform(number, &send);
    let Some(pair) = world.pairs.get_mut(&number) else {
        return true;
    };
    let now = Instant::now();
    let (limit, status) = match step {
        Step::Ended => return true,
        Step::Held => {
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
        world.end_first(number, status);
    }
    over
}

/// When a request without an answer fails: 4.096 us times 2^timeout, for each try.
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

fn next_deadline(world: &World) -> Option<Instant> {
    let deadlines = world.pairs.values().flat_map(|pair| {
        [
            silence_deadline(pair.silent_since, &pair.attr),
            unready_deadline(pair.unready_since, &pair.attr),
        ]
    });
    deadlines.flatten().min()
}

/// Starts the thread that ends requests whose time is over. It lasts as long as the process.
fn watch() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        let builder = thread::Builder::new().name("fake-ibverbs".to_owned());
        let started = builder.spawn(|| {
            let mut world = world();
            loop {
                let left = next_deadline(&world)
                    .map(|deadline| deadline.saturating_duration_since(Instant::now()));
                // A pause keeps it from waiting when the deadline has just passed.
                let pause = left.map_or(Duration::from_secs(3600), |left| {
                    left.max(Duration::from_millis(1))
                });
                let waited = WAITING.wait_timeout(world, pause);
                world = waited.unwrap_or_else(PoisonError::into_inner).0;
                advance(&mut world);
            }
        });
        if let Err(error) = started {
            eprintln!("fake-ibverbs: no thread for what takes time: {error}");
        }
    });
}
