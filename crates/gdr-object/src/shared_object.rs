//! An object's state, shared by its owner's threads.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, RwLock};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use gdr_rdma::{Deadline, ProtectionDomain};

use crate::content::{Content, Place};
use crate::element::{Element, Shape};
use crate::epoch::{Epoch, Generation};
use crate::error::{BusyReason, Error, GoneReason, Result};
use crate::header::SlotState;
use crate::info::ObjectInfo;
use crate::lock::{lock, read, write};
use crate::mode::{Checksum, Grantee, Mode, Rights};
use crate::name::ObjectName;
use crate::peer_channel::Watcher;
use crate::protocol::{Domain, ObjectId};
use crate::put::Put;
use crate::slots::{Claim, LeaseId, Refusal, Slots, Writer};

/// The first and the longest pause between two checks of a full ring's followers.
const PAUSES: [Duration; 2] = [Duration::from_micros(20), Duration::from_millis(1)];

/// The properties that do not change during an object's life.
#[derive(Debug)]
pub(crate) struct Identity {
    pub(crate) id: ObjectId,
    pub(crate) name: ObjectName,
    pub(crate) element: Element,
    pub(crate) mode: Mode,
    pub(crate) checksum: Checksum,
    pub(crate) grants: Vec<(Grantee, Rights)>,
    pub(crate) place: Place,
    pub(crate) generation: Generation,
}

/// An object's state, shared by its owner's threads.
#[derive(Debug)]
pub(crate) struct SharedObject {
    pub(crate) identity: Identity,
    domain: ProtectionDomain,
    pub(crate) state: Mutex<State>,
    watchers: RwLock<Vec<Arc<Watcher>>>,
}

#[derive(Debug)]
pub(crate) struct State {
    // Fields are dropped in this order: no link writes any more when the memory is freed.
    put: Option<Put>,
    slots: Slots,
    shape: Shape,
    revision: u64,
    /// `None` once the object is closed.
    content: Option<Arc<Content>>,
}

impl State {
    pub(crate) fn put(&mut self) -> &mut Option<Put> {
        &mut self.put
    }

    /// Stores a link's put; returns it if the object is closed.
    pub(crate) fn set_put(&mut self, put: Put) -> Option<Put> {
        match self.content {
            Some(_) => self.put.replace(put),
            None => Some(put),
        }
    }
}

/// A claimed slot, with its memory.
#[derive(Debug)]
pub(crate) struct Writing {
    pub(crate) claim: Claim,
    pub(crate) content: Arc<Content>,
}

impl SharedObject {
    /// Allocates the memory of a new object.
    pub(crate) fn new(identity: Identity, shape: Shape, domain: &ProtectionDomain) -> Result<Self> {
        let Identity {
            mode,
            element,
            generation,
            ref place,
            ..
        } = identity;
        let bytes = shape.bytes(element)?;
        let content = Content::new(place, domain, mode, bytes, generation, 0)?;
        Ok(Self {
            identity,
            domain: domain.clone(),
            state: Mutex::new(State {
                put: None,
                slots: Slots::new(mode, None),
                shape,
                revision: 0,
                content: Some(Arc::new(content)),
            }),
            watchers: RwLock::default(),
        })
    }

    pub(crate) fn name(&self) -> &ObjectName {
        &self.identity.name
    }

    /// Returns the domain for objects with these grants.
    pub(crate) fn domain_of(grants: &[(Grantee, Rights)]) -> Domain {
        match grants
            .iter()
            .any(|(_, rights)| *rights == Rights::ReadWrite)
        {
            true => Domain::Writable,
            false => Domain::ReadOnly,
        }
    }

    /// Returns the rights of a peer at this address: its address's grant, or else everyone's.
    pub(crate) fn rights(&self, peer: IpAddr) -> Rights {
        let granted = |wanted: Grantee| {
            let mut grants = self.identity.grants.iter().rev();
            grants
                .find(|(to, _)| *to == wanted)
                .map(|(_, rights)| *rights)
        };
        granted(Grantee::Address(peer.to_canonical()))
            .or_else(|| granted(Grantee::Everyone))
            .unwrap_or(Rights::Nothing)
    }

    /// Returns what a peer with these rights sees. `None` once the object is closed.
    pub(crate) fn describe(&self, rights: Rights) -> Option<(ObjectInfo, u64, Arc<Content>)> {
        let state = lock(&self.state);
        let content = state.content.as_ref()?;
        let Identity {
            name,
            element,
            mode,
            checksum,
            place,
            ..
        } = &self.identity;
        let info = ObjectInfo {
            name: name.clone(),
            element: *element,
            shape: state.shape.clone(),
            bytes: content.bytes,
            mode: *mode,
            checksum: *checksum,
            rights,
            newest: state.slots.newest().map(|newest| newest.epoch),
            location: place.location(),
            path: content.path.clone(),
        };
        Some((info, state.revision, Arc::clone(content)))
    }

    /// Returns the object's size in bytes; `None` once it is closed.
    pub(crate) fn bytes(&self) -> Option<u64> {
        lock(&self.state)
            .content
            .as_ref()
            .map(|content| content.bytes)
    }

    pub(crate) fn is_closed(&self) -> bool {
        lock(&self.state).content.is_none()
    }

    pub(crate) fn newest(&self) -> Option<Epoch> {
        let newest = lock(&self.state).slots.newest();
        newest.map(|newest| newest.epoch)
    }

    /// Claims a slot and marks it busy. Waits for the followers of a ring that blocks.
    pub(crate) fn begin(&self, writer: Writer, deadline: Deadline) -> Result<Writing> {
        let [mut pause, longest] = PAUSES;
        loop {
            let slowest = self.slowest_follower();
            match self.try_begin(writer, slowest.map(|(read, _)| read))? {
                Ok(writing) => return Ok(writing),
                Err(Refusal::Busy(Writer::Peer)) if self.end_late_put() => continue,
                Err(Refusal::Full) if !deadline.has_passed() => {}
                Err(refusal) => return Err(self.refused(refusal, slowest)),
            }
            thread::sleep(pause.min(deadline.remaining()));
            pause = (2 * pause).min(longest);
        }
    }

    /// Makes the next publication this epoch.
    pub(crate) fn continue_at(&self, epoch: Epoch) -> Result<()> {
        let (name, mode) = (self.name().clone(), self.identity.mode);
        if mode != Mode::Latest {
            let operation = "gaps between epochs";
            return Err(Error::WrongMode {
                name,
                mode,
                operation,
            });
        }
        let slots = &mut lock(&self.state).slots;
        match (slots.continue_at(epoch), slots.last()) {
            (false, Some(last)) => Err(Error::EarlierEpoch { name, last, epoch }),
            _ => Ok(()),
        }
    }

    fn try_begin(&self, writer: Writer, read: Option<u64>) -> Result<Result<Writing, Refusal>> {
        let mut state = lock(&self.state);
        let State { slots, content, .. } = &mut *state;
        let content = content
            .as_ref()
            .ok_or_else(|| Error::gone(self.name(), GoneReason::Closed))?;
        let claim = match slots.claim(writer, read, Instant::now()) {
            Ok(claim) => claim,
            Err(refusal) => return Ok(Err(refusal)),
        };
        if self.identity.mode != Mode::Live {
            let marked = content
                .header
                .mark(claim.slot, SlotState::Busy(claim.epoch));
            if let Err(error) = marked {
                slots.abandon(claim);
                return Err(error.into());
            }
        }
        let content = Arc::clone(content);
        Ok(Ok(Writing { claim, content }))
    }

    fn refused(&self, refusal: Refusal, slowest: Option<(u64, SocketAddr)>) -> Error {
        let name = self.name().clone();
        match (refusal, slowest) {
            (Refusal::Busy(Writer::Peer), _) => Error::busy(&name, BusyReason::PeerWrites),
            (Refusal::Busy(Writer::Owner), _) => Error::busy(&name, BusyReason::OwnerWrites),
            (Refusal::Full, Some((read, follower))) => Error::RingFull {
                name,
                follower,
                read: Epoch::new(read),
            },
            (Refusal::Exhausted, _) => Error::NoMoreEpochs { name },
            (Refusal::Busy(Writer::Stream(_)) | Refusal::Queued | Refusal::Full, _) => {
                Error::busy(&name, BusyReason::CopiesQueued)
            }
        }
    }

    /// Returns the follower that has read the fewest epochs.
    fn slowest_follower(&self) -> Option<(u64, SocketAddr)> {
        let blocks = matches!(
            self.identity.mode,
            Mode::Ring {
                when_full: crate::mode::WhenFull::Block,
                ..
            }
        );
        if !blocks {
            return None;
        }
        let watchers = read(&self.watchers);
        let read = watchers
            .iter()
            .filter_map(|it| Some((it.last_read()?, it.channel.peer())));
        read.min_by_key(|(read, _)| *read)
    }

    /// Returns the checksum of a slot whose bytes are all visible; 0 if the object has none.
    pub(crate) fn checksum(&self, writing: &Writing) -> Result<u64> {
        /// How long a kernel may wait for other work of its GPU.
        const LIMIT: Duration = Duration::from_secs(60);
        let Writing { claim, content } = writing;
        match self.identity.checksum {
            Checksum::None => Ok(0),
            Checksum::Sum64 => content.summer.sum(
                content.data(),
                content.offset(claim.slot),
                content.bytes,
                Deadline::after(LIMIT),
            ),
        }
    }

    /// Publishes a slot whose bytes are all visible, and wakes those who wait for it.
    pub(crate) fn commit(&self, writing: &Writing) -> Result<()> {
        let Writing { claim, content } = writing;
        let checksum = self.checksum(writing)?;
        let newest = {
            let mut state = lock(&self.state);
            let is_current = state
                .content
                .as_ref()
                .is_some_and(|current| Arc::ptr_eq(current, content));
            if !is_current {
                return Err(Error::gone(self.name(), GoneReason::Closed));
            }
            if !state.slots.holds(*claim) {
                return Ok(());
            }
            let header = &content.header;
            header.mark_whole(claim.slot, claim.epoch, checksum, now())?;
            let newest = state.slots.commit(*claim);
            if let Some(newest) = newest {
                header.point(newest.epoch, newest.slot)?;
            }
            newest
        };
        if let Some(newest) = newest {
            for watcher in &*read(&self.watchers) {
                watcher.wake(newest.epoch);
            }
        }
        Ok(())
    }

    /// Gives a claimed slot back. Its content is lost.
    pub(crate) fn abandon(&self, writing: &Writing) {
        let mut state = lock(&self.state);
        let Writing { claim, content } = writing;
        // If this fails, the slot stays marked as busy, and no reader uses it.
        let marked = content.header.mark(claim.slot, SlotState::Empty);
        if let Err(error) = marked {
            tracing::debug!(%error, "a slot stays busy");
        }
        state.slots.abandon(*claim);
    }

    pub(crate) fn protection_domain(&self) -> &ProtectionDomain {
        &self.domain
    }

    /// Holds an epoch for a reader until the given time.
    pub(crate) fn lease(&self, id: LeaseId, least: Epoch, until: Instant) -> Option<Claim> {
        let now = Instant::now();
        lock(&self.state).slots.lease(id, least, now, until)
    }

    pub(crate) fn release(&self, id: LeaseId) {
        lock(&self.state).slots.release(id);
    }

    pub(crate) fn watch(&self, watcher: Arc<Watcher>) {
        write(&self.watchers).push(watcher);
    }

    pub(crate) fn unwatch(&self, watcher: &Arc<Watcher>) {
        write(&self.watchers).retain(|it| !Arc::ptr_eq(it, watcher));
    }

    /// Returns how many peers have the object open.
    pub(crate) fn readers(&self) -> usize {
        read(&self.watchers).len()
    }

    /// Replaces the memory by memory of another size, without content. When this returns, the old
    /// memory's keys are invalid.
    pub(crate) fn resize(&self, shape: Shape) -> Result<()> {
        let Identity {
            element,
            mode,
            ref place,
            generation,
            ..
        } = self.identity;
        let bytes = shape.bytes(element)?;
        self.end_late_put();
        let revision = self.idle_revision(&lock(&self.state))? + 1;
        // Allocating GPU memory may wait for kernels, so this is not done while the state is
        // locked.
        let content = Content::new(place, &self.domain, mode, bytes, generation, revision)?;
        let mut state = lock(&self.state);
        if self.idle_revision(&state)? + 1 != revision {
            return Err(Error::busy(self.name(), BusyReason::OwnerWrites));
        }
        let next = State {
            put: None,
            slots: Slots::new(mode, state.slots.last()),
            shape,
            revision,
            content: Some(Arc::new(content)),
        };
        let former = std::mem::replace(&mut *state, next);
        drop(state);
        // Freeing may wait for kernels, too.
        drop(former);
        Ok(())
    }

    /// Returns the number of the current layout, if the object is neither closed nor being written.
    fn idle_revision(&self, state: &State) -> Result<u64> {
        if state.content.is_none() {
            return Err(Error::gone(self.name(), GoneReason::Closed));
        }
        match state.slots.writer() {
            Some(writer) => Err(self.refused(Refusal::Busy(writer), None)),
            None => Ok(state.revision),
        }
    }

    /// Ends the object. When this returns, its memory's keys are invalid, unless another thread is
    /// publishing; then they become so when that thread has finished.
    pub(crate) fn close(&self) {
        let ended = {
            let mut state = lock(&self.state);
            (state.put.take(), state.content.take())
        };
        drop(ended);
    }
}

/// Nanoseconds since 1970 by the owner's clock. Any earlier time counts as 1970.
fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(0))
}
