//! Critical sections of queues: one call begins it, and a later one ends it. `ibv_wr_start` and
//! `ibv_wr_complete`, `ibv_start_poll` and `ibv_end_poll` form one.
//!
//! Providers of network cards lock a spin lock in the first call and unlock it in the last one, whichever
//! thread makes it. So a section may be handed on from thread to thread, and calls within it are counted
//! to the thread that made the last one. Where such a program spins for ever, the caller here goes on:
//! a thread that begins what it has begun begins again, a section whose thread has ended is free, and a
//! thread that waits in a circle or for too long gets an error.

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gdr_process::PerProcess;

use crate::device::lock;
use crate::errno::Errno;
use crate::thread::Thread;

/// How long a thread waits before it looks what it waits for.
const SLICE: Duration = Duration::from_millis(100);
/// In how many looks on end a circle of waiting threads must be there: one of them may just have been
/// woken.
const LOOKS_OF_CIRCLE: u32 = 5;
/// After how many looks a thread gives up. They take 20 seconds.
const MOST_LOOKS: u32 = 200;

/// Which threads may be in a section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Users {
    /// Any: one at a time.
    AnyThread,
    /// The program has promised that there is only one, so no call waits.
    OneThread,
}

/// A critical section, and what its calls work on.
#[derive(Debug)]
pub(crate) struct Section<T> {
    users: Users,
    state: Mutex<State<T>>,
    left: Condvar,
}

#[derive(Debug)]
struct State<T> {
    content: T,
    /// The thread that made the last call of the section that has begun.
    holder: Option<Thread>,
    waiting: u32,
    /// How many of the waiting threads were woken and came too late. They go before new ones.
    overtaken: u32,
    /// The threads that were refused, and why, until they end what they did not begin.
    refused: Vec<(Thread, Errno)>,
    /// The queue was destroyed.
    is_closed: bool,
}

/// Waiting threads, and the thread that each waits for.
static WAITING: PerProcess<Mutex<BTreeMap<Thread, Thread>>> = PerProcess::new();

impl<T: Default> Section<T> {
    pub(crate) fn new(users: Users) -> Self {
        Self {
            users,
            state: Mutex::new(State {
                content: T::default(),
                holder: None,
                waiting: 0,
                overtaken: 0,
                refused: Vec::new(),
                is_closed: false,
            }),
            left: Condvar::new(),
        }
    }

    /// Begins the section, when no other thread is in it.
    ///
    /// # Errors
    /// `EINVAL` if the queue is destroyed meanwhile, `EDEADLK` for one of several threads that wait for
    /// each other, `EBUSY` after 20 seconds. Calls of this thread are refused then until it ends the
    /// section.
    pub(crate) fn begin(&self) -> Result<Inside<'_, T>, Errno> {
        self.begin_within(MOST_LOOKS)
    }

    fn begin_within(&self, looks: u32) -> Result<Inside<'_, T>, Errno> {
        let own = Thread::current();
        let mut state = lock(&self.state);
        state.refused.retain(|(thread, _)| *thread != own);
        let is_taken = match state.holder {
            None => state.overtaken > 0,
            Some(holder) => holder != own,
        };
        if is_taken && self.users == Users::AnyThread {
            state = self.wait(state, own, looks)?;
        }
        if state.is_closed {
            return Err(Errno::INVAL);
        }
        state.holder = Some(own);
        Ok(Inside {
            state,
            left: &self.left,
        })
    }

    /// Waits until the section is free, or closed.
    fn wait<'a>(
        &'a self,
        mut state: MutexGuard<'a, State<T>>,
        own: Thread,
        most: u32,
    ) -> Result<MutexGuard<'a, State<T>>, Errno> {
        let (mut looks, mut circles, mut is_overtaken) = (0, 0, false);
        let outcome = loop {
            state.waiting += 1;
            let waited = self.left.wait_timeout(state, SLICE);
            let (guard, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            state = guard;
            state.waiting -= 1;
            let holder = match state.holder {
                Some(holder) if !state.is_closed => holder,
                _ => break Ok(()),
            };
            if !is_overtaken {
                is_overtaken = true;
                state.overtaken += 1;
            }
            if !timeout.timed_out() {
                continue;
            }
            looks += 1;
            if holder.has_ended() {
                break Ok(());
            }
            circles = match closes_circle(own, holder) {
                true => circles + 1,
                false => 0,
            };
            if circles >= LOOKS_OF_CIRCLE {
                break Err(Errno::DEADLK);
            }
            if looks >= most {
                break Err(Errno::BUSY);
            }
        };
        if looks > 0 {
            lock(WAITING.get_fast()).remove(&own);
        }
        state.overtaken -= u32::from(is_overtaken);
        match outcome {
            Ok(()) => Ok(state),
            Err(errno) => {
                state.refused.push((own, errno));
                Err(errno)
            }
        }
    }

    /// Goes on within the section.
    ///
    /// # Errors
    /// `EINVAL` if it has not begun, and why it was refused to this thread.
    pub(crate) fn inside(&self) -> Result<Inside<'_, T>, Errno> {
        let own = Thread::current();
        let mut state = lock(&self.state);
        let refused = state.refused.iter().find(|(thread, _)| *thread == own);
        if let Some((_, errno)) = refused {
            return Err(*errno);
        }
        if state.holder.is_none() {
            return Err(Errno::INVAL);
        }
        state.holder = Some(own);
        Ok(Inside {
            state,
            left: &self.left,
        })
    }

    /// Ends the section, after `last` has run within it.
    ///
    /// # Errors
    /// Same as [`Section::inside`].
    pub(crate) fn end<R>(&self, last: impl FnOnce(&mut T) -> R) -> Result<R, Errno> {
        match self.inside() {
            Ok(mut inside) => {
                let returned = last(&mut inside);
                inside.end();
                Ok(returned)
            }
            Err(errno) => {
                let own = Thread::current();
                lock(&self.state)
                    .refused
                    .retain(|(thread, _)| *thread != own);
                Err(errno)
            }
        }
    }

    /// Ends all waits, for a queue that is destroyed.
    pub(crate) fn close(&self) {
        lock(&self.state).is_closed = true;
        self.left.notify_all();
    }
}

/// The content of a section, for one call.
#[derive(Debug)]
pub(crate) struct Inside<'a, T> {
    state: MutexGuard<'a, State<T>>,
    left: &'a Condvar,
}

impl<T> Inside<'_, T> {
    /// Ends the section.
    pub(crate) fn end(mut self) {
        self.state.holder = None;
        let is_awaited = self.state.waiting > 0;
        let left = self.left;
        drop(self);
        if is_awaited {
            left.notify_one();
        }
    }
}

impl<T> Deref for Inside<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.state.content
    }
}

impl<T> DerefMut for Inside<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.state.content
    }
}

/// Records that a thread waits for another one; returns whether that one waits for it, by whichever
/// number of others.
fn closes_circle(own: Thread, holder: Thread) -> bool {
    let mut waiting = lock(WAITING.get_fast());
    waiting.insert(own, holder);
    let mut next = holder;
    for _ in 0..waiting.len() {
        match waiting.get(&next) {
            Some(other) if *other == own => return true,
            Some(other) => next = *other,
            None => return false,
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::thread;
    use std::time::Instant;

    use super::*;

    fn section() -> Section<u32> {
        Section::new(Users::AnyThread)
    }

    /// Begins and leaves it begun.
    fn hold(section: &Section<u32>) {
        drop(section.begin().unwrap());
    }

    fn wait_for_waiter(section: &Section<u32>) {
        let start = Instant::now();
        while lock(&section.state).waiting == 0 {
            assert!(
                start.elapsed() < Duration::from_secs(60),
                "it does not wait"
            );
            thread::yield_now();
        }
    }

    #[test]
    fn one_thread_at_a_time_is_in_a_section() {
        let (section, inside) = (section(), AtomicU32::new(0));
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..500 {
                        *section.begin().unwrap() += 1;
                        assert_eq!(inside.fetch_add(1, Ordering::Relaxed), 0);
                        thread::yield_now();
                        inside.fetch_sub(1, Ordering::Relaxed);
                        section.end(|_| ()).unwrap();
                    }
                });
            }
        });
        assert_eq!(*section.begin().unwrap(), 2000);
    }

    #[test]
    fn a_section_that_the_program_keeps_to_one_thread_is_never_waited_for() {
        let section = Section::<u32>::new(Users::OneThread);
        hold(&section);
        thread::scope(|scope| scope.spawn(|| hold(&section)).join().unwrap());
    }

    #[test]
    fn a_section_that_has_not_begun_cannot_be_used_or_ended() {
        let section = section();
        assert_eq!(section.inside().err(), Some(Errno::INVAL));
        assert_eq!(section.end(|_| ()), Err(Errno::INVAL));
        hold(&section);
        section.end(|_| ()).unwrap();
        assert_eq!(section.end(|_| ()), Err(Errno::INVAL));
    }

    #[test]
    fn a_thread_that_begins_twice_begins_again() {
        let section = section();
        hold(&section);
        hold(&section);
        section.end(|_| ()).unwrap();
        assert_eq!(section.inside().err(), Some(Errno::INVAL));
    }

    #[test]
    fn a_section_may_be_handed_on_to_another_thread() {
        let section = section();
        *section.begin().unwrap() = 7;
        thread::scope(|scope| {
            let other = scope.spawn(|| {
                *section.inside().unwrap() += 1;
                section.end(|content| *content).unwrap()
            });
            assert_eq!(other.join().unwrap(), 8);
        });
    }

    #[test]
    fn the_section_of_a_thread_that_has_ended_is_free() {
        let section = section();
        thread::scope(|scope| scope.spawn(|| hold(&section)).join().unwrap());
        hold(&section);
    }

    #[test]
    fn a_thread_that_waits_for_a_destroyed_queue_is_refused() {
        let section = section();
        hold(&section);
        thread::scope(|scope| {
            let other = scope.spawn(|| section.begin().err());
            wait_for_waiter(&section);
            section.close();
            assert_eq!(other.join().unwrap(), Some(Errno::INVAL));
        });
    }

    #[test]
    fn a_thread_that_waits_too_long_is_refused_until_it_ends_and_the_holder_goes_on() {
        let section = section();
        *section.begin().unwrap() = 7;
        thread::scope(|scope| {
            let other = scope.spawn(|| {
                assert_eq!(section.begin_within(2).err(), Some(Errno::BUSY));
                assert_eq!(section.inside().err(), Some(Errno::BUSY));
                assert_eq!(section.end(|_| ()), Err(Errno::BUSY));
            });
            other.join().unwrap();
        });
        assert_eq!(section.end(|content| *content), Ok(7));
    }

    #[test]
    fn of_threads_that_wait_for_each_other_one_is_refused() {
        let (sections, both) = ([section(), section()], Barrier::new(2));
        let refused = AtomicU32::new(0);
        thread::scope(|scope| {
            for (first, second) in [(0, 1), (1, 0)] {
                let (sections, both, refused) = (&sections, &both, &refused);
                scope.spawn(move || {
                    hold(&sections[first]);
                    both.wait();
                    match sections[second].begin() {
                        Ok(inside) => inside.end(),
                        Err(errno) => {
                            assert_eq!(errno, Errno::DEADLK);
                            refused.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                    sections[first].end(|_| ()).unwrap();
                });
            }
        });
        assert_eq!(refused.into_inner(), 1);
    }
}
