//! The lines of an object's header, which its owner keeps in host memory and readers READ.
//!
//! The header is one line for the object and one for each slot, 64 bytes each. All numbers are
//! little-endian words of 8 bytes; the owner stores each word, and every device reads it, as a
//! whole.
//!
//! ```text
//! object  generation, revision, newest (epoch << 16 | slot; 0: none), 0 ...
//! slot    generation, state (epoch << 2 | 0 empty, 1 busy, 2 whole), checksum, published, 0 ...
//! ```
//!
//! The order of the owner's stores, with a release fence between each two: *busy* before the first
//! byte of the slot is overwritten; checksum and time, then *whole*, after the last byte is visible;
//! then *newest*. A reader READs `newest`, then the bytes of that slot, then the slot's line, each
//! after the one before has completed. If the line says *whole* with the epoch of `newest`, no byte
//! was overwritten meanwhile, since epochs never repeat.

use gdr_rdma::Buffer;

use crate::epoch::{Epoch, Generation};

/// Bytes of a line: a cache line, so that a change of one slot does not disturb the READ of another.
pub(crate) const LINE: u64 = 64;

const GENERATION: u64 = 0;
const REVISION: u64 = 8;
const NEWEST: u64 = 16;
const STATE: u64 = 8;
const CHECKSUM: u64 = 16;
const PUBLISHED: u64 = 24;

/// Bits of the slot's index in `newest`.
const SLOT_BITS: u32 = 16;
/// Number of state bits besides the epoch.
const STATE_BITS: u32 = 2;

/// The index of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Slot(pub(crate) u16);

impl Slot {
    /// Returns the offset of its line in the header.
    pub(crate) const fn line(self) -> u64 {
        LINE * (self.0 as u64 + 1)
    }

    pub(crate) const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Bytes of the header of an object with `slots` slots.
pub(crate) const fn header_len(slots: u16) -> u64 {
    LINE * (slots as u64 + 1)
}

/// A line that no owner of this version writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a header line with {0}")]
pub(crate) struct InvalidLine(&'static str);

/// The line of the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ObjectLine {
    pub(crate) generation: Generation,
    pub(crate) revision: u64,
    pub(crate) newest: Option<(Epoch, Slot)>,
}

impl ObjectLine {
    pub(crate) fn parse(bytes: &[u8; LINE as usize]) -> Result<Self, InvalidLine> {
        let newest = match word(bytes, NEWEST) {
            0 => None,
            newest => {
                let epoch = Epoch::new(newest >> SLOT_BITS);
                let epoch = epoch.ok_or(InvalidLine("a slot and no epoch"))?;
                Some((epoch, Slot(newest as u16)))
            }
        };
        Ok(Self {
            generation: Generation(word(bytes, GENERATION)),
            revision: word(bytes, REVISION),
            newest,
        })
    }
}

/// The state of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlotState {
    /// Nothing was written.
    Empty,
    /// This epoch is being written.
    Busy(Epoch),
    /// It holds this epoch.
    Whole(Epoch),
}

impl SlotState {
    const fn word(self) -> u64 {
        match self {
            Self::Empty => 0,
            Self::Busy(epoch) => epoch.get() << STATE_BITS | 1,
            Self::Whole(epoch) => epoch.get() << STATE_BITS | 2,
        }
    }

    fn from_word(word: u64) -> Result<Self, InvalidLine> {
        if word == 0 {
            return Ok(Self::Empty);
        }
        let epoch = Epoch::new(word >> STATE_BITS).ok_or(InvalidLine("a state and no epoch"))?;
        match word & ((1 << STATE_BITS) - 1) {
            1 => Ok(Self::Busy(epoch)),
            2 => Ok(Self::Whole(epoch)),
            _ => Err(InvalidLine("an unknown state")),
        }
    }
}

/// The line of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotLine {
    pub(crate) generation: Generation,
    pub(crate) state: SlotState,
    /// 0 without a checksum.
    pub(crate) checksum: u64,
    /// When it was published, by the owner's clock: nanoseconds since 1970.
    pub(crate) published: u64,
}

impl SlotLine {
    pub(crate) fn parse(bytes: &[u8; LINE as usize]) -> Result<Self, InvalidLine> {
        Ok(Self {
            generation: Generation(word(bytes, GENERATION)),
            state: SlotState::from_word(word(bytes, STATE))?,
            checksum: word(bytes, CHECKSUM),
            published: word(bytes, PUBLISHED),
        })
    }
}

fn word(bytes: &[u8; LINE as usize], at: u64) -> u64 {
    let bytes = bytes[at as usize..].first_chunk();
    bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// The owner's side of a header. Stores are words at multiples of 8, in host memory.
#[derive(Debug)]
pub(crate) struct Header(Buffer);

impl Header {
    /// Makes the header of an object without content.
    pub(crate) fn new(slots: u16, generation: Generation, revision: u64) -> gdr_rdma::Result<Self> {
        let header = Self(Buffer::host(header_len(slots) as usize)?);
        header.store(REVISION, revision)?;
        for line in 0..=u64::from(slots) {
            header.store(line * LINE + GENERATION, generation.get())?;
        }
        Ok(header)
    }

    pub(crate) fn buffer(&self) -> &Buffer {
        &self.0
    }

    /// Marks a slot before its bytes are overwritten.
    pub(crate) fn mark(&self, slot: Slot, state: SlotState) -> gdr_rdma::Result<()> {
        self.store(slot.line() + STATE, state.word())
    }

    /// Marks a slot after all of its bytes are visible.
    pub(crate) fn mark_whole(
        &self,
        slot: Slot,
        epoch: Epoch,
        checksum: u64,
        published: u64,
    ) -> gdr_rdma::Result<()> {
        self.store(slot.line() + CHECKSUM, checksum)?;
        self.store(slot.line() + PUBLISHED, published)?;
        self.mark(slot, SlotState::Whole(epoch))
    }

    /// Points readers to the newest epoch.
    pub(crate) fn point(&self, epoch: Epoch, slot: Slot) -> gdr_rdma::Result<()> {
        self.store(NEWEST, epoch.get() << SLOT_BITS | u64::from(slot.0))
    }

    /// Stores a word, then issues a release fence.
    fn store(&self, at: u64, value: u64) -> gdr_rdma::Result<()> {
        Ok(self.0.write_at(at, &value.to_le_bytes())?)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn line(header: &Header, at: u64) -> [u8; LINE as usize] {
        let mut bytes = [0; LINE as usize];
        header.buffer().read_at(at, &mut bytes).unwrap();
        bytes
    }

    #[test]
    fn readers_parse_what_the_owner_stores() {
        let generation = Generation::random().unwrap();
        let header = Header::new(3, generation, 7).unwrap();
        let object = || ObjectLine::parse(&line(&header, 0)).unwrap();
        let slot = |slot: Slot| SlotLine::parse(&line(&header, slot.line())).unwrap();
        assert_eq!(object().newest, None);
        assert_eq!((object().generation, object().revision), (generation, 7));
        assert_eq!(slot(Slot(2)).state, SlotState::Empty);

        let epoch = Epoch::GREATEST;
        header.mark(Slot(2), SlotState::Busy(epoch)).unwrap();
        assert_eq!(slot(Slot(2)).state, SlotState::Busy(epoch));
        header.mark_whole(Slot(2), epoch, 8, 9).unwrap();
        header.point(epoch, Slot(2)).unwrap();
        assert_eq!(object().newest, Some((epoch, Slot(2))));
        let seen = slot(Slot(2));
        assert_eq!(seen.state, SlotState::Whole(epoch));
        assert_eq!((seen.checksum, seen.published), (8, 9));
        assert_eq!(slot(Slot(1)).state, SlotState::Empty);
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_line_or_an_error(bytes in any::<[[u8; 32]; 2]>()) {
            let bytes: [u8; LINE as usize] = bytes.concat().try_into().unwrap();
            let _ = ObjectLine::parse(&bytes);
            let _ = SlotLine::parse(&bytes);
        }
    }
}
