//! The protocol that both ends of a session speak on top of it.

use std::fmt;

use super::session::Security;
use crate::types::PeerText;

/// The protocol that the ends of a session speak on top of it, identified by a name in both greetings.
///
/// An end that names a service rejects peers with a different one, and both learn the other's name. An end that names
/// none accepts every other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Service([u8; Service::LEN]);

impl Service {
    /// The longest name in bytes.
    pub const LEN: usize = 16;
    /// No name.
    pub const UNNAMED: Self = Self([0; Self::LEN]);

    /// Names a service.
    ///
    /// # Panics
    /// If the name is longer than [`Service::LEN`].
    pub const fn new(name: &'static str) -> Self {
        let name = name.as_bytes();
        let mut bytes = [0; Self::LEN];
        let mut at = 0;
        while at < name.len() {
            bytes[at] = name[at];
            at += 1;
        }
        Self(bytes)
    }

    pub(super) const fn from_bytes(bytes: [u8; Self::LEN]) -> Self {
        Self(bytes)
    }

    pub(super) const fn to_bytes(self) -> [u8; Self::LEN] {
        self.0
    }

    /// Returns whether ends of the two can have a session.
    pub(super) fn meets(self, other: Self) -> bool {
        self == other || self == Self::UNNAMED || other == Self::UNNAMED
    }
}

impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.0.split(|byte| *byte == 0).next().unwrap_or_default();
        PeerText::from_bytes(name).fmt(f)
    }
}

/// Which peers to accept, and which service to speak with them. A plain [`Security`] names no service.
#[derive(Clone, Copy, Debug)]
pub struct Terms<'a> {
    pub(super) security: &'a Security,
    pub(super) service: Service,
}

impl<'a> From<&'a Security> for Terms<'a> {
    fn from(security: &'a Security) -> Self {
        let service = Service::UNNAMED;
        Self { security, service }
    }
}

impl Security {
    /// Returns the peers that it accepts, if they speak `service` or name none.
    pub const fn with_service(&self, service: Service) -> Terms<'_> {
        Terms {
            security: self,
            service,
        }
    }
}
