//! Messages of netlink and their attributes, by `linux/netlink.h`. Numbers have the host's byte order.

use crate::errno::Errno;

/// The length of a message's header.
const HEADER: usize = 16;
/// The length of an attribute's header.
const ATTRIBUTE: usize = 4;
/// The bits of an attribute's type: the others say that it is nested, and its byte order.
const TYPE_MASK: u16 = 0x3fff;

/// `NLMSG_ERROR` and `NLMSG_DONE`.
const ERROR: u16 = 2;
const DONE: u16 = 3;

/// `NLM_F_MULTI`, `NLM_F_ACK` and `NLM_F_DUMP`.
const MULTI: u16 = 0x2;
const ACK: u16 = 0x4;
const DUMP: u16 = 0x300;

/// A message: a request, or an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Message {
    kind: u16,
    flags: u16,
    sequence: u32,
    attributes: Vec<u8>,
}

/// How the answers to a request end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    /// One object.
    One,
    /// All of them (`NLM_F_DUMP`), and then `NLMSG_DONE`.
    All,
}

impl Message {
    /// Splits what was sent or received into its messages.
    ///
    /// # Errors
    /// `EINVAL` if a message is shorter or longer than it says.
    pub(super) fn split(mut bytes: &[u8]) -> Result<Vec<Self>, Errno> {
        let mut messages = Vec::new();
        while !bytes.is_empty() {
            let len = number(bytes, 0).ok_or(Errno::INVAL)? as usize;
            let message = bytes.get(..len).ok_or(Errno::INVAL)?;
            messages.push(Self::parse(message).ok_or(Errno::INVAL)?);
            bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
        }
        Ok(messages)
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        Some(Self {
            kind: short(bytes, 4)?,
            flags: short(bytes, 6)?,
            sequence: number(bytes, 8)?,
            attributes: bytes.get(HEADER..)?.to_vec(),
        })
    }

    /// An answer to this request, without attributes.
    pub(super) fn answer(&self) -> Self {
        Self {
            kind: self.kind,
            flags: match self.scope() {
                Scope::One => 0,
                Scope::All => MULTI,
            },
            sequence: self.sequence,
            attributes: Vec::new(),
        }
    }

    /// The answer after the last one of [`Scope::All`].
    pub(super) fn done(&self) -> Self {
        Self {
            kind: DONE,
            flags: MULTI,
            attributes: 0_i32.to_ne_bytes().to_vec(),
            ..self.answer()
        }
    }

    /// The answer to a request that has failed, or, without an errno, the acknowledgement of one that asks for it.
    pub(super) fn result(&self, errno: Option<Errno>) -> Self {
        let code = errno.map_or(0, |errno| -errno.get());
        let mut attributes = code.to_ne_bytes().to_vec();
        // The answer repeats the request's header, of which programs only compare the sequence number.
        attributes.extend(&self.bytes(0)[..HEADER]);
        Self {
            kind: ERROR,
            flags: 0,
            sequence: self.sequence,
            attributes,
        }
    }

    /// The bytes of the message for the socket that is bound to this number.
    pub(super) fn bytes(&self, port: u32) -> Vec<u8> {
        let len = (HEADER + self.attributes.len()) as u32;
        let mut bytes = len.to_ne_bytes().to_vec();
        bytes.extend(self.kind.to_ne_bytes());
        bytes.extend(self.flags.to_ne_bytes());
        bytes.extend(self.sequence.to_ne_bytes());
        bytes.extend(port.to_ne_bytes());
        bytes.extend(&self.attributes);
        bytes
    }

    pub(super) const fn kind(&self) -> u16 {
        self.kind
    }

    pub(super) const fn scope(&self) -> Scope {
        if self.flags & DUMP == DUMP {
            Scope::All
        } else {
            Scope::One
        }
    }

    pub(super) const fn wants_acknowledgement(&self) -> bool {
        self.flags & ACK != 0
    }

    /// The same request that asks for an acknowledgement, which comes last.
    pub(super) fn acknowledged(&self) -> Self {
        Self {
            flags: self.flags | ACK,
            ..self.clone()
        }
    }

    /// Returns whether no answer follows this one.
    pub(super) const fn is_last(&self) -> bool {
        matches!(self.kind, ERROR | DONE)
    }

    /// Returns whether it says that a request has failed.
    pub(super) fn is_failure(&self) -> bool {
        self.kind == ERROR && number(&self.attributes, 0) != Some(0)
    }

    /// The bytes of the first attribute of a type.
    fn attribute(&self, kind: u16) -> Option<&[u8]> {
        let mut rest = self.attributes.as_slice();
        loop {
            let len = usize::from(short(rest, 0)?);
            let value = rest.get(ATTRIBUTE..len)?;
            if short(rest, 2)? & TYPE_MASK == kind {
                return Some(value);
            }
            rest = rest.get(len.next_multiple_of(4)..)?;
        }
    }

    /// The number of four bytes in an attribute.
    pub(super) fn number(&self, kind: u16) -> Option<u32> {
        number(self.attribute(kind)?, 0)
    }

    /// The text in an attribute, which may end with a zero.
    pub(super) fn text(&self, kind: u16) -> Option<&str> {
        let bytes = self.attribute(kind)?;
        let bytes = bytes.strip_suffix(b"\0").unwrap_or(bytes);
        std::str::from_utf8(bytes).ok()
    }

    /// Adds an attribute: a number in the host's byte order, or a text with a zero after it.
    pub(super) fn with(mut self, kind: u16, value: &[u8]) -> Self {
        let len = (ATTRIBUTE + value.len()) as u16;
        self.attributes.extend(len.to_ne_bytes());
        self.attributes.extend(kind.to_ne_bytes());
        self.attributes.extend(value);
        let len = self.attributes.len().next_multiple_of(4);
        self.attributes.resize(len, 0);
        self
    }

    pub(super) fn with_text(self, kind: u16, text: &str) -> Self {
        let mut bytes = text.as_bytes().to_vec();
        bytes.push(0);
        self.with(kind, &bytes)
    }
}

fn short(bytes: &[u8], at: usize) -> Option<u16> {
    let bytes = bytes.get(at..at + 2)?;
    Some(u16::from_ne_bytes(bytes.try_into().ok()?))
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at + 4)?;
    Some(u32::from_ne_bytes(bytes.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn request(flags: u16) -> Message {
        Message {
            kind: 0x1405,
            flags,
            sequence: 7,
            attributes: Vec::new(),
        }
    }

    #[test]
    fn attributes_are_found_by_their_types() {
        let message = request(0)
            .with(3, &5_u32.to_ne_bytes())
            .with_text(2, "gdr0")
            .with(12, &[4]);
        let bytes = message.bytes(9);
        assert_eq!(bytes.len(), 16 + 8 + 12 + 8);
        let messages = Message::split(&bytes).unwrap();
        assert_eq!(messages, [message]);
        assert_eq!(messages[0].number(3), Some(5));
        assert_eq!(messages[0].text(2), Some("gdr0"));
        assert_eq!(messages[0].number(12), None, "one byte");
        assert_eq!(messages[0].number(1), None);
    }

    #[test]
    fn a_datagram_may_have_several_messages() {
        let both = [request(0).with(1, &[1]), request(DUMP)];
        let bytes = both.iter().flat_map(|message| message.bytes(0));
        let split = Message::split(&bytes.collect::<Vec<_>>()).unwrap();
        assert_eq!(split, both);
        assert_eq!(
            (split[0].scope(), split[1].scope()),
            (Scope::One, Scope::All)
        );
    }

    #[test]
    fn a_failure_has_the_negative_errno_and_an_acknowledgement_zero() {
        let request = request(ACK);
        let failure = request.result(Some(Errno::NODEV));
        assert!(failure.is_failure() && failure.is_last());
        assert_eq!(failure.bytes(0)[16..20], (-libc::ENODEV).to_ne_bytes());
        assert_eq!(failure.bytes(0).len(), 36);
        assert!(!request.result(None).is_failure());
    }

    proptest! {
        #[test]
        fn any_bytes_are_messages_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..96), len in 0_u32..96) {
            let mut bytes = bytes;
            if let Some(first) = bytes.get_mut(..4) {
                first.copy_from_slice(&len.to_ne_bytes());
            }
            for message in Message::split(&bytes).into_iter().flatten() {
                for kind in 0..16 {
                    let _ = (message.number(kind), message.text(kind));
                }
            }
        }
    }
}
