//! The shared key, and how its knowledge is proved without telling it.

use std::fmt;

use hmac::digest::Output;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use super::message::NONCE;
use crate::error::{Error, Result};

/// Bytes of a proof or tag.
pub(super) const TAG: usize = 32;
/// The shortest key, bytes.
const SHORTEST: usize = 16;

/// A secret that both sides of a connection know. Long and random is best: whoever records a
/// set-up can try keys against it at leisure.
#[derive(Clone)]
pub struct SharedKey(Vec<u8>);

impl SharedKey {
    /// A key of at least 16 bytes.
    ///
    /// # Errors
    /// [`Error::KeyTooShort`].
    pub fn new(bytes: impl Into<Vec<u8>>) -> Result<Self> {
        let bytes = bytes.into();
        if bytes.len() < SHORTEST {
            let (len, least) = (bytes.len(), SHORTEST);
            return Err(Error::KeyTooShort { len, least });
        }
        Ok(Self(bytes))
    }
}

impl fmt::Debug for SharedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SharedKey(..)")
    }
}

/// Which side of a connection: the same bytes mean something else from the other one, so that
/// nothing can be sent back to where it came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Client,
    Server,
}

impl Side {
    pub(super) const fn other(self) -> Self {
        match self {
            Self::Client => Self::Server,
            Self::Server => Self::Client,
        }
    }

    const fn label(self) -> &'static [u8] {
        match self {
            Self::Client => b"client",
            Self::Server => b"server",
        }
    }
}

/// A key for one connection only: made of the shared one and both challenges.
pub(super) struct SessionKey(Output<Hmac<Sha256>>);

impl SessionKey {
    pub(super) fn new(key: &SharedKey, client: &[u8; NONCE], server: &[u8; NONCE]) -> Self {
        let parts: [&[u8]; 3] = [b"gdr-rdma 1 session", client, server];
        Self(digest(&key.0, &parts).finalize().into_bytes())
    }

    /// What proves that `side` knows the key.
    pub(super) fn proof(&self, side: Side) -> [u8; TAG] {
        digest(&self.0, &[b"proof", side.label()])
            .finalize()
            .into_bytes()
            .into()
    }

    /// Whether `proof` is that of `side`; takes the same time for every wrong one.
    pub(super) fn proves(&self, side: Side, proof: &[u8; TAG]) -> bool {
        digest(&self.0, &[b"proof", side.label()])
            .verify_slice(proof)
            .is_ok()
    }

    /// The tag of the `number`th frame that `side` sends.
    pub(super) fn tag(&self, side: Side, number: u64, header: &[u8], payload: &[u8]) -> [u8; TAG] {
        self.frame(side, number, header, payload)
            .finalize()
            .into_bytes()
            .into()
    }

    /// Whether `tag` is that of this frame; takes the same time for every wrong one.
    pub(super) fn tags(
        &self,
        side: Side,
        number: u64,
        header: &[u8],
        payload: &[u8],
        tag: &[u8; TAG],
    ) -> bool {
        self.frame(side, number, header, payload)
            .verify_slice(tag)
            .is_ok()
    }

    fn frame(&self, side: Side, number: u64, header: &[u8], payload: &[u8]) -> Hmac<Sha256> {
        // The header has one length and states the payload's, so the parts cannot be shifted.
        let number = number.to_le_bytes();
        digest(&self.0, &[b"frame", side.label(), &number, header, payload])
    }
}

fn digest(key: &[u8], parts: &[&[u8]]) -> Hmac<Sha256> {
    // HMAC takes keys of every length (RFC 2104); the type's fallible constructor is for others.
    let mut block = [0; 64];
    let hashed;
    let key = if key.len() > block.len() {
        hashed = <Sha256 as sha2::Digest>::digest(key);
        hashed.as_slice()
    } else {
        key
    };
    block[..key.len()].copy_from_slice(key);
    let mut hmac = <Hmac<Sha256> as KeyInit>::new(&block.into());
    for part in parts {
        hmac.update(part);
    }
    hmac
}

#[cfg(test)]
mod tests {
    #![allow(
        clippy::unwrap_used,
        reason = "a fixture that fails is a test that fails"
    )]

    use super::*;

    #[test]
    fn a_message_of_rfc_4231_has_its_tag() {
        // Test cases 2 (a short key) and 6 (a key longer than a block).
        let short: [u8; TAG] = digest(b"Jefe", &[b"what do ya want ", b"for nothing?"])
            .finalize()
            .into_bytes()
            .into();
        assert_eq!(short[..4], [0x5b, 0xdc, 0xc1, 0x46]);
        assert_eq!(short[28..], [0x64, 0xec, 0x38, 0x43]);
        let text = b"Test Using Larger Than Block-Size Key - Hash Key First";
        let long: [u8; TAG] = digest(&[0xaa; 131], &[text]).finalize().into_bytes().into();
        assert_eq!(long[..4], [0x60, 0xe4, 0x31, 0x59]);
    }

    #[test]
    fn one_sides_proof_is_not_the_others() {
        let key = SharedKey::new(*b"sixteen bytes ok").unwrap();
        let session = SessionKey::new(&key, &[1; NONCE], &[2; NONCE]);
        let proof = session.proof(Side::Client);
        assert!(session.proves(Side::Client, &proof));
        assert!(!session.proves(Side::Server, &proof));
        let other = SessionKey::new(&key, &[1; NONCE], &[3; NONCE]);
        assert!(!other.proves(Side::Client, &proof));
    }

    #[test]
    fn a_frame_counts_only_at_its_place() {
        let key = SharedKey::new(*b"sixteen bytes ok").unwrap();
        let session = SessionKey::new(&key, &[1; NONCE], &[2; NONCE]);
        let tag = session.tag(Side::Client, 0, b"head", b"body");
        assert!(session.tags(Side::Client, 0, b"head", b"body", &tag));
        assert!(!session.tags(Side::Client, 1, b"head", b"body", &tag));
        assert!(!session.tags(Side::Server, 0, b"head", b"body", &tag));
        assert!(!session.tags(Side::Client, 0, b"head", b"bodY", &tag));
    }

    #[test]
    fn a_key_is_long_and_never_shown() {
        assert!(matches!(
            SharedKey::new(*b"fifteen bytes o"),
            Err(Error::KeyTooShort { len: 15, least: 16 })
        ));
        let key = SharedKey::new(*b"sixteen bytes ok").unwrap();
        assert_eq!(format!("{key:?}"), "SharedKey(..)");
    }
}
