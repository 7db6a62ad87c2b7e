//! An object as opened by a link, and calls that reconnect and reopen it if necessary.

use std::sync::{Arc, Mutex};

use gdr_rdma::{Deadline, RemoteMemory};

use crate::epoch::Generation;
use crate::error::{BusyReason, Error, GoneReason, Result};
use crate::header::header_len;
use crate::link_channel::Fault;
use crate::link_shared::{LinkShared, LinkState};
use crate::lock::lock;
use crate::mode::Rights;
use crate::name::ObjectName;
use crate::protocol::{Opened, Refused, Request, Response};
use crate::seqlock_read::LeaseHistory;

/// How many connection failures a call survives.
const FAULTS: u32 = 3;

/// An object as opened by a link.
pub(crate) struct Binding {
    pub(crate) link: Arc<LinkShared>,
    pub(crate) name: ObjectName,
    /// Whether gets are usually overtaken.
    pub(crate) leases: LeaseHistory,
    bound: Mutex<Bound>,
}

/// The owner's description of the object, and the connection that it came over.
#[derive(Clone, Debug)]
struct Bound {
    /// Each call keeps it, and its texts are long.
    opened: Arc<Opened>,
    generation: Generation,
    /// The number of the connection, as [`LinkState::connections`] counts.
    connection: u64,
}

/// How an attempt ended other than by success.
pub(crate) enum Attempt {
    /// The call fails.
    Failed(Error),
    /// The transfer failed; `of` bytes were to be moved.
    Fault { fault: Fault, of: u64 },
    /// The owner's description of the object is outdated.
    Stale,
}

impl From<Error> for Attempt {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl From<gdr_rdma::Error> for Attempt {
    fn from(error: gdr_rdma::Error) -> Self {
        Self::Failed(error.into())
    }
}

impl From<Fault> for Attempt {
    fn from(fault: Fault) -> Self {
        Self::Fault { fault, of: 0 }
    }
}

impl Binding {
    pub(crate) fn open(
        link: Arc<LinkShared>,
        name: ObjectName,
        generation: Option<Generation>,
        deadline: Deadline,
    ) -> Result<Self> {
        let mut state = link.lock(deadline)?;
        let current = state.control(&link, deadline)?.generation;
        if generation.is_some_and(|wanted| wanted != current) {
            return Err(Error::gone(&name, GoneReason::Restarted));
        }
        let opened = ask_for(&mut state, &link, &name, deadline)?;
        let bound = Bound {
            opened,
            generation: current,
            connection: state.connections,
        };
        drop(state);
        Ok(Self {
            link,
            name,
            leases: LeaseHistory::default(),
            bound: Mutex::new(bound),
        })
    }

    /// Returns what the owner said of the object last.
    pub(crate) fn opened(&self) -> Arc<Opened> {
        Arc::clone(&lock(&self.bound).opened)
    }

    /// Returns the run of the owner in which it was opened.
    pub(crate) fn generation(&self) -> Generation {
        lock(&self.bound).generation
    }

    /// Calls `call` with the link and the owner's description of the object. Reconnects and reopens the object if
    /// necessary.
    pub(crate) fn attempt<R>(
        &self,
        deadline: Deadline,
        mut call: impl FnMut(&mut LinkState, &Opened) -> Result<R, Attempt>,
    ) -> Result<R> {
        let mut state = self.link.lock(deadline)?;
        let (mut faults, mut is_stale) = (0, false);
        loop {
            let opened = self.refresh(&mut state, is_stale, deadline)?;
            let (fault, of) = match call(&mut state, &opened) {
                Ok(result) => return Ok(result),
                Err(Attempt::Failed(error)) => return Err(error),
                Err(Attempt::Fault { fault, of }) => (Some(fault), of),
                Err(Attempt::Stale) => (None, 0),
            };
            // Requests may be outstanding: they end with the queue pair.
            state.drop_channel(opened.domain);
            faults += 1;
            is_stale = true;
            match fault {
                Some(Fault::Deadline { done }) => {
                    let name = self.name.clone();
                    return Err(Error::Stalled { name, done, of });
                }
                Some(Fault::Closed) => {
                    state.disconnect();
                    return Err(Error::gone(&self.name, self.link.disconnected()));
                }
                Some(Fault::Device(error)) => return Err(error.into()),
                Some(Fault::Status(status)) if faults > FAULTS => {
                    let name = self.name.clone();
                    return Err(Error::Transfer { name, status });
                }
                // The key is no longer valid, or the connection failed. Opening the object shows which.
                Some(Fault::Status(_)) | None => {}
            }
            if faults > FAULTS {
                return Err(self.link.unexpected("header lines of another object"));
            }
        }
    }

    /// Returns the owner's description of the object, requested again if it may have changed.
    pub(crate) fn refresh(
        &self,
        state: &mut LinkState,
        is_stale: bool,
        deadline: Deadline,
    ) -> Result<Arc<Opened>> {
        let current = state.control(&self.link, deadline)?.generation;
        let bound = lock(&self.bound).clone();
        if current != bound.generation {
            return Err(Error::gone(&self.name, GoneReason::Restarted));
        }
        if !is_stale && state.connections == bound.connection {
            return Ok(bound.opened);
        }
        let opened = match ask_for(state, &self.link, &self.name, deadline) {
            Err(Error::NoSuchObject { .. }) => {
                return Err(Error::gone(&self.name, GoneReason::Closed));
            }
            opened => opened?,
        };
        if opened.object != bound.opened.object {
            return Err(Error::gone(&self.name, GoneReason::Closed));
        }
        *lock(&self.bound) = Bound {
            opened: Arc::clone(&opened),
            connection: state.connections,
            ..bound
        };
        Ok(opened)
    }

    /// Returns the error for an unexpected answer.
    pub(crate) fn refused(&self, answer: Response, asked: Rights) -> Attempt {
        refusal(&self.link, &self.name, answer, asked).into()
    }
}

/// Opens an object by its name.
fn ask_for(
    state: &mut LinkState,
    link: &LinkShared,
    name: &ObjectName,
    deadline: Deadline,
) -> Result<Arc<Opened>> {
    let request = Request::Open { name: name.clone() };
    match state.ask(link, &request, deadline)? {
        Response::Opened(opened) => {
            let mut opened = *opened;
            opened.info = opened.info.printable();
            check(link, name, &opened)?;
            Ok(Arc::new(opened))
        }
        other => Err(refusal(link, name, other, Rights::Read)),
    }
}

/// Checks that an owner's description of an object is consistent, so that later steps need not.
fn check(link: &LinkShared, name: &ObjectName, opened: &Opened) -> Result<()> {
    let info = &opened.info;
    let slots = u64::from(info.mode.slots());
    let data = RemoteMemory::from(opened.data).len;
    let header = RemoteMemory::from(opened.header).len;
    let fits = slots
        .checked_mul(opened.stride)
        .is_some_and(|all| all <= data);
    let is_sound = &info.name == name
        && info.shape.bytes(info.element).ok() == Some(info.bytes)
        && info.bytes <= opened.stride
        && slots > 0
        && fits
        && header >= header_len(info.mode.slots())
        && opened.cell < crate::connection::CELLS;
    match is_sound {
        true => Ok(()),
        false => Err(link.unexpected("a description of an object that contradicts itself")),
    }
}

/// Returns the error for a refusal, or for an unexpected answer.
fn refusal(link: &LinkShared, name: &ObjectName, answer: Response, asked: Rights) -> Error {
    let Response::Refused(refused) = answer else {
        return link.unexpected_answer(&answer);
    };
    let (name, owner) = (name.clone(), link.owner);
    match refused {
        Refused::NoSuchObject => Error::NoSuchObject { name, owner },
        Refused::Closed => Error::gone(&name, GoneReason::Closed),
        Refused::Denied { permitted } => Error::Denied {
            name,
            permitted,
            asked,
        },
        Refused::Busy(obstacle) => Error::busy(&name, BusyReason::from(obstacle)),
        Refused::RingFull => Error::busy(&name, BusyReason::FollowersBehind),
        Refused::Late => Error::busy(&name, BusyReason::PutTooSlow),
        Refused::TooMany { most } => Error::TooMany {
            what: "objects open over this link",
            most: usize::from(most),
        },
        other => link.unexpected(&format!("a refusal, {other:?}")),
    }
}

#[cfg(test)]
mod tests {
    use gdr_rdma::{Device, RemoteMemory, Rkey, Security, SoftOptions};

    use super::*;
    use crate::protocol::{Domain, ObjectId};
    use crate::{AccessPath, Checksum, Element, Location, Mode, ObjectInfo, Shape, WhenFull};

    fn memory(len: u64) -> crate::protocol::Memory {
        let (rkey, addr) = (Rkey(1), 0);
        RemoteMemory { rkey, addr, len }.into()
    }

    /// Returns a ring of three slots of 100 bytes.
    fn sound(name: &ObjectName) -> Opened {
        let mode = Mode::Ring {
            slots: 3,
            when_full: WhenFull::Block,
        };
        let text = String::new;
        Opened {
            object: ObjectId(1),
            info: ObjectInfo {
                name: name.clone(),
                element: Element::U32,
                shape: Shape::row(25).unwrap(),
                bytes: 100,
                mode,
                checksum: Checksum::None,
                rights: Rights::Read,
                newest: None,
                location: Location::Host,
                path: AccessPath {
                    provider: text(),
                    method: text(),
                    why: text(),
                },
            },
            domain: Domain::ReadOnly,
            revision: 0,
            header: memory(header_len(3)),
            data: memory(300),
            stride: 100,
            cell: 0,
        }
    }

    #[test]
    fn a_description_that_contradicts_itself_is_refused() {
        let device = Device::soft_with(SoftOptions::default().port(0)).unwrap();
        let owner = "127.0.0.1:1".parse().unwrap();
        let link = LinkShared::new(owner, Security::Loopback, device);
        let name = ObjectName::new("w").unwrap();
        check(&link, &name, &sound(&name)).unwrap();
        let ring = |slots| Mode::Ring {
            slots,
            when_full: WhenFull::Block,
        };
        let changes: [&dyn Fn(&mut Opened); 11] = [
            &|it| it.info.name = ObjectName::new("v").unwrap(),
            &|it| it.info.bytes = 96,
            &|it| it.info.shape = Shape::row(26).unwrap(),
            &|it| it.stride = 99,
            &|it| it.stride = 101,
            &|it| it.stride = u64::MAX / 3 + 1,
            &|it| it.data = memory(299),
            &|it| it.header = memory(header_len(3) - 1),
            &|it| it.info.mode = ring(4),
            &|it| it.info.mode = ring(0),
            &|it| it.cell = crate::connection::CELLS,
        ];
        for (at, change) in changes.into_iter().enumerate() {
            let mut opened = sound(&name);
            change(&mut opened);
            let refused = check(&link, &name, &opened);
            assert!(matches!(refused, Err(Error::Protocol { .. })), "{at}");
        }
    }
}
