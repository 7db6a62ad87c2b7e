//! The multicast groups that identifiers have joined.

use std::net::IpAddr;
use std::sync::Arc;

use gdr_nic::Qpn;

use super::abi::{Event, EventAnswer};
use super::channel::{Channel, QueuedEvent};
use super::id::PortSpace;
use super::state::State;
use crate::errno::Errno;

/// The membership of an identifier in a group. It has a number and events of its own.
pub(super) struct Membership {
    /// The identifier.
    owner: u32,
    /// How many of its events were fetched.
    pub(super) reported: u32,
}

impl State {
    /// Makes an identifier a member of a group, and reports that under the name `uid`; returns the number of the
    /// membership. What the queue pair is to be attached to is in the event.
    pub(super) fn join(&mut self, owner: u32, uid: u64, group: IpAddr) -> Result<u32, Errno> {
        let number = self.new_number();
        let id = self.ids.get(&owner).ok_or(Errno::NOENT)?;
        let mut answer = Box::new(EventAnswer::event(uid, number, Event::MulticastJoin, 0));
        answer.datagrams(group, (Qpn::MULTICAST.get(), PortSpace::QKEY), &[]);
        id.channel.push(QueuedEvent {
            owner: number,
            new: None,
            answer,
        });
        let membership = Membership { owner, reported: 0 };
        self.memberships.insert(number, membership);
        Ok(number)
    }

    /// Ends a membership of an identifier of this channel; returns how many of its events were fetched.
    pub(super) fn leave(&mut self, channel: &Arc<Channel>, number: u32) -> Result<u32, Errno> {
        let membership = self.memberships.get(&number).ok_or(Errno::NOENT)?;
        let owner = membership.owner;
        self.id(channel, owner)?;
        Ok(self.end_membership(number))
    }

    /// Removes a membership with its events; returns how many of these were fetched.
    pub(super) fn end_membership(&mut self, number: u32) -> u32 {
        let Some(membership) = self.memberships.remove(&number) else {
            return 0;
        };
        if let Some(id) = self.ids.get(&membership.owner) {
            id.channel.remove(number);
        }
        membership.reported
    }

    /// The memberships of an identifier.
    pub(super) fn memberships_of(&self, owner: u32) -> Vec<u32> {
        let own = self.memberships.iter();
        let own = own.filter(|(_, membership)| membership.owner == owner);
        own.map(|(number, _)| *number).collect()
    }
}
