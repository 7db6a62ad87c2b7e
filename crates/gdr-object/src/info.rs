//! Information about an object from its owner.

use std::fmt;
use std::net::SocketAddr;

use gdr_rdma::PeerText;
use serde::{Deserialize, Serialize};

use crate::element::{Element, Shape};
use crate::epoch::{Epoch, Generation};
use crate::error::{Error, Result};
use crate::mode::{Checksum, Mode, Rights};
use crate::name::ObjectName;

/// Information about an object from its owner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ObjectInfo {
    /// The object's name.
    pub name: ObjectName,
    /// The type of the elements.
    pub element: Element,
    /// The number of elements along each dimension.
    pub shape: Shape,
    /// The size of one publication in bytes.
    pub bytes: u64,
    /// How the object keeps its content.
    pub mode: Mode,
    /// Whether publications carry a checksum.
    pub checksum: Checksum,
    /// What this peer may do.
    pub rights: Rights,
    /// The newest epoch at the time of the answer.
    pub newest: Option<Epoch>,
    /// Where the bytes are.
    pub location: Location,
    /// How the owner's device accesses them, and why.
    pub path: AccessPath,
}

/// Where an object's bytes are.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Location {
    /// In host memory.
    Host,
    /// In the memory of a GPU.
    Gpu {
        /// The GPU's number at the owner.
        ordinal: u32,
        /// The GPU's name.
        name: String,
        /// Whether the GPU is simulated.
        simulated: bool,
    },
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host => f.pad("host"),
            Self::Gpu {
                ordinal, simulated, ..
            } => {
                let simulated = if *simulated { " (simulated)" } else { "" };
                f.pad(&format!("gpu {ordinal}{simulated}"))
            }
        }
    }
}

/// How a device accesses the bytes of an object.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct AccessPath {
    /// What moves the bytes: `soft` or `verbs`.
    pub provider: String,
    /// How the device accesses the memory: `host`, `direct`, `staged`, `dma-buf` or `peer-memory`.
    pub method: String,
    /// Why this method, in a sentence.
    pub why: String,
}

impl AccessPath {
    /// The [`AccessPath::method`] for memory that is copied to and from host memory.
    pub(crate) const STAGED: &str = "staged";

    /// Returns whether the bytes pass through host memory.
    pub(crate) fn is_staged(&self) -> bool {
        self.method == Self::STAGED
    }
}

impl fmt::Display for AccessPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}", self.provider, self.method)
    }
}

impl ObjectInfo {
    /// Makes a peer's texts printable.
    pub(crate) fn printable(mut self) -> Self {
        let texts = [
            &mut self.path.provider,
            &mut self.path.method,
            &mut self.path.why,
        ];
        for text in texts {
            *text = PeerText::new(text).into_string();
        }
        if let Location::Gpu { name, .. } = &mut self.location {
            *name = PeerText::new(name).into_string();
        }
        self
    }
}

/// What another process needs to open the same object of the same owner: an address, a generation and a
/// name. A handle contains no memory keys and grants no access; opening it requires the shared key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Handle {
    pub(crate) owner: SocketAddr,
    pub(crate) generation: Generation,
    pub(crate) name: ObjectName,
}

/// The first bytes of a handle: its type and version.
const MAGIC: &[u8; 8] = b"gdrobj01";

impl Handle {
    /// Returns the address of the owner.
    pub fn owner(&self) -> SocketAddr {
        self.owner
    }

    /// Returns the generation of the owner, which identifies its run.
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// Returns the name of the object.
    pub fn name(&self) -> &ObjectName {
        &self.name
    }

    /// Returns the handle as printable ASCII, for files, environment variables and messages.
    pub fn to_bytes(&self) -> Vec<u8> {
        let magic = String::from_utf8_lossy(MAGIC);
        let Self {
            owner,
            generation,
            name,
        } = self;
        format!("{magic} {generation} {owner} {name}").into_bytes()
    }

    /// Parses the bytes from [`Handle::to_bytes`].
    ///
    /// # Errors
    /// [`Error::Handle`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let text = std::str::from_utf8(bytes).map_err(|_| Error::Handle("they are not a text"))?;
        let rest = text
            .as_bytes()
            .starts_with(MAGIC)
            .then(|| &text[MAGIC.len()..])
            .and_then(|rest| rest.strip_prefix(' '));
        let rest = rest.ok_or(Error::Handle("they begin with something else"))?;
        let mut fields = rest.split(' ');
        let mut field = || fields.next().ok_or(Error::Handle("they end too early"));
        let generation = field()?;
        let wrong = Error::Handle("their generation is not 16 hexadecimal digits");
        let number = u64::from_str_radix(generation, 16).ok();
        let number = number.filter(|_| generation.len() == 16 && !generation.starts_with('+'));
        let generation = Generation(number.ok_or(wrong)?);
        let owner = field()?.parse();
        let owner = owner.map_err(|_| Error::Handle("they have no address and port"))?;
        let name = ObjectName::new(field()?)?;
        if fields.next().is_some() {
            return Err(Error::Handle("they go on after the name"));
        }
        Ok(Self {
            owner,
            generation,
            name,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_handle_survives_as_bytes() {
        for owner in ["127.0.0.1:7000", "[fe80::1%3]:7000", "[2001:db8::1]:1"] {
            let handle = Handle {
                owner: owner.parse().unwrap(),
                generation: Generation(0xab),
                name: ObjectName::new("model/w:0").unwrap(),
            };
            assert_eq!(Handle::from_bytes(&handle.to_bytes()).unwrap(), handle);
        }
    }

    proptest! {
        #[test]
        fn bytes_that_are_no_handle_are_refused(bytes in any::<Vec<u8>>()) {
            prop_assert!(Handle::from_bytes(&bytes).is_err());
        }

        #[test]
        fn a_changed_handle_is_another_or_refused(at in 0..60_usize, byte in any::<u8>()) {
            let handle = Handle {
                owner: "127.0.0.1:7000".parse().unwrap(),
                generation: Generation(0xab),
                name: ObjectName::new("w").unwrap(),
            };
            let mut bytes = handle.to_bytes();
            let at = at % bytes.len();
            bytes[at] = byte;
            if let Ok(read) = Handle::from_bytes(&bytes) {
                prop_assert_eq!(Handle::from_bytes(&read.to_bytes()).unwrap(), read);
            }
        }
    }
}
