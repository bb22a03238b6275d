//! The first stage of a replay: inode items, and what logged inodes have lost.

use super::Replay;
use crate::Result;
use butternut_format::dir::DirEntries;
use butternut_format::inode::{FileKind, Inode};
use butternut_format::key::{ItemType, Key};
use butternut_format::log_item::check_dir_log;
use butternut_format::units::{Ino, SECTOR_BYTES};
use butternut_names as names;

impl Replay<'_> {
    pub(super) fn inodes(&mut self) -> Result<()> {
        let log = self.log.clone();
        let mut cursor = log.scan();
        cursor.seek(&Key::MIN)?;
        while let Some(item) = cursor.item() {
            let key = item.key();
            if key.item_type == ItemType::INODE_ITEM {
                let logged = Inode::check(item.data()).map_err(|r| self.corrupt(key, r))?;
                if logged.nlink == 0 {
                    self.ignored.insert(key.objectid);
                } else {
                    self.replay_inode(key.objectid, &logged)?;
                }
            }
            cursor.advance()?;
        }
        Ok(())
    }

    fn replay_inode(&mut self, ino: u64, logged: &Inode) -> Result<()> {
        self.remove_lost_xattrs(ino)?;
        if logged.kind == FileKind::Directory {
            self.remove_lost_names(ino)?;
        }
        self.put_inode(ino, logged)?;
        self.touched.insert(ino);
        if logged.kind == FileKind::File
            && let Some(inode) = self.inode(ino)?
        {
            let end = inode.size.checked_next_multiple_of(SECTOR_BYTES).unwrap_or(u64::MAX);
            self.drop_extents(ino, end..u64::MAX)?;
        }
        Ok(())
    }

    /// Inserts or overwrites an inode item. An item of generation 0 says only that the inode
    /// exists; its size is valid if it is not 0.
    fn put_inode(&self, ino: u64, logged: &Inode) -> Result<()> {
        let is_existence = logged.generation.0 == 0;
        let known = self.inode(ino)?;
        let inode = match known {
            None => Inode {
                generation: if is_existence { self.handle.generation() } else { logged.generation },
                bytes_used: 0,
                size: if logged.kind == FileKind::Directory { 0 } else { logged.size },
                ..*logged
            },
            Some(known) if is_existence => {
                let is_file = known.kind == FileKind::File && logged.kind == FileKind::File;
                let size = if is_file && logged.size != 0 { logged.size } else { known.size };
                Inode { size, ..known }
            }
            Some(known) => {
                let is_directory =
                    known.kind == FileKind::Directory && logged.kind == FileKind::Directory;
                let size = if is_directory { known.size } else { logged.size };
                Inode { size, bytes_used: known.bytes_used, ..*logged }
            }
        };
        Ok(self.edit.put(&Key::new(ino, ItemType::INODE_ITEM, 0), &inode.to_bytes())?)
    }

    /// Removes the extended attributes that the log lacks: it has all of a logged inode.
    fn remove_lost_xattrs(&self, ino: u64) -> Result<()> {
        for (key, data) in Self::items_in(&self.tree, &Self::keys(ino, ItemType::XATTR_ITEM))? {
            let logged = self.log.find(&key)?;
            let is_logged = |name: &[u8]| {
                let entries = logged.as_ref().map(|item| DirEntries::new(item.data()));
                entries.is_some_and(|mut all| {
                    all.any(|entry| entry.is_ok_and(|entry| entry.name == name))
                })
            };
            for entry in DirEntries::new(&data) {
                let entry = entry.map_err(|refused| self.corrupt(key, refused))?;
                if !is_logged(entry.name) {
                    names::remove_xattr(&self.edit, Ino(ino), entry.name)?;
                }
            }
        }
        Ok(())
    }

    /// Removes the names of a directory in the logged ranges of its listing that the log lacks. The
    /// ranges of a crafted log may overlap: each part of the listing is read once.
    fn remove_lost_names(&mut self, dir: u64) -> Result<()> {
        let mut next = Some(0);
        for (key, data) in Self::items_in(&self.log, &Self::keys(dir, ItemType::DIR_LOG_INDEX))? {
            let last = check_dir_log(&data).map_err(|refused| self.corrupt(key, refused))?;
            let Some(first) = next.map(|next| key.offset.max(next)) else { break };
            if last < first {
                continue;
            }
            next = last.checked_add(1);
            let index = |at| Key::new(dir, ItemType::DIR_INDEX, at);
            for (key, data) in Self::items_in(&self.tree, &(index(first)..=index(last)))? {
                let logged = self.log.find(&key)?;
                if logged.is_some_and(|logged| is_same_name(logged.data(), &data)) {
                    continue;
                }
                self.unlink_item(key, &data)?;
            }
        }
        Ok(())
    }
}

/// Whether two items are entries of the same name.
fn is_same_name(one: &[u8], other: &[u8]) -> bool {
    let name = |item| DirEntries::new(item).next().and_then(Result::ok).map(|entry| entry.name);
    name(one).is_some() && name(one) == name(other)
}
