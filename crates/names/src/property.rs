//! Properties and flags: the attribute `btrfs.compression`, the flags that `chattr` shows, and how
//! each changes the other.
//!
//! ```text
//! value                       flags
//! zlib lzo zstd, or with ':'  compress
//! no, none                    nocompress
//! empty, or removed           neither
//! ```
//!
//! `chattr +c` sets zlib, or the algorithm of the mount options; `-c` and `+m` remove the property.
//! A nodatacow file is not compressed. Nodatacow can be set and cleared only while a file is empty.

use crate::error::NamesError;
use butternut_format::file_extent::Compression;
use butternut_format::inode::{FileKind, Inode, InodeFlags};

/// The only property.
pub const COMPRESSION: &[u8] = b"btrfs.compression";

/// The attribute namespace of properties.
pub const PROPERTIES: &[u8] = b"btrfs.";

/// The value of [`COMPRESSION`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompressionProperty {
    /// The mount options decide.
    Unset,
    Never,
    With(Compression),
}

/// Flags as in `chattr` and the kernel's `FS_IOC_SETFLAGS`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttributeFlags(pub u32);

/// The result of a change of flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlagChange {
    pub flags: InodeFlags,
    /// The new value of [`COMPRESSION`], unless the mount options name another algorithm; `None`
    /// removes the property.
    pub compression: Option<&'static [u8]>,
}

impl AttributeFlags {
    pub const COMPRESS: Self = Self(0x4);
    pub const SYNC: Self = Self(0x8);
    pub const IMMUTABLE: Self = Self(0x10);
    pub const APPEND: Self = Self(0x20);
    pub const NODUMP: Self = Self(0x40);
    pub const NOATIME: Self = Self(0x80);
    pub const NOCOMPRESS: Self = Self(0x400);
    pub const DIRSYNC: Self = Self(0x1_0000);
    pub const VERITY: Self = Self(0x10_0000);
    pub const NOCOW: Self = Self(0x80_0000);
    /// The flags that can be set. Verity is only shown.
    const SETTABLE: u32 = Self::COMPRESS.0
        | Self::SYNC.0
        | Self::IMMUTABLE.0
        | Self::APPEND.0
        | Self::NODUMP.0
        | Self::NOATIME.0
        | Self::NOCOMPRESS.0
        | Self::DIRSYNC.0
        | Self::NOCOW.0;

    /// The flags that correspond to one flag of an inode.
    const PLAIN: [(Self, InodeFlags); 6] = [
        (Self::SYNC, InodeFlags::SYNC),
        (Self::IMMUTABLE, InodeFlags::IMMUTABLE),
        (Self::APPEND, InodeFlags::APPEND),
        (Self::NODUMP, InodeFlags::NODUMP),
        (Self::NOATIME, InodeFlags::NOATIME),
        (Self::DIRSYNC, InodeFlags::DIRSYNC),
    ];

    pub fn contains(self, flags: Self) -> bool {
        self.0 & flags.0 == flags.0
    }

    /// Returns the flags that `chattr` shows for the flags of an inode.
    pub fn of(flags: InodeFlags) -> Self {
        let shown = [
            (Self::NOCOW, InodeFlags::NODATACOW),
            (Self::VERITY, InodeFlags::VERITY),
            (Self::NOCOMPRESS, InodeFlags::NOCOMPRESS),
        ];
        let mut bits = 0;
        for (shown, kept) in Self::PLAIN.into_iter().chain(shown) {
            bits |= if flags.contains(kept) { shown.0 } else { 0 };
        }
        if flags.contains(InodeFlags::COMPRESS) && !flags.contains(InodeFlags::NOCOMPRESS) {
            bits |= Self::COMPRESS.0;
        }
        Self(bits)
    }

    /// Returns the result of setting these flags on an inode. As in the kernel, flags without a
    /// meaning for its kind are ignored.
    ///
    /// # Errors
    /// A flag is unknown, or two flags exclude each other.
    pub fn change(self, inode: &Inode) -> Result<FlagChange, NamesError> {
        // As in the kernel, the flag of a sealed file is refused, and stays where it is left out.
        if self.0 & !Self::SETTABLE != 0 {
            return Err(NamesError::Unsupported { what: "a flag that cannot be set" });
        }
        let wants = Self(self.0 & Self::meaningful(inode.kind));
        let compress = wants.contains(Self::COMPRESS);
        if compress && (wants.contains(Self::NOCOMPRESS) || wants.contains(Self::NOCOW)) {
            return Err(NamesError::Invalid { what: "c excludes m and C" });
        }
        // C also excludes c and m that were set by an earlier call.
        let has_compression =
            |set: Self| set.contains(Self::COMPRESS) || set.contains(Self::NOCOMPRESS);
        let has = Self::of(inode.flags);
        if has.contains(Self::NOCOW) && has_compression(wants)
            || wants.contains(Self::NOCOW) && has_compression(has)
        {
            return Err(NamesError::Invalid { what: "C excludes c and m" });
        }
        let mut flags = nocow(inode, wants.contains(Self::NOCOW));
        for (wanted, kept) in Self::PLAIN {
            flags = if wants.contains(wanted) { flags.with(kept) } else { flags.without(kept) };
        }
        flags = flags.without(InodeFlags::COMPRESS).without(InodeFlags::NOCOMPRESS);
        if wants.contains(Self::NOCOMPRESS) {
            flags = flags.with(InodeFlags::NOCOMPRESS);
        }
        if !compress {
            return Ok(FlagChange { flags, compression: None });
        }
        if flags.contains(InodeFlags::NODATACOW) {
            return Err(NOT_IN_PLACE);
        }
        Ok(FlagChange { flags: flags.with(InodeFlags::COMPRESS), compression: Some(b"zlib") })
    }

    fn meaningful(kind: FileKind) -> u32 {
        match kind {
            FileKind::Directory => Self::SETTABLE,
            FileKind::File => Self::SETTABLE & !Self::DIRSYNC.0,
            FileKind::CharDevice
            | FileKind::BlockDevice
            | FileKind::Fifo
            | FileKind::Socket
            | FileKind::Symlink => Self::NODUMP.0 | Self::NOATIME.0,
        }
    }
}

const NOT_IN_PLACE: NamesError =
    NamesError::Invalid { what: "a file that is written in place cannot be compressed" };

/// Returns the flags of an inode with nodatacow set or cleared. A file with data keeps its flags.
fn nocow(inode: &Inode, wanted: bool) -> InodeFlags {
    let is_file = inode.kind == FileKind::File;
    if is_file && inode.size > 0 {
        return inode.flags;
    }
    let nodatasum = if is_file { InodeFlags::NODATASUM } else { InodeFlags::default() };
    let bits = InodeFlags::NODATACOW.with(nodatasum);
    if wanted { inode.flags.with(bits) } else { inode.flags.without(bits) }
}

impl CompressionProperty {
    /// Parses a value of [`COMPRESSION`]. Returns `None` for an invalid value.
    pub fn parse(value: &[u8]) -> Option<Self> {
        let named = [
            (&b"zlib"[..], Compression::Zlib),
            (&b"lzo"[..], Compression::Lzo),
            (&b"zstd"[..], Compression::Zstd),
        ];
        match value {
            b"" => Some(Self::Unset),
            b"no" | b"none" => Some(Self::Never),
            _ => named
                .into_iter()
                .find(|(name, _)| value.starts_with(name))
                .map(|(_, compression)| Self::With(compression)),
        }
    }

    /// Returns the flags of an inode with this property.
    pub fn flags(self, flags: InodeFlags) -> InodeFlags {
        let neither = flags.without(InodeFlags::COMPRESS).without(InodeFlags::NOCOMPRESS);
        match self {
            Self::Unset => neither,
            Self::Never => neither.with(InodeFlags::NOCOMPRESS),
            Self::With(_) => neither.with(InodeFlags::COMPRESS),
        }
    }
}

/// Returns the flags of an inode after a property is set, or removed by an empty value.
///
/// # Errors
/// The property or the value is unknown, or the inode is nodatacow.
pub fn flags_with_property(
    inode: &Inode,
    name: &[u8],
    value: &[u8],
) -> Result<InodeFlags, NamesError> {
    if name != COMPRESSION {
        return Err(NamesError::Invalid { what: "no such property" });
    }
    let property = CompressionProperty::parse(value)
        .ok_or(NamesError::Invalid { what: "compression is zlib, lzo, zstd or none" })?;
    if inode.flags.contains(InodeFlags::NODATACOW) {
        return Err(NOT_IN_PLACE);
    }
    Ok(property.flags(inode.flags))
}

/// Returns the value of [`COMPRESSION`] that a new inode inherits from its directory, without the
/// level. Only files and directories have one.
pub fn inherited_compression(parent: Option<&[u8]>, kind: FileKind) -> Option<&'static [u8]> {
    if !matches!(kind, FileKind::File | FileKind::Directory) {
        return None;
    }
    match CompressionProperty::parse(parent?)? {
        CompressionProperty::Unset | CompressionProperty::Never => None,
        CompressionProperty::With(compression) => match compression {
            Compression::None => None,
            Compression::Zlib => Some(b"zlib"),
            Compression::Lzo => Some(b"lzo"),
            Compression::Zstd => Some(b"zstd"),
        },
    }
}

#[cfg(test)]
mod tests;
