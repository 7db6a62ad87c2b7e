//! GPU memory of this process that the consumer of a ring may import.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, Weak};

use gdr_cuda::{DeviceExport, ExportedMemory};
use gdr_process::lock::lock;

use super::header::{Answer, EXPORTS, ExportWords};
use super::rendezvous::{self, ExportNumber};
use super::ring::take_request;
use super::rings::wake;
use super::segment::Segment;
use gdr_udp::ProcessFd;

/// After how many questions memory that was refused is offered again, first and at most: the consumer may have registered
/// memory of a GPU since.
const FIRST_PAUSE: u32 = 64;
const LONGEST_PAUSE: u32 = 1 << 20;

/// What this process has offered to the consumer of a ring.
#[derive(Debug)]
pub(crate) struct Exports {
    segment: Arc<Segment>,
    /// Wakes the consumer.
    doorbell: Arc<OwnedFd>,
    /// Passes descriptors to the consumer. It is open as long as the ring.
    socket: Weak<ProcessFd>,
    offers: Mutex<Offers>,
}

#[derive(Debug, Default)]
struct Offers {
    /// How many there were.
    count: u64,
    slots: [Option<Offer>; EXPORTS],
}

#[derive(Debug)]
struct Offer {
    export: DeviceExport,
    number: u64,
    /// How many times it was asked for since it was refused.
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

    /// Whether the consumer takes references to some memory. If it was not asked, it is.
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
        match self.segment.header().answer_to(slot, offer.number) {
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

    fn offer(&self, offers: &mut Offers, export: &ExportedMemory, pause: u32) {
        let header = self.segment.header();
        let is_refused =
            |slot: usize, offer: &Offer| header.answer_to(slot, offer.number) == Answer::Refused;
        let mut slots = offers.slots.iter().enumerate();
        let free = slots
            .position(|(slot, offer)| offer.as_ref().is_none_or(|offer| is_refused(slot, offer)));
        // Without a free slot the memory is not offered, because slots in use must stay.
        if let Some(slot) = free {
            offers.count += 1;
            let number = offers.count;
            offers.slots[slot] = Some(Offer {
                export: *export.export(),
                number,
                asked: 0,
                pause,
            });
            header.set_export(slot, number, &words_of(export.export()));
            // The consumer takes only the descriptor of an export that it sees.
            self.send_descriptor(export, ExportNumber(number));
        }
    }

    /// Passes the descriptor of an export, if it has one, to the consumer, which cannot open it without.
    fn send_descriptor(&self, export: &ExportedMemory, number: ExportNumber) {
        let Some((descriptor, socket)) = export.descriptor().zip(self.socket.upgrade()) else {
            return;
        };
        if let Err(errno) = rendezvous::send(socket.as_fd(), &number, &[descriptor]) {
            tracing::debug!(%errno, "the descriptor of GPU memory is not passed; its bytes are copied");
        }
    }

    /// Ends the offer of some memory: the consumer gives it up.
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

/// What the producer has written.
pub(super) fn export_of(words: &ExportWords) -> DeviceExport {
    let mut bytes = [0; DeviceExport::LEN];
    for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
        to.copy_from_slice(&word.to_ne_bytes());
    }
    DeviceExport::from_bytes(&bytes)
}
