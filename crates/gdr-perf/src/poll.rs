//! Polling with a deadline.

use std::hint;
use std::thread;
use std::time::{Duration, Instant};

/// Polls between two readings of the clock, which cost as much as several polls.
const POLLS_PER_LOOK: u32 = 256;
/// After this time the thread yields between polls. The other side may need the CPU, as a simulated GPU does, and a low
/// latency is out of reach by then.
const POLITE_AFTER: Duration = Duration::from_micros(200);

/// Polls `ready` until it returns `true`. Returns `false` after `limit`; polls forever without a limit.
pub(crate) fn poll_until<E>(
    limit: Option<Duration>,
    mut ready: impl FnMut() -> Result<bool, E>,
) -> Result<bool, E> {
    let start = Instant::now();
    let mut polls = 0u32;
    let mut polite = false;
    loop {
        if ready()? {
            return Ok(true);
        }
        polls += 1;
        if polite {
            thread::yield_now();
        } else {
            hint::spin_loop();
        }
        if polite || polls.is_multiple_of(POLLS_PER_LOOK) {
            let waited = start.elapsed();
            if limit.is_some_and(|limit| waited >= limit) {
                return Ok(false);
            }
            polite = waited >= POLITE_AFTER;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_ends_at_its_limit() {
        let never = poll_until::<()>(Some(Duration::from_millis(1)), || Ok(false));
        assert_eq!(never, Ok(false));
        assert_eq!(poll_until::<()>(None, || Ok(true)), Ok(true));
        assert_eq!(poll_until(None, || Err("broken")), Err("broken"));
    }
}
