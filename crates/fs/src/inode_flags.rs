//! The flags that `chattr` changes and `lsattr` shows.

use crate::data::compression_of;
use crate::writer::{WritableSubvolume, Writer};
use crate::{Error, FileId, FileKind, Filesystem, Result};
use butternut_format::inode::Inode;
use butternut_format::units::Ino;
use butternut_names::{self as names, COMPRESSION, FlagChange, SetXattr, Xattr};
use butternut_tree::Need;

pub use butternut_names::AttributeFlags;

/// Items that flags may change: the inode's, and the compression attribute.
const ITEMS_OF_FLAGS: u32 = 3;

impl Filesystem {
    /// The flags of an inode, as `lsattr` shows them.
    pub fn attribute_flags(&self, id: FileId) -> Result<AttributeFlags> {
        if id.is_placeholder() {
            return self.stat(id).map(|_| AttributeFlags::default());
        }
        Ok(AttributeFlags::of(self.inode(id)?.flags))
    }

    /// Sets all flags of an inode at once, as `FS_IOC_SETFLAGS` does. Flags that mean nothing to
    /// its kind are left out. `COMPRESS` asks for what the volume is opened with, or for zlib.
    /// Who may set immutable and append-only is the door's to know.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for flags that btrfs does not have, [`Error::Names`] with `EINVAL`
    /// for some that exclude each other, [`Error::WrongKind`] for what is neither file nor
    /// directory.
    pub fn set_attribute_flags(&self, id: FileId, flags: AttributeFlags) -> Result<()> {
        let writer = self.begin()?;
        let subvolume = self.writable_subvolume(writer, id)?;
        let entry = self.entry_of(writer, id)?;
        let mut body = entry.body_mut();
        let mut inode = self.facts(&entry)?;
        if !matches!(inode.kind, FileKind::File | FileKind::Directory) {
            return Err(Error::WrongKind { want: "a file or directory" });
        }
        let mut planned = flags.change(&inode)?;
        if let (Some(_), Some(volume)) = (planned.compression, self.shared.source.compress()) {
            planned.compression = Some(volume.packer.name().as_bytes());
        }
        self.change_flags(writer, &subvolume, Ino(id.ino), &mut inode, &planned)?;
        entry.set(inode);
        body.handed_down = None;
        if let Some(file) = &mut body.file {
            file.set_flags(inode.flags);
            file.set_property(compression_of(&subvolume.tree, Ino(id.ino), &inode)?);
        }
        Ok(())
    }

    fn change_flags(
        &self,
        writer: &Writer,
        subvolume: &WritableSubvolume,
        ino: Ino,
        inode: &mut Inode,
        planned: &FlagChange,
    ) -> Result<()> {
        let has = names::xattr(&subvolume.tree, ino, COMPRESSION)?.is_some();
        self.change(writer, subvolume, Need::items(ITEMS_OF_FLAGS), |change| {
            if let Some(value) = planned.compression {
                let xattr = Xattr { name: COMPRESSION, value };
                let generation = change.moment.generation;
                names::set_xattr(&change.edit, ino, &xattr, SetXattr::Either, generation)?;
            } else if has {
                names::remove_xattr(&change.edit, ino, COMPRESSION)?;
            }
            inode.flags = planned.flags;
            names::changed(inode, change.moment);
            change.put(ino, inode)
        })
    }
}
