//! Followers of rings.

use std::fmt;
use std::time::Duration;

use gdr_rdma::Deadline;

use crate::binding::{Attempt, Binding};
use crate::epoch::Epoch;
use crate::error::{Error, GoneReason, Result};
use crate::header::{Slot, SlotState};
use crate::link_channel::Step;
use crate::link_shared::{LinkState, LocalMemory};
use crate::part::Part;
use crate::peer_channel::READ;
use crate::protocol::{Opened, Request};

/// Reads every epoch of a ring, in order. Created by [`RemoteObject::follow`](crate::RemoteObject::follow).
pub struct Follower<'a> {
    object: &'a Binding,
    last: Option<Epoch>,
    /// The number of the connection on which the owner knows this follower.
    connection: u64,
}

/// An epoch that a follower has read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// The epoch.
    pub epoch: Epoch,
    /// How many earlier epochs were overwritten before this follower read them; 0 for a ring that
    /// blocks.
    pub missed: u64,
}

impl<'a> Follower<'a> {
    pub(crate) const fn new(object: &'a Binding, last: Option<Epoch>, connection: u64) -> Self {
        Self {
            object,
            last,
            connection,
        }
    }

    /// Returns the last epoch that was read; before the first one, the epoch after which the follower started.
    pub fn last(&self) -> Option<Epoch> {
        self.last
    }

    /// Reads the next epoch into the beginning of `to`, waiting for it if necessary. From then on, the
    /// owner may overwrite that epoch's slot.
    ///
    /// # Errors
    /// [`Error::NothingNewer`] at the deadline; [`Error::Size`]; the errors of
    /// [`RemoteObject::newest`](crate::RemoteObject::newest). After [`Error::Gone`], follow the
    /// object again.
    pub fn next_into(&mut self, to: &LocalMemory, deadline: Deadline) -> Result<Received> {
        let (object, last, connection) = (self.object, self.last, self.connection);
        let received = object.attempt(deadline, |state, opened| {
            if state.connections != connection {
                // The owner has dropped this follower.
                return Err(Error::gone(&object.name, GoneReason::Disconnected).into());
            }
            next_part(object, state, opened, last, to, deadline)
        })?;
        self.last = Some(received.epoch);
        Ok(received)
    }
}

impl Drop for Follower<'_> {
    fn drop(&mut self) {
        /// How long the owner may take to answer. If it does not, it drops this follower together
        /// with the link.
        const LIMIT: Duration = Duration::from_secs(1);
        let deadline = Deadline::after(LIMIT);
        let (link, object) = (&self.object.link, self.object.opened().object);
        let Ok(mut state) = link.lock(deadline) else {
            // The link may be in use for hours, and a ring that blocks would wait as long.
            link.unfollow_later(self.connection, object);
            return;
        };
        if state.connections == self.connection {
            let unfollow = Request::Unfollow { object };
            if let Err(error) = state.ask(link, &unfollow, deadline) {
                tracing::debug!(%error, "a follower ended without the owner's answer");
            }
        }
    }
}

impl fmt::Debug for Follower<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Follower")
            .field("object", &self.object.name)
            .field("last", &self.last)
            .finish_non_exhaustive()
    }
}

/// Reads the epoch of a ring that follows `last`, or the oldest one that still exists.
fn next_part(
    binding: &Binding,
    state: &mut LinkState,
    opened: &Opened,
    last: Option<Epoch>,
    to: &LocalMemory,
    deadline: Deadline,
) -> Result<Received, Attempt> {
    let bytes = opened.info.bytes;
    if to.len() < bytes {
        return Err(binding.wrong_size(bytes, to).into());
    }
    let slots = u64::from(opened.info.mode.slots());
    let after = last.map_or(0, Epoch::get);
    let part = Part::all(bytes, to);
    let pairs = to.pairs(bytes, opened);
    let mut next = after + 1;
    loop {
        let seen = Epoch::new(next - 1);
        let newest = binding.await_newer(state, opened, seen, deadline)?;
        let Some(newest) = newest else {
            let name = binding.name.clone();
            return Err(Error::NothingNewer { name, seen: last }.into());
        };
        // The slot of the oldest epoch may be the one being overwritten.
        next = next.max((newest.get() + 1).saturating_sub(slots).max(1));
        let slot = Slot(((next - 1) % slots) as u16);
        let (channel, watch) = state.channel_for(&binding.link, opened.domain, pairs, deadline)?;
        let line = binding.read_slot(channel, watch, opened, slot, part, deadline)?;
        if let Some(epoch) = Epoch::new(next)
            && line.state == SlotState::Whole(epoch)
        {
            binding.check_sum(opened, part, epoch, &line, deadline)?;
            channel.post(Step::Store {
                word: next,
                to: channel.cell(opened.cell, READ),
            })?;
            let missed = next - after - 1;
            return Ok(Received { epoch, missed });
        }
        // The epoch was overwritten. Each round reads, and no read begins after the deadline.
        next += 1;
    }
}

#[cfg(test)]
mod tests {
    use gdr_rdma::Security;

    use super::*;
    use crate::{
        Element, Link, LinkOptions, Mode, ObjectName, ObjectOptions, ObjectServer, Place,
        ServerOptions, Shape, WhenFull,
    };

    #[test]
    fn a_follower_that_ends_while_its_link_is_used_leaves_its_ring_with_the_next_call() {
        let limit = || Deadline::after(Duration::from_secs(20));
        let address = "127.0.0.1:0".parse().unwrap();
        let server = ObjectServer::bind(address, ServerOptions::new(Security::Loopback)).unwrap();
        let ring = ObjectOptions::new(Element::U8, Shape::row(8).unwrap()).mode(Mode::Ring {
            slots: 2,
            when_full: WhenFull::Block,
        });
        let name = ObjectName::new("ring").unwrap();
        let ring = server.create(name.clone(), ring, &Place::host()).unwrap();
        let options = LinkOptions::new(Security::Loopback);
        let link = Link::connect(server.address(), options, limit()).unwrap();
        let followed = link.open(name, limit()).unwrap();
        let follower = followed.follow(limit()).unwrap();
        // As another thread's long transfer does.
        let state = follower.object.link.lock(limit()).unwrap();
        drop(follower);
        drop(state);
        link.list(limit()).unwrap();
        // More than the number of slots: a blocking ring would wait for this follower.
        for _ in 0..5 {
            ring.publish(&[1; 8], limit()).unwrap();
        }
    }
}
