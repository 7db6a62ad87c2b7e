//! Links: connections to owners.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use gdr_cuda::DeviceBuffer;
use gdr_rdma::{Buffer, Deadline, Device, Security, SoftOptions};

use crate::content::{Reach, gpu_buffer};
use crate::epoch::{Epoch, Generation};
use crate::error::{Error, Result};
use crate::get_many::get_many;
use crate::info::{Handle, ObjectInfo};
use crate::link_shared::{LinkShared, LocalMemory};
use crate::name::ObjectName;
use crate::protocol::{Request, Response};
use crate::remote_object::RemoteObject;

/// Options for connecting a link.
#[derive(Clone, Debug)]
#[must_use]
pub struct LinkOptions {
    security: Security,
    device: Option<Device>,
}

impl LinkOptions {
    /// Accepts owners that `security` accepts, and uses a device of the soft provider at the address from
    /// which this host reaches the owner.
    pub fn new(security: Security) -> Self {
        Self {
            security,
            device: None,
        }
    }

    /// Connects through this device.
    pub fn device(mut self, device: &Device) -> Self {
        self.device = Some(device.clone());
        self
    }
}

/// A connection to an owner. A clone refers to the same link.
///
/// Only one thread at a time can use a link, and others wait for their turn, up to their deadline. So
/// threads that wait for long should each have their own link. A disconnected link reconnects in the next
/// call.
#[derive(Clone)]
pub struct Link(Arc<LinkShared>);

impl Link {
    /// Connects to an owner.
    ///
    /// # Errors
    /// [`Error::Rdma`] if the owner cannot be reached, or the keys of both sides differ;
    /// [`Error::NoAnswer`], [`Error::Protocol`].
    pub fn connect(owner: SocketAddr, options: LinkOptions, deadline: Deadline) -> Result<Self> {
        let device = match options.device {
            Some(device) => device,
            None => {
                let address = Device::soft_address_towards(owner.ip())?;
                Device::soft_with(SoftOptions::new(address).port(0))?
            }
        };
        let link = Self(Arc::new(LinkShared::new(owner, options.security, device)));
        link.0.lock(deadline)?.control(&link.0, deadline)?;
        Ok(link)
    }

    /// Returns the address of the owner.
    pub fn owner(&self) -> SocketAddr {
        self.0.owner
    }

    /// Returns the device that the link uses for transfers.
    pub fn device(&self) -> &Device {
        self.0.device()
    }

    /// Returns the generation of the owner that the link is connected to.
    ///
    /// # Errors
    /// Same as [`Link::list`].
    pub fn generation(&self, deadline: Deadline) -> Result<Generation> {
        let mut state = self.0.lock(deadline)?;
        Ok(state.control(&self.0, deadline)?.generation)
    }

    /// Makes the calls in progress over this link return soon, in all threads, with [`Error::Gone`], so that
    /// the program can react to something else. What a call has moved so far is lost; once it has returned,
    /// no more bytes are written to local memory. The next call reconnects.
    ///
    /// A call that is waiting for a new TCP connection to be established ends only when that is decided.
    pub fn interrupt(&self) {
        self.0.interrupt();
    }

    /// Lists the objects that the owner offers to this peer, in the order of their names.
    ///
    /// # Errors
    /// [`Error::Gone`], [`Error::NoAnswer`], [`Error::Busy`], [`Error::Rdma`].
    pub fn list(&self, deadline: Deadline) -> Result<Vec<ObjectInfo>> {
        let mut state = self.0.lock(deadline)?;
        let (mut all, mut more) = (Vec::new(), true);
        while more {
            let after = all.last().map(|last: &ObjectInfo| last.name.clone());
            match state.ask(&self.0, &Request::List { after }, deadline)? {
                Response::Objects {
                    objects,
                    more: is_more,
                } if !is_more || !objects.is_empty() => {
                    append(&mut all, objects, MOST_LISTED)
                        .map_err(|what| self.0.unexpected(what))?;
                    more = is_more;
                }
                other => return Err(self.0.unexpected_answer(&other)),
            }
        }
        Ok(all)
    }

    /// Opens an object.
    ///
    /// # Errors
    /// [`Error::NoSuchObject`], [`Error::TooMany`]; the errors of [`Link::list`].
    pub fn open(&self, name: ObjectName, deadline: Deadline) -> Result<RemoteObject> {
        RemoteObject::open(Arc::clone(&self.0), name, None, deadline)
    }

    /// Opens the object of a handle from the owner that this link is connected to.
    ///
    /// # Errors
    /// [`Error::Gone`] if the owner was restarted after the handle was created;
    /// [`Error::Handle`] if it belongs to another owner; as [`Link::open`].
    pub fn open_handle(&self, handle: &Handle, deadline: Deadline) -> Result<RemoteObject> {
        if handle.owner != self.0.owner {
            return Err(Error::Handle(
                "they belong to another owner than the link's",
            ));
        }
        let (name, generation) = (handle.name.clone(), handle.generation);
        RemoteObject::open(Arc::clone(&self.0), name, Some(generation), deadline)
    }

    /// Reads the newest epoch of each object, like [`RemoteObject::get_into`], but with a single posting and a
    /// single wait for all of them, and returns the epochs. Each one is whole, but they need not be from the
    /// same moment.
    ///
    /// # Errors
    /// [`Error::OtherLink`] for an object of another link; the first error of
    /// [`RemoteObject::get_into`].
    pub fn get_many(
        &self,
        gets: &[(&RemoteObject, &LocalMemory)],
        deadline: Deadline,
    ) -> Result<Vec<Epoch>> {
        get_many(&self.0, gets, deadline)
    }

    /// Registers host or GPU memory for gets and puts over this link. It stays registered until the
    /// value is dropped, so reuse it for many of them.
    ///
    /// # Errors
    /// [`Error::Rdma`].
    pub fn memory(&self, buffer: &Buffer) -> Result<LocalMemory> {
        self.0.memory(buffer)
    }

    /// Registers GPU memory, which the link's device accesses in the same way as an owner's device does
    /// ([`Place::gpu`](crate::Place::gpu)).
    ///
    /// # Errors
    /// [`Error::Rdma`], [`Error::Cuda`].
    pub fn gpu_memory(&self, memory: impl Into<Arc<DeviceBuffer>>) -> Result<LocalMemory> {
        let provider = self.device().provider();
        let (buffer, why) = gpu_buffer(&memory.into(), provider, Reach::Best)?;
        tracing::debug!(kind = %buffer.kind(), why, "local GPU memory");
        self.memory(&buffer)
    }

    /// Allocates and registers host memory.
    ///
    /// # Errors
    /// [`Error::Rdma`].
    pub fn host_memory(&self, len: u64) -> Result<LocalMemory> {
        self.0.host_memory(len)
    }
}

/// A limit above what an owner has: 16 times the default of
/// [`ServerOptions`](crate::ServerOptions).
const MOST_LISTED: usize = 1 << 20;

/// Adds an answer to the objects from earlier answers, up to `most` in all.
fn append(
    all: &mut Vec<ObjectInfo>,
    objects: Vec<ObjectInfo>,
    most: usize,
) -> Result<(), &'static str> {
    let names = all.last().into_iter().chain(&objects);
    if !names.is_sorted_by(|one, next| one.name < next.name) {
        return Err("a list out of order");
    }
    if all.len() + objects.len() > most {
        return Err("a list without an end");
    }
    all.extend(objects.into_iter().map(ObjectInfo::printable));
    Ok(())
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link")
            .field("owner", &self.0.owner)
            .field("device", self.0.device())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ObjectOptions, ObjectServer, Place, ServerOptions, Shape};

    #[test]
    fn a_list_is_in_order_and_has_an_end() {
        let address = "127.0.0.1:0".parse().unwrap();
        let server = ObjectServer::bind(address, ServerOptions::new(Security::Loopback)).unwrap();
        let options = ObjectOptions::new(crate::Element::U8, Shape::row(8).unwrap());
        let object = server
            .create(ObjectName::new("a").unwrap(), options, &Place::host())
            .unwrap();
        let named = |name: &str| ObjectInfo {
            name: ObjectName::new(name).unwrap(),
            ..object.info().unwrap()
        };
        let mut all = Vec::new();
        let answers: [(&[&str], _); 5] = [
            (&["a", "b"], Ok(())),
            (&["b"], Err("a list out of order")),
            (&["d", "c"], Err("a list out of order")),
            (&["c", "d"], Err("a list without an end")),
            (&["c"], Ok(())),
        ];
        for (names, expected) in answers {
            let objects = names.iter().map(|name| named(name)).collect();
            assert_eq!(append(&mut all, objects, 3), expected, "{names:?}");
        }
        assert_eq!(all.len(), 3);
    }
}
