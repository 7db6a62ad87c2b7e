//! Named memory on hosts and GPUs, served by its owner and read, written and followed over RDMA.
//!
//! An [`ObjectServer`] is a process that owns objects: tensors, frames or scalars, in host memory
//! or in GPU memory. It publishes to them, and each publication has an [`Epoch`]. A [`Link`] opens
//! an owner's objects by name and gets the newest epoch, waits for the next, follows all of them,
//! or puts one. The owners are the only service.
//!
//! Bytes move by one-sided RDMA over gdr-rdma, so a get costs the owner's process nothing. The
//! reader therefore checks what a get returns: a header in the owner's host memory says which slot
//! of an object holds which epoch, and which slot is being overwritten.
//!
//! ```
//! use std::time::Duration;
//!
//! use gdr_object::{
//!     Deadline, Element, ObjectServer, ServerOptions, Link, LinkOptions, ObjectName, ObjectOptions, Place,
//!     Security, Shape,
//! };
//!
//! # fn main() -> gdr_object::Result<()> {
//! let limit = || Deadline::after(Duration::from_secs(60));
//! let name = ObjectName::new("weights")?;
//!
//! // The owner. With a shared key instead of `Loopback`, peers may be on other hosts.
//! let server = ObjectServer::bind("127.0.0.1:0".parse().unwrap(), ServerOptions::new(Security::Loopback))?;
//! let options = ObjectOptions::new(Element::F32, Shape::new([2, 3])?);
//! let weights = server.create(name.clone(), options, &Place::host())?;
//! let first = weights.publish(&[7; 24], limit())?;
//!
//! // A reader, as a rule in another process.
//! let link = Link::connect(server.address(), LinkOptions::new(Security::Loopback), limit())?;
//! let object = link.open(name, limit())?;
//! let memory = link.host_memory(object.info().bytes)?;
//! assert_eq!(object.get_into(&memory, limit())?, first);
//! assert_eq!(memory.buffer().load_u8(23)?, 7);
//!
//! let second = weights.publish(&[8; 24], limit())?;
//! assert_eq!(object.wait_newer(Some(first), limit())?, second);
//! # Ok(())
//! # }
//! ```
//!
//! # Guarantees
//!
//! - **Whole**: except in [`Mode::Live`], a get returns the bytes of one publication. The epochs
//!   that an object returns never go back.
//! - **Never foreign**: memory is freed or reused only after its key has become invalid. A late
//!   reader gets an error, and never other bytes.
//! - **Deadlines**: no call waits without one. [`Error::Stalled`], [`Error::Gone`],
//!   [`Error::Denied`], [`Error::Busy`], [`Error::Empty`] and [`Error::NothingNewer`] are distinct.
//! - **Independence**: publishing waits for no reader, except in a ring that blocks. A reader that
//!   is killed or stopped affects neither the owner nor other readers.
//! - **Generation**: an owner that was restarted answers [`Error::Gone`] for anything opened
//!   earlier.
//!
//! # Security
//!
//! Links are authenticated by a shared key ([`Security::Key`]), which both sides prove that they
//! have. Only then are memory keys given out, and control messages are tagged. **RDMA packets are
//! neither encrypted nor authenticated**: use objects in networks whose hosts you trust.

#![warn(clippy::disallowed_methods)]
#![forbid(unsafe_code)]

mod binding;
mod checksum;
mod connection;
mod content;
mod element;
mod epoch;
mod error;
mod follower;
mod get_many;
mod header;
mod info;
mod link;
mod link_channel;
mod link_shared;
mod link_table;
mod lock;
mod mode;
mod name;
mod object;
mod object_server;
mod part;
mod peer_channel;
mod protocol;
mod publisher;
mod put;
mod relay;
mod remote_object;
mod seqlock_read;
mod service;
mod shared_object;
#[cfg(test)]
mod slot_model;
mod slots;
mod tensor_index;
mod tensor_sums;
#[cfg(test)]
mod thread_model;
mod wait;
#[cfg(test)]
mod wire_model;

pub use content::Place;
pub use element::{Element, InvalidElement, Shape};
pub use epoch::{Epoch, Generation, InvalidEpoch};
pub use error::{BusyReason, Error, GoneReason, Result};
pub use follower::{Follower, Received};
pub use gdr_rdma::{Buffer, Deadline, Device, Security, SharedKey};
pub use info::{AccessPath, Handle, Location, ObjectInfo};
pub use link::{Link, LinkOptions};
pub use link_shared::LocalMemory;
pub use mode::{Checksum, Grantee, InvalidMode, Mode, Rights, WhenFull};
pub use name::{InvalidName, ObjectName};
pub use object::{DeviceSlot, Object, ObjectOptions, SlotWriter};
pub use object_server::{ObjectServer, ServerOptions, ServerStats};
pub use part::Extent;
pub use protocol::SERVICE;
#[doc(hidden)]
pub use protocol::check_untrusted;
pub use relay::Relay;
pub use remote_object::RemoteObject;
pub use tensor_index::{Dtype, InvalidTensors, TensorEntry, TensorIndex};
pub use tensor_sums::TensorSums;

// The example of the README is a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

// The examples of the guide are tests of this crate, which depends on all that they use.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/interfaces.md")]
struct Guide;
