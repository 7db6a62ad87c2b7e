//! The GID table of a port, read through libibverbs.

use std::mem::MaybeUninit;

use gdr_verbs_sys::{
    IBV_LINK_LAYER_ETHERNET, VerbError, Verbs, ibv_context, ibv_gid, ibv_port_attr,
};

use super::context::address_of;
use crate::types::{GidEntry, GidType};

/// Maximum number of table entries to read.
const ENTRIES: usize = 1024;

/// An entry, and the index of its network interface; 0 if it has none or the index is unknown.
#[derive(Clone, Copy, Debug)]
pub(super) struct TableEntry {
    pub(super) gid: GidEntry,
    pub(super) interface: u32,
}

/// Reads the entries of a port that are in use.
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
        // An old libibverbs reads one entry at a time, without types.
        // SAFETY: the caller holds the context open.
        Err(VerbError::NotInLibrary { .. }) => Ok(unsafe { read_each(verbs, context, port, attr) }),
        Err(error) => Err(error),
    }
}

/// Like [`read`], with a libibverbs that does not report types.
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
                        // mlx5 and rxe list v1 before v2 for each address.
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
