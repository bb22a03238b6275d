//! One thing that is wrong: what kind of damage, where, what is there and what was wanted.

use std::fmt;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// Damage.
    Error,
    /// Nothing that reads or writes go wrong by; worth knowing.
    Warning,
}

/// One thing that is wrong. `Display` reads `where: field: have X, want Y`.
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
        /// The kinds of damage, by name. The text says what each means.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Kind {
            $(#[doc = $text] $name,)*
        }

        impl Kind {
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// The name, as in JSON.
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

            /// What it means.
            pub const fn meaning(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }
        }
    };
}

kinds! {
    SuperCopy Error "the first copy of a superblock is no good",
    SuperMirror Warning "another copy of a superblock is no good, or older",
    SuperBackup Warning "the newest backup of the roots is not of the roots",
    SuperField Error "the superblock disagrees with the trees",
    SystemChunks Error "the superblock's system chunks are not those of the chunk tree",
    ChunkLayout Error "chunks overlap, or cannot be laid out",
    ChunkGroup Error "a chunk has no block group",
    DeviceUsage Error "a device item is wrong about its device",
    DeviceExtentExtra Error "a device extent belongs to no stripe of a chunk",
    DeviceExtentMissing Error "a stripe of a chunk has no device extent",
    DeviceExtentOverlap Error "device extents overlap, or end behind their device",
    DeviceMissing Warning "a device is missing",
    DeviceErrors Warning "errors were counted on a device",
    BlockBad Error "a tree block that no copy holds as it should be",
    BlockCopy Error "a copy of a tree block is no good; another one is",
    BlockOwner Error "a tree block says another owner than its reference",
    BlockKeys Error "keys of a tree block do not lie between those of its parent",
    BlockPlace Error "a tree block lies outside the chunks for tree blocks",
    BlockExtent Error "a tree block is not what its extent item says",
    BlockUuid Warning "a tree block names another chunk tree",
    ItemStray Error "an item in a tree that has none of its kind",
    TreeMissing Error "a tree that a volume must have is not there",
    ExtentOverlap Error "extents overlap",
    ExtentPlace Error "an extent is not inside a block group of its kind",
    ExtentItemMissing Error "something is used that no extent item stands for",
    ExtentUnused Error "an extent item that nothing refers to",
    ExtentSize Error "a file refers to an extent of another size",
    ReferenceCount Error "an extent's references are not as many as it says",
    ReferenceMissing Error "a user of an extent without its back reference",
    ReferenceExtra Error "a back reference without a user",
    ReferenceStray Error "a back reference without an extent item",
    GroupChunk Error "a block group has no chunk, or another one than it says",
    GroupUsed Error "a block group's used bytes are not those of its extents",
    FreeSpaceGroup Error "a block group without its free space info",
    FreeSpaceStray Warning "free space of a block group that is not there",
    FreeSpaceMissing Error "free space that the free space tree does not know",
    FreeSpaceTaken Error "the free space tree calls allocated space free",
    FreeSpaceCount Error "a free space info counts wrongly, or is of another form",
    SumsOverlap Error "checksum items overlap",
    SumsUnallocated Error "checksums of space that no data extent holds",
    SumsMissing Error "data without the checksums it should have",
    SumsOdd Error "checksums of data that should have none",
    DataCorrupt Error "data that does not match its checksum",
    DataUnreadable Error "data that cannot be read",
    RootItem Error "a root item disagrees with its tree",
    RootReference Error "references to and from a subvolume do not pair",
    RootEntry Error "a subvolume's reference has no directory entry",
    RootUnreachable Error "a subvolume that nothing refers to",
    RootOrphan Error "a deleted subvolume without its orphan item",
    UuidEntry Warning "the uuid tree and the subvolumes disagree",
    InodeMissing Error "items of an inode that is not there",
    InodeLinks Error "an inode's link count is not that of its names",
    InodeBytes Error "an inode's count of bytes is not that of its extents",
    DirectorySize Error "a directory's size is not that of its names",
    DirectoryItems Error "a directory's items by hash and by index disagree",
    DirectoryRing Error "directories that hold each other, where no path leads",
    EntryUnpaired Error "a directory entry without the reference of an inode",
    ReferenceUnpaired Error "an inode's reference without a directory entry",
    EntryKind Error "a directory entry says another kind than its inode",
    OrphanMissing Error "an inode without links or orphan item",
    OrphanExtra Warning "an orphan item without an inode to remove",
    FileExtentOverlap Error "file extents overlap",
    FileExtentGap Error "a file has a range that no extent covers",
    FileExtentForm Error "a file extent that such a file cannot have",
    FileExtentBehind Warning "a written extent lies behind the end of its file",
    XattrTwice Error "an attribute is there twice",
    RootDirectory Error "a subvolume without its root directory",
}
