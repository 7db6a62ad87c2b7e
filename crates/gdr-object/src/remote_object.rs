//! An owner's objects, as a link sees them.

use std::fmt;
use std::sync::Arc;

use gdr_rdma::{Deadline, RemoteMemory, Stripe};

use crate::binding::{Attempt, Binding};
use crate::epoch::{Epoch, Generation};
use crate::error::{Error, Result};
use crate::follower::Follower;
use crate::info::{Handle, ObjectInfo};
use crate::link_channel::Step;
use crate::link_shared::{LinkShared, LinkState, LocalMemory};
use crate::mode::{Checksum, Rights};
use crate::name::ObjectName;
use crate::part::{Extent, Part};
use crate::protocol::{Opened, Refused, Request, Response};
use crate::tensor_index::TensorIndex;

/// An object of an owner, opened by [`Link::open`](crate::Link::open).
///
/// Its calls use the link, one thread at a time. Once a call that fails with [`Error::Stalled`] has
/// returned, no more bytes are written to local memory.
pub struct RemoteObject(Binding);

impl RemoteObject {
    pub(crate) fn open(
        link: Arc<LinkShared>,
        name: ObjectName,
        generation: Option<Generation>,
        deadline: Deadline,
    ) -> Result<Self> {
        Binding::open(link, name, generation, deadline).map(Self)
    }

    pub(crate) fn binding(&self) -> &Binding {
        &self.0
    }

    /// Returns the object's name.
    pub fn name(&self) -> &ObjectName {
        &self.0.name
    }

    /// Returns the information that the owner gave when the object was opened, or reopened after a change.
    pub fn info(&self) -> ObjectInfo {
        self.0.opened().info.clone()
    }

    /// Returns what another process needs to open the object.
    pub fn handle(&self) -> Handle {
        Handle {
            owner: self.0.link.owner,
            generation: self.0.generation(),
            name: self.0.name.clone(),
        }
    }

    /// Returns the newest epoch; `None` if nothing has been published.
    ///
    /// # Errors
    /// [`Error::Stalled`], [`Error::Gone`], [`Error::NoAnswer`], [`Error::Busy`],
    /// [`Error::Transfer`], [`Error::Rdma`].
    pub fn newest(&self, deadline: Deadline) -> Result<Option<Epoch>> {
        self.0.attempt(deadline, |state, opened| {
            let (channel, watch) = state.channel(&self.0.link, opened.domain, deadline)?;
            let line = self.0.object_line(channel, watch, opened, [], deadline)?;
            Ok(line.newest.map(|(epoch, _)| epoch))
        })
    }

    /// Reads the newest epoch into the beginning of `to`, and returns its number. Except in
    /// [`Mode::Live`](crate::Mode::Live), all bytes are from a single publication. `to` may change even if the
    /// call fails.
    ///
    /// If the owner publishes faster than the bytes arrive, a get of an object in latest mode asks the owner
    /// to keep one publication for it.
    ///
    /// # Errors
    /// [`Error::Empty`], [`Error::Size`]; the errors of [`RemoteObject::newest`].
    pub fn get_into(&self, to: &LocalMemory, deadline: Deadline) -> Result<Epoch> {
        self.0.get_part(deadline, |opened| {
            let bytes = opened.info.bytes;
            if to.len() < bytes {
                return Err(self.0.wrong_size(bytes, to));
            }
            Ok(Part::all(bytes, to))
        })
    }

    /// Reads the newest epoch into new memory.
    ///
    /// # Errors
    /// Same as [`RemoteObject::get_into`].
    pub fn get(&self, deadline: Deadline) -> Result<(Epoch, Vec<u8>)> {
        let bytes = self.info().bytes;
        let memory = self.0.link.host_memory(bytes)?;
        let epoch = self.get_into(&memory, deadline)?;
        // The object may have become shorter in the meantime.
        let len = self.info().bytes.min(bytes);
        let mut content = vec![0; usize::try_from(len).unwrap_or(usize::MAX)];
        memory.buffer().read_at(0, &mut content)?;
        Ok((epoch, content))
    }

    /// Reads `len` bytes at `offset` of the newest epoch to offset `at` in `to`.
    ///
    /// # Errors
    /// [`Error::OutOfRange`]; the errors of [`RemoteObject::get_into`].
    pub fn read_at(
        &self,
        offset: u64,
        len: u64,
        to: &LocalMemory,
        at: u64,
        deadline: Deadline,
    ) -> Result<Epoch> {
        let extent = Extent {
            from: offset,
            len,
            to: at,
        };
        self.get_extents(&[extent], to, deadline)
    }

    /// Reads parts of the newest epoch, all from the same publication, with a single posting. Only the bytes of the
    /// extents are moved, but each extent costs as much as a few KiB.
    ///
    /// # Errors
    /// [`Error::OutOfRange`]; the errors of [`RemoteObject::get_into`].
    pub fn get_extents(
        &self,
        extents: &[Extent],
        to: &LocalMemory,
        deadline: Deadline,
    ) -> Result<Epoch> {
        self.0
            .get_part(deadline, |opened| Part::of(extents, opened.info.bytes, to))
    }

    /// Reads the index of the tensors in the object. All epochs of an object have the same tensors, until its
    /// owner creates it again.
    ///
    /// # Errors
    /// [`Error::Tensors`] if it contains something else; as [`RemoteObject::get_into`].
    pub fn tensors(&self, deadline: Deadline) -> Result<TensorIndex> {
        self.index(|len| {
            let memory = self.0.link.host_memory(len)?;
            self.read_at(0, len, &memory, 0, deadline)?;
            let mut bytes = vec![0; usize::try_from(len).unwrap_or(usize::MAX)];
            memory.buffer().read_at(0, &mut bytes)?;
            Ok(bytes)
        })
    }

    /// Reads which tensors the object holds from its first bytes, which `beginning` returns.
    pub(crate) fn index(
        &self,
        beginning: impl FnMut(u64) -> Result<Vec<u8>>,
    ) -> Result<TensorIndex> {
        let index = TensorIndex::read(self.info().bytes, beginning)?;
        index.map_err(|source| Error::Tensors {
            name: self.name().clone(),
            source,
        })
    }

    /// Waits until an epoch after `seen` is published (with `None`, any epoch), and returns the newest one.
    /// Epochs in between are not reported.
    ///
    /// # Errors
    /// [`Error::NothingNewer`] at the deadline; the errors of [`RemoteObject::newest`].
    pub fn wait_newer(&self, seen: Option<Epoch>, deadline: Deadline) -> Result<Epoch> {
        self.0.attempt(deadline, |state, opened| {
            match self.0.await_newer(state, opened, seen, deadline)? {
                Some(epoch) => Ok(epoch),
                None => Err(Error::NothingNewer {
                    name: self.0.name.clone(),
                    seen,
                }
                .into()),
            }
        })
    }

    /// Publishes all of `from` as the object's next epoch, and returns its number. Readers see the epoch once
    /// all of it has arrived; if the call fails, nothing is published.
    ///
    /// # Errors
    /// [`Error::Denied`], [`Error::Size`]; [`Error::Busy`] while the owner or another peer
    /// publishes, or while a follower of a ring that blocks lags; the errors of
    /// [`RemoteObject::newest`].
    pub fn put_from(&self, from: &LocalMemory, deadline: Deadline) -> Result<Epoch> {
        self.0.attempt(deadline, |state, opened| {
            let (object, bytes) = (opened.object, opened.info.bytes);
            if from.len() != bytes {
                return Err(self.0.wrong_size(bytes, from).into());
            }
            // Done before the slot is claimed, so that the slot is not held while a queue pair is
            // connected.
            let pairs = from.pairs(bytes, opened);
            state.channel_for(&self.0.link, opened.domain, pairs, deadline)?;
            let milliseconds = deadline.remaining().as_millis() as u64 + 1;
            let begin = Request::BeginPut {
                object,
                milliseconds,
            };
            let (epoch, memory) = match state.ask(&self.0.link, &begin, deadline)? {
                Response::Writable { epoch, memory } => (epoch, RemoteMemory::from(memory)),
                other => return Err(self.0.refused(other, Rights::ReadWrite)),
            };
            let written = self.write(state, opened, from, memory, deadline);
            let checksum = match written {
                Ok(checksum) => checksum,
                Err(failed) => {
                    // Best effort, in the time that is left: the owner's limit ends the put anyway.
                    if !deadline.has_passed() {
                        let _ = state.ask(&self.0.link, &Request::AbandonPut { object }, deadline);
                    }
                    return Err(failed);
                }
            };
            let end = Request::EndPut {
                object,
                epoch,
                checksum,
            };
            match state.ask(&self.0.link, &end, deadline)? {
                Response::Done => Ok(epoch),
                Response::Refused(Refused::Damaged) => Err(Error::DamagedPut {
                    name: self.0.name.clone(),
                }
                .into()),
                other => Err(self.0.refused(other, Rights::ReadWrite)),
            }
        })
    }

    /// Writes all of `from` to a slot, and returns its checksum.
    fn write(
        &self,
        state: &mut LinkState,
        opened: &Opened,
        from: &LocalMemory,
        slot: RemoteMemory,
        deadline: Deadline,
    ) -> Result<u64, Attempt> {
        let bytes = opened.info.bytes;
        let mut steps = Vec::new();
        for (at, len) in Stripe::parts(bytes, 1) {
            steps.push(Step::Write {
                from: from.region().segment(at, len)?,
                to: slot.at(at),
            });
        }
        let pairs = from.pairs(bytes, opened);
        let (channel, watch) = state.channel(&self.0.link, opened.domain, deadline)?;
        let moved = channel.run_over(pairs, steps, deadline, watch);
        moved.map_err(|fault| Attempt::Fault { fault, of: bytes })?;
        Ok(match opened.info.checksum {
            Checksum::None => 0,
            Checksum::Sum64 => from.checksum(0, bytes, deadline)?,
        })
    }

    /// Follows a ring: [`Follower::next_into`] returns, in order, every epoch after the currently newest one.
    /// The owner of a ring that blocks waits for this follower until the follower is dropped or its process
    /// ends.
    ///
    /// # Errors
    /// [`Error::WrongMode`] for other objects; [`Error::Busy`] if this link already follows it; as
    /// [`RemoteObject::newest`].
    pub fn follow(&self, deadline: Deadline) -> Result<Follower<'_>> {
        let (last, connection) = self.0.attempt(deadline, |state, opened| {
            let object = opened.object;
            state.channel(&self.0.link, opened.domain, deadline)?;
            match state.ask(&self.0.link, &Request::Follow { object }, deadline)? {
                Response::Following { after } => Ok((after, state.connections)),
                Response::Refused(Refused::WrongMode) => Err(Error::WrongMode {
                    name: self.0.name.clone(),
                    mode: opened.info.mode,
                    operation: "followers",
                }
                .into()),
                other => Err(self.0.refused(other, Rights::Read)),
            }
        })?;
        Ok(Follower::new(&self.0, last, connection))
    }
}

impl fmt::Debug for RemoteObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteObject")
            .field("name", &self.0.name)
            .field("owner", &self.0.link.owner)
            .finish_non_exhaustive()
    }
}
