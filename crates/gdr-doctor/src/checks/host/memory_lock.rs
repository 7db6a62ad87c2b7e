//! How much memory may be locked, and what a process may do beside.

use std::fmt;

use gdr_node::{Datum, virtual_path};

use crate::context::Context;

/// Below this, not even the queues of a program that uses a few connections fit, in bytes.
const LITTLE: u64 = 64 << 20;

/// A limit, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Limit {
    Bytes(u64),
    Unlimited,
}

impl Limit {
    pub(super) fn is_little(self) -> bool {
        matches!(self, Self::Bytes(bytes) if bytes < LITTLE)
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

/// How much memory a process may lock: now, and as far as it may raise that itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MemoryLock {
    pub(super) soft: Limit,
    pub(super) hard: Limit,
}

/// Reads it from a text laid out as `/proc/<pid>/limits`.
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
        both.into()
    })
}

/// That of the process that looks.
pub(super) fn own(context: &Context<'_>) -> Datum<MemoryLock> {
    read(context, virtual_path::LIMITS_SELF).or_else(|| read(context, "/proc/self/limits"))
}

/// A capability of Linux, by its number (capabilities(7)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Capability(u32);

impl Capability {
    pub(super) const NET_RAW: Self = Self(13);
    pub(super) const IPC_LOCK: Self = Self(14);
    pub(super) const SYS_RAWIO: Self = Self(17);
}

/// Whether the process that looks has a capability.
pub(super) fn has(context: &Context<'_>, capability: Capability) -> Datum<bool> {
    context.text("/proc/self/status").and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("CapEff:"));
        line.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())
            .map(|set| set & 1 << capability.0 != 0)
            .into()
    })
}

/// A text laid out as `/proc/<pid>/limits`.
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
    fn limits_and_capabilities_are_read() {
        let node = MemorySource::new()
            .file("@limits/self", limits("8388608", "unlimited"))
            .file("/proc/self/status", "Name:\tx\nCapEff:\t0000000000004000\n");
        let inventory = Inventory::read(&node);
        let context = Context::new(&node, &inventory);
        let lock = own(&context).into_present().unwrap();
        assert_eq!(lock.soft, Limit::Bytes(8 << 20));
        assert_eq!(lock.hard, Limit::Unlimited);
        assert_eq!(lock.soft.to_string(), "8192 KiB");
        assert!(lock.soft.is_little() && !lock.hard.is_little());
        assert_eq!(has(&context, Capability::IPC_LOCK), Datum::Present(true));
        assert_eq!(has(&context, Capability::NET_RAW), Datum::Present(false));
    }
}
