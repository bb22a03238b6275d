//! The flags that `chattr` changes and `lsattr` shows.

use crate::file::alter::named_compression;
use crate::write_state::{WritableSubvolume, WriteState};
use crate::{Error, FileId, FileKind, Filesystem, Result};
use butternut_format::inode::Inode;
use butternut_format::units::Ino;
use butternut_names::{self as names, COMPRESSION, FlagChange, SetXattr, Xattr};
use butternut_tree::Need;

pub use butternut_names::AttributeFlags;

/// Items that a change of flags may change: the inode's, and the compression attribute.
const ITEMS_OF_FLAGS: u32 = 3;

impl Filesystem {
    /// Returns the flags of an inode, as `lsattr` shows them.
    pub fn attribute_flags(&self, id: FileId) -> Result<AttributeFlags> {
        if id.is_placeholder() {
            return self.stat(id).map(|_| AttributeFlags::default());
        }
        Ok(AttributeFlags::of(self.inode(id)?.flags))
    }

    /// Sets all flags of an inode, as `FS_IOC_SETFLAGS` does. Ignores flags that have no meaning
    /// for its kind. `COMPRESS` selects the algorithm that the volume is opened with, or zlib. The
    /// caller checks that it may set immutable and append-only.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for flags that btrfs does not have, [`Error::Names`] with `EINVAL`
    /// for flags that exclude each other, [`Error::WrongKind`] for an inode that is neither a file
    /// nor a directory.
    pub fn set_attribute_flags(&self, id: FileId, flags: AttributeFlags) -> Result<()> {
        let writing = self.begin()?;
        let write_state = &*writing;
        let subvolume = self.writable_subvolume(write_state, id)?;
        let entry = self.entry_of(write_state, id)?;
        let mut state = entry.lock();
        let mut inode = self.attributes(&entry)?;
        if !matches!(inode.kind, FileKind::File | FileKind::Directory) {
            return Err(Error::WrongKind { want: "a file or directory" });
        }
        let mut planned = flags.change(&inode)?;
        if let (Some(_), Some(volume)) = (planned.compression, self.shared.source.compress()) {
            planned.compression = Some(volume.compressor.name().as_bytes());
        }
        self.change_flags(write_state, &subvolume, Ino(id.ino), &mut inode, &planned)?;
        entry.set(inode);
        state.inheritance = None;
        if let Some(file) = &mut state.file {
            file.set_flags(inode.flags);
            file.set_property(named_compression(inode.flags, planned.compression));
        }
        Ok(())
    }

    fn change_flags(
        &self,
        write_state: &WriteState,
        subvolume: &WritableSubvolume,
        ino: Ino,
        inode: &mut Inode,
        planned: &FlagChange,
    ) -> Result<()> {
        let has = names::xattr(&subvolume.tree, ino, COMPRESSION)?.is_some();
        let need = Need::items(ITEMS_OF_FLAGS);
        // At the limit of a quota, too, where `rm` may need it.
        let need = if planned.compression.is_some() { need } else { need.uncharged() };
        self.change(write_state, subvolume, need, |change| {
            if let Some(value) = planned.compression {
                let xattr = Xattr { name: COMPRESSION, value };
                let generation = change.moment.generation;
                let how = SetXattr::Either;
                change.step(names::set_xattr(&change.edit, ino, &xattr, how, generation))?;
            } else if has {
                change.step(names::remove_xattr(&change.edit, ino, COMPRESSION))?;
            }
            inode.flags = planned.flags;
            names::changed(inode, change.moment);
            change.put(ino, inode)
        })
    }
}
