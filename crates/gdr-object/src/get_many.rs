//! Getting several objects with one posting and one wait.

use std::sync::Arc;

use gdr_rdma::{Deadline, RemoteMemory, Stripe};

use crate::epoch::Epoch;
use crate::error::{Error, Result};
use crate::header::{ObjectLine, SlotLine, SlotState};
use crate::link_channel::{Fault, LINES, Order, Step};
use crate::link_shared::{LinkShared, LinkState, LocalMemory};
use crate::mode::Mode;
use crate::part::Part;
use crate::protocol::{Domain, Opened};
use crate::remote_object::RemoteObject;

/// An object and its destination.
type Get<'a> = (&'a RemoteObject, &'a LocalMemory);

/// Gets each object. Objects that are overtaken, closed or changed in the meantime are read individually.
pub(crate) fn get_many(
    link: &LinkShared,
    gets: &[Get<'_>],
    deadline: Deadline,
) -> Result<Vec<Epoch>> {
    for (object, _) in gets {
        let binding = object.binding();
        if !std::ptr::eq(&*binding.link, link) {
            let name = binding.name.clone();
            return Err(Error::OtherLink { name });
        }
    }
    let mut epochs = Vec::with_capacity(gets.len());
    for batch in gets.chunks(LINES as usize) {
        let mut found = vec![None; batch.len()];
        {
            let mut state = link.lock(deadline)?;
            for domain in [Domain::ReadOnly, Domain::Writable] {
                read(link, &mut state, domain, batch, &mut found, deadline)?;
            }
        }
        for ((object, memory), found) in batch.iter().zip(found) {
            epochs.push(match found {
                Some(epoch) => epoch,
                None => object.get_into(memory, deadline)?,
            });
        }
    }
    Ok(epochs)
}

/// An object of a batch: its place in the batch, and the owner's description.
struct Item<'a> {
    at: usize,
    get: Get<'a>,
    opened: Arc<Opened>,
}

/// Reads the objects of a domain together, and records the epochs of those that arrived intact.
fn read(
    link: &LinkShared,
    state: &mut LinkState,
    domain: Domain,
    batch: &[Get<'_>],
    found: &mut [Option<Epoch>],
    deadline: Deadline,
) -> Result<()> {
    let mut items = Vec::new();
    for (at, get) in batch.iter().enumerate() {
        let opened = get.0.binding().opened();
        if opened.domain == domain {
            let opened = get.0.binding().refresh(state, false, deadline)?;
            if get.1.len() < opened.info.bytes {
                return Err(get.0.binding().wrong_size(opened.info.bytes, get.1));
            }
            items.push(Item {
                at,
                get: *get,
                opened,
            });
        }
    }
    let Some(first) = items.first() else {
        return Ok(());
    };
    let of = items.iter().map(|item| item.opened.info.bytes).sum();
    match try_read(link, state, domain, &items, found, deadline) {
        Ok(()) => Ok(()),
        Err(Failure::Error(error)) => Err(error),
        Err(Failure::Fault(fault)) => {
            // Requests may be outstanding: they end with the queue pair.
            state.drop_channel(domain);
            match fault {
                Fault::Deadline { done } => {
                    let name = first.get.0.name().clone();
                    Err(Error::Stalled { name, done, of })
                }
                Fault::Device(error) => Err(error.into()),
                // Reading each object individually shows which one it is, and why.
                Fault::Closed | Fault::Status(_) => {
                    found.fill(None);
                    Ok(())
                }
            }
        }
    }
}

/// Why a batch was not read.
enum Failure {
    Error(Error),
    Fault(Fault),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

impl From<gdr_rdma::Error> for Failure {
    fn from(error: gdr_rdma::Error) -> Self {
        Self::Error(error.into())
    }
}

impl From<Fault> for Failure {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

fn try_read(
    link: &LinkShared,
    state: &mut LinkState,
    domain: Domain,
    items: &[Item<'_>],
    found: &mut [Option<Epoch>],
    deadline: Deadline,
) -> Result<(), Failure> {
    let (channel, watch) = state.channel(link, domain, deadline)?;
    let mut lines = Vec::new();
    for (index, item) in items.iter().enumerate() {
        lines.push(Step::Read {
            from: RemoteMemory::from(item.opened.header).at(0),
            to: channel.line(index)?,
            order: Order::Any,
        });
    }
    channel.run(lines, deadline, watch)?;

    let (mut bytes, mut lines, mut wanted) = (Vec::new(), Vec::new(), Vec::new());
    for (index, item) in items.iter().enumerate() {
        let opened = &item.opened;
        let generation = item.get.0.binding().generation();
        let Ok(line) = ObjectLine::parse(&channel.line_bytes(index)?) else {
            continue;
        };
        let is_of_it = line.generation == generation && line.revision == opened.revision;
        let Some((epoch, slot)) = line.newest.filter(|_| is_of_it) else {
            continue;
        };
        if slot.0 >= opened.info.mode.slots() {
            continue;
        }
        let data = RemoteMemory::from(opened.data);
        for (at, len) in Stripe::parts(opened.info.bytes, 1) {
            bytes.push(Step::Read {
                from: data.at(opened.stride * u64::from(slot.0) + at),
                to: item.get.1.region().segment(at, len)?,
                order: Order::Any,
            });
        }
        let from = RemoteMemory::from(opened.header).at(slot.line());
        let to = channel.line(wanted.len())?;
        let order = Order::Any;
        // The first line waits for all bytes; the next ones begin later.
        lines.push(match lines.is_empty() {
            true => Step::line(from, to),
            false => Step::Read { from, to, order },
        });
        wanted.push((item, epoch));
    }
    channel.run(bytes.into_iter().chain(lines), deadline, watch)?;

    for (index, (item, epoch)) in wanted.into_iter().enumerate() {
        let Ok(line) = SlotLine::parse(&channel.line_bytes(index)?) else {
            continue;
        };
        let binding = item.get.0.binding();
        let is_whole = line.state == SlotState::Whole(epoch);
        if line.generation != binding.generation()
            || !(is_whole || item.opened.info.mode == Mode::Live)
        {
            continue;
        }
        let part = Part::all(item.opened.info.bytes, item.get.1);
        binding.check_sum(&item.opened, part, epoch, &line, deadline)?;
        found[item.at] = Some(epoch);
    }
    Ok(())
}
