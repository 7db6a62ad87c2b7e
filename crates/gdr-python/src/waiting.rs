//! Waits that Python's signals end: of the main thread, which alone handles them.

use std::io;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use gdr_copy::PerProcess;
use gdr_object::{Deadline, Link};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::error::Error;

/// How often a wait lets Python handle signals, such as the one of Ctrl-C.
pub(crate) const INTERRUPTIBLE: Duration = Duration::from_millis(50);
/// How long an interrupted call may take to end. If it takes longer, it keeps what it uses.
const GRACE: Duration = Duration::from_secs(1);

/// A call for another thread, which returns its thread to the pool before it sends the result.
struct Job(Box<dyn FnOnce(Worker) + Send>);

/// A thread that waits for its next job.
struct Worker(Sender<Job>);

static IDLE: PerProcess<Mutex<Vec<Worker>>> = PerProcess::new();

/// Locks the list of idle threads, which stays valid after a panic.
fn idle() -> MutexGuard<'static, Vec<Worker>> {
    let idle = IDLE.get_fast().lock();
    idle.unwrap_or_else(PoisonError::into_inner)
}

/// Returns the limit that a program gives in seconds.
pub(crate) fn limit(timeout: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(timeout).map_err(|error| {
        PyValueError::new_err(format!(
            "timeout {timeout} is not a time in seconds: {error}"
        ))
    })
}

/// Returns the deadline of a limit in seconds.
pub(crate) fn deadline(timeout: f64) -> PyResult<Deadline> {
    limit(timeout).map(Deadline::after)
}

/// Calls `call` without holding the GIL. If a signal handler raises an exception in the meantime, the calls over `link`
/// are interrupted, and the exception is the result.
///
/// If this is the main thread, `call` runs on another one.
pub(crate) fn wait<R: Send + 'static>(
    py: Python<'_>,
    link: Option<&Link>,
    call: impl FnOnce() -> R + Send + 'static,
) -> PyResult<R> {
    if rustix::thread::gettid() != rustix::process::getpid() {
        return Ok(py.detach(call));
    }
    let (result, results) = channel();
    let job = Job(Box::new(move |worker| {
        let returned = call();
        idle().push(worker);
        // After an interrupt, no thread waits for the result.
        let _interrupted = result.send(returned);
    }));
    py.detach(|| start(job))?;
    let results = Mutex::new(results);
    let receive = |limit| {
        let results = results.lock().unwrap_or_else(PoisonError::into_inner);
        results.recv_timeout(limit)
    };
    loop {
        match py.detach(|| receive(INTERRUPTIBLE)) {
            Ok(result) => return Ok(result),
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Error::new_err(
                    "the call panicked: report what is on standard error",
                ));
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
        if let Err(exception) = py.check_signals() {
            if let Some(link) = link {
                // The program may use its memory again once the call has ended.
                let _ended = py.detach(|| {
                    link.interrupt();
                    receive(GRACE)
                });
            }
            return Err(exception);
        }
    }
}

/// Runs a job on an idle thread, or a new one.
fn start(job: Job) -> PyResult<()> {
    let found = idle().pop();
    let failed = |error: &dyn std::fmt::Display| {
        Error::new_err(format!("a call cannot be made on another thread: {error}"))
    };
    let Worker(jobs) = match found {
        Some(worker) => worker,
        None => spawn().map_err(|error| failed(&error))?,
    };
    jobs.send(job).map_err(|error| failed(&error))
}

fn spawn() -> io::Result<Worker> {
    let (sender, jobs) = channel::<Job>();
    let own = sender.clone();
    let run = move || {
        for Job(job) in jobs {
            job(Worker(own.clone()));
        }
    };
    let name = "gdr-python-call".to_owned();
    thread::Builder::new().name(name).spawn(run)?;
    Ok(Worker(sender))
}
