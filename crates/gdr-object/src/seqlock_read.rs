//! Reading an object: the header, bytes of a slot, and the header again.

use std::sync::atomic::{AtomicU32, Ordering};

use gdr_rdma::{Deadline, RemoteMemory, Stripe, Watch};

use crate::binding::{Attempt, Binding};
use crate::epoch::Epoch;
use crate::error::{Error, Result};
use crate::header::{LINE, ObjectLine, Slot, SlotLine, SlotState};
use crate::link_channel::{Fault, LinkChannel, Order, QueuePairs, Step};
use crate::link_shared::{LinkState, LocalMemory};
use crate::mode::{Checksum, Mode, Rights};
use crate::part::Part;
use crate::protocol::{Opened, Refused, Request, Response};

/// How often a get may be overtaken before it requests a lease, if the previous get needed none.
const MOST_OVERTAKEN: u32 = 4;
/// Number of leases after which a get without one is tried again.
const LEASES: u32 = 16;

/// Number of consecutive gets that needed a lease. Without this, each get of an object that is published faster than it
/// is read would first be overtaken.
#[derive(Debug, Default)]
pub(crate) struct LeaseHistory(AtomicU32);

impl LeaseHistory {
    /// Returns how many times the next get reads without a lease at first.
    fn tries(&self) -> u32 {
        match self.0.load(Ordering::Relaxed) {
            0 => MOST_OVERTAKEN,
            leases if leases % LEASES == 0 => 1,
            _ => 0,
        }
    }

    fn needed(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn not_needed(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

/// Result of one attempt to read an object.
pub(crate) enum SeqlockRead {
    /// These bytes, whole.
    Whole(Epoch),
    /// The owner overwrote the slot in the meantime.
    Overtaken,
    /// Nothing has been published.
    Empty,
}

impl Binding {
    pub(crate) fn get_part<'a>(
        &self,
        deadline: Deadline,
        part: impl Fn(&Opened) -> Result<Part<'a>>,
    ) -> Result<Epoch> {
        let (mut overtaken, tries) = (0, self.leases.tries());
        self.attempt(deadline, |state, opened| {
            let part = part(opened)?;
            let pairs = part.to.pairs(part.len, opened);
            loop {
                if overtaken >= tries
                    && opened.info.mode == Mode::Latest
                    && let Some(epoch) = self.read_with_lease(state, opened, part, deadline)?
                {
                    self.leases.needed();
                    return Ok(epoch);
                }
                let (channel, watch) =
                    state.channel_for(&self.link, opened.domain, pairs, deadline)?;
                match self.try_read(channel, watch, opened, part, deadline)? {
                    SeqlockRead::Whole(epoch) => {
                        self.leases.not_needed();
                        return Ok(epoch);
                    }
                    SeqlockRead::Empty => {
                        let name = self.name.clone();
                        return Err(Error::Empty { name }.into());
                    }
                    SeqlockRead::Overtaken => overtaken += 1,
                }
                if deadline.has_passed() {
                    let fault = Fault::Deadline { done: 0 };
                    return Err(Attempt::Fault {
                        fault,
                        of: part.len,
                    });
                }
            }
        })
    }

    /// Reads the newest epoch once.
    pub(crate) fn try_read(
        &self,
        channel: &mut LinkChannel,
        watch: &Watch,
        opened: &Opened,
        part: Part<'_>,
        deadline: Deadline,
    ) -> Result<SeqlockRead, Attempt> {
        let line = self.object_line(channel, watch, opened, [], deadline)?;
        let Some((epoch, slot)) = line.newest else {
            return Ok(SeqlockRead::Empty);
        };
        let line = self.read_slot(channel, watch, opened, slot, part, deadline)?;
        match line.state {
            SlotState::Whole(whole) if whole == epoch => {
                self.check_sum(opened, part, epoch, &line, deadline)?;
                Ok(SeqlockRead::Whole(epoch))
            }
            _ if opened.info.mode == Mode::Live => Ok(SeqlockRead::Whole(epoch)),
            _ => Ok(SeqlockRead::Overtaken),
        }
    }

    /// Reads an epoch that the owner keeps meanwhile; `None` if it cannot now.
    pub(crate) fn read_with_lease(
        &self,
        state: &mut LinkState,
        opened: &Opened,
        part: Part<'_>,
        deadline: Deadline,
    ) -> Result<Option<Epoch>, Attempt> {
        let object = opened.object;
        let milliseconds = deadline.remaining().as_millis() as u64 + 1;
        // Start from what the header showed a moment ago, so that epochs do not decrease.
        let (channel, watch) = state.channel(&self.link, opened.domain, deadline)?;
        let line = self.object_line(channel, watch, opened, [], deadline)?;
        let Some((least, _)) = line.newest else {
            return Ok(None);
        };
        let request = Request::Lease {
            object,
            least,
            milliseconds,
        };
        let (epoch, slot) = match state.ask(&self.link, &request, deadline)? {
            Response::Leased { epoch, slot } if slot < opened.info.mode.slots() => {
                (epoch, Slot(slot))
            }
            Response::Refused(Refused::Busy(_)) => return Ok(None),
            other => return Err(self.refused(other, Rights::Read)),
        };
        let pairs = part.to.pairs(part.len, opened);
        let found = state
            .channel_for(&self.link, opened.domain, pairs, deadline)
            .map_err(Attempt::from)
            .and_then(|(channel, watch)| {
                self.read_slot(channel, watch, opened, slot, part, deadline)
            });
        // Also after a failure. At the deadline the lease ends by itself.
        let release = Request::Release { object, epoch };
        let released = match deadline.has_passed() {
            true => Ok(Response::Done),
            false => state.ask(&self.link, &release, deadline),
        };
        let found = found?;
        match released? {
            Response::Done => {}
            other => return Err(self.refused(other, Rights::Read)),
        }
        if found.state != SlotState::Whole(epoch) {
            return Ok(None);
        }
        self.check_sum(opened, part, epoch, &found, deadline)?;
        Ok(Some(epoch))
    }

    /// Compares the checksum of a whole publication, if the object has checksums. The bytes of a live object may come
    /// from two publications.
    pub(crate) fn check_sum(
        &self,
        opened: &Opened,
        part: Part<'_>,
        epoch: Epoch,
        line: &SlotLine,
        deadline: Deadline,
    ) -> Result<()> {
        let info = &opened.info;
        let is_checked = info.checksum == Checksum::Sum64 && info.mode != Mode::Live;
        let Some(at) = part.whole(info.bytes).filter(|_| is_checked) else {
            return Ok(());
        };
        let received = part.to.checksum(at, info.bytes, deadline)?;
        if received == line.checksum {
            return Ok(());
        }
        Err(Error::Damaged {
            name: self.name.clone(),
            epoch,
            published: line.checksum,
            received,
        })
    }

    /// Reads part of a slot, and afterwards its line.
    pub(crate) fn read_slot(
        &self,
        channel: &mut LinkChannel,
        watch: &Watch,
        opened: &Opened,
        slot: Slot,
        part: Part<'_>,
        deadline: Deadline,
    ) -> Result<SlotLine, Attempt> {
        let (data, header) = (
            RemoteMemory::from(opened.data),
            RemoteMemory::from(opened.header),
        );
        let start = opened.stride * u64::from(slot.0);
        let fault = |fault| Attempt::Fault {
            fault,
            of: part.len,
        };
        let mut steps = Vec::with_capacity(part.extents().len() + 1);
        for extent in part.extents() {
            for (at, len) in Stripe::parts(extent.len, 1) {
                steps.push(Step::Read {
                    from: data.at(start + extent.from + at),
                    to: part.to.region().segment(extent.to + at, len)?,
                    order: Order::Any,
                });
            }
        }
        let mut arrived = 0;
        let pairs = part.to.pairs(part.len, opened);
        if pairs == QueuePairs::All {
            // A fence only orders the READs of one queue pair, so all READs of every queue pair must end before the
            // line's READ is posted.
            let moved = channel.run_over(pairs, steps.drain(..), deadline, watch);
            moved.map_err(fault)?;
            arrived = part.len;
        }
        steps.push(Step::line(header.at(slot.line()), channel.line(0)?));
        let moved = channel.run(steps, deadline, watch);
        moved.map_err(|it| fault(it.after(arrived)))?;
        let line = SlotLine::parse(&channel.line_bytes(0)?)
            .map_err(|error| self.link.unexpected(&error.to_string()))?;
        if line.generation != self.generation() {
            return Err(Attempt::Stale);
        }
        Ok(line)
    }

    /// Reads the object's line, after some other steps.
    pub(crate) fn object_line<const N: usize>(
        &self,
        channel: &mut LinkChannel,
        watch: &Watch,
        opened: &Opened,
        before: [Step; N],
        deadline: Deadline,
    ) -> Result<ObjectLine, Attempt> {
        let header = RemoteMemory::from(opened.header);
        let read = Step::line(header.at(0), channel.line(0)?);
        let steps = before.into_iter().chain([read]);
        let moved = channel.run(steps, deadline, watch);
        moved.map_err(|fault| Attempt::Fault { fault, of: LINE })?;
        let line = ObjectLine::parse(&channel.line_bytes(0)?)
            .map_err(|error| self.link.unexpected(&error.to_string()))?;
        let is_of_it = line.generation == self.generation()
            && line.revision == opened.revision
            && line
                .newest
                .is_none_or(|(_, slot)| slot.0 < opened.info.mode.slots());
        match is_of_it {
            true => Ok(line),
            false => Err(Attempt::Stale),
        }
    }

    pub(crate) fn wrong_size(&self, object: u64, memory: &LocalMemory) -> Error {
        Error::Size {
            name: self.name.clone(),
            object,
            memory: memory.len(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use gdr_rdma::Security;

    use super::*;
    use crate::{
        Element, Link, LinkOptions, ObjectName, ObjectOptions, ObjectServer, Place, ServerOptions,
        Shape,
    };

    fn limit() -> Deadline {
        Deadline::after(Duration::from_secs(60))
    }

    #[test]
    fn a_get_that_fails_under_a_lease_releases_it() {
        let address = "127.0.0.1:0".parse().unwrap();
        let server = ObjectServer::bind(address, ServerOptions::new(Security::Loopback)).unwrap();
        let options = ObjectOptions::new(Element::U8, Shape::row(8).unwrap());
        let name = ObjectName::new("w").unwrap();
        let object = server
            .create(name.clone(), options, &Place::host())
            .unwrap();
        let options = LinkOptions::new(Security::Loopback);
        let link = Link::connect(server.address(), options, limit()).unwrap();
        let remote = link.open(name, limit()).unwrap();
        let memory = link.host_memory(8).unwrap();
        let get = |len: u64| {
            let binding = remote.binding();
            binding.attempt(limit(), |state, opened| {
                let part = Part::all(len, &memory);
                binding.read_with_lease(state, opened, part, limit())
            })
        };
        object.publish(&[1; 8], limit()).unwrap();
        // The memory is shorter.
        assert!(get(9).is_err());
        let newest = object.publish(&[2; 8], limit()).unwrap();
        // A lease of the first epoch would be in the way.
        assert_eq!(get(8).unwrap(), Some(newest));
    }
    #[test]
    fn after_a_lease_gets_ask_for_one_first_and_try_without_at_times() {
        let history = LeaseHistory::default();
        assert_eq!(history.tries(), MOST_OVERTAKEN);
        let tried: Vec<_> = (0..2 * LEASES)
            .map(|_| {
                history.needed();
                history.tries()
            })
            .collect();
        let without = tried.iter().filter(|tries| **tries > 0).count();
        assert_eq!((without, tried[0]), (2, 0));
        history.not_needed();
        assert_eq!(history.tries(), MOST_OVERTAKEN);
    }
}
