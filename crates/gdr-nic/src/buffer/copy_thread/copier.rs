//! The copy thread's side.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use gdr_copy::block_signals;
use gdr_cuda::{ConcreteDriver, Gpu, HostBuffer, ImportedMemory, Stream};
#[cfg(test)]
use gdr_process::lock::lock;

use super::incoming_copy::{IncomingWork, Outcome};
use super::link::{HandOver, Job, Link, Next};
use super::peer_memory::{PeerId, PeerProgress};
use super::{TRIAL, word_at};
use crate::buffer::copy_stream::STREAMS;
use crate::buffer::read_ahead::Ticket;
use crate::os::shorten_time_slice;

/// The most time that the first copies of a GPU may take: more than any kernel that holds up the driver for
/// a moment. Only the copy thread waits.
const TRIAL_LIMIT: Duration = Duration::from_secs(60);
/// A stream lets go of the memory of its past copies each time so many were queued.
const RELEASE_EVERY: u64 = 1024;

/// The thread.
pub(super) fn serve(link: &Link, gpu: Gpu) {
    block_signals();
    // The engine waits for a copy from when this thread is woken.
    shorten_time_slice();
    let cuda = match ConcreteDriver::of(gpu.driver()) {
        ConcreteDriver::Cuda(cuda) => Some(cuda),
        ConcreteDriver::Simulated(_) => None,
    };
    // All calls of this thread, to its end.
    let _relaxed = cuda.as_ref().map(|cuda| cuda.relax_stream_capture());
    let fail = |error: gdr_cuda::Error| {
        link.has_failed.store(true, Ordering::Relaxed);
        tracing::warn!(%error, "GPU memory is loaded by CPU, because it cannot be copied");
    };
    match Copier::new(link, gpu) {
        Ok(mut copier) => {
            if let Err(error) = copier.run(link) {
                fail(error);
                copier.fail_incoming(link);
            }
        }
        Err(error) => fail(error),
    }
    link.close();
}

/// What the thread has of the driver.
struct Copier {
    gpu: Gpu,
    streams: [Arc<Stream>; STREAMS],
    memory: Arc<HostBuffer>,
    /// What was opened of other processes.
    peers: HashMap<PeerId, Peer>,
    /// Copies of it that were queued, and not found complete.
    incoming: Vec<(Ticket, Arc<Outcome>)>,
    /// Whether no stream has work for other processes.
    is_settled: bool,
}

/// Memory of another process.
struct Peer {
    memory: Arc<ImportedMemory>,
    progress: Arc<PeerProgress>,
}

impl Copier {
    fn new(link: &Link, gpu: Gpu) -> gdr_cuda::Result<Self> {
        const VALUE: u32 = 1;
        // The engine may read it after the program has destroyed the context.
        let memory = Arc::new(gpu.register_host(word_at(TRIAL + 1))?);
        for slot in 0..=TRIAL {
            memory.store_u32(word_at(slot), 0)?;
        }
        let stream = || gpu.stream().map(Arc::new);
        let streams = [stream()?, stream()?, stream()?, stream()?];
        // Drivers before CUDA 11.7 cannot write words.
        streams[0].queue_flag(&memory, word_at(TRIAL), VALUE)?;
        streams[0].wait(TRIAL_LIMIT)?;
        if memory.load_u32(word_at(TRIAL))? != VALUE {
            let (what, limit) = ("the word of a stream", TRIAL_LIMIT);
            return Err(gdr_cuda::Error::Deadline { what, limit });
        }
        #[cfg(test)]
        lock(&link.streams).extend(streams.iter().cloned());
        // It is set only here.
        let _ = link.memory.set(Arc::clone(&memory));
        Ok(Self {
            gpu,
            streams,
            memory,
            peers: HashMap::new(),
            incoming: Vec::new(),
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
                Next::Job(Job::Incoming(copy)) => self.copy_incoming(&copy)?,
                Next::Job(Job::Open {
                    id,
                    export,
                    descriptor,
                    progress,
                }) => {
                    let imported = self.gpu.import(&export, descriptor);
                    self.open(id, imported, progress);
                }
                Next::Job(Job::Close { id }) => {
                    self.peers.remove(&id);
                    self.look(link)?;
                }
                Next::Look => self.look(link)?,
                Next::End => return Ok(()),
            }
        }
    }

    /// Lets go of what idle streams have used.
    fn look(&mut self, link: &Link) -> gdr_cuda::Result<()> {
        self.incoming
            .retain(|(ticket, _)| !link.is_complete(*ticket));
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

    /// Queues a copy of another process's memory, and the word that says that it has ended.
    fn copy_incoming(&mut self, copy: &IncomingWork) -> gdr_cuda::Result<()> {
        let IncomingWork {
            from,
            into,
            at,
            len,
            outcome,
            ..
        } = copy;
        let (slot, word) = (word_at(copy.ticket.slot()), copy.ticket.word());
        let is_possible = !into.is_lost() && into.look(*at, *len);
        let peer = self.peers.get(&copy.peer).filter(|_| is_possible);
        // Last, as a look may wait for the program.
        let Some(peer) = peer.filter(|_| outcome.begin()) else {
            outcome.fail();
            return self.memory.store_u32(slot, word);
        };
        let stream = &self.streams[(copy.ticket.0 % STREAMS as u64) as usize];
        let (buffer, bytes) = (into.buffer(), *len as u64);
        let queued = stream.queue_copy_from_imported(&peer.memory, *from, buffer, *at, bytes);
        let is_same = into.look(*at, *len);
        if queued.is_err() || !is_same {
            outcome.fail();
        }
        self.is_settled = false;
        if let Err(error) = queued {
            if is_same {
                tracing::debug!(%error, "GPU memory of another process is not copied any more");
                peer.progress.refuse();
            }
            return self.memory.store_u32(slot, word);
        }
        self.incoming.push((copy.ticket, Arc::clone(outcome)));
        stream.queue_flag(&self.memory, slot, word)
    }

    /// Ends the copies that were queued: no thread looks at the streams behind this one.
    fn fail_incoming(&self, link: &Link) {
        let pending = |(ticket, _): &&(Ticket, Arc<Outcome>)| !link.is_complete(*ticket);
        for (ticket, outcome) in self.incoming.iter().filter(pending) {
            let stream = &self.streams[(ticket.0 % STREAMS as u64) as usize];
            let ended = stream.wait(TRIAL_LIMIT);
            if !link.is_complete(*ticket) {
                tracing::debug!(?ended, "a copy of another process's GPU memory failed");
                outcome.fail();
            }
        }
    }

    /// Queues a copy, and the word that says that it is complete.
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
            return self.memory.store_u32(slot, word);
        }
        let stream = &self.streams[(copy.ticket.0 % STREAMS as u64) as usize];
        let queued = stream.queue_read(source.buffer(), *offset, &self.memory, *at, *len);
        let is_same = source.look(*offset, *len);
        if let Err(error) = queued {
            if is_same {
                return Err(error);
            }
            // It was freed after the first look, and nothing was queued.
            return self.memory.store_u32(slot, word);
        }
        stream.queue_flag(&self.memory, slot, word)?;
        if copy.ticket.0 % RELEASE_EVERY < STREAMS as u64 {
            // Whether it is idle does not matter.
            let _ = stream.wait(Duration::ZERO);
        }
        Ok(())
    }
}
