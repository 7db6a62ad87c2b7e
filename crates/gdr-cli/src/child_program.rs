//! A program that gdr runs and waits for.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::Result;
use gdr_trace::Ended;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::{flag, low_level};

use crate::launch::LaunchError;

/// Runs a program and waits for it. Forwards SIGTERM and SIGHUP to it; a terminal sends SIGINT and SIGQUIT to both.
pub(crate) fn run(
    path: &Path,
    name: &OsStr,
    arguments: &[OsString],
    environment: Vec<(&'static str, OsString)>,
) -> Result<Ended> {
    for signal in [SIGINT, SIGQUIT] {
        flag::register(signal, Arc::new(AtomicBool::new(false))).map_err(LaunchError::Wait)?;
    }
    let (hang_up, terminate) = (announced(SIGHUP)?, announced(SIGTERM)?);
    let mut program = Command::new(path)
        .arg0(name)
        .args(arguments)
        .envs(environment)
        .spawn()
        .map_err(|source| LaunchError::NotStarted {
            path: path.to_owned(),
            source,
        })?;
    let failed = |error: Errno| LaunchError::Wait(error.into());
    let pid = i32::try_from(program.id()).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| failed(Errno::SRCH))?;
    let process = pidfd_open(pid, PidfdFlags::empty()).map_err(failed)?;
    loop {
        let mut fds = [
            PollFd::new(&process, PollFlags::IN),
            PollFd::new(&hang_up, PollFlags::IN),
            PollFd::new(&terminate, PollFlags::IN),
        ];
        // The program decides how long this takes.
        match poll(&mut fds, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(failed(error).into()),
        }
        let [ended, hung_up, terminated] = fds.map(|fd| !fd.revents().is_empty());
        if ended {
            break;
        }
        for (is_set, stream, signal) in [
            (hung_up, &hang_up, Signal::HUP),
            (terminated, &terminate, Signal::TERM),
        ] {
            if is_set {
                // The stream does not block. A signal that is read twice is sent once.
                let _ = rustix::io::read(stream, &mut [0_u8; 64]);
                // An error means that the program has just ended.
                let _ = pidfd_send_signal(&process, signal);
            }
        }
    }
    program
        .wait()
        .map(ended)
        .map_err(|error| LaunchError::Wait(error).into())
}

/// Returns how a program ended.
pub(crate) fn ended(status: ExitStatus) -> Ended {
    match (status.code(), status.signal()) {
        (Some(code), _) => Ended::Status(code),
        (None, Some(signal)) => Ended::Signal(signal),
        (None, None) => Ended::Status(i32::from(u8::MAX)),
    }
}

/// Returns a stream that becomes readable once this process has received the signal.
pub(crate) fn announced(signal: i32) -> Result<UnixStream, LaunchError> {
    let pair = || -> io::Result<UnixStream> {
        let (read, write) = UnixStream::pair()?;
        read.set_nonblocking(true)?;
        low_level::pipe::register(signal, write)?;
        Ok(read)
    };
    pair().map_err(LaunchError::Wait)
}
