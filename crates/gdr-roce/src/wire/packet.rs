//! The whole datagram: the opcode's headers, payload, padding, ICRC.

use super::opcode::Layout;
use super::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Feth, Ieth, ImmDt, Opcode, Reth, XrcEth, icrc,
};
use crate::connection::Reliability;
use crate::contents::Contents;
use crate::memory::Extent;
use crate::mtu::Mtu;

/// The longest datagram: a WRITE Only with immediate on an extended connection, at the largest MTU.
pub const MAX_DATAGRAM: usize =
    Bth::LEN + XrcEth::LEN + Reth::LEN + ImmDt::LEN + Mtu::B4096.bytes() + icrc::LEN;

/// Returns the number of padding bytes after `len` bytes of payload.
pub const fn padding(len: usize) -> usize {
    len.wrapping_neg() & 3
}

/// Why a datagram is not a valid packet. Such a datagram must be dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// Shorter than the opcode's headers, the padding and the ICRC.
    #[error("packet: {len} bytes are too few, at least {needed} are needed")]
    #[allow(missing_docs, reason = "the names say it")]
    Truncated { len: usize, needed: usize },
    /// The length is not a multiple of four.
    #[error("packet: the length of {0} bytes is not a multiple of four")]
    Unaligned(usize),
    /// The opcode is reserved or belongs to another service.
    #[error("packet: opcode {0:#04x} is not one of a connection or a datagram")]
    Opcode(u8),
    /// The transport version is not 0.
    #[error("packet: transport version {0} is unknown")]
    Version(u8),
    /// The opcode allows neither payload nor padding.
    #[error("packet: {0} bytes of payload, but the opcode has none")]
    Trailing(usize),
}

/// A view of an untrusted datagram whose lengths have been checked.
///
/// The payload may be stored elsewhere, as on the wire between two processes of one host.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    bth: Bth,
    opcode: Opcode,
    /// The extension headers between BTH and payload, without the XRCETH.
    extensions: &'a [u8],
    contents: Contents<'a>,
    datagram: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Checks the lengths of a whole datagram, ICRC field included. The bytes may be untrusted.
    ///
    /// The ICRC's value is not verified; [`icrc::matches`] does that.
    ///
    /// # Errors
    ///
    /// Any [`WireError`]; the datagram must be dropped.
    #[inline]
    pub fn new(datagram: &'a [u8]) -> Result<Self, WireError> {
        let (headers, len) = Self::without_payload(datagram, datagram.len())?;
        let start = headers.datagram.len();
        Ok(Self {
            contents: Contents::Bytes(&datagram[start..start + len]),
            datagram,
            ..headers
        })
    }

    /// Like [`new`](Self::new), for a datagram at `extent`; `start` holds at least its headers. The payload is not
    /// accessed.
    ///
    /// # Errors
    ///
    /// Any [`WireError`]; the datagram must be dropped.
    pub fn in_place(start: &'a [u8], extent: Extent) -> Result<Self, WireError> {
        let (headers, len) = Self::without_payload(start, extent.len as usize)?;
        let before = headers.datagram.len() as u64;
        Ok(Self {
            contents: Contents::At(Extent {
                addr: extent.addr.wrapping_add(before),
                len: len as u32,
            }),
            ..headers
        })
    }

    /// Like [`new`](Self::new), for a packet whose payload is passed by reference. A payload longer than the path MTU
    /// makes the packet stand for several, each with its own PSN.
    ///
    /// # Errors
    ///
    /// Any [`WireError`]; the packet must be dropped. [`WireError::Trailing`] if the opcode allows no payload or
    /// belongs to a datagram, or if `datagram` contains payload as well.
    pub fn referring(datagram: &'a [u8], payload: Extent) -> Result<Self, WireError> {
        let (headers, len) = Self::without_payload(datagram, datagram.len())?;
        // Only a connection can take back a completion.
        if len > 0 || !headers.opcode.has_payload() || headers.opcode.has_deth() {
            return Err(WireError::Trailing(len.max(payload.len as usize)));
        }
        Ok(Self {
            contents: Contents::At(payload),
            ..headers
        })
    }

    /// Returns the headers of a datagram of `len` bytes that begins with `datagram`, and the payload length.
    // Inlined, as what it returns is large.
    #[inline(always)]
    fn without_payload(datagram: &'a [u8], len: usize) -> Result<(Self, usize), WireError> {
        let truncated = |needed| WireError::Truncated { len, needed };
        let Some((header, rest)) = datagram.split_first_chunk::<{ Bth::LEN }>() else {
            return Err(truncated(Bth::LEN + icrc::LEN));
        };
        let bth = Bth::parse(header);
        // Checked before the opcode, as the version determines its meaning.
        if bth.version != 0 {
            return Err(WireError::Version(bth.version));
        }
        let layout = Layout::of(bth.opcode);
        let opcode = layout.opcode.ok_or(WireError::Opcode(bth.opcode))?;
        let extensions = usize::from(layout.extensions) + filler_len(opcode, &bth);
        let tail = usize::from(bth.pad) + icrc::LEN;
        let headers = Bth::LEN + extensions;
        // The only place that compares lengths; afterwards no accessor reaches beyond its slice.
        let Some(of_opcode) = rest.get(layout.xrceth.into()..extensions) else {
            return Err(truncated(headers + tail));
        };
        if len < headers + tail {
            return Err(truncated(headers + tail));
        }
        if !len.is_multiple_of(4) {
            return Err(WireError::Unaligned(len));
        }
        if !opcode.has_payload() && len - headers != icrc::LEN {
            return Err(WireError::Trailing(len - headers - icrc::LEN));
        }
        let without = Self {
            bth,
            opcode,
            extensions: of_opcode,
            contents: Contents::Bytes(&[]),
            datagram: &datagram[..headers],
        };
        Ok((without, len - headers - tail))
    }

    /// Returns the base transport header.
    pub const fn bth(&self) -> &Bth {
        &self.bth
    }

    /// Returns the opcode.
    pub const fn opcode(&self) -> Opcode {
        self.opcode
    }

    /// Returns the connection service; [`Reliability::Reliable`] for a packet that belongs to no connection.
    pub const fn service(&self) -> Reliability {
        Reliability::of(self.bth.opcode)
    }

    /// Returns the XRCETH, which requests of an extended connection have.
    pub fn xrceth(&self) -> Option<XrcEth> {
        let present = Layout::of(self.bth.opcode).xrceth > 0;
        let after_bth = self.datagram.get(Bth::LEN..)?;
        present
            .then(|| after_bth.first_chunk().map(XrcEth::parse))
            .flatten()
    }

    /// Returns the payload, without padding.
    pub const fn contents(&self) -> Contents<'a> {
        self.contents
    }

    /// Returns the payload bytes, without padding; empty if they are stored elsewhere.
    pub const fn payload(&self) -> &'a [u8] {
        match self.contents {
            Contents::Bytes(bytes) => bytes,
            Contents::At(_) => &[],
        }
    }

    /// Returns the whole datagram including the ICRC, or `None` if its payload is stored elsewhere.
    pub const fn datagram(&self) -> Option<&'a [u8]> {
        match self.contents {
            Contents::Bytes(_) => Some(self.datagram),
            Contents::At(_) => None,
        }
    }

    /// Returns the DETH, if the opcode has one.
    pub fn deth(&self) -> Option<Deth> {
        let present = self.opcode.has_deth();
        present
            .then(|| self.extensions.first_chunk().map(Deth::parse))
            .flatten()
    }

    /// Returns the FETH, if the opcode has one.
    pub fn feth(&self) -> Option<Feth> {
        let present = self.opcode.has_feth();
        present
            .then(|| self.extensions.first_chunk().map(Feth::parse))
            .flatten()
    }

    /// Returns the RETH, if the opcode has one.
    pub fn reth(&self) -> Option<Reth> {
        let present = self.opcode.has_reth();
        let bytes = match self.opcode.has_feth() {
            true => self.extensions.get(Feth::LEN..)?,
            false => self.extensions,
        };
        present
            .then(|| bytes.first_chunk().map(Reth::parse))
            .flatten()
    }

    /// Returns the AETH, if the opcode has one.
    pub fn aeth(&self) -> Option<Aeth> {
        let present = self.opcode.has_aeth();
        present
            .then(|| self.extensions.first_chunk().map(Aeth::parse))
            .flatten()
    }

    /// Returns the AtomicETH, if the opcode has one.
    pub fn atomic(&self) -> Option<AtomicEth> {
        let present = self.opcode.has_atomic();
        present
            .then(|| self.extensions.first_chunk().map(AtomicEth::parse))
            .flatten()
    }

    /// Returns the AtomicAckETH, if the opcode has one.
    pub fn atomic_ack(&self) -> Option<AtomicAckEth> {
        let present = self.opcode.has_atomic_ack();
        present
            // Last, as it follows the AETH.
            .then(|| self.extensions.last_chunk().map(AtomicAckEth::parse))
            .flatten()
    }

    /// Returns the immediate data, if the opcode has any.
    pub fn immediate(&self) -> Option<ImmDt> {
        let present = self.opcode.has_immediate();
        present
            .then(|| self.extensions.last_chunk().map(ImmDt::parse))
            .flatten()
    }

    /// Returns the IETH, if the opcode has one.
    pub fn invalidate(&self) -> Option<Ieth> {
        let present = self.opcode.has_ieth();
        present
            .then(|| self.extensions.last_chunk().map(Ieth::parse))
            .flatten()
    }
}

/// Returns whether filler bytes take the place of the first packet's RETH.
const fn has_filler(opcode: Opcode, bth: &Bth) -> bool {
    bth.filled && opcode.is_write() && !opcode.has_reth()
}

/// Returns the number of filler bytes.
const fn filler_len(opcode: Opcode, bth: &Bth) -> usize {
    match has_filler(opcode, bth) {
        true => Reth::LEN,
        false => 0,
    }
}

/// The headers of a packet, owned. `emit` leaves out headers that the opcode does not have, and writes zeros for those
/// that it has but are `None` here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "the types say it")]
pub struct Headers {
    /// The opcode. `bth.opcode` combines it with the service.
    pub opcode: Opcode,
    pub bth: Bth,
    pub xrceth: Option<XrcEth>,
    pub deth: Option<Deth>,
    pub feth: Option<Feth>,
    pub reth: Option<Reth>,
    pub aeth: Option<Aeth>,
    pub atomic: Option<AtomicEth>,
    pub atomic_ack: Option<AtomicAckEth>,
    pub immediate: Option<ImmDt>,
    pub invalidate: Option<Ieth>,
}

impl Headers {
    /// Returns headers with only a BTH. If the opcode belongs to a connection, the service in `bth` is kept.
    pub const fn new(opcode: Opcode, bth: Bth) -> Self {
        let byte = match opcode.is_of_connection() {
            true => Reliability::of(bth.opcode).byte(opcode),
            false => opcode.byte(),
        };
        Self {
            opcode,
            bth: Bth {
                opcode: byte,
                ..bth
            },
            xrceth: None,
            deth: None,
            feth: None,
            reth: None,
            aeth: None,
            atomic: None,
            atomic_ack: None,
            immediate: None,
            invalidate: None,
        }
    }

    /// Copies the headers of a packet.
    pub fn parse(packet: &Packet<'_>) -> Self {
        Self {
            opcode: packet.opcode,
            bth: packet.bth,
            xrceth: packet.xrceth(),
            deth: packet.deth(),
            feth: packet.feth(),
            reth: packet.reth(),
            aeth: packet.aeth(),
            atomic: packet.atomic(),
            atomic_ack: packet.atomic_ack(),
            immediate: packet.immediate(),
            invalidate: packet.invalidate(),
        }
    }

    /// Makes a WRITE packet as long as its message's first one, given payloads of the same length.
    pub const fn fill(&mut self) {
        let opcode = self.opcode;
        self.bth.filled = opcode.is_write() && !opcode.has_reth() && !opcode.has_immediate();
    }

    /// Returns how many bytes [`emit`](Self::emit) writes. The payload follows them.
    pub const fn buffer_len(&self) -> usize {
        let extensions = Layout::of(self.bth.opcode).extensions;
        Bth::LEN + extensions as usize + filler_len(self.opcode, &self.bth)
    }

    /// Returns the length of the datagram with `payload` bytes of payload.
    pub const fn datagram_len(&self, payload: usize) -> usize {
        self.buffer_len() + payload + padding(payload) + icrc::LEN
    }

    /// Writes the headers to the start of `out`, with the pad count for `payload` bytes of payload; returns their
    /// length.
    ///
    /// # Panics
    ///
    /// If `out` is shorter than [`buffer_len`](Self::buffer_len).
    pub fn emit(&self, payload: usize, out: &mut [u8]) -> usize {
        let opcode = self.opcode;
        let mut at = 0;
        let pad = padding(payload) as u8;
        put(out, &mut at, |to| Bth { pad, ..self.bth }.emit(to));
        if Layout::of(self.bth.opcode).xrceth > 0 {
            put(out, &mut at, |to| {
                if let Some(xrceth) = self.xrceth {
                    xrceth.emit(to);
                }
            });
        }
        if opcode.has_deth() {
            put(out, &mut at, |to| {
                if let Some(deth) = self.deth {
                    deth.emit(to);
                }
            });
        }
        if opcode.has_feth() {
            put(out, &mut at, |to| {
                if let Some(feth) = self.feth {
                    feth.emit(to);
                }
            });
        }
        // The filler may repeat the RETH, as receivers do not read it.
        if opcode.has_reth() || has_filler(opcode, &self.bth) {
            put(out, &mut at, |to| {
                if let Some(reth) = self.reth {
                    reth.emit(to);
                }
            });
        }
        if opcode.has_aeth() {
            put(out, &mut at, |to| {
                if let Some(aeth) = self.aeth {
                    aeth.emit(to);
                }
            });
        }
        if opcode.has_atomic() {
            put(out, &mut at, |to| {
                if let Some(atomic) = self.atomic {
                    atomic.emit(to);
                }
            });
        }
        if opcode.has_atomic_ack() {
            put(out, &mut at, |to| {
                if let Some(ack) = self.atomic_ack {
                    ack.emit(to);
                }
            });
        }
        if opcode.has_immediate() {
            put(out, &mut at, |to| {
                if let Some(immediate) = self.immediate {
                    immediate.emit(to);
                }
            });
        }
        if opcode.has_ieth() {
            put(out, &mut at, |to| {
                if let Some(invalidate) = self.invalidate {
                    invalidate.emit(to);
                }
            });
        }
        at
    }
}

/// Writes the `N` bytes that `emit` fills in (zero by default) to `out` at `at`, and advances `at`.
pub(crate) fn put<const N: usize>(out: &mut [u8], at: &mut usize, emit: impl FnOnce(&mut [u8; N])) {
    let mut bytes = [0; N];
    emit(&mut bytes);
    out[*at..*at + N].copy_from_slice(&bytes);
    *at += N;
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns a datagram whose ICRC is all zeros.
    fn datagram(headers: &Headers, payload: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; headers.datagram_len(payload.len())];
        let at = headers.emit(payload.len(), &mut bytes);
        bytes[at..at + payload.len()].copy_from_slice(payload);
        bytes
    }

    #[test]
    fn the_longest_datagram_is_an_extended_write_with_immediate() {
        let longest = Opcode::ALL
            .into_iter()
            .filter(|op| op.has_payload())
            .map(|opcode| usize::from(Layout::of(Reliability::Extended.byte(opcode)).extensions));
        let longest = longest.max().unwrap_or_default() + Bth::LEN + 4096 + icrc::LEN;
        assert_eq!(longest, MAX_DATAGRAM);
    }

    /// The bytes follow the specification's figures: BTH, DETH, ImmDt.
    #[test]
    fn a_datagram_with_immediate_has_the_bytes_of_the_specification() {
        let bytes = [
            [0x65, 0xf0, 0xff, 0xff].as_slice(),
            &[0x00, 0x00, 0x00, 0x11],
            &[0x00, 0x00, 0x00, 0x07],
            &[0x11, 0x11, 0x11, 0x11],
            &[0x00, 0x00, 0x00, 0x22],
            &[0xde, 0xad, 0xbe, 0xef],
            b"hello\0\0\0",
            &[0; icrc::LEN],
        ]
        .concat();
        let packet = Packet::new(&bytes).unwrap();
        assert_eq!(packet.opcode(), Opcode::DatagramSendImmediate);
        let bth = packet.bth();
        assert_eq!((bth.dest_qpn.get(), bth.psn.get()), (0x11, 7));
        assert!(bth.solicited && !bth.ack_request);
        let deth = packet.deth().unwrap();
        assert_eq!((deth.qkey.0, deth.source_qpn.get()), (0x1111_1111, 0x22));
        assert_eq!(packet.immediate().unwrap().0.0, 0xdead_beef);
        assert_eq!(packet.payload(), b"hello");
        assert_eq!(datagram(&Headers::parse(&packet), b"hello"), bytes);
        assert_eq!(packet.reth(), None);
    }

    #[test]
    fn the_opcode_of_the_headers_goes_before_that_of_the_bth() {
        let bth = Bth {
            opcode: Opcode::Acknowledge.byte(),
            ..Bth::parse(&[0; Bth::LEN])
        };
        let headers = Headers::new(Opcode::SendOnly, bth);
        let bytes = datagram(&headers, b"four");
        let packet = Packet::new(&bytes).unwrap();
        assert_eq!(packet.opcode(), Opcode::SendOnly);
        assert_eq!(packet.payload(), b"four");
    }

    const SERVICES: [Reliability; 3] = [
        Reliability::Reliable,
        Reliability::Unreliable,
        Reliability::Extended,
    ];

    fn of_service(service: Reliability) -> Bth {
        Bth {
            opcode: service.byte(Opcode::SendOnly),
            ..Bth::parse(&[0; Bth::LEN])
        }
    }

    /// The bytes follow the specification's figures: BTH, XRCETH, RETH, ImmDt.
    #[test]
    fn a_write_of_an_extended_connection_has_the_bytes_of_the_specification() {
        let bytes = [
            [0xab, 0x70, 0xff, 0xff].as_slice(),
            &[0x00, 0x00, 0x00, 0x11],
            &[0x80, 0x00, 0x00, 0x07],
            &[0x00, 0x12, 0x34, 0x56],
            &[0, 0, 0, 0, 0, 0, 0x10, 0],
            &[0xaa, 0xbb, 0xcc, 0xdd],
            &[0, 0, 0, 5],
            &[0xde, 0xad, 0xbe, 0xef],
            b"hello\0\0\0",
            &[0; icrc::LEN],
        ]
        .concat();
        let packet = Packet::new(&bytes).unwrap();
        assert_eq!(packet.opcode(), Opcode::WriteOnlyImmediate);
        assert_eq!(packet.service(), Reliability::Extended);
        assert_eq!(packet.xrceth().unwrap().0.get(), 0x12_3456);
        let reth = packet.reth().unwrap();
        assert_eq!(
            (reth.addr, reth.rkey.0, reth.dma_len),
            (0x1000, 0xaabb_ccdd, 5)
        );
        assert_eq!(packet.immediate().unwrap().0.0, 0xdead_beef);
        assert_eq!(packet.payload(), b"hello");
        assert_eq!(datagram(&Headers::parse(&packet), b"hello"), bytes);
        for len in 0..bytes.len() {
            let cut = Packet::new(&bytes[..len]);
            assert!(cut.is_err() || cut.unwrap().payload().len() < 5, "{len}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4096))]

        #[test]
        fn any_bytes_give_a_packet_or_an_error(
            mut bytes in proptest::collection::vec(any::<u8>(), 0..80), opcode in 0usize..36,
            service in 0..3_usize,
        ) {
            if let (Some(first), Some(opcode)) = (bytes.first_mut(), Opcode::ALL.get(opcode)) {
                *first = Headers::new(*opcode, of_service(SERVICES[service])).bth.opcode;
            }
            if let Some(second) = bytes.get_mut(1) {
                *second &= 0xf0;
            }
            let opcode = bytes.first().and_then(|byte| Opcode::from_byte(*byte));
            if let Some(reserved) = bytes.get_mut(16) && opcode.is_some_and(Opcode::has_deth) {
                // The DETH's reserved byte is not preserved.
                *reserved = 0;
            }
            if let Some(bits) = bytes.get_mut(8) && opcode.is_some_and(|opcode| !opcode.has_reth()) {
                // Nor is the filler bit; another property covers it.
                *bits &= !0x40;
            }
            let flush = bytes.first().map(|byte| {
                Bth::LEN + usize::from(Layout::of(*byte).xrceth)
            });
            if let Some(feth) = flush.and_then(|at| bytes.get_mut(at..at + Feth::LEN))
                && opcode.is_some_and(Opcode::has_feth)
            {
                // Of a FETH, only placement type and selectivity level are preserved.
                feth.copy_from_slice(&[0, 0, 0, feth[3] & 0x33]);
            }
            if let Some(reserved) = bytes.get_mut(Bth::LEN) && opcode.is_some() {
                // Nor is the XRCETH's reserved byte. In other headers the byte is part of a field.
                *reserved = 0;
            }
            if let Ok(packet) = Packet::new(&bytes) {
                let headers = Headers::parse(&packet);
                let mut again = datagram(&headers, packet.payload());
                again.truncate(again.len() - icrc::LEN);
                // A sender may use any padding bytes, and more than necessary.
                let second = Packet::new(&bytes).map(|p| p.payload().len());
                prop_assert_eq!(second, Ok(packet.payload().len()));
                let end = headers.buffer_len() + packet.payload().len();
                prop_assert_eq!(&again[12..end], &bytes[12..end]);
            }
        }

        #[test]
        fn emitted_headers_are_parsed_unchanged(
            opcode in 0..Opcode::ALL.len(), service in 0..3_usize, xrceth: [u8; 4],
            bth: [u8; Bth::LEN], deth: [u8; 8], reth: [u8; 16], aeth: [u8; 4], atomic: [u8; 28], word: [u8; 4],
            ack: [u8; 8], payload in proptest::collection::vec(any::<u8>(), 0..64),
        ) {
            let opcode = Opcode::ALL[opcode];
            let payload = if opcode.has_payload() { &payload[..] } else { &[] };
            let pad = padding(payload.len()) as u8;
            let byte = Headers::new(opcode, of_service(SERVICES[service])).bth.opcode;
            // The unreliable service lacks some opcodes; those use the reliable service's byte.
            let known = Opcode::from_byte(byte) == Some(opcode);
            let byte = if known { byte } else { opcode.byte() };
            let bth = Bth { opcode: byte, version: 0, pad, ..Bth::parse(&bth) };
            let headers = Headers {
                xrceth: (Layout::of(byte).xrceth > 0).then(|| XrcEth::parse(&xrceth)),
                deth: opcode.has_deth().then(|| Deth::parse(&deth)),
                reth: opcode.has_reth().then(|| Reth::parse(&reth)),
                aeth: opcode.has_aeth().then(|| Aeth::parse(&aeth)),
                atomic: opcode.has_atomic().then(|| AtomicEth::parse(&atomic)),
                atomic_ack: opcode.has_atomic_ack().then(|| AtomicAckEth::parse(&ack)),
                immediate: opcode.has_immediate().then(|| ImmDt::parse(&word)),
                feth: opcode.has_feth().then(|| Feth::parse(&word)),
                invalidate: opcode.has_ieth().then(|| Ieth::parse(&word)),
                ..Headers::new(opcode, bth)
            };
            let bytes = datagram(&headers, payload);
            let packet = Packet::new(&bytes)?;
            prop_assert_eq!(Headers::parse(&packet), headers);
            prop_assert_eq!(packet.payload(), payload);
            for len in 0..bytes.len() {
                if let Ok(shorter) = Packet::new(&bytes[..len]) {
                    prop_assert!(shorter.payload().len() < payload.len());
                }
            }
        }
    }
}
