//! [`Finding`]: one inconsistency, with its kind, its place, the value found and the value
//! expected.

use std::fmt;

/// How severe a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// Damage.
    Error,
    /// An inconsistency that does not affect reads or writes.
    Warning,
}

/// One inconsistency. `Display` prints `place: field: have X, want Y`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    pub severity: Severity,
    pub kind: Kind,
    pub place: String,
    pub field: String,
    pub have: String,
    pub want: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { place, field, have, want, .. } = self;
        if !place.is_empty() {
            write!(f, "{place}: ")?;
        }
        write!(f, "{field}: have {have}, want {want}")
    }
}

macro_rules! kinds {
    ($($name:ident $severity:ident $text:literal,)*) => {
        /// The kinds of findings.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Kind {
            $(#[doc = $text] $name,)*
        }

        impl Kind {
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// Returns the name, as in JSON.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name),)*
                }
            }

            pub const fn severity(self) -> Severity {
                match self {
                    $(Self::$name => Severity::$severity,)*
                }
            }

            /// Returns a one-line description.
            pub const fn meaning(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }
        }
    };
}

kinds! {
    SuperCopy Error "the first copy of a superblock is invalid",
    SuperMirror Warning "another copy of a superblock is invalid or older",
    SuperBackup Warning "the newest backup of the roots differs from the roots",
    SuperField Error "the superblock disagrees with the trees",
    SystemChunks Error "the superblock's system chunks differ from those of the chunk tree",
    ChunkLayout Error "chunks overlap or have an invalid layout",
    ChunkGroup Error "a chunk has no block group",
    DeviceUsage Error "a device item differs from its device",
    DeviceExtentExtra Error "a device extent belongs to no stripe of a chunk",
    DeviceExtentMissing Error "a stripe of a chunk has no device extent",
    DeviceExtentOverlap Error "device extents overlap or end beyond their device",
    DeviceMissing Warning "a device is missing",
    DeviceErrors Warning "a device has error counts",
    BlockBad Error "a tree block has no valid copy",
    BlockCopy Error "a copy of a tree block is invalid; another copy is valid",
    BlockOwner Error "the owner of a tree block differs from its back reference",
    BlockKeys Error "keys of a tree block are outside the range that its parent gives",
    BlockPlace Error "a tree block is outside the metadata chunks",
    BlockExtent Error "a tree block differs from its extent item",
    BlockUuid Warning "a tree block has the UUID of another chunk tree",
    ItemMisplaced Error "an item is in a tree where its type does not belong",
    TreeMissing Error "a required tree is missing",
    ExtentOverlap Error "extents overlap",
    ExtentPlace Error "an extent is not inside a block group of its type",
    ExtentItemMissing Error "a referenced extent has no extent item",
    ExtentUnused Error "an extent item has no references",
    ExtentSize Error "a file refers to an extent with another size",
    ReferenceCount Error "the reference count of an extent differs from its references",
    ReferenceMissing Error "a reference to an extent has no back reference",
    ReferenceExtra Error "a back reference has no reference",
    ReferenceNoExtent Error "a back reference has no extent item",
    GroupChunk Error "a block group differs from its chunk, or has none",
    GroupUsed Error "the used bytes of a block group differ from its extents",
    FreeSpaceGroup Error "a block group has no free space info",
    FreeSpaceNoGroup Warning "free space items belong to no block group",
    FreeSpaceMissing Error "free space is not in the free space tree",
    FreeSpaceAllocated Error "allocated space is in the free space tree",
    FreeSpaceCount Error "a free space info has a wrong count or the wrong form",
    ChecksumsOverlap Error "checksum items overlap",
    ChecksumsUnallocated Error "checksums cover space outside of data extents",
    ChecksumsMissing Error "data lacks checksums",
    ChecksumsUnexpected Error "data has checksums and should have none",
    DataCorrupt Error "data does not match its checksum",
    DataUnreadable Error "data cannot be read",
    RootItem Error "a root item differs from its tree",
    RootReference Error "the two references of a subvolume do not match",
    RootEntry Error "the reference of a subvolume has no directory entry",
    RootUnreachable Error "a subvolume has no references",
    RootOrphan Error "a deleted subvolume has no orphan item",
    UuidEntry Warning "the UUID tree and the subvolumes differ",
    QgroupUsage Error "the usage of a quota group differs from its extents",
    InodeMissing Error "an inode item is missing",
    InodeLinks Error "the link count of an inode differs from its names",
    InodeBytes Error "the nbytes of an inode differ from its extents",
    DirectorySize Error "the size of a directory differs from its names",
    DirectoryItems Error "the items of a directory by hash and by index differ",
    DirectoryLoop Error "directories form a loop and cannot be reached from the root",
    EntryUnpaired Error "a directory entry has no inode reference",
    ReferenceUnpaired Error "an inode reference has no directory entry",
    EntryKind Error "the type of a directory entry differs from its inode",
    OrphanMissing Error "an inode without links has no orphan item",
    OrphanExtra Warning "an orphan item has no inode without links",
    FileExtentOverlap Error "file extents overlap",
    FileExtentGap Error "a range of a file has no extent",
    FileExtentForm Error "a file extent does not fit its file",
    FileExtentBehind Warning "a written extent is behind the end of its file",
    VerityItems Error "the items of a file that fs-verity has sealed are not whole",
    VerityDescriptor Error "the descriptor of a sealed file is invalid, or has another size",
    VerityHashes Error "a block of hashes of a sealed file does not agree with the one above it",
    VerityData Error "the data of a sealed file does not agree with its hashes",
    XattrTwice Error "an extended attribute exists twice",
    RootDirectory Error "a subvolume has no root directory",
}
