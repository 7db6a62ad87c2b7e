//! Measures the cost of objects in GPU memory: publishing them, waking a reader, getting and putting them.
//!
//! ```text
//! cargo run --release -p gdr-object --example measure -- [MIB]
//! ```
//!
//! Prints a line of JSON for each measurement: the median of its rounds, and what was verified. The objects have MIB
//! MiB (default 1024), in memory of the first GPU, or of the simulated one with `GDR_BACKEND=sim`; five times as much
//! is allocated at a time. The program starts itself as the readers. A kernel of the reader verifies what was got into
//! GPU memory. Kernels of both sides compute the checksums of an object that has them.

use std::env;
use std::error::Error;
use std::hint;
use std::net::SocketAddr;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use gdr_cuda::{DeviceBuffer, DriverKind, Gpu, MemoryKind, Ordinal, open_driver, pattern_word};
use gdr_object::{
    Checksum, Deadline, Element, Grantee, Link, LinkOptions, LocalMemory, Object, ObjectName,
    ObjectOptions, ObjectServer, Place, RemoteObject, Rights, Security, ServerOptions, Shape,
};
use gdr_rdma::{Buffer, BufferKind, Device, SoftOptions};
use serde_json::{Value, json};

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

const LIMIT: Duration = Duration::from_secs(60);
/// Seed of the pattern that the objects hold.
const SEED: u32 = 7;
/// How often each transfer is repeated.
const ROUNDS: usize = 7;
/// How many wake-ups are measured.
const WAKE_UPS: usize = 2000;
/// The pause between two publications that wake a reader, if the publisher sleeps meanwhile. Its CPU sleeps, too, and
/// takes microseconds to wake.
const PAUSE: Duration = Duration::from_micros(300);
/// The pause if the publisher computes meanwhile.
const COMPUTATION: Duration = Duration::from_micros(100);

fn deadline() -> Deadline {
    Deadline::after(LIMIT)
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

fn run() -> Outcome {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => own(1024 << 20),
        [mebibytes] => own(mebibytes.parse::<u64>()? << 20),
        ["wait", owner, polled, publisher] => wait(
            owner.parse()?,
            Duration::from_micros(polled.parse()?),
            publisher,
        ),
        ["transfer", owner, object] => transfer(owner.parse()?, object),
        _ => Err("give nothing, or a number of MiB".into()),
    }
}

/// Prints a measurement.
fn print(measurement: &str, mut values: Value) {
    values["schema"] = "gdr.object.measure".into();
    values["version"] = 1.into();
    values["measurement"] = measurement.into();
    println!("{values}");
}

fn median(mut seconds: Vec<f64>) -> f64 {
    seconds.sort_by(f64::total_cmp);
    seconds.get(seconds.len() / 2).copied().unwrap_or(f64::NAN)
}

fn first_gpu() -> Outcome<Gpu> {
    Ok(Gpu::open(open_driver()?, Ordinal(0))?)
}

/// Runs an owner of objects of `bytes`.
fn own(bytes: u64) -> Outcome {
    let gpu = first_gpu()?;
    let is_simulated = gpu.driver().kind() == DriverKind::Simulated;
    let gpu_name = &gpu.info().name;
    print(
        "gpu",
        json!({ "name": gpu_name, "simulated": is_simulated }),
    );
    let server = ObjectServer::bind(
        "127.0.0.1:0".parse()?,
        ServerOptions::new(Security::Loopback),
    )?;
    let source = gpu.allocate(MemoryKind::Plain, bytes)?;
    let stream = gpu.stream()?;
    stream.fill_pattern(&source, 0, bytes / 4, SEED, LIMIT)?;
    let row =
        || -> Outcome<ObjectOptions> { Ok(ObjectOptions::new(Element::U8, Shape::row(bytes)?)) };
    let create = |name: &str, options: ObjectOptions, place: &Place| -> Outcome<Object> {
        Ok(server.create(ObjectName::new(name)?, options, place)?)
    };
    publish(
        &gpu,
        &source,
        &create("weights", row()?, &Place::gpu(&gpu))?,
    )?;
    let summed = row()?.checksum(Checksum::Sum64);
    sum(&gpu, &source, &create("summed", summed, &Place::gpu(&gpu))?)?;

    let child = |arguments: &[&str]| -> Outcome {
        let [part, rest @ ..] = arguments else {
            return Ok(());
        };
        let mut child = Command::new(env::current_exe()?);
        let child = child
            .args([part, &*server.address().to_string()])
            .args(rest);
        match child.status()? {
            status if status.success() => Ok(()),
            status => Err(format!("the reader failed: {status}").into()),
        }
    };
    let tick = ObjectOptions::new(Element::U64, Shape::row(1)?);
    let tick = create("tick", tick, &Place::host())?;
    let (stop, computes) = (AtomicBool::new(false), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                if let Err(error) = tick.publish(&now().to_le_bytes(), deadline()) {
                    eprintln!("nothing was published: {error}");
                }
                match computes.load(Ordering::Relaxed) {
                    true => compute(COMPUTATION),
                    false => thread::sleep(PAUSE),
                }
            }
        });
        // One reader that sleeps when it is woken, and two that poll.
        let waited = child(&["wait", "50", "sleeps"])
            .and_then(|()| child(&["wait", "2000", "sleeps"]))
            .and_then(|()| {
                computes.store(true, Ordering::Relaxed);
                child(&["wait", "2000", "computes"])
            });
        stop.store(true, Ordering::Relaxed);
        waited
    })?;

    // One at a time, so that they fit into one GPU.
    for (name, place, checksum) in [
        ("mapped", Place::gpu(&gpu), Checksum::None),
        ("checked", Place::gpu(&gpu), Checksum::Sum64),
        ("staged", Place::gpu_staged(&gpu), Checksum::None),
        ("host", Place::host(), Checksum::None),
    ] {
        let options = row()?.checksum(checksum);
        let options = options.grant(Grantee::Everyone, Rights::ReadWrite);
        let object = create(name, options, &place)?;
        match name {
            "host" => {
                let mut content = vec![0; usize::try_from(bytes)?];
                source.read(0, &mut content)?;
                object.publish(&content, deadline())?;
            }
            _ => {
                object.publish_from(&source, &stream)?;
                stream.wait(LIMIT)?;
            }
        }
        child(&["transfer", name])?;
    }
    Ok(())
}

/// Publishes by a copy on a stream, alternating with the bare copy.
fn publish(gpu: &Gpu, source: &DeviceBuffer, object: &Object) -> Outcome {
    let (stream, bytes) = (gpu.stream()?, source.len());
    let target = gpu.allocate(MemoryKind::Plain, bytes)?;
    let (mut bare, mut published, mut calls) = (Vec::new(), Vec::new(), Vec::new());
    // The first round is not counted.
    for round in 0..=2 * ROUNDS {
        let began = Instant::now();
        stream.queue_copy(source, 0, &target, 0, bytes)?;
        stream.wait(LIMIT)?;
        let copied = began.elapsed();
        let began = Instant::now();
        object.publish_from(source, &stream)?;
        let called = began.elapsed();
        stream.wait(LIMIT)?;
        let whole = began.elapsed();
        if round > 0 {
            bare.push(copied.as_secs_f64());
            published.push(whole.as_secs_f64());
            calls.push(called.as_secs_f64());
        }
    }
    let (bare, published) = (median(bare), median(published));
    let values = json!({
        "bytes": bytes,
        "copy_seconds": bare,
        "stream_seconds": published,
        "ratio": published / bare,
        "call_microseconds": median(calls) * 1e6,
        "path": object.info()?.path.to_string(),
    });
    print("publish_from", values);
    Ok(())
}

/// Publishes with a checksum, measuring until readers see the epoch.
fn sum(gpu: &Gpu, source: &DeviceBuffer, object: &Object) -> Outcome {
    let stream = gpu.stream()?;
    let mut seconds = Vec::new();
    for round in 0..=ROUNDS {
        let (began, limit) = (Instant::now(), deadline());
        let epoch = object.publish_from(source, &stream)?;
        while object.newest() != Some(epoch) {
            if limit.has_passed() {
                return Err("an epoch was not published".into());
            }
            thread::yield_now();
        }
        if round > 0 {
            seconds.push(began.elapsed().as_secs_f64());
        }
    }
    let values = json!({ "bytes": source.len(), "seconds": median(seconds) });
    print("publish_from with a checksum", values);
    Ok(())
}

/// Returns nanoseconds since 1970, from a clock that the processes of a host share.
fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_nanos() as u64)
}

/// Uses the CPU for so long.
fn compute(time: Duration) {
    let began = Instant::now();
    while began.elapsed() < time {
        hint::spin_loop();
    }
}

/// Runs a reader that is woken, and whose device polls for so long before it sleeps. `publisher` says what the
/// publisher does between its publications.
fn wait(owner: SocketAddr, polled: Duration, publisher: &str) -> Outcome {
    let options = SoftOptions::new(owner.ip()).port(0).busy_poll(polled);
    let options = LinkOptions::new(Security::Loopback).device(&Device::soft_with(options)?);
    let link = Link::connect(owner, options, deadline())?;
    let tick = link.open(ObjectName::new("tick")?, deadline())?;
    let memory = link.host_memory(8)?;
    let (mut seen, mut latencies) = (tick.newest(deadline())?, Vec::new());
    while latencies.len() < WAKE_UPS {
        let epoch = tick.wait_newer(seen, deadline())?;
        let woken = now();
        // If there is a newer epoch by now, the time of this one is unknown.
        let got = tick.get_into(&memory, deadline())?;
        if got == epoch {
            let published = u64::from_le(memory.buffer().load_u64(0)?);
            latencies.push(woken.saturating_sub(published) as f64 / 1e3);
        }
        seen = Some(got);
    }
    latencies.sort_by(f64::total_cmp);
    let values = json!({
        "wake_ups": latencies.len(),
        "polls_microseconds": polled.as_micros() as u64,
        "publisher": publisher,
        "median_microseconds": latencies[latencies.len() / 2],
        "p99_microseconds": latencies[latencies.len() * 99 / 100],
    });
    print("wait_newer", values);
    Ok(())
}

/// Runs a reader of a large object, which also puts it.
fn transfer(owner: SocketAddr, name: &str) -> Outcome {
    let gpu = first_gpu()?;
    let link = Link::connect(owner, LinkOptions::new(Security::Loopback), deadline())?;
    let object = link.open(ObjectName::new(name)?, deadline())?;
    object.wait_newer(None, deadline())?;
    let info = object.info();
    let memory = Arc::new(gpu.allocate(MemoryKind::Plain, info.bytes)?);
    let local = link.gpu_memory(Arc::clone(&memory))?;
    let stream = gpu.stream()?;
    let check = || -> Outcome {
        let report = stream.verify_pattern(&memory, 0, info.bytes / 4, SEED, LIMIT)?;
        match report.mismatches {
            0 => Ok(()),
            some => Err(format!("{some} words of GPU memory differ").into()),
        }
    };
    let clear = || stream.fill(&memory, 0, LIMIT);
    get(&object, &local, || Ok(clear()?), check)?;
    // What the reader got, and gets again below.
    put(&object, &local)?;
    drop(local);

    get_into_host(&object, &link.host_memory(info.bytes)?)?;
    let locked = gpu.allocate_host(usize::try_from(info.bytes)?)?;
    get_into_host(&object, &link.memory(&Buffer::page_locked(locked)?)?)
}

/// Gets an object into host memory.
fn get_into_host(object: &RemoteObject, local: &LocalMemory) -> Outcome {
    let bytes = local.len();
    let check = || -> Outcome {
        let mut piece = vec![0; 1 << 20];
        for at in (0..bytes).step_by(piece.len()) {
            let piece = &mut piece[..(bytes - at).min(1 << 20) as usize];
            local.buffer().read_at(at, piece)?;
            for (word, bytes) in (at / 4..).zip(piece.chunks_exact(4)) {
                if bytes != pattern_word(SEED, word).to_le_bytes() {
                    return Err(format!("word {word} of host memory differs").into());
                }
            }
        }
        Ok(())
    };
    get(object, local, || Ok(()), check)
}

/// Gets an object. `check` examines what arrived after each get, and `clear` empties it before.
fn get(
    object: &RemoteObject,
    to: &LocalMemory,
    clear: impl Fn() -> Outcome,
    check: impl Fn() -> Outcome,
) -> Outcome {
    let mut seconds = Vec::new();
    for round in 0..=ROUNDS {
        clear()?;
        let began = Instant::now();
        object.get_into(to, deadline())?;
        let elapsed = began.elapsed().as_secs_f64();
        check()?;
        if round > 0 {
            seconds.push(elapsed);
        }
    }
    print("get", transferred(object, to, median(seconds)));
    Ok(())
}

/// Puts an object.
fn put(object: &RemoteObject, from: &LocalMemory) -> Outcome {
    let mut seconds = Vec::new();
    for round in 0..=ROUNDS {
        let began = Instant::now();
        object.put_from(from, deadline())?;
        if round > 0 {
            seconds.push(began.elapsed().as_secs_f64());
        }
    }
    print("put", transferred(object, from, median(seconds)));
    Ok(())
}

fn transferred(object: &RemoteObject, local: &LocalMemory, seconds: f64) -> Value {
    let info = object.info();
    let reader = match (local.buffer().kind(), local.buffer().is_of_driver()) {
        (BufferKind::Host, true) => "host memory, page-locked".to_owned(),
        (kind, _) => kind.to_string(),
    };
    json!({
        "bytes": info.bytes,
        "seconds": seconds,
        "gb_per_s": info.bytes as f64 / seconds / 1e9,
        "object": info.path.to_string(),
        "reader": reader,
        "checksum": info.checksum.to_string(),
    })
}
