//! The network namespace of the near host.

use std::fs::File;
use std::os::fd::AsFd;
use std::thread;

use anyhow::Context;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Its name, as the guest's first process gave it.
pub const NEAR: &str = "near";

/// Does `work` in the near host's network: sockets made there stay there, and threads started
/// there are there.
///
/// # Errors
/// Where there is no such namespace, and those of `work`.
pub fn in_near<T: Send>(work: impl FnOnce() -> anyhow::Result<T> + Send) -> anyhow::Result<T> {
    // A thread of its own, for it could not go back.
    thread::scope(|scope| {
        let worker = scope.spawn(|| {
            let path = format!("/run/netns/{NEAR}");
            let namespace =
                File::open(&path).with_context(|| format!("{path} (not the guest?)"))?;
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
                .context("setns")?;
            work()
        });
        match worker.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}
