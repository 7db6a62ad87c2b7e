//! GPU memory of this process that the consumer of a ring may import.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, Weak};

use gdr_cuda::{DeviceExport, ExportedMemory};
use gdr_process::lock::lock;
use rustix::io::Errno;

use super::header::{Answer, EXPORTS, ExportWords};
use super::rendezvous::{self, ExportNumber};
use super::ring::take_request;
use super::rings::wake;
use super::segment::Segment;
use gdr_udp::ProcessFd;

/// The number of queries after which refused memory is offered again, at first and at most: the consumer may have
/// registered memory of a GPU in the meantime.
const FIRST_PAUSE: u32 = 64;
const LONGEST_PAUSE: u32 = 1 << 20;

/// The GPU memory that this process has offered to the consumer of a ring.
#[derive(Debug)]
pub(crate) struct Exports {
    segment: Arc<Segment>,
    /// Wakes the consumer.
    doorbell: Arc<OwnedFd>,
    /// Passes descriptors to the consumer. It stays open as long as the ring exists.
    socket: Weak<ProcessFd>,
    offers: Mutex<Offers>,
}

#[derive(Debug, Default)]
struct Offers {
    /// The number of offers made so far.
    count: u64,
    slots: [Option<Offer>; EXPORTS],
}

#[derive(Debug)]
struct Offer {
    export: DeviceExport,
    number: u64,
    /// Whether its descriptor could not be passed, so that the consumer cannot answer.
    is_lost: bool,
    /// The number of queries since it was refused.
    asked: u32,
    pause: u32,
}

impl Exports {
    pub(super) fn new(
        segment: Arc<Segment>,
        doorbell: Arc<OwnedFd>,
        socket: Weak<ProcessFd>,
    ) -> Self {
        Self {
            segment,
            doorbell,
            socket,
            offers: Mutex::default(),
        }
    }

    /// Returns whether the consumer accepts references to this memory. Offers the memory on the first query, and again
    /// some time after it was refused.
    pub(crate) fn may_refer(&self, export: &ExportedMemory) -> bool {
        let mut offers = lock(&self.offers);
        let slot = offers.slots.iter().position(|slot| {
            slot.as_ref()
                .is_some_and(|offer| offer.export == *export.export())
        });
        let Some(slot) = slot else {
            self.offer(&mut offers, export, FIRST_PAUSE);
            return false;
        };
        let Some(offer) = &mut offers.slots[slot] else {
            return false;
        };
        match self.answer_to(slot, offer) {
            Answer::Imported => {
                offer.pause = FIRST_PAUSE;
                return true;
            }
            Answer::Pending | Answer::Paused => return false,
            Answer::Refused => offer.asked += 1,
        }
        if offer.asked >= offer.pause {
            let pause = (offer.pause * 4).min(LONGEST_PAUSE);
            offers.slots[slot] = None;
            self.offer(&mut offers, export, pause);
        }
        false
    }

    /// Returns the consumer's answer to an offer. A lost offer counts as refused, so that it is made again.
    fn answer_to(&self, slot: usize, offer: &Offer) -> Answer {
        match offer.is_lost {
            true => Answer::Refused,
            false => self.segment.header().answer_to(slot, offer.number),
        }
    }

    fn offer(&self, offers: &mut Offers, export: &ExportedMemory, pause: u32) {
        let is_refused =
            |slot: usize, offer: &Offer| self.answer_to(slot, offer) == Answer::Refused;
        let mut slots = offers.slots.iter().enumerate();
        let free = slots
            .position(|(slot, offer)| offer.as_ref().is_none_or(|offer| is_refused(slot, offer)));
        // If no slot is free, the memory is not offered, as the slots in use must stay.
        if let Some(slot) = free {
            offers.count += 1;
            let number = offers.count;
            let header = self.segment.header();
            header.set_export(slot, number, &words_of(export.export()));
            // Sent after the export is stored, as the consumer discards the descriptor of an export that it does not
            // see.
            let sent = self.send_descriptor(export, ExportNumber(number));
            if let Err(errno) = sent {
                tracing::debug!(%errno, "the descriptor of GPU memory is not passed; its bytes are copied");
            }
            offers.slots[slot] = Some(Offer {
                export: *export.export(),
                number,
                is_lost: sent.is_err(),
                asked: 0,
                pause,
            });
        }
    }

    /// Sends the descriptor of an export, if it has one, to the consumer, which needs it to open the memory.
    ///
    /// # Errors
    /// `EAGAIN` while the socket is full; the other errors of `sendmsg(2)`.
    fn send_descriptor(&self, export: &ExportedMemory, number: ExportNumber) -> Result<(), Errno> {
        match export.descriptor().zip(self.socket.upgrade()) {
            Some((descriptor, socket)) => rendezvous::send(socket.as_fd(), &number, &[descriptor]),
            None => Ok(()),
        }
    }

    /// Withdraws the offer of this memory, which the consumer then releases.
    pub(crate) fn withdraw(&self, export: &ExportedMemory) {
        let mut offers = lock(&self.offers);
        for (slot, offer) in offers.slots.iter_mut().enumerate() {
            if offer
                .take_if(|offer| offer.export == *export.export())
                .is_some()
            {
                let header = self.segment.header();
                header.set_export(slot, 0, &ExportWords::default());
                if take_request(header.consumer_idle()) {
                    wake(&self.doorbell);
                }
            }
        }
    }
}

pub(super) fn words_of(export: &DeviceExport) -> ExportWords {
    let bytes = export.to_bytes();
    let (words, _) = bytes.as_chunks();
    std::array::from_fn(|at| words.get(at).map_or(0, |word| u64::from_ne_bytes(*word)))
}

/// Returns the export that the producer described by these words.
pub(super) fn export_of(words: &ExportWords) -> DeviceExport {
    let mut bytes = [0; DeviceExport::LEN];
    for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
        to.copy_from_slice(&word.to_ne_bytes());
    }
    DeviceExport::from_bytes(&bytes)
}

#[cfg(test)]
mod tests {
    use gdr_cuda::{Gpu, MemoryKind, Ordinal, SimDriver};
    use rustix::event::EventfdFlags;
    use rustix::net::{AddressFamily, SocketFlags, SocketType};

    use super::*;

    #[test]
    fn memory_whose_descriptor_was_not_passed_is_offered_again() {
        let gpu = Gpu::open(SimDriver::new(1), Ordinal(0)).unwrap();
        let memory = gpu.allocate(MemoryKind::VmmPosixFd, 4096).unwrap();
        let export = memory.export().unwrap();
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let ends = rustix::net::socketpair(family, kind, SocketFlags::CLOEXEC, None);
        let (own, consumer) = ends.unwrap();
        let own = Arc::new(ProcessFd::from(own));
        let segment = Arc::new(Segment::create(1 << 14).unwrap().0);
        let doorbell = rustix::event::eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let exports = Exports::new(segment, Arc::new(doorbell), Arc::downgrade(&own));

        // Fill the socket, from which the consumer receives nothing.
        let nothing = ExportNumber(0);
        while rendezvous::send(own.as_fd(), &nothing, &[]).is_ok() {}
        assert!(!exports.may_refer(&export));
        while let Ok(received) = rendezvous::receive_export(consumer.as_fd()) {
            assert_eq!(received.0, nothing);
        }
        for _ in 0..FIRST_PAUSE {
            assert!(!exports.may_refer(&export));
        }
        let (number, descriptor) = rendezvous::receive_export(consumer.as_fd()).unwrap();
        assert_eq!(number, ExportNumber(2), "the second offer");
        assert!(descriptor.is_some());
    }
}
