//! The limit of locked memory.

use std::fmt;

use gdr_node::{Absence, Datum, virtual_path};

use crate::context::Context;
use crate::process::{Capability, Process};
use crate::runner::{Known, Unjudged};

/// The limit in bytes below which not even the queues of one connection fit. Many distributions set
/// 8 MiB, which is enough for the queues of some connections.
const LITTLE: u64 = 1 << 20;

/// A limit of locked memory, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Limit {
    Bytes(u64),
    Unlimited,
}

impl Limit {
    pub(super) fn is_little(self) -> bool {
        matches!(self, Self::Bytes(bytes) if bytes < LITTLE)
    }

    /// Returns the effect of a limit.
    pub(super) fn consequence(self) -> &'static str {
        if self.is_little() {
            "creating queue pairs fails"
        } else {
            "queue pairs can be created, and registering host memory beyond it fails"
        }
    }

    /// As `/proc/<pid>/limits` and systemd write it.
    pub(super) fn parse(word: &str) -> Option<Self> {
        match word {
            "unlimited" | "infinity" => Some(Self::Unlimited),
            bytes => bytes.parse().ok().map(Self::Bytes),
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Unlimited => f.write_str("unlimited"),
            Self::Bytes(bytes) if bytes >= 10 << 30 => write!(f, "{} GiB", bytes >> 30),
            Self::Bytes(bytes) if bytes >= 10 << 20 => write!(f, "{} MiB", bytes >> 20),
            Self::Bytes(bytes) => write!(f, "{} KiB", bytes >> 10),
        }
    }
}

/// The limits of a process: the current one, and the highest that it may set itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MemoryLock {
    pub(super) soft: Limit,
    pub(super) hard: Limit,
}

/// Reads the limits from a file in the format of `/proc/<pid>/limits`.
pub(super) fn read(context: &Context<'_>, path: &str) -> Datum<MemoryLock> {
    context.text(path).and_then(|text| {
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("Max locked memory"));
        let both = line.and_then(|line| {
            let mut words = line.split_whitespace();
            Some(MemoryLock {
                soft: Limit::parse(words.next()?)?,
                hard: Limit::parse(words.next()?)?,
            })
        });
        both.ok_or(Absence::Missing)
    })
}

/// Returns the limits of the collecting process.
fn own(context: &Context<'_>) -> Datum<MemoryLock> {
    read(context, virtual_path::LIMITS_SELF).or_else(|_| read(context, "/proc/self/limits"))
}

/// Returns the limits of the collecting process, and whether CAP_IPC_LOCK removes them.
pub(super) fn own_and_privilege(context: &Context<'_>) -> Result<(MemoryLock, bool), Unjudged> {
    let lock = own(context).known("the limit of locked memory")?;
    let privileged = match Process::read(context.source).has(Capability::IPC_LOCK) {
        Err(_) if lock.soft == Limit::Unlimited => false,
        has => has.known("whether CAP_IPC_LOCK removes the limit of locked memory")?,
    };
    Ok((lock, privileged))
}

/// Returns a text in the format of `/proc/<pid>/limits`.
#[cfg(test)]
pub(super) fn limits(soft: &str, hard: &str) -> String {
    format!(
        "Limit                     Soft Limit           Hard Limit           Units     \n\
         Max open files            1024                 4096                 files     \n\
         Max locked memory         {soft:<20} {hard:<20} bytes     \n"
    )
}

#[cfg(test)]
mod tests {
    use gdr_node::{Inventory, MemorySource};

    use super::*;

    #[test]
    fn limits_are_read() {
        let node = MemorySource::new().file("@limits/self", limits("8388608", "unlimited"));
        let inventory = Inventory::read(&node);
        let context = Context::new(&node, &inventory);
        let lock = own(&context).unwrap();
        assert_eq!(lock.soft, Limit::Bytes(8 << 20));
        assert_eq!(lock.hard, Limit::Unlimited);
        assert_eq!(lock.soft.to_string(), "8192 KiB");
        assert!(!lock.soft.is_little() && !lock.hard.is_little());
        assert!(Limit::Bytes(65536).is_little());
    }
}
