//! The shared key, and proofs of having it that do not disclose it.

use std::fmt;
use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use hmac::digest::Output;
use hmac::{Hmac, KeyInit, Mac};
use rustix::fs::OFlags;
use sha2::Sha256;
use zeroize::{Zeroize, Zeroizing};

use super::message::NONCE;
use crate::error::{Error, Result};

/// The length of a proof or tag in bytes.
pub(super) const TAG: usize = 32;
/// The shortest key in bytes.
const SHORTEST: usize = 16;
/// The longest key file in bytes.
const LONGEST_FILE: u64 = 64 << 10;
/// Permissions of users other than the owner.
const OF_OTHERS: u32 = 0o077;

/// A secret of both sides of a connection. It should be long and random: an eavesdropper can test
/// keys against a recorded set-up. Its bytes are wiped from memory on drop.
#[derive(Clone, PartialEq, Eq)]
pub struct SharedKey(Zeroizing<Vec<u8>>);

impl SharedKey {
    /// Reads the key of a file, without white space at its end. As with ssh's keys, the file must
    /// belong to this user or root, and no other user may read or write it.
    ///
    /// # Errors
    /// [`Error::KeyFile`], [`Error::KeyTooShort`].
    pub fn read(path: &Path) -> Result<Self> {
        let failed = |why: String, remedy: String| Error::KeyFile {
            path: path.to_owned(),
            why,
            remedy,
        };
        let unreadable = |source: io::Error| {
            let remedy = "give a file that this user can read";
            failed(format!("cannot be read: {source}"), remedy.to_owned())
        };
        // Opening a pipe without a writer must not block.
        let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits() as i32;
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(flags)
            .open(path)
            .map_err(unreadable)?;
        // Metadata of the open file: the path may now refer to another one.
        let metadata = file.metadata().map_err(unreadable)?;
        if !metadata.is_file() {
            let remedy = "put the key into a regular file of mode 600".to_owned();
            return Err(failed("is not a regular file".to_owned(), remedy));
        }
        let shown = path.display();
        let users = [
            rustix::process::geteuid().as_raw(),
            rustix::process::getuid().as_raw(),
            0,
        ];
        if !users.contains(&metadata.uid()) {
            return Err(failed(
                format!("belongs to user {}", metadata.uid()),
                format!("make it this user's: chown {} {shown}", users[0]),
            ));
        }
        if metadata.mode() & OF_OTHERS != 0 {
            return Err(failed(
                format!(
                    "has mode {:04o}: others than its owner may read or change the key",
                    metadata.mode() & 0o7777
                ),
                format!("chmod 600 {shown}"),
            ));
        }
        // With its final capacity: a growing buffer would leave copies behind.
        let mut bytes = Zeroizing::new(Vec::with_capacity(LONGEST_FILE as usize + 1));
        (&file)
            .take(LONGEST_FILE + 1)
            .read_to_end(&mut bytes)
            .map_err(unreadable)?;
        if bytes.len() as u64 > LONGEST_FILE {
            let remedy = "a key of 32 random bytes is enough".to_owned();
            return Err(failed(
                format!("is longer than {LONGEST_FILE} bytes"),
                remedy,
            ));
        }
        Self::new(bytes.trim_ascii_end())
    }

    /// Makes a key of at least 16 bytes.
    ///
    /// # Errors
    /// [`Error::KeyTooShort`].
    pub fn new(bytes: impl Into<Vec<u8>>) -> Result<Self> {
        let bytes = Zeroizing::new(bytes.into());
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

/// A side of a connection. It is part of every proof and tag, so that none can be sent back to its
/// sender.
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

/// The key of one connection, derived from the shared key and both challenges. It is wiped on drop.
pub(super) struct SessionKey(Output<Hmac<Sha256>>);

impl SessionKey {
    pub(super) fn new(key: &SharedKey, client: &[u8; NONCE], server: &[u8; NONCE]) -> Self {
        let parts: [&[u8]; 3] = [b"gdr-rdma 1 session", client, server];
        Self(digest(&key.0, &parts).finalize().into_bytes())
    }

    /// Returns the proof that `side` has the key.
    pub(super) fn proof(&self, side: Side) -> [u8; TAG] {
        digest(&self.0, &[b"proof", side.label()])
            .finalize()
            .into_bytes()
            .into()
    }

    /// Returns whether `proof` is `side`'s, in constant time.
    pub(super) fn proves(&self, side: Side, proof: &[u8; TAG]) -> bool {
        digest(&self.0, &[b"proof", side.label()])
            .verify_slice(proof)
            .is_ok()
    }

    /// Returns the tag of the `number`th frame that `side` sends.
    pub(super) fn tag(&self, side: Side, number: u64, header: &[u8], payload: &[u8]) -> [u8; TAG] {
        self.frame(side, number, header, payload)
            .finalize()
            .into_bytes()
            .into()
    }

    /// Returns whether `tag` belongs to this frame, in constant time.
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
        // The header has a fixed length and states the payload's, so the boundaries of the parts are
        // unambiguous.
        let number = number.to_le_bytes();
        digest(&self.0, &[b"frame", side.label(), &number, header, payload])
    }
}

impl Drop for SessionKey {
    fn drop(&mut self) {
        self.0.as_mut_slice().zeroize();
    }
}

fn digest(key: &[u8], parts: &[&[u8]]) -> Hmac<Sha256> {
    // HMAC accepts keys of every length (RFC 2104); the fallible constructor is not needed.
    let mut block = Zeroizing::new([0; 64]);
    if key.len() > block.len() {
        let mut hashed = <Sha256 as sha2::Digest>::digest(key);
        block[..hashed.len()].copy_from_slice(&hashed);
        hashed.as_mut_slice().zeroize();
    } else {
        block[..key.len()].copy_from_slice(key);
    }
    let mut hmac = <Hmac<Sha256> as KeyInit>::new((&*block).into());
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
    fn the_proofs_of_both_sides_differ() {
        let key = SharedKey::new(*b"sixteen bytes ok").unwrap();
        let session = SessionKey::new(&key, &[1; NONCE], &[2; NONCE]);
        let proof = session.proof(Side::Client);
        assert!(session.proves(Side::Client, &proof));
        assert!(!session.proves(Side::Server, &proof));
        let other = SessionKey::new(&key, &[1; NONCE], &[3; NONCE]);
        assert!(!other.proves(Side::Client, &proof));
    }

    #[test]
    fn a_tag_is_valid_only_for_its_frame() {
        let key = SharedKey::new(*b"sixteen bytes ok").unwrap();
        let session = SessionKey::new(&key, &[1; NONCE], &[2; NONCE]);
        let tag = session.tag(Side::Client, 0, b"head", b"body");
        assert!(session.tags(Side::Client, 0, b"head", b"body", &tag));
        assert!(!session.tags(Side::Client, 1, b"head", b"body", &tag));
        assert!(!session.tags(Side::Server, 0, b"head", b"body", &tag));
        assert!(!session.tags(Side::Client, 0, b"head", b"bodY", &tag));
    }

    fn key_file(text: &str, mode: u32) -> (tempfile::TempDir, std::path::PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        std::fs::write(&path, text).unwrap();
        let permissions = std::os::unix::fs::PermissionsExt::from_mode(mode);
        std::fs::set_permissions(&path, permissions).unwrap();
        (folder, path)
    }

    #[test]
    fn a_key_file_that_others_may_read_or_write_is_refused_with_the_chmod() {
        for mode in [0o644, 0o620, 0o602, 0o666, 0o640, 0o604, 0o610] {
            let (_folder, path) = key_file("sixteen bytes or more", mode);
            let text = SharedKey::read(&path).unwrap_err().to_string();
            let chmod = format!("chmod 600 {}", path.display());
            assert!(text.contains(&chmod), "{mode:o}: {text}");
        }
        for mode in [0o600, 0o400] {
            let (_folder, path) = key_file("sixteen bytes or more \n", mode);
            let key = SharedKey::read(&path).unwrap();
            assert!(key == SharedKey::new(*b"sixteen bytes or more").unwrap());
        }
    }

    #[test]
    fn a_key_file_of_another_user_is_refused() {
        let (_folder, path) = key_file("sixteen bytes or more", 0o600);
        if std::os::unix::fs::chown(&path, Some(54_321), None).is_err() {
            skip::skip("only root can give a file away");
            return;
        }
        let text = SharedKey::read(&path).unwrap_err().to_string();
        assert!(text.contains("belongs to user 54321"), "{text}");
        assert!(text.contains("chown"), "{text}");
    }

    #[test]
    fn files_that_are_not_key_files_are_refused_without_waiting() {
        let (folder, long) = key_file(&"x".repeat(70_000), 0o600);
        let pipe = folder.path().join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, 0o600.into()).unwrap();
        for (path, why) in [
            (folder.path(), "not a regular file"),
            (Path::new("/dev/zero"), "not a regular file"),
            (&pipe, "not a regular file"),
            (&long, "longer than"),
            (Path::new("/no/such/key"), "cannot be read"),
        ] {
            let text = SharedKey::read(path).unwrap_err().to_string();
            assert!(text.contains(why), "{}: {text}", path.display());
        }
        let (_folder, short) = key_file("fifteen bytes o\n\n", 0o600);
        let error = SharedKey::read(&short).unwrap_err();
        assert!(matches!(error, Error::KeyTooShort { len: 15, .. }));
    }

    #[test]
    fn keys_are_wiped_from_memory_on_drop() {
        fn wipes(_: &impl zeroize::ZeroizeOnDrop) {}
        let key = SharedKey::new(*b"sixteen bytes ok").unwrap();
        wipes(&key.0);
        let session = SessionKey::new(&key, &[1; NONCE], &[2; NONCE]);
        let mut session = std::mem::ManuallyDrop::new(session);
        assert_ne!(session.0.as_slice(), [0; TAG]);
        // SAFETY: it is dropped once; its bytes are plain numbers, which stay readable.
        unsafe { std::mem::ManuallyDrop::drop(&mut session) };
        assert_eq!(session.0.as_slice(), [0; TAG]);
    }

    #[test]
    fn a_key_must_be_long_and_is_not_printed() {
        assert!(matches!(
            SharedKey::new(*b"fifteen bytes o"),
            Err(Error::KeyTooShort { len: 15, least: 16 })
        ));
        let key = SharedKey::new(*b"sixteen bytes ok").unwrap();
        assert_eq!(format!("{key:?}"), "SharedKey(..)");
    }
}
