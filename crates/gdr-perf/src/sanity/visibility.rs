//! What a running kernel and the CPU see of each other.

use gdr_cuda::Direction;

use super::WAIT;
use super::outcome::{Outcome, require};
use crate::rally::{Court, Place, Rally};
use crate::site::Site;

/// A kernel that is already running sees a CPU flag and answers, wherever the answer lies.
pub(super) fn running_kernel_sees_flag(site: &Site) -> Outcome {
    for pong in [Place::Host, Place::Gpu] {
        let rounds = 1000;
        let rally = Rally::start(
            site,
            Court {
                pong,
                ..Court::flags(rounds)
            },
        )?;
        for round in 1..=rounds {
            rally.ping(round)?;
            rally.await_answer(round, Some(WAIT))?;
        }
        rally.finish(WAIT)?;
    }
    Ok(())
}

/// A kernel that sees the flag sees the data written ahead of it.
pub(super) fn data_before_flag(site: &Site) -> Outcome {
    let rounds = 500;
    let words = 1024;
    let court = Court {
        data_words: words,
        threads: 64,
        ..Court::flags(rounds)
    };
    let rally = Rally::start(site, court)?;
    for round in 1..=rounds {
        rally.write_payload(&round.to_le_bytes().repeat(words as usize))?;
        rally.ping(round)?;
        rally.await_answer(round, Some(WAIT))?;
    }
    let stale = rally.finish(WAIT)?;
    require!(
        stale == 0,
        "a kernel that had seen the flag found {stale} payload words stale"
    );
    Ok(())
}

/// The CPU that sees the kernel's flag sees the data written ahead of it.
pub(super) fn flag_before_data(site: &Site) -> Outcome {
    for pong in [Place::Host, Place::Gpu] {
        let rounds = 500;
        let words = 1024;
        let court = Court {
            pong,
            data_words: words,
            threads: 64,
            direction: Direction::GpuToCpu,
            ..Court::flags(rounds)
        };
        let rally = Rally::start(site, court)?;
        let mut seen = vec![0; 4 * words as usize];
        for round in 1..=rounds {
            rally.ping(round)?;
            rally.await_answer(round, Some(WAIT))?;
            rally.read_payload(&mut seen)?;
            let expected = round.to_le_bytes();
            let stale = seen
                .chunks_exact(4)
                .filter(|word| *word != expected)
                .count();
            require!(
                stale == 0,
                "after the kernel's flag ({}) of round {round}, {stale} words were stale",
                pong.name()
            );
        }
        rally.finish(WAIT)?;
    }
    Ok(())
}

/// Reads are fresh: a value never goes back to an older one, and once the kernel has answered it
/// is the newest.
pub(super) fn fresh_reads(site: &Site) -> Outcome {
    let rounds = 10_000;
    // One line: 16 words.
    let court = Court {
        data_words: 16,
        direction: Direction::GpuToCpu,
        threads: 16,
        ..Court::flags(rounds)
    };
    let rally = Rally::start(site, court)?;
    let mut line = [0; 64];
    let mut newest = [0; 16];
    for round in 1..=rounds {
        rally.ping(round)?;
        crate::patience::poll_until(Some(WAIT), || -> Outcome<bool> {
            let answered = rally.answered()? == round;
            rally.read_payload(&mut line)?;
            for (newest, word) in newest.iter_mut().zip(line.chunks_exact(4)) {
                let value = word
                    .iter()
                    .rev()
                    .fold(0, |value, byte| value << 8 | u32::from(*byte));
                require!(value >= *newest, "{value} was read after {newest}");
                require!(value <= round, "{value} was read in round {round}");
                require!(
                    !answered || value == round,
                    "{value} was read after answer {round}"
                );
                *newest = value;
            }
            Ok(answered)
        })?
        .then_some(())
        .ok_or_else(|| super::Stop::failed(format!("no answer to round {round}")))?;
    }
    rally.finish(WAIT)?;
    Ok(())
}

/// A kernel that waits for a flag that never comes can be ended.
pub(super) fn hung_kernel_is_stopped(site: &Site) -> Outcome {
    let rally = Rally::start(site, Court::flags(10))?;
    rally.ping(1)?;
    rally.await_answer(1, Some(WAIT))?;
    drop(rally);
    // Whoever comes next finds the GPU free.
    let buffer = super::outcome::allocate(site, gdr_cuda::MemoryKind::Plain, 4096)?;
    let stream = site.gpu().stream()?;
    stream.fill_pattern(&buffer, 0, 1024, 80, WAIT)?;
    let seen = stream.verify_pattern(&buffer, 0, 1024, 80, WAIT)?;
    super::data::require_clean("a kernel after a stopped one", seen)
}
