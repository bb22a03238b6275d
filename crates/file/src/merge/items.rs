//! The extent items of a file that touch some ranges, read from its tree.
//!
//! Laws:
//!
//! 1. The result contains every item that shows a byte of a range, and the items that end or start
//!    where a range starts or ends: inserted items may join them.
//! 2. The items are in file order, each once, and do not overlap.

use crate::error::FileError;
use crate::extent_map::view::FileView;
use crate::merge::extent_item::ExtentItem;
use butternut_format::key::{ItemType, Key};
use butternut_format::refused::require;
use butternut_tree::Cursor;
use std::ops::Range;

/// Items that the cursor steps over to reach the next range; a range that is farther away is
/// searched for.
const STEPS_MAX: usize = 16;

/// Reads the items that touch `ranges`, which are in file order.
pub(crate) fn touching(
    view: &FileView,
    ranges: &[Range<u64>],
) -> Result<Vec<ExtentItem<'static>>, FileError> {
    let mut items = Items { view, cursor: view.tree().cursor(), found: Vec::new() };
    for (index, range) in ranges.iter().enumerate() {
        items.seek(range.start, index > 0)?;
        while let Some(key) = items.key() {
            if key.offset > range.end {
                break;
            }
            items.push(key)?;
            items.cursor.advance()?;
        }
    }
    Ok(items.found)
}

/// Reads at most `count` of the last items that show something at or after `from`.
pub(crate) fn last(
    view: &FileView,
    from: u64,
    count: usize,
) -> Result<Vec<ExtentItem<'static>>, FileError> {
    let mut cursor = view.tree().cursor();
    cursor.seek_last(&Key::new(view.ino().0, ItemType::EXTENT_DATA, u64::MAX))?;
    let mut items = Items { view, cursor, found: Vec::new() };
    while let Some(key) = items.key().filter(|_| items.found.len() < count) {
        let item = items.item(key)?;
        if item.end() <= from && item.start < from {
            break;
        }
        items.found.push(item);
        items.cursor.retreat()?;
    }
    items.found.reverse();
    Ok(items.found)
}

/// Returns where the first `count` items that touch a range end, or the end of the range if there
/// are no more.
pub(crate) fn stop_after(
    view: &FileView,
    range: Range<u64>,
    count: usize,
) -> Result<u64, FileError> {
    let mut items = Items { view, cursor: view.tree().cursor(), found: Vec::new() };
    items.seek(range.start, false)?;
    while let Some(key) = items.key().filter(|key| key.offset < range.end) {
        let end = items.item(key)?.end();
        items.push(key)?;
        if items.found.len() > count && end > range.start {
            return Ok(end.min(range.end));
        }
        items.cursor.advance()?;
    }
    Ok(range.end)
}

struct Items<'a> {
    view: &'a FileView,
    cursor: Cursor,
    found: Vec<ExtentItem<'static>>,
}

impl Items<'_> {
    /// The key at the cursor, if it is of an extent item of the file.
    fn key(&self) -> Option<Key> {
        let file = (self.view.ino().0, ItemType::EXTENT_DATA);
        self.cursor.key().filter(|key| (key.objectid, key.item_type) == file)
    }

    /// Moves to the last item that starts before `start`, or else to the first item after it.
    fn seek(&mut self, start: u64, continues: bool) -> Result<(), FileError> {
        let ino = self.view.ino().0;
        if continues {
            // The cursor is at the first item after the previous range.
            for _ in 0..STEPS_MAX {
                let Some(key) = self.key() else { return Ok(()) };
                if key.offset >= start {
                    return Ok(());
                }
                self.push(key)?;
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

    /// Adds the item at the cursor, unless it has been added before (law 2).
    fn push(&mut self, key: Key) -> Result<(), FileError> {
        let last = self.found.last();
        if last.is_some_and(|last| key.offset <= last.start) {
            return Ok(());
        }
        let end = last.map_or(0, ExtentItem::end);
        require(key.offset >= end, "key offset", key.offset, format_args!("at least {end}"))
            .map_err(|r| self.view.corrupt(r.at(format_args!("extent item {key}"))))?;
        let item = self.item(key)?;
        self.found.push(item);
        Ok(())
    }

    fn item(&self, key: Key) -> Result<ExtentItem<'static>, FileError> {
        ExtentItem::from_item(key.offset, self.cursor.data().unwrap_or_default())
            .map_err(|r| self.view.corrupt(r.at(format_args!("extent item {key}"))))
    }
}
