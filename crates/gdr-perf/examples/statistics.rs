//! Prints the figures of a set of latencies, to compare them with another implementation's. With `--samples`, prints
//! the latencies themselves in nanoseconds, one per line.
//!
//! The latencies are synthetic: most are near 2 us, and one in 50 is up to a hundred times as long.

use std::process::ExitCode;

use gdr_cuda::pattern_word;
use gdr_perf::stats::Samples;

const COUNT: u64 = 100_000;

/// Returns a number from 0 to 1 that is the same in every run.
fn unit(seed: u32, index: u64) -> f64 {
    f64::from(pattern_word(seed, index)) / f64::from(u32::MAX)
}

fn latency(index: u64) -> f64 {
    let usual = 1800.0 + 400.0 * unit(1, index) * unit(2, index);
    match unit(3, index) < 0.02 {
        true => usual * (1.0 + 99.0 * unit(4, index).powi(3)),
        false => usual,
    }
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), gdr_perf::Error> {
    if std::env::args().any(|argument| argument == "--samples") {
        (0..COUNT).for_each(|index| println!("{}", latency(index)));
        return Ok(());
    }
    let mut samples = Samples::new()?;
    (0..COUNT).for_each(|index| samples.record(latency(index)));
    let figures = samples.summary()?;
    for (name, ns) in [
        ("min", figures.min_ns),
        ("mean", figures.mean_ns),
        ("median", figures.median_ns),
        ("p90", figures.p90_ns),
        ("p99", figures.p99_ns),
        ("p99.9", figures.p999_ns),
        ("p99.99", samples.quantile_ns(0.9999)),
        ("max", figures.max_ns),
        ("stddev", figures.stddev_ns),
    ] {
        println!("{name} {ns}");
    }
    println!("{} samples", figures.samples);
    Ok(())
}
