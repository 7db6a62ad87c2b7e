//! [`Launch::Push`](crate::Launch::Push) on one thread.

use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use super::memfd::View;
use crate::kernel::PushRequest;

/// The kernel with resolved addresses.
#[derive(Debug)]
pub(super) struct Push {
    pub(super) base: View,
    pub(super) request: View,
    pub(super) lines: View,
    pub(super) left: View,
    pub(super) last: u32,
    pub(super) launch: u32,
    pub(super) idle: Duration,
    pub(super) life: Duration,
}

impl Push {
    pub(super) fn run(&self) {
        let (began, mut since, mut last) = (Instant::now(), Instant::now(), self.last);
        while since.elapsed() < self.idle && began.elapsed() < self.life {
            // Acquire: the CPU's stores before the request are now visible.
            let word = self.request.wide_word(0).load(Ordering::Acquire);
            let request = PushRequest::of_word(word);
            if request.map_or(0, PushRequest::number) == last {
                thread::yield_now();
                continue;
            }
            let Some(request) = request else {
                break;
            };
            self.push(request);
            last = request.number();
            since = Instant::now();
        }
        // Release: the lines are visible before this word.
        self.left.word(0).store(self.launch, Ordering::Release);
    }

    fn push(&self, request: PushRequest) {
        let number = u64::from(request.number()) << 32;
        for (at, line) in request.lines().enumerate() {
            let word = u64::from_le_bytes(self.base.line(line * PushRequest::LINE));
            for (half, bytes) in [word & 0xffff_ffff, word >> 32].into_iter().enumerate() {
                let to = self.lines.wide_word(2 * at + half);
                to.store((bytes | number).to_le(), Ordering::Relaxed);
            }
        }
    }
}
