//! Changes of a file's data under its inode lock: the state of the data, and the attributes that
//! follow from a change.
//!
//! The laws are those of `file/write.rs`.

use crate::error::{is_refused, may_block};
use crate::inode::table::{InodeEntry, InodeState};
use crate::write_state::{WritableSubvolume, WriteState};
use crate::{Filesystem, Result};
use butternut_file::{FileState, InodeUpdate};
use butternut_format::file_extent::Compression;
use butternut_format::inode::{Inode, InodeFlags};
use butternut_format::units::Ino;
use butternut_names::{self as names, COMPRESSION, CompressionProperty};
use butternut_sys::wait::Wait;
use butternut_tree::Tree;
use std::sync::Arc;

/// What happens to the times of a file when its bytes change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Times {
    Now,
    Stay,
}

impl Filesystem {
    /// Sets the size of a file, with all other attributes in `attributes`. If it fails, nothing has
    /// changed except that blocks past the new end may have been cut off.
    pub(crate) fn set_size(
        &self,
        write_state: &WriteState,
        subvolume: &WritableSubvolume,
        entry: &Arc<InodeEntry>,
        state: &mut InodeState,
        (size, attributes): (u64, Inode),
    ) -> Result<()> {
        self.alter_file_to(write_state, subvolume, entry, state, attributes, |file, _, stamp| {
            Ok(file.truncate(size, stamp)?)
        })
    }

    /// Returns the state of a file's data, and makes it from the tree if there is none. The caller
    /// holds the inode lock exclusively.
    pub(crate) fn file_state<'a>(
        &self,
        subvolume: &Tree,
        entry: &InodeEntry,
        state: &'a mut InodeState,
        wait: Wait,
    ) -> Result<&'a mut FileState> {
        if state.file.is_none() {
            may_block(wait)?;
            let (source, inode) = (&self.shared.source, self.attributes(entry)?);
            let ino = Ino(entry.id.ino);
            let mut file = FileState::new(source, subvolume, ino, &inode);
            file.set_property(compression_of(subvolume, ino, &inode)?);
            entry.set_view(&file);
            state.file = Some(Box::new(file));
        }
        Ok(state.file.as_deref_mut().expect("it was made above"))
    }

    pub(crate) fn alter_file<R>(
        &self,
        write_state: &WriteState,
        subvolume: &WritableSubvolume,
        entry: &Arc<InodeEntry>,
        state: &mut InodeState,
        times: Times,
        change: impl FnOnce(&mut FileState, &Inode, InodeUpdate<'_>) -> Result<R>,
    ) -> Result<R> {
        let was = self.attributes(entry)?;
        let (mtime, ctime) = match times {
            Times::Now => {
                let now = write_state.clock.now();
                (now, now)
            }
            Times::Stay => (was.mtime, was.ctime),
        };
        let sequence = was.sequence.wrapping_add(1);
        let attributes = Inode { mtime, ctime, sequence, ..was };
        self.alter_file_to(write_state, subvolume, entry, state, attributes, change)
    }

    /// Changes a file's data. If that succeeds, the inode gets these attributes, except for the
    /// size. A change that was refused because it would block has changed nothing.
    pub(crate) fn alter_file_to<R>(
        &self,
        write_state: &WriteState,
        subvolume: &WritableSubvolume,
        entry: &Arc<InodeEntry>,
        state: &mut InodeState,
        mut attributes: Inode,
        change: impl FnOnce(&mut FileState, &Inode, InodeUpdate<'_>) -> Result<R>,
    ) -> Result<R> {
        let was = self.attributes(entry)?;
        let file = self.file_state(&subvolume.tree, entry, state, Wait::Block)?;
        let mut written_item = None;
        let result =
            change(file, &was, &mut |item| written_item = Some(update_item(item, &attributes)));
        if is_refused(&result) {
            return result;
        }
        if result.is_err() {
            attributes = was;
        }
        if let Some(Inode { flags, transid, .. }) = written_item {
            attributes = Inode { flags, transid, ..attributes };
        }
        (attributes.size, attributes.bytes_used) = (file.size(), file.bytes_used());
        if file.has_given_up_compression() {
            attributes.flags = attributes.flags.with(InodeFlags::NOCOMPRESS);
        }
        if file.has_preallocated() {
            // Also where the change failed after it had preallocated a part.
            attributes.flags = attributes.flags.with(InodeFlags::PREALLOC);
        }
        if attributes.bytes_used < was.bytes_used {
            write_state.signal.freed(was.bytes_used - attributes.bytes_used);
        }
        let is_clean = file.is_clean();
        let is_stale = state.is_item_stale.get_mut();
        // If the change failed after it wrote the item, the tree has attributes that the inode did
        // not get.
        *is_stale |= result.is_ok() != written_item.is_some();
        let is_stale = *is_stale;
        entry.set(attributes);
        if is_stale || !is_clean {
            write_state.mark_dirty(entry);
        }
        write_state.signal.changed();
        result
    }
}

/// Returns the compression algorithm that a file's property names, if it has one.
pub(crate) fn compression_of(tree: &Tree, ino: Ino, inode: &Inode) -> Result<Option<Compression>> {
    if !inode.flags.contains(InodeFlags::COMPRESS) {
        return Ok(None);
    }
    let value = names::xattr(tree, ino, COMPRESSION)?;
    Ok(named_compression(inode.flags, value.as_deref()))
}

/// Returns the compression algorithm that a property names, on a file with these flags.
pub(crate) fn named_compression(flags: InodeFlags, property: Option<&[u8]>) -> Option<Compression> {
    let property = property.filter(|_| flags.contains(InodeFlags::COMPRESS));
    match property.and_then(CompressionProperty::parse) {
        Some(CompressionProperty::With(compression)) => Some(compression),
        Some(CompressionProperty::Unset | CompressionProperty::Never) | None => None,
    }
}

/// Writes `attributes` to an inode item, except for what belongs to its extents; returns the item.
pub(crate) fn update_item(item: &mut Inode, attributes: &Inode) -> Inode {
    // Flags that writing the data has set.
    let mut kept = InodeFlags::default();
    for flag in [InodeFlags::PREALLOC, InodeFlags::NOCOMPRESS] {
        kept = if item.flags.contains(flag) { kept.with(flag) } else { kept };
    }
    let Inode { size, bytes_used, transid, .. } = *item;
    *item = Inode { size, bytes_used, transid, flags: attributes.flags.with(kept), ..*attributes };
    *item
}
