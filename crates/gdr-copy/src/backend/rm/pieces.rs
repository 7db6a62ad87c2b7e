//! A range as stretches of our own memory objects.

use std::sync::Arc;

use super::memory::Memory;

/// `len` bytes from `offset` on in `memory`.
#[derive(Clone, Debug)]
pub(super) struct Piece {
    pub(super) memory: Arc<Memory>,
    pub(super) offset: u64,
    pub(super) len: u64,
}

/// Widens the pieces of a range by `before` and `after` bytes, to whole GPU pages.
///
/// A GPU page of 64 KiB lies in one memory object, so the bytes around the range are the object's
/// own neighbours. An answer that does not fit is wrong and refused.
pub(super) fn widen(mut pieces: Vec<Piece>, before: u64, after: u64) -> Result<Vec<Piece>, String> {
    let first = pieces.first_mut().ok_or("the range has no memory object")?;
    first.offset = first
        .offset
        .checked_sub(before)
        .ok_or("the range starts before its memory object")?;
    first.len += before;
    if let Some(last) = pieces.last_mut() {
        last.len += after;
    }
    let page = crate::window::host_page();
    for piece in &pieces {
        let size = piece.memory.size();
        if piece
            .offset
            .checked_add(piece.len)
            .is_none_or(|end| end > size)
        {
            return Err(format!(
                "{} bytes at {} do not fit the memory object of {size} bytes",
                piece.len, piece.offset
            ));
        }
        if !piece.offset.is_multiple_of(page) || !piece.len.is_multiple_of(page) {
            return Err(format!(
                "{} bytes at {} in the memory object are no whole pages",
                piece.len, piece.offset
            ));
        }
    }
    Ok(pieces)
}

/// The first `len` bytes of a range.
pub(super) fn head(pieces: &[Piece], len: u64) -> Vec<Piece> {
    let mut left = len;
    let mut head = Vec::new();
    for piece in pieces {
        if left == 0 {
            break;
        }
        let len = piece.len.min(left);
        head.push(Piece {
            len,
            ..piece.clone()
        });
        left -= len;
    }
    head
}
