//! The owner's side of an object.

use std::any::Any;
use std::fmt;
use std::mem;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use gdr_cuda::{DeviceBuffer, DevicePtr, Gather, Gpu, Stream};
use gdr_rdma::{Buffer, Deadline};

use crate::content::Content;
use crate::element::{Element, Shape};
use crate::epoch::Epoch;
use crate::error::{Error, GoneReason, Result};
use crate::info::{Location, ObjectInfo};
use crate::lock::lock;
use crate::mode::{Checksum, Grantee, Mode, Rights};
use crate::name::ObjectName;
use crate::object_server::ServerShared;
use crate::publisher::{Copied, Kept};
use crate::shared_object::{SharedObject, Writing};
use crate::slots::Writer;

/// Options for creating an object.
#[derive(Clone, Debug)]
#[must_use]
pub struct ObjectOptions {
    pub(crate) element: Element,
    pub(crate) shape: Shape,
    pub(crate) mode: Mode,
    pub(crate) checksum: Checksum,
    pub(crate) grants: Vec<(Grantee, Rights)>,
}

impl ObjectOptions {
    /// Returns the defaults: latest mode, no checksums, and read access for every peer.
    pub fn new(element: Element, shape: Shape) -> Self {
        Self {
            element,
            shape,
            mode: Mode::Latest,
            checksum: Checksum::None,
            grants: vec![(Grantee::Everyone, Rights::Read)],
        }
    }

    /// Sets how the object keeps its content.
    pub fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// Sets whether publications carry a checksum.
    pub fn checksum(mut self, checksum: Checksum) -> Self {
        self.checksum = checksum;
        self
    }

    /// Grants rights. A grant to an address replaces the grant to everyone for that address; of two grants
    /// to the same grantee, the later one counts.
    pub fn grant(mut self, to: Grantee, rights: Rights) -> Self {
        self.grants.push((to, rights));
        self
    }
}

/// An object of this process, which peers can access until this value is dropped or
/// [`closed`](Object::close). Created by [`ObjectServer::create`](crate::ObjectServer::create).
///
/// Only one thread at a time can publish; another thread gets [`Error::Busy`].
pub struct Object {
    shared: Arc<SharedObject>,
    server: Arc<ServerShared>,
    /// The stream that waits for copies, and then has them published. A callback on the caller's stream
    /// would delay the work that is queued after it.
    publishing: Mutex<Option<Arc<Stream>>>,
}

impl Object {
    pub(crate) fn new(shared: Arc<SharedObject>, server: Arc<ServerShared>) -> Self {
        Self {
            shared,
            server,
            publishing: Mutex::default(),
        }
    }

    /// Returns the object's name.
    pub fn name(&self) -> &ObjectName {
        self.shared.name()
    }

    /// Returns information about the object, as a peer with all rights sees it.
    ///
    /// # Errors
    /// At present only [`Error::Gone`], which does not occur before the object is closed.
    pub fn info(&self) -> Result<ObjectInfo> {
        let described = self.shared.describe(Rights::ReadWrite);
        let closed = || Error::gone(self.name(), GoneReason::Closed);
        described.map(|(info, ..)| info).ok_or_else(closed)
    }

    /// Returns the object's size in bytes. [`Object::info`] copies strings, which takes longer than publishing a word.
    fn bytes(&self) -> Result<u64> {
        let closed = || Error::gone(self.name(), GoneReason::Closed);
        self.shared.bytes().ok_or_else(closed)
    }

    /// Returns the newest epoch.
    pub fn newest(&self) -> Option<Epoch> {
        self.shared.newest()
    }

    /// Returns how many links have the object open.
    pub fn readers(&self) -> usize {
        self.shared.readers()
    }

    /// Fails if the server was dropped, because no peer would see what is published.
    fn check_server(&self) -> Result<()> {
        match self.server.is_stopping() {
            true => Err(Error::gone(self.name(), GoneReason::ServerClosed)),
            false => Ok(()),
        }
    }

    /// Publishes `bytes`, which must have the object's size, and returns their epoch. Wakes the peers that
    /// wait for it.
    ///
    /// Waits only if the object is a ring that blocks: for its followers, and at most until `deadline`.
    ///
    /// # Errors
    /// [`Error::Size`], [`Error::Busy`], [`Error::RingFull`], [`Error::NoMoreEpochs`];
    /// [`Error::Gone`] if its [`ObjectServer`](crate::ObjectServer) was dropped;
    /// [`Error::Rdma`] if the memory cannot be written. In any case, nothing is published.
    pub fn publish(&self, bytes: &[u8], deadline: Deadline) -> Result<Epoch> {
        let size = self.bytes()?;
        if bytes.len() as u64 != size {
            return Err(Error::Size {
                name: self.name().clone(),
                object: size,
                memory: bytes.len() as u64,
            });
        }
        self.write_with(deadline, |slot| slot.write_at(0, bytes))
    }

    /// Sets the epoch of the next publication and skips earlier ones. For an object that mirrors another, as a
    /// [`Relay`](crate::Relay) does.
    ///
    /// # Errors
    /// [`Error::EarlierEpoch`] if it is not later than the last one; [`Error::WrongMode`] if the object is not
    /// in latest mode.
    pub fn continue_at(&self, epoch: Epoch) -> Result<()> {
        self.shared.continue_at(epoch)
    }

    /// Publishes what `write` writes to the next slot. Bytes that it does not write keep their value from
    /// some earlier epoch, or are 0.
    ///
    /// # Errors
    /// Same as [`Object::publish`]; the errors of `write`, after which nothing is published.
    pub fn write_with(
        &self,
        deadline: Deadline,
        write: impl FnOnce(&SlotWriter<'_>) -> Result<()>,
    ) -> Result<Epoch> {
        self.check_server()?;
        let claimed = Claimed::begin(&self.shared, Writer::Owner, deadline)?;
        let content = &claimed.writing().content;
        let slot = SlotWriter {
            content,
            offset: content.offset(claimed.writing().claim.slot),
        };
        write(&slot)?;
        claimed.commit()
    }

    /// Queues a copy of the beginning of `from` to the next slot on `stream`, followed by its publication,
    /// and returns the future epoch. It waits neither for the stream nor for readers. Later work on the
    /// same stream may overwrite `from`, and does not wait for the publication. Copies on several streams
    /// are published in the order in which they were queued.
    ///
    /// If copies are queued faster than the GPU executes them, an object in latest mode publishes only some
    /// of them: a copy replaces an earlier one on the same stream. If the stream fails, or is destroyed
    /// before its work has been executed, the epoch is never published.
    ///
    /// # Errors
    /// [`Error::NotOnGpu`] for an object in host memory; [`Error::Size`]; [`Error::Busy`] while another
    /// thread or a peer publishes, or while copies on other streams are queued for all free slots;
    /// [`Error::RingFull`] at once; [`Error::Gone`] if its [`ObjectServer`](crate::ObjectServer) was dropped; [`Error::Cuda`].
    pub fn publish_from(&self, from: &DeviceBuffer, stream: &Stream) -> Result<Epoch> {
        self.publish_by(from, None, stream)
    }

    /// Like [`Object::publish_from`], but also keeps `from` alive until it has been copied, for a stream that does
    /// not ([`Stream::from_owner`]). A thread of the server drops it.
    ///
    /// # Errors
    /// Same as [`Object::publish_from`].
    pub fn publish_from_kept(&self, from: &Arc<DeviceBuffer>, stream: &Stream) -> Result<Epoch> {
        self.publish_by(from, Some(Kept(Arc::<DeviceBuffer>::clone(from))), stream)
    }

    fn publish_by(
        &self,
        from: &DeviceBuffer,
        kept: Option<Kept>,
        stream: &Stream,
    ) -> Result<Epoch> {
        let bytes = self.bytes()?;
        if from.len() != bytes {
            return Err(Error::Size {
                name: self.name().clone(),
                object: bytes,
                memory: from.len(),
            });
        }
        self.write_by(stream, kept, |slot| slot.queue_copy(0, from, stream))
    }

    /// Like [`Object::publish_from`], but `queue` queues the work that writes the next slot on `stream`, such as
    /// kernels that pack or cast, or several copies. Bytes that nothing writes keep their value from some
    /// earlier epoch, or are undefined.
    ///
    /// # Errors
    /// Same as [`Object::publish_from`]; the errors of `queue`, after which nothing is published.
    pub fn write_on(
        &self,
        stream: &Stream,
        queue: impl FnOnce(&DeviceSlot<'_>) -> Result<()>,
    ) -> Result<Epoch> {
        self.write_by(stream, None, queue)
    }

    /// Like [`Object::write_on`], but also keeps `kept` alive until the work has been executed: the memory that
    /// the work reads, for a stream that does not keep it ([`Stream::from_owner`]). A thread of the server drops it.
    ///
    /// # Errors
    /// Same as [`Object::write_on`].
    pub fn write_on_kept(
        &self,
        kept: Arc<dyn Any + Send + Sync>,
        stream: &Stream,
        queue: impl FnOnce(&DeviceSlot<'_>) -> Result<()>,
    ) -> Result<Epoch> {
        self.write_by(stream, Some(Kept(kept)), queue)
    }

    fn write_by(
        &self,
        stream: &Stream,
        kept: Option<Kept>,
        queue: impl FnOnce(&DeviceSlot<'_>) -> Result<()>,
    ) -> Result<Epoch> {
        /// How long a stream on which nothing more can be queued may take to finish.
        const LIMIT: Duration = Duration::from_secs(10);
        if self.shared.identity.place.location() == Location::Host {
            let name = self.name().clone();
            return Err(Error::NotOnGpu { name });
        }
        self.check_server()?;
        let writer = Writer::Stream(stream.id());
        let claimed = Claimed::begin(&self.shared, writer, Deadline::after(Duration::ZERO))?;
        let claim = claimed.writing().claim;
        if let Err(error) = self.queue(queue, kept.clone(), stream, claimed.writing()) {
            // This work, or a copy that it replaces, may be queued: the slot is given back only
            // once it has finished.
            match stream.wait(LIMIT) {
                Ok(()) => drop(claimed),
                Err(_) => {
                    // Leaked: the stream may not keep it, and nothing shows when the copy ends.
                    mem::forget((kept, Arc::clone(&claimed.writing().content)));
                    claimed.keep();
                }
            }
            return Err(error);
        }
        claimed.keep();
        Ok(claim.epoch)
    }

    /// Queues the work that writes a claimed slot, and its publication.
    fn queue(
        &self,
        write: impl FnOnce(&DeviceSlot<'_>) -> Result<()>,
        kept: Option<Kept>,
        stream: &Stream,
        writing: &Writing,
    ) -> Result<()> {
        let Writing { claim, content } = writing;
        let Some(memory) = &content.device_memory else {
            let name = self.name().clone();
            return Err(Error::NotOnGpu { name });
        };
        write(&DeviceSlot {
            memory,
            offset: content.offset(claim.slot),
            len: content.bytes,
        })?;
        let copied = Copied {
            object: Arc::clone(&self.shared),
            writing: Writing {
                claim: *claim,
                content: Arc::clone(content),
            },
            source: kept,
        };
        let publisher = self.server.publisher.clone();
        let publishing = self.publishing(stream)?;
        publishing.queue_wait(stream)?;
        Ok(publishing.queue_call(move || publisher.send(copied))?)
    }

    /// Returns the stream that has the copies on `stream` published.
    fn publishing(&self, stream: &Stream) -> Result<Arc<Stream>> {
        let mut publishing = lock(&self.publishing);
        if let Some(made) = &*publishing {
            return Ok(Arc::clone(made));
        }
        let made = Arc::new(stream.gpu().stream()?);
        *publishing = Some(Arc::clone(&made));
        Ok(made)
    }

    /// Replaces the object's memory with memory for another shape, without content. Peers that are reading
    /// get an error, or open the new memory; epochs continue.
    ///
    /// # Errors
    /// [`Error::Shape`], [`Error::Busy`]; [`Error::Gone`] if its server was dropped; the errors of
    /// [`ObjectServer::create`](crate::ObjectServer::create). After an error the object is unchanged.
    pub fn resize(&self, shape: Shape) -> Result<()> {
        self.check_server()?;
        self.shared.resize(shape)
    }

    /// Closes the object: peers get [`Error::Gone`], and its memory is freed. Once this returns, no peer can
    /// access the memory. Dropping the object does the same.
    pub fn close(self) {
        drop(self);
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        self.server.forget(&self.shared);
        self.shared.close();
    }
}

impl fmt::Debug for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Object")
            .field("name", self.name())
            .field("newest", &self.newest())
            .finish_non_exhaustive()
    }
}

/// A claimed slot, which is given back on drop, for example if a closure fails or panics.
struct Claimed<'a> {
    object: &'a SharedObject,
    /// Present until the commit.
    writing: Option<Writing>,
}

impl<'a> Claimed<'a> {
    fn begin(object: &'a SharedObject, writer: Writer, deadline: Deadline) -> Result<Self> {
        let writing = Some(object.begin(writer, deadline)?);
        Ok(Self { object, writing })
    }

    fn writing(&self) -> &Writing {
        self.writing.as_ref().expect("present until the commit")
    }

    /// Leaves the slot to the code that publishes it later.
    fn keep(mut self) {
        self.writing = None;
    }

    fn commit(mut self) -> Result<Epoch> {
        let epoch = self.writing().claim.epoch;
        self.object.commit(self.writing())?;
        self.writing = None;
        Ok(epoch)
    }
}

impl Drop for Claimed<'_> {
    fn drop(&mut self) {
        if let Some(writing) = self.writing.take() {
            self.object.abandon(&writing);
        }
    }
}

/// The slot that [`Object::write_with`] fills.
#[derive(Debug)]
pub struct SlotWriter<'a> {
    content: &'a Content,
    offset: u64,
}

impl SlotWriter<'_> {
    /// Returns the size of the slot in bytes.
    #[expect(clippy::len_without_is_empty, reason = "no object is empty")]
    pub fn len(&self) -> u64 {
        self.content.bytes
    }

    /// Copies `bytes` to `offset`.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], and nothing is written; [`Error::Rdma`].
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let (len, size) = (bytes.len() as u64, self.len());
        if offset.checked_add(len).is_none_or(|end| end > size) {
            return Err(Error::OutOfRange { offset, len, size });
        }
        let data: &Buffer = self.content.data();
        Ok(data.write_at(self.offset + offset, bytes)?)
    }
}

/// The slot in GPU memory that the work of [`Object::write_on`] fills.
#[derive(Debug)]
pub struct DeviceSlot<'a> {
    /// The memory of all slots.
    memory: &'a DeviceBuffer,
    offset: u64,
    len: u64,
}

impl DeviceSlot<'_> {
    /// Returns the size of the slot in bytes.
    #[expect(clippy::len_without_is_empty, reason = "no object is empty")]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns the address of the first byte, a multiple of 256. Work that writes to it must be queued on the
    /// stream of the publication.
    pub fn ptr(&self) -> DevicePtr {
        DevicePtr::new(self.memory.ptr().get() + self.offset)
    }

    /// Returns the GPU.
    pub fn gpu(&self) -> &Gpu {
        self.memory.gpu()
    }

    /// Queues a copy of all of `from` to `offset` on `stream`.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], and nothing is queued; [`Error::Cuda`].
    pub fn queue_copy(&self, offset: u64, from: &DeviceBuffer, stream: &Stream) -> Result<()> {
        let (len, size) = (from.len(), self.len);
        if offset.checked_add(len).is_none_or(|end| end > size) {
            return Err(Error::OutOfRange { offset, len, size });
        }
        Ok(stream.queue_copy(from, 0, self.memory, self.offset + offset, len)?)
    }

    /// Queues a copy of all pieces of `gather` to their offsets on `stream`.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], and nothing is queued; [`Error::Cuda`].
    pub fn queue_gather(&self, gather: &Arc<Gather>, stream: &Stream) -> Result<()> {
        let (len, size) = (gather.end(), self.len);
        if len > size {
            let offset = 0;
            return Err(Error::OutOfRange { offset, len, size });
        }
        Ok(stream.queue_gather(gather, self.memory, self.offset)?)
    }
}

#[cfg(test)]
mod tests {
    use gdr_rdma::Security;

    use super::*;
    use crate::header::{LINE, Slot, SlotLine, SlotState};
    use crate::{Link, LinkOptions, ObjectServer, Place, ServerOptions};

    #[test]
    fn bytes_that_changed_after_their_publication_are_damaged() {
        let limit = || Deadline::after(Duration::from_secs(60));
        let address = "127.0.0.1:0".parse().unwrap();
        let server = ObjectServer::bind(address, ServerOptions::new(Security::Loopback)).unwrap();
        let options = ObjectOptions::new(Element::U8, Shape::row(1000).unwrap());
        let name = ObjectName::new("w").unwrap();
        let options = options.checksum(Checksum::Sum64);
        let object = server
            .create(name.clone(), options, &Place::host())
            .unwrap();
        let epoch = object.publish(&[3; 1000], limit()).unwrap();
        let options = LinkOptions::new(Security::Loopback);
        let link = Link::connect(server.address(), options, limit()).unwrap();
        let remote = link.open(name, limit()).unwrap();
        remote.get(limit()).unwrap();

        // As defective memory would do.
        let (_, _, content) = object.shared.describe(Rights::Read).unwrap();
        content.data().write_at(999, &[4]).unwrap();
        let damaged = remote.get(limit()).unwrap_err();
        let Error::Damaged { epoch: of, .. } = &damaged else {
            panic!("{damaged}");
        };
        assert_eq!(*of, epoch);
    }

    /// Returns an object of eight bytes that was published once, as opened by a link.
    fn opened(server: &ObjectServer) -> (Object, Link, crate::RemoteObject) {
        let limit = Deadline::after(Duration::from_secs(60));
        let options = ObjectOptions::new(Element::U8, Shape::row(8).unwrap());
        let name = ObjectName::new("w").unwrap();
        let object = server
            .create(name.clone(), options, &Place::host())
            .unwrap();
        object.publish(&[1; 8], limit).unwrap();
        let options = LinkOptions::new(Security::Loopback);
        let link = Link::connect(server.address(), options, limit).unwrap();
        let remote = link.open(name, limit).unwrap();
        (object, link, remote)
    }

    #[test]
    fn header_lines_of_another_run_or_object_are_not_taken() {
        let limit = || Deadline::after(Duration::from_secs(60));
        // Offsets and their contents: the generation of the object's line, its revision, its newest
        // slot, and the generation of the slot's line.
        let newest = 1 << 16;
        for (at, word) in [
            (0, 5),
            (8, 5),
            (16, newest | 3),
            (16, newest | 0xffff),
            (LINE, 5),
        ] {
            let address = "127.0.0.1:0".parse().unwrap();
            let server =
                ObjectServer::bind(address, ServerOptions::new(Security::Loopback)).unwrap();
            let (object, link, remote) = opened(&server);
            remote.get(limit()).unwrap();
            let (_, _, content) = object.shared.describe(Rights::Read).unwrap();
            let header = content.header.buffer();
            header.write_at(at, &u64::to_le_bytes(word)).unwrap();
            let memory = link.host_memory(8).unwrap();
            let single = remote.get_into(&memory, limit()).map(drop);
            let several = link.get_many(&[(&remote, &memory)], limit()).map(drop);
            for got in [single, several] {
                let refused = got.unwrap_err();
                let says = "header lines of another object";
                assert!(refused.to_string().contains(says), "{at} {word}: {refused}");
            }
            assert_eq!(memory.buffer().load_u8(0).unwrap() > 0, at == LINE);
        }
    }

    #[test]
    fn a_closed_server_takes_no_publications() {
        let limit = || Deadline::after(Duration::from_secs(60));
        let address = "127.0.0.1:0".parse().unwrap();
        let server = ObjectServer::bind(address, ServerOptions::new(Security::Loopback)).unwrap();
        let (object, ..) = opened(&server);
        drop(server);
        let published = object.publish(&[2; 8], limit()).map(drop);
        let resized = object.resize(Shape::row(4).unwrap());
        for refused in [published, resized] {
            let Err(Error::Gone { why, .. }) = refused else {
                panic!("{refused:?}");
            };
            assert_eq!(why, GoneReason::ServerClosed);
        }
        assert_eq!(object.newest(), Some(Epoch::FIRST));
    }

    #[test]
    fn a_slot_is_busy_while_it_is_overwritten() {
        let limit = || Deadline::after(Duration::from_secs(60));
        let address = "127.0.0.1:0".parse().unwrap();
        let server = ObjectServer::bind(address, ServerOptions::new(Security::Loopback)).unwrap();
        let options = ObjectOptions::new(Element::U8, Shape::row(8).unwrap());
        let name = ObjectName::new("w").unwrap();
        let object = server.create(name, options, &Place::host()).unwrap();
        for number in 1..=5 {
            let epoch = object.write_with(limit(), |slot| {
                let index = (slot.offset / slot.content.stride) as u16;
                let mut line = [0; LINE as usize];
                let header = slot.content.header.buffer();
                header.read_at(Slot(index).line(), &mut line)?;
                let state = SlotLine::parse(&line).unwrap().state;
                assert_eq!(state, SlotState::Busy(Epoch::new(number).unwrap()));
                Ok(())
            });
            assert_eq!(epoch.unwrap().get(), number);
        }
    }
}
