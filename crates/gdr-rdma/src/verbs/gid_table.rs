//! A port's GID table, as libibverbs gives it.

use std::mem::MaybeUninit;

use gdr_verbs_sys::{
    IBV_LINK_LAYER_ETHERNET, VerbError, Verbs, ibv_context, ibv_gid, ibv_port_attr,
};

use super::context::address_of;
use super::gid::{ChosenGid, GidEntry, GidType, choose};

/// Entries of a table that are looked at.
const ENTRIES: usize = 1024;

/// An entry, and the index of its network interface; 0 where it has none or it is not told.
#[derive(Clone, Copy, Debug)]
pub(super) struct TableEntry {
    pub(super) gid: GidEntry,
    pub(super) interface: u32,
}

/// The entries of a port that are in use.
///
/// # Safety
/// `context` is open, by this library.
pub(super) unsafe fn read(
    verbs: &Verbs,
    context: *mut ibv_context,
    port: u8,
    attr: &ibv_port_attr,
) -> Result<Vec<TableEntry>, VerbError> {
    let mut room = vec![MaybeUninit::uninit(); ENTRIES];
    // SAFETY: the caller holds the context open.
    match unsafe { verbs.query_gid_table(context, &mut room) } {
        Ok(table) => Ok(table
            .iter()
            .filter(|entry| entry.port_num == u32::from(port))
            .map(|entry| TableEntry {
                gid: GidEntry {
                    index: entry.gid_index,
                    gid: address_of(&entry.gid),
                    kind: GidType::from_number(entry.gid_type),
                },
                interface: entry.ndev_ifindex,
            })
            .collect()),
        // A libibverbs from before the table: one at a time, without types.
        // SAFETY: the caller holds the context open.
        Err(VerbError::NotInLibrary { .. }) => Ok(unsafe { read_each(verbs, context, port, attr) }),
        Err(error) => Err(error),
    }
}

/// As [`read`], of a libibverbs that does not tell types.
///
/// # Safety
/// `context` is open, by this library.
unsafe fn read_each(
    verbs: &Verbs,
    context: *mut ibv_context,
    port: u8,
    attr: &ibv_port_attr,
) -> Vec<TableEntry> {
    let mut entries = Vec::new();
    for index in 0..attr.gid_tbl_len.clamp(0, ENTRIES as i32) {
        let mut gid = ibv_gid::default();
        // SAFETY: the caller holds the context open; the GID is writable.
        let read = unsafe { verbs.ibv_query_gid(context, port, index, &mut gid) };
        let gid = address_of(&gid);
        if read.is_ok() && !gid.is_unspecified() {
            entries.push(TableEntry {
                gid: GidEntry {
                    index: index.unsigned_abs(),
                    gid,
                    kind: if attr.link_layer == IBV_LINK_LAYER_ETHERNET {
                        // mlx5 and rxe list v1 before v2 of each address.
                        GidType::RoceV1
                    } else {
                        GidType::InfiniBand
                    },
                },
                interface: 0,
            });
        }
    }
    entries
}

/// The one that the rule of this port's link layer takes.
pub(super) fn choose_on(attr: &ibv_port_attr, entries: &[GidEntry]) -> Option<ChosenGid> {
    if attr.link_layer == IBV_LINK_LAYER_ETHERNET {
        return choose(entries);
    }
    // InfiniBand's first one is the port's own.
    entries.first().map(|entry| ChosenGid {
        entry: *entry,
        why: format!("GID {} of an InfiniBand port", entry.index),
    })
}
