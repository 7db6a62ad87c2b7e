//! Access rights of regions, and which of them could have been used.

use std::collections::HashMap;

use crate::finding::StackId;
use crate::region::NewRegion;
use crate::shadow::Object;

/// `IBV_ACCESS_LOCAL_WRITE` of infiniband/verbs.h, and the rights of peers.
const LOCAL_WRITE: u32 = 1;
const REMOTE_WRITE: u32 = 1 << 1;
const REMOTE_READ: u32 = 1 << 2;
const REMOTE_ATOMIC: u32 = 1 << 3;
/// `IBV_ACCESS_MW_BIND`: memory windows have their own rights, and need the local one.
const WINDOWS: u32 = 1 << 4;
const NAMES: [(u32, &str); 4] = [
    (LOCAL_WRITE, "IBV_ACCESS_LOCAL_WRITE"),
    (REMOTE_WRITE, "IBV_ACCESS_REMOTE_WRITE"),
    (REMOTE_READ, "IBV_ACCESS_REMOTE_READ"),
    (REMOTE_ATOMIC, "IBV_ACCESS_REMOTE_ATOMIC"),
];

/// The combined rights of the regions registered at one place.
#[derive(Debug, Default)]
struct Granted {
    rights: u32,
    /// A receive, a READ or an atomic named one of the regions.
    is_written: bool,
}

/// The queue pairs of a device context.
#[derive(Debug, Default)]
struct Pairs {
    /// The union of what the queue pairs ever permitted to their peers.
    permitted: u32,
    are_known: bool,
    /// There are others, unknown to the shadow.
    are_more: bool,
}

/// The rights of all regions of a process, past and present.
#[derive(Debug, Default)]
pub(crate) struct Rights {
    granted: HashMap<(Object, StackId), Granted>,
    pairs: HashMap<Object, Pairs>,
}

impl Rights {
    pub(crate) fn registered(&mut self, region: &NewRegion) {
        let key = (region.context, region.stack);
        self.granted.entry(key).or_default().rights |= region.access;
    }

    /// Records that the device may write to a region for a local request.
    pub(crate) fn written(&mut self, region: &NewRegion) {
        let key = (region.context, region.stack);
        self.granted.entry(key).or_default().is_written = true;
    }

    /// Records that a queue pair permits this to its peer.
    pub(crate) fn permitted(&mut self, context: Object, rights: u32) {
        let pairs = self.pairs.entry(context).or_default();
        pairs.permitted |= rights;
        pairs.are_known = true;
    }

    /// Records that a context has a queue pair that the shadow does not know.
    pub(crate) fn unknown_pair(&mut self, context: Object) {
        self.pairs.entry(context).or_default().are_more = true;
    }

    /// Returns the places that granted rights which nothing could have used, with the names of those rights.
    pub(crate) fn unused(&self) -> Vec<(StackId, String)> {
        let mut unused: Vec<_> = self
            .granted
            .iter()
            .filter_map(|((context, stack), granted)| {
                let pairs = self.pairs.get(context)?;
                if !pairs.are_known || pairs.are_more {
                    return None;
                }
                let by_peers = granted.rights & pairs.permitted;
                let needs_local = granted.is_written
                    || by_peers & (REMOTE_WRITE | REMOTE_ATOMIC) != 0
                    || granted.rights & WINDOWS != 0;
                let used = by_peers | if needs_local { LOCAL_WRITE } else { 0 };
                let names: Vec<_> = NAMES
                    .iter()
                    .filter(|(right, _)| granted.rights & !used & right != 0)
                    .map(|(_, name)| *name)
                    .collect();
                (!names.is_empty()).then(|| (*stack, names.join(" | ")))
            })
            .collect();
        unused.sort();
        unused
    }
}
