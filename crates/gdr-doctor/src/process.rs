//! The user and the capabilities of the collecting process.

use gdr_node::{Absence, Datum, DatumExt, Source};

/// A capability of Linux, by its number (capabilities(7)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Capability(u32);

impl Capability {
    pub(crate) const NET_RAW: Self = Self(13);
    pub(crate) const IPC_LOCK: Self = Self(14);
    pub(crate) const SYS_RAWIO: Self = Self(17);
}

/// The collecting process, by `/proc/self/status`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    user: Datum<u32>,
    effective: Datum<u64>,
    bounding: Datum<u64>,
}

impl Process {
    /// Reads the status.
    pub(crate) fn read(source: &dyn Source) -> Self {
        let status = source.text("/proc/self/status");
        let field = |name: &str| {
            status.by_ref().and_then(|text| {
                let mut lines = text.lines();
                let value = lines.find_map(|line| line.strip_prefix(name));
                value.map(str::trim).ok_or(Absence::Missing)
            })
        };
        let set = |name: &str| {
            field(name).and_then(|hex| u64::from_str_radix(hex, 16).ok().ok_or(Absence::Missing))
        };
        Self {
            // `Uid:` real, effective, saved, file system.
            user: field("Uid:").and_then(|ids| {
                let effective = ids.split_whitespace().nth(1);
                effective
                    .and_then(|id| id.parse().ok())
                    .ok_or(Absence::Missing)
            }),
            effective: set("CapEff:"),
            bounding: set("CapBnd:"),
        }
    }

    /// Returns whether it runs as root.
    pub(crate) fn is_root(&self) -> Datum<bool> {
        self.user.by_ref().map(|user| *user == 0)
    }

    /// Returns whether it has a capability.
    pub(crate) fn has(&self, capability: Capability) -> Datum<bool> {
        holds(&self.effective, capability)
    }

    /// Returns whether it or a process that it starts could have a capability: the bounding set,
    /// which a container is started with. Only processes of root get all of it.
    pub(crate) fn could_have(&self, capability: Capability) -> Datum<bool> {
        holds(&self.bounding, capability)
    }
}

fn holds(set: &Datum<u64>, capability: Capability) -> Datum<bool> {
    set.by_ref().map(|set| set & 1 << capability.0 != 0)
}

#[cfg(test)]
mod tests {
    use gdr_node::MemorySource;

    use super::*;

    #[test]
    fn a_user_in_a_container_does_not_have_the_capabilities_of_the_container() {
        let node = MemorySource::new().file(
            "/proc/self/status",
            "Name:\tgdr\nUid:\t1000\t1000\t1000\t1000\nCapEff:\t0000000000000000\n\
             CapBnd:\t00000000a80465fb\n",
        );
        let process = Process::read(&node);
        assert_eq!(process.is_root(), Ok(false));
        assert_eq!(process.has(Capability::IPC_LOCK), Ok(false));
        assert_eq!(process.could_have(Capability::IPC_LOCK), Ok(true));
        let unread = Process::read(&MemorySource::partial());
        assert_eq!(unread.is_root(), Err(Absence::NotCollected));
    }
}
