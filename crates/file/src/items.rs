//! The extent items of a file that touch some ranges of it, read from its tree.
//!
//! Laws:
//!
//! 1. Every item that shows a byte of a range is there, and the ones that end or start where a
//!    range starts or ends: what comes may join them.
//! 2. They are in file order, each once, and do not overlap.

use crate::error::FileError;
use crate::piece::Piece;
use crate::view::FileView;
use butternut_format::key::{ItemType, Key};
use butternut_format::refused::require;
use butternut_tree::Cursor;
use std::ops::Range;

/// Steps to a range that is near; farther ones are searched for.
const STEPS_MAX: usize = 16;

/// Reads the items of `ranges`, which are in file order.
pub(crate) fn touching(
    view: &FileView,
    ranges: &[Range<u64>],
) -> Result<Vec<Piece<'static>>, FileError> {
    let mut items = Items { view, cursor: view.tree().cursor(), pieces: Vec::new() };
    for (index, range) in ranges.iter().enumerate() {
        items.place(range.start, index > 0)?;
        while let Some(key) = items.key() {
            if key.offset > range.end {
                break;
            }
            items.add(key)?;
            items.cursor.advance()?;
        }
    }
    Ok(items.pieces)
}

/// At most `count` of the last items that show something at or behind `from`.
pub(crate) fn last(
    view: &FileView,
    from: u64,
    count: usize,
) -> Result<Vec<Piece<'static>>, FileError> {
    let mut cursor = view.tree().cursor();
    cursor.seek_last(&Key::new(view.ino().0, ItemType::EXTENT_DATA, u64::MAX))?;
    let mut items = Items { view, cursor, pieces: Vec::new() };
    while let Some(key) = items.key().filter(|_| items.pieces.len() < count) {
        let piece = items.piece(key)?;
        if piece.end() <= from && piece.start < from {
            break;
        }
        items.pieces.push(piece);
        items.cursor.retreat()?;
    }
    items.pieces.reverse();
    Ok(items.pieces)
}

/// Where the first `count` items that touch a range end, or the end of the range if there are no
/// more.
pub(crate) fn stop_after(
    view: &FileView,
    range: Range<u64>,
    count: usize,
) -> Result<u64, FileError> {
    let mut items = Items { view, cursor: view.tree().cursor(), pieces: Vec::new() };
    items.place(range.start, false)?;
    while let Some(key) = items.key().filter(|key| key.offset < range.end) {
        let end = items.piece(key)?.end();
        items.add(key)?;
        if items.pieces.len() > count && end > range.start {
            return Ok(end.min(range.end));
        }
        items.cursor.advance()?;
    }
    Ok(range.end)
}

struct Items<'a> {
    view: &'a FileView,
    cursor: Cursor,
    pieces: Vec<Piece<'static>>,
}

impl Items<'_> {
    /// The key here, if it is of an extent item of the file.
    fn key(&self) -> Option<Key> {
        let file = (self.view.ino().0, ItemType::EXTENT_DATA);
        self.cursor.key().filter(|key| (key.objectid, key.item_type) == file)
    }

    /// Moves to the last item that starts before `start`, or else to the first behind.
    fn place(&mut self, start: u64, is_behind: bool) -> Result<(), FileError> {
        let ino = self.view.ino().0;
        if is_behind {
            // The cursor is at the first item behind the range before.
            for _ in 0..STEPS_MAX {
                let Some(key) = self.key() else { return Ok(()) };
                if key.offset >= start {
                    return Ok(());
                }
                self.add(key)?;
                self.cursor.advance()?;
            }
        }
        let before = Key::new(ino, ItemType::EXTENT_DATA, start.saturating_sub(1));
        self.cursor.seek_last(&before)?;
        if self.key().is_none() {
            self.cursor.seek(&Key::new(ino, ItemType::EXTENT_DATA, 0))?;
        }
        Ok(())
    }

    /// Adds the item here, unless it is there (law 2).
    fn add(&mut self, key: Key) -> Result<(), FileError> {
        let last = self.pieces.last();
        if last.is_some_and(|last| key.offset <= last.start) {
            return Ok(());
        }
        let end = last.map_or(0, Piece::end);
        require(key.offset >= end, "key offset", key.offset, format_args!("at least {end}"))
            .map_err(|r| self.view.corrupt(r.at(format_args!("extent item {key}"))))?;
        let piece = self.piece(key)?;
        self.pieces.push(piece);
        Ok(())
    }

    fn piece(&self, key: Key) -> Result<Piece<'static>, FileError> {
        Piece::of_item(key.offset, self.cursor.data().unwrap_or_default())
            .map_err(|r| self.view.corrupt(r.at(format_args!("extent item {key}"))))
    }
}
