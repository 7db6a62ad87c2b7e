//! Checks what a running kernel and the CPU see of each other.

use gdr_cuda::Direction;

use super::WAIT;
use super::outcome::{Outcome, require};
use crate::bench_target::BenchTarget;
use crate::ping_pong::{Layout, MemoryLocation, PingPong};

/// Checks that a running kernel reads the CPU's flag and answers, in GPU and in host memory.
pub(super) fn running_kernel_sees_flag(target: &BenchTarget) -> Outcome {
    for pong in [MemoryLocation::Host, MemoryLocation::Gpu] {
        let rounds = 1000;
        let ping_pong = PingPong::start(
            target,
            Layout {
                pong,
                ..Layout::flags(rounds)
            },
        )?;
        for round in 1..=rounds {
            ping_pong.ping(round)?;
            ping_pong.await_answer(round, Some(WAIT))?;
        }
        ping_pong.finish(WAIT)?;
    }
    Ok(())
}

/// Checks that a kernel which reads the flag also reads the data written before it.
pub(super) fn data_before_flag(target: &BenchTarget) -> Outcome {
    let rounds = 500;
    let words = 1024;
    let court = Layout {
        data_words: words,
        threads: 64,
        ..Layout::flags(rounds)
    };
    let ping_pong = PingPong::start(target, court)?;
    for round in 1..=rounds {
        ping_pong.write_payload(&round.to_le_bytes().repeat(words as usize))?;
        ping_pong.ping(round)?;
        ping_pong.await_answer(round, Some(WAIT))?;
    }
    let stale = ping_pong.finish(WAIT)?;
    require!(
        stale == 0,
        "a kernel that had seen the flag found {stale} payload words stale"
    );
    Ok(())
}

/// Checks that a CPU which reads the kernel's flag also reads the data written before it.
pub(super) fn flag_before_data(target: &BenchTarget) -> Outcome {
    for pong in [MemoryLocation::Host, MemoryLocation::Gpu] {
        let rounds = 500;
        let words = 1024;
        let court = Layout {
            pong,
            data_words: words,
            threads: 64,
            direction: Direction::GpuToCpu,
            ..Layout::flags(rounds)
        };
        let ping_pong = PingPong::start(target, court)?;
        let mut seen = vec![0; 4 * words as usize];
        for round in 1..=rounds {
            ping_pong.ping(round)?;
            ping_pong.await_answer(round, Some(WAIT))?;
            ping_pong.read_payload(&mut seen)?;
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
        ping_pong.finish(WAIT)?;
    }
    Ok(())
}

/// Checks that reads are fresh: a value never reverts to an older one, and after the kernel's answer it is the newest.
pub(super) fn fresh_reads(target: &BenchTarget) -> Outcome {
    let rounds = 10_000;
    // One line: 16 words.
    let court = Layout {
        data_words: 16,
        direction: Direction::GpuToCpu,
        threads: 16,
        ..Layout::flags(rounds)
    };
    let ping_pong = PingPong::start(target, court)?;
    let mut line = [0; 64];
    let mut newest = [0; 16];
    for round in 1..=rounds {
        ping_pong.ping(round)?;
        crate::poll::poll_until(Some(WAIT), || -> Outcome<bool> {
            let answered = ping_pong.answered()? == round;
            ping_pong.read_payload(&mut line)?;
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
    ping_pong.finish(WAIT)?;
    Ok(())
}

/// Checks that a kernel which waits for a flag that never arrives can be ended.
pub(super) fn hung_kernel_is_stopped(target: &BenchTarget) -> Outcome {
    let ping_pong = PingPong::start(target, Layout::flags(10))?;
    ping_pong.ping(1)?;
    ping_pong.await_answer(1, Some(WAIT))?;
    drop(ping_pong);
    // The next user finds the GPU idle.
    let buffer = super::outcome::allocate(target, gdr_cuda::MemoryKind::Plain, 4096)?;
    let stream = target.gpu().stream()?;
    stream.fill_pattern(&buffer, 0, 1024, 80, WAIT)?;
    let seen = stream.verify_pattern(&buffer, 0, 1024, 80, WAIT)?;
    super::data::require_clean("a kernel after a stopped one", seen)
}
