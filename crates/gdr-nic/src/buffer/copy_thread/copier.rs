//! The copy thread's side.

use std::collections::HashMap;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use gdr_cuda::{
    ConcreteDriver, Gpu, GuardedCopy, GuardedState, HostBuffer, ImportedMemory, Stream,
};
use gdr_process::block_signals;
#[cfg(test)]
use gdr_process::lock::lock;

use super::incoming_copy::{INCOMING, IncomingProgress, IncomingState, IncomingWork, guard_at};
use super::link::{HandOver, Job, Link, Next};
use super::peer_memory::{PeerId, PeerProgress};
use super::{GUARDS, PeerCopies, TRIAL, word_at};
use crate::buffer::copy_stream::STREAMS;
use crate::os::shorten_time_slice;

/// The limit on the first copies of a GPU: longer than any kernel that blocks the driver temporarily. Only the copy
/// thread waits.
const TRIAL_LIMIT: Duration = Duration::from_secs(60);
/// A stream releases the memory of its past copies each time this many have been queued.
const RELEASE_EVERY: u64 = 1024;

/// Runs the copy thread.
pub(super) fn serve(link: &Link, gpu: Gpu, peers: PeerCopies) {
    block_signals();
    use_driver(link, gpu, peers);
    // All driver objects have been released.
    link.close();
}

fn use_driver(link: &Link, gpu: Gpu, peers: PeerCopies) {
    // The engine's wait for a copy includes the wake-up of this thread.
    shorten_time_slice();
    let cuda = match ConcreteDriver::of(gpu.driver()) {
        ConcreteDriver::Cuda(cuda) => Some(cuda),
        ConcreteDriver::Simulated(_) => None,
    };
    // This applies to all calls of this thread, until its end.
    let _relaxed = cuda.as_ref().map(|cuda| cuda.relax_stream_capture());
    let fail = |error: gdr_cuda::Error| {
        link.has_failed.store(true, Ordering::Relaxed);
        tracing::warn!(%error, "GPU memory is loaded by CPU, because it cannot be copied");
    };
    match Copier::new(link, gpu, peers) {
        Ok(mut copier) => {
            if let Err(error) = copier.run(link) {
                fail(error);
                copier.fail_incoming();
            }
            copier.leave();
        }
        Err(error) => fail(error),
    }
}

/// The thread's driver objects.
struct Copier {
    gpu: Gpu,
    streams: [Arc<Stream>; STREAMS],
    memory: Arc<HostBuffer>,
    peer_copies: PeerCopies,
    /// The open memory of other processes.
    peers: HashMap<PeerId, Peer>,
    /// Queued copies of it that are not known to have ended, with the index of their stream.
    incoming: Vec<(usize, IncomingProgress)>,
    /// The index of the stream for the next one.
    next_stream: usize,
    /// Set while no stream has work for other processes.
    is_settled: bool,
}

/// Memory of another process.
struct Peer {
    memory: Arc<ImportedMemory>,
    progress: Arc<PeerProgress>,
}

/// Returns whether the kernel that copies other processes' memory runs: older GPUs and drivers may not support it.
fn try_guarded_copies(stream: &Stream, memory: &Arc<HostBuffer>) -> PeerCopies {
    let tried = GuardedCopy::new(memory, guard_at(INCOMING), 0, 0).and_then(|copy| {
        stream.queue_empty_guarded_copy(&copy)?;
        stream.wait(TRIAL_LIMIT)?;
        Ok(copy.state())
    });
    match tried {
        Ok(GuardedState::Complete) => PeerCopies::On,
        tried => {
            tracing::debug!(
                ?tried,
                "memory of other processes is not copied by this GPU"
            );
            PeerCopies::Off
        }
    }
}

impl Copier {
    fn new(link: &Link, gpu: Gpu, peers: PeerCopies) -> gdr_cuda::Result<Self> {
        const VALUE: u32 = 1;
        // Register memory instead of allocating it with the driver: the engine may read it after the program has
        // destroyed the context.
        let memory = Arc::new(gpu.register_host(guard_at(INCOMING + 1))?);
        // The word of a ticket is at least 1, so 0 shows that nothing is complete.
        for slot in 0..=TRIAL {
            memory.store_u32(word_at(slot), 0)?;
        }
        memory.write(GUARDS, &[0; guard_at(INCOMING + 1) - GUARDS])?;
        let stream = || gpu.stream().map(Arc::new);
        let streams = [stream()?, stream()?, stream()?, stream()?];
        // Drivers before CUDA 11.7 cannot write words.
        streams[0].queue_flag(&memory, word_at(TRIAL), VALUE)?;
        streams[0].wait(TRIAL_LIMIT)?;
        if memory.load_u32(word_at(TRIAL))? != VALUE {
            let (what, limit) = ("the word of a stream", TRIAL_LIMIT);
            return Err(gdr_cuda::Error::Deadline { what, limit });
        }
        let peers = match peers {
            PeerCopies::On => try_guarded_copies(&streams[0], &memory),
            PeerCopies::Off => PeerCopies::Off,
        };
        #[cfg(test)]
        lock(&link.streams).extend(streams.iter().cloned());
        // Cannot fail: it is set only here.
        let _ = link.memory.set(Arc::clone(&memory));
        Ok(Self {
            gpu,
            streams,
            memory,
            peers: HashMap::new(),
            peer_copies: peers,
            incoming: Vec::new(),
            next_stream: 0,
            is_settled: true,
        })
    }

    fn run(&mut self, link: &Link) -> gdr_cuda::Result<()> {
        loop {
            let next = link.next(self.is_settled);
            #[cfg(test)]
            let _driver = lock(&link.driver);
            match next {
                Next::Job(Job::Read(copy)) => self.copy(&copy)?,
                Next::Job(Job::Incoming(copy)) => self.copy_incoming(copy),
                Next::Job(Job::Open {
                    id,
                    export,
                    descriptor,
                    progress,
                }) => match self.peer_copies {
                    PeerCopies::On => {
                        let imported = self.gpu.import(&export, descriptor);
                        self.open(id, imported, progress);
                    }
                    PeerCopies::Off => progress.refuse(),
                },
                Next::Job(Job::Close { id }) => {
                    self.peers.remove(&id);
                    self.look()?;
                }
                Next::Look => self.look()?,
                Next::End => return Ok(()),
            }
        }
    }

    /// Releases what idle streams have used.
    fn look(&mut self) -> gdr_cuda::Result<()> {
        self.incoming.retain(|(_, it)| !it.copy.has_ended());
        self.is_settled = true;
        for stream in &self.streams {
            match stream.wait(Duration::ZERO) {
                Err(gdr_cuda::Error::Deadline { .. }) => self.is_settled = false,
                ended => ended?,
            }
        }
        Ok(())
    }

    fn open(
        &mut self,
        id: PeerId,
        imported: gdr_cuda::Result<ImportedMemory>,
        progress: Arc<PeerProgress>,
    ) {
        match imported {
            Ok(memory) => {
                progress.set_ready();
                let memory = Arc::new(memory);
                self.peers.insert(id, Peer { memory, progress });
            }
            Err(error) => {
                tracing::debug!(%error, "GPU memory of another process is not copied by the GPU");
                progress.refuse();
            }
        }
    }

    /// Queues a copy of another process's memory.
    fn copy_incoming(&mut self, work: IncomingWork) {
        let IncomingWork {
            peer,
            from,
            into,
            at,
            len,
            progress,
        } = work;
        // While the copy waited for this thread, it may have been abandoned, or the memory freed.
        let is_wanted = progress.state() == IncomingState::InProgress && !into.is_lost();
        let peer = self.peers.get(&peer).filter(|_| is_wanted);
        // Check this last, because it may wait for the program.
        let Some(peer) = peer.filter(|_| into.look(at, len)) else {
            return progress.copy.leave_out();
        };
        let stream = self.next_stream;
        self.next_stream = (stream + 1) % STREAMS;
        let (memory, copy) = (&peer.memory, &progress.copy);
        let queued = into.queue_copy(&self.streams[stream], memory, from, at, len, copy);
        // The memory may have been freed, and its address used again, before the copy was queued.
        let is_same = into.look(at, len);
        if !is_same {
            progress.fail();
            progress.copy.cancel();
        }
        self.is_settled = false;
        match queued {
            Ok(()) => {
                // There may never be a pause in which the copies that have ended are forgotten.
                if self.incoming.len() >= INCOMING {
                    self.incoming.retain(|(_, it)| !it.copy.has_ended());
                }
                self.incoming.push((stream, progress));
            }
            Err(error) => {
                if is_same {
                    tracing::debug!(%error, "GPU memory of another process is not copied any more");
                    peer.progress.refuse();
                }
                progress.copy.leave_out();
            }
        }
    }

    /// Releases the driver objects, unless their context was destroyed, after which they must not be used.
    fn leave(self) {
        // A busy stream belongs to a context that still exists.
        let is_busy = |it: &gdr_cuda::Error| matches!(it, gdr_cuda::Error::Deadline { .. });
        let mut looks = self.streams.iter().map(|it| it.wait(Duration::ZERO));
        if looks.any(|look| look.is_err_and(|error| !is_busy(&error))) {
            mem::forget(self);
        }
    }

    /// Fails the queued copies: once this thread has ended, its streams are no longer checked.
    fn fail_incoming(&self) {
        let pending = |(_, progress): &&(usize, IncomingProgress)| !progress.copy.has_ended();
        for (stream, progress) in self.incoming.iter().filter(pending) {
            let ended = self.streams[*stream].wait(TRIAL_LIMIT);
            if !progress.copy.has_ended() {
                tracing::debug!(?ended, "a copy of another process's GPU memory failed");
                progress.fail();
            }
        }
    }

    /// Queues a copy, followed by the word that signals its completion.
    fn copy(&self, copy: &HandOver) -> gdr_cuda::Result<()> {
        let HandOver {
            source,
            offset,
            at,
            len,
            ..
        } = copy;
        let (slot, word) = (word_at(copy.ticket.slot()), copy.ticket.word());
        let is_wanted = source.generation() == copy.generation && !source.is_lost();
        if !is_wanted || !source.look(*offset, *len) {
            // Write the word nevertheless, because it frees the place in the ring.
            return self.memory.store_u32(slot, word);
        }
        let stream = &self.streams[(copy.ticket.0 % STREAMS as u64) as usize];
        let queued = stream.queue_read(source.buffer(), *offset, &self.memory, *at, *len);
        let is_same = source.look(*offset, *len);
        if let Err(error) = queued {
            if is_same {
                return Err(error);
            }
            // The memory was freed after the first check, and nothing was queued.
            return self.memory.store_u32(slot, word);
        }
        stream.queue_flag(&self.memory, slot, word)?;
        if copy.ticket.0 % RELEASE_EVERY < STREAMS as u64 {
            // Ignore the result: the stream may be busy.
            let _ = stream.wait(Duration::ZERO);
        }
        Ok(())
    }
}
