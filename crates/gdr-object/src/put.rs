//! Puts: a link writes the slot of the next epoch, for a limited time.

use std::time::{Duration, Instant};

use gdr_rdma::{Access, Deadline, MemoryRegion, RemoteMemory};

use crate::epoch::Epoch;
use crate::error::{Error, GoneReason, Result};
use crate::link_table::LinkId;
use crate::lock::lock;
use crate::shared_object::{SharedObject, Writing};
use crate::slots::Writer;

/// A slot that a link writes. It is part of the object's state, so that every thread that wants the
/// slot sees when its time is over, whatever the link does.
#[derive(Debug)]
pub(crate) struct Put {
    // Fields are dropped in this order: once this is dropped, the link no longer reaches the slot.
    region: MemoryRegion,
    writing: Writing,
    link: LinkId,
    until: Instant,
}

/// How a put ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PutEnd {
    Published,
    /// The put was not begun, or its time is over.
    Late,
    /// The bytes have a different checksum.
    Damaged,
}

impl SharedObject {
    /// Claims a slot for a link, which may write to the slot's memory until the limit has passed.
    pub(crate) fn begin_put(&self, link: LinkId, limit: Duration) -> Result<(Epoch, RemoteMemory)> {
        let writing = self.begin(Writer::Peer, Deadline::after(Duration::ZERO))?;
        let region = match self.open_slot(&writing) {
            Ok(region) => region,
            Err(error) => {
                self.abandon(&writing);
                return Err(error);
            }
        };
        let (epoch, memory) = (writing.claim.epoch, region.remote());
        let put = Put {
            region,
            writing,
            link,
            until: Instant::now() + limit,
        };
        // There is no other put: this one has the only claim.
        let refused = lock(&self.state).set_put(put);
        match refused {
            None => Ok((epoch, memory)),
            Some(put) => {
                self.give_back(put);
                Err(Error::gone(self.name(), GoneReason::Closed))
            }
        }
    }

    /// Publishes what a link has put, unless its time is over.
    pub(crate) fn end_put(&self, link: LinkId, epoch: Epoch, checksum: u64) -> Result<PutEnd> {
        let now = Instant::now();
        let Some(put) = self.take_put(|put| put.link == link) else {
            return Ok(PutEnd::Late);
        };
        if put.writing.claim.epoch != epoch || put.until <= now {
            self.give_back(put);
            return Ok(PutEnd::Late);
        }
        let Put {
            region, writing, ..
        } = put;
        // The link must not change what is published.
        drop(region);
        let is_intact = self.checksum(&writing).map(|found| found == checksum);
        if let Ok(true) = is_intact {
            self.commit(&writing)?;
            return Ok(PutEnd::Published);
        }
        self.abandon(&writing);
        is_intact.map(|_| PutEnd::Damaged)
    }

    /// Gives back the slot of a link's put, if it has one.
    pub(crate) fn abandon_put(&self, link: LinkId) {
        if let Some(put) = self.take_put(|put| put.link == link) {
            self.give_back(put);
        }
    }

    /// Takes back the slot of a put whose time is over; returns whether there was one.
    pub(crate) fn end_late_put(&self) -> bool {
        let now = Instant::now();
        let late = self.take_put(|put| put.until <= now);
        let was_there = late.is_some();
        if let Some(put) = late {
            tracing::debug!(object = %self.name(), "the time of a put was over before its end");
            self.give_back(put);
        }
        was_there
    }

    fn take_put(&self, is_meant: impl Fn(&Put) -> bool) -> Option<Put> {
        lock(&self.state).put().take_if(|put| is_meant(put))
    }

    /// Gives a slot back once the link no longer reaches it.
    fn give_back(&self, put: Put) {
        let Put {
            region, writing, ..
        } = put;
        drop(region);
        self.abandon(&writing);
    }

    /// Registers a claimed slot so that a peer can write to it until the region is dropped.
    fn open_slot(&self, writing: &Writing) -> Result<MemoryRegion> {
        let Writing { claim, content } = writing;
        let (offset, access) = (
            content.offset(claim.slot),
            Access::LOCAL_WRITE | Access::REMOTE_WRITE,
        );
        let domain = self.protection_domain();
        Ok(domain.register_range(content.data(), offset, content.bytes, access)?)
    }
}

#[cfg(test)]
mod tests {
    use gdr_rdma::{Device, SoftOptions};

    use super::*;
    use crate::element::{Element, Shape};
    use crate::epoch::Generation;
    use crate::protocol::ObjectId;
    use crate::shared_object::Identity;
    use crate::{Checksum, Grantee, Mode, ObjectName, Place, Rights};

    const HERE: LinkId = LinkId(1);
    const LONG: Duration = Duration::from_secs(3600);

    fn object(checksum: Checksum) -> SharedObject {
        let device = Device::soft_with(SoftOptions::default().port(0)).unwrap();
        let identity = Identity {
            id: ObjectId(1),
            name: ObjectName::new("w").unwrap(),
            element: Element::U8,
            mode: Mode::Latest,
            checksum,
            grants: vec![(Grantee::Everyone, Rights::ReadWrite)],
            place: Place::host(),
            generation: Generation(1),
        };
        let shape = Shape::row(4).unwrap();
        SharedObject::new(identity, shape, &device.protection_domain()).unwrap()
    }

    /// Returns whether the owner can write the next slot.
    fn is_free(object: &SharedObject) -> bool {
        let now = Deadline::after(Duration::ZERO);
        let begun = object.begin(Writer::Owner, now);
        begun.is_ok_and(|writing| {
            object.abandon(&writing);
            true
        })
    }

    #[test]
    fn a_put_ends_by_its_own_link_in_its_time_and_with_its_epoch_only() {
        for (limit, link, epoch, end) in [
            (LONG, HERE, 1, PutEnd::Published),
            (Duration::ZERO, HERE, 1, PutEnd::Late),
            (LONG, LinkId(2), 1, PutEnd::Late),
            (LONG, HERE, 2, PutEnd::Late),
        ] {
            let object = object(Checksum::None);
            let (begun, _) = object.begin_put(HERE, limit).unwrap();
            assert_eq!(begun, Epoch::FIRST);
            let ended = object.end_put(link, Epoch::new(epoch).unwrap(), 0);
            assert_eq!(ended.unwrap(), end, "{limit:?} {link:?} {epoch}");
            assert_eq!(object.newest().is_some(), end == PutEnd::Published);
            // Another link's message does not end the put.
            assert_eq!(is_free(&object), link == HERE);
            object.abandon_put(LinkId(2));
            assert_eq!(is_free(&object), link == HERE);
            object.abandon_put(HERE);
            assert!(is_free(&object));
            // A put ends once.
            let again = object.end_put(HERE, begun, 0).unwrap();
            assert_eq!(again, PutEnd::Late);
        }
    }

    #[test]
    fn who_wants_the_slot_of_a_late_put_gets_it_whatever_the_link_does() {
        let object = object(Checksum::None);
        object.begin_put(HERE, LONG).unwrap();
        assert!(!is_free(&object));
        object.abandon_put(HERE);
        object.begin_put(HERE, Duration::ZERO).unwrap();
        assert!(is_free(&object));
        object.begin_put(HERE, Duration::ZERO).unwrap();
        object.begin_put(LinkId(2), Duration::ZERO).unwrap();
        object.resize(Shape::row(5).unwrap()).unwrap();
    }

    #[test]
    fn a_put_with_another_checksum_is_not_published_and_frees_the_slot() {
        let object = object(Checksum::Sum64);
        let (epoch, _) = object.begin_put(HERE, LONG).unwrap();
        let sum = {
            let mut state = lock(&object.state);
            let put = state.put().as_ref().unwrap();
            object.checksum(&put.writing).unwrap()
        };
        let damaged = object.end_put(HERE, epoch, sum ^ 1).unwrap();
        assert_eq!(damaged, PutEnd::Damaged);
        assert_eq!(object.newest(), None);
        let (epoch, _) = object.begin_put(HERE, LONG).unwrap();
        let whole = object.end_put(HERE, epoch, sum).unwrap();
        assert_eq!(whole, PutEnd::Published);
    }

    #[test]
    fn closing_an_object_ends_its_put_and_no_other_begins() {
        let object = object(Checksum::None);
        let (epoch, _) = object.begin_put(HERE, LONG).unwrap();
        object.close();
        assert_eq!(object.end_put(HERE, epoch, 0).unwrap(), PutEnd::Late);
        let refused = object.begin_put(HERE, LONG);
        assert!(matches!(refused, Err(Error::Gone { .. })));
    }
}
