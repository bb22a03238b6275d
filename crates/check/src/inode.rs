//! Checks one inode: compares its inode item with its other items.
//!
//! The items of an inode are adjacent. [`InodePart`] sums them, wherever leaves split them, and
//! [`InodePart::check`] checks the sum.
//!
//! 1. The inode item exists, and its link count is the number of its references. An inode without
//!    links has an orphan item; laws 3 and 4 do not apply to it, since its deletion may have begun.
//! 2. A directory has the same names by hash and by index, and its size is the total length of the
//!    names of both. Other inodes have no names.
//! 3. File extents do not overlap. Without the `NO_HOLES` feature there is no gap before the end of
//!    the file. `nbytes` is the sum of the extents' bytes. An uncompressed inline extent is not
//!    longer than the file, and no written extent ends behind the file's last sector.
//! 4. A symlink has one inline extent with the target, optionally with a terminating zero.
//! 5. Written extents have checksums, or, if the inode is nodatasum, none. This applies to an inode
//!    without links too: an extent that its deletion has not dropped yet keeps its checksums.
//!    Extents whose part of the checksum tree cannot be read are left out, and a note says so.
//! 6. A file that fs-verity has sealed has all items of fs-verity (`verity`).

use crate::finding::Kind;
use crate::hash;
use crate::report::SealedFile;
use crate::run::Part;
use crate::sink::Sink;
use crate::verity::VerityItems;
use butternut_format::inode::{FileKind, Inode, InodeFlags};
use butternut_format::key::Key;
use butternut_format::units::SECTOR_BYTES;

/// The root directory of every subvolume.
pub(crate) const ROOT_DIR: u64 = 256;

/// The fields of an inode item that are checked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InodeFields {
    size: u64,
    nbytes: u64,
    nlink: u32,
    kind: FileKind,
    is_nodatasum: bool,
    is_sealed: bool,
}

impl From<&Inode> for InodeFields {
    fn from(inode: &Inode) -> Self {
        Self {
            size: inode.size,
            nbytes: inode.bytes_used,
            nlink: inode.nlink,
            kind: inode.kind,
            is_nodatasum: inode.flags.contains(InodeFlags::NODATASUM),
            is_sealed: inode.flags.contains(InodeFlags::VERITY),
        }
    }
}

/// The sum of the file extents seen so far.
#[derive(Clone, Copy, Debug, Default)]
struct ExtentTotals {
    count: u32,
    start: u64,
    end: u64,
    bytes: u64,
    /// Start of the first gap between extents.
    gap: Option<u64>,
    /// Length of an inline extent.
    inline: Option<u64>,
    /// Length of an inline extent that is not compressed.
    inline_plain: Option<u64>,
    /// End of the last written extent; preallocated extents and holes do not count.
    written_end: u64,
    /// File offset of the first written extent that lacks a checksum.
    without_checksum: Option<u64>,
    /// File offset of the first extent with a checksum.
    with_checksum: Option<u64>,
}

/// The sum of an inode's items.
#[derive(Clone, Debug, Default)]
pub(crate) struct InodePart {
    pub(crate) ino: u64,
    item: Option<InodeFields>,
    refs: u32,
    /// The parent directory of one of the references.
    parent: Option<u64>,
    /// Number of names by hash.
    by_hash: u32,
    /// Number of names by index.
    by_index: u32,
    /// Total length of all names.
    name_bytes: u64,
    /// Sum of the hashes of names by hash, minus that of names by index.
    names: u64,
    extents: ExtentTotals,
    /// Items of fs-verity, if there are any.
    verity: Option<Box<VerityItems>>,
    is_incomplete: bool,
}

/// Sums over the inodes of a tree, which are zero if names and inodes match.
#[derive(Clone, Debug, Default)]
pub(crate) struct Balance {
    /// Entries by index minus references.
    pub(crate) names: u64,
    /// Types of entries minus types of inodes.
    pub(crate) kinds: u64,
    /// Inodes without links minus orphan items.
    pub(crate) orphans: u64,
    pub(crate) has_root: bool,
    /// Every directory except the root, with its parent.
    pub(crate) parents: Vec<(u64, u64)>,
}

impl Balance {
    pub(crate) fn add(&mut self, other: Self) {
        self.names = self.names.wrapping_add(other.names);
        self.kinds = self.kinds.wrapping_add(other.kinds);
        self.orphans = self.orphans.wrapping_add(other.orphans);
        self.has_root |= other.has_root;
        self.parents.extend(other.parents);
    }
}

/// The fields of a file extent that are compared.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExtentFields {
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// Bytes that count towards `nbytes`.
    pub(crate) bytes: u64,
    pub(crate) is_inline: bool,
    pub(crate) is_compressed: bool,
    /// Neither a hole nor preallocated.
    pub(crate) is_written: bool,
    pub(crate) sums: ChecksumState,
}

/// Whether a file extent's data has checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChecksumState {
    /// There is no data, or checksums are not compared.
    None,
    All,
    Some,
    Missing,
    /// Preallocated, but with checksums.
    Unexpected,
}

/// The rules for the inodes of a tree.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    pub(crate) tree: u64,
    /// Whether the volume has the `NO_HOLES` feature, so that ranges without extents are holes.
    pub(crate) has_no_holes: bool,
    /// Whether written extents must have checksums.
    pub(crate) wants_checksums: bool,
}

impl InodePart {
    pub(crate) fn new(ino: u64) -> Self {
        Self { ino, ..Self::default() }
    }

    pub(crate) fn set_item(&mut self, item: InodeFields) {
        self.item = Some(item);
    }

    /// Adds the next item of fs-verity.
    pub(crate) fn add_verity(&mut self, key: Key, data: &[u8]) {
        self.verity.get_or_insert_default().add(key, data);
    }

    pub(crate) fn add_ref(&mut self, dir: u64) {
        self.parent = Some(dir);
        self.refs = self.refs.saturating_add(1);
    }

    /// Adds a name of a directory; `what` is a hash of the name and its target.
    pub(crate) fn add_name(&mut self, is_index: bool, bytes: usize, what: u64) {
        self.name_bytes = self.name_bytes.saturating_add(u64::try_from(bytes).unwrap_or_default());
        if is_index {
            self.by_index = self.by_index.saturating_add(1);
            self.names = self.names.wrapping_sub(what);
        } else {
            self.by_hash = self.by_hash.saturating_add(1);
            self.names = self.names.wrapping_add(what);
        }
    }

    /// Adds the next file extent.
    ///
    /// # Errors
    /// It overlaps the extents before it; the error is their end.
    pub(crate) fn add_extent(&mut self, extent: &ExtentFields) -> Result<(), u64> {
        let start = extent.start;
        let sums = extent.sums;
        self.extents.add(&ExtentTotals {
            count: 1,
            start,
            end: extent.end,
            bytes: extent.bytes,
            gap: None,
            inline: extent.is_inline.then_some(extent.bytes),
            inline_plain: (extent.is_inline && !extent.is_compressed).then_some(extent.bytes),
            written_end: if extent.is_written { extent.end } else { 0 },
            without_checksum: matches!(sums, ChecksumState::Some | ChecksumState::Missing)
                .then_some(start),
            with_checksum: matches!(
                sums,
                ChecksumState::All | ChecksumState::Some | ChecksumState::Unexpected
            )
            .then_some(start),
        })
    }

    /// Checks the whole inode and adds it to the balance of its tree.
    pub(crate) fn check(&self, rules: &Rules, sink: &Sink<'_>, balance: &mut Balance) {
        let place = format_args!("tree {} inode {}", rules.tree, self.ino);
        let Some(item) = &self.item else {
            if !self.is_incomplete {
                sink.add(Kind::InodeMissing, place, "inode item", "none", "one");
            }
            return;
        };
        sink.count(&sink.counters.inodes, 1);
        if self.ino == ROOT_DIR {
            balance.has_root |= item.kind == FileKind::Directory;
        } else {
            if item.kind == FileKind::Directory {
                balance.parents.extend(self.parent.map(|parent| (self.ino, parent)));
            }
            let kinds = entry_kind(self.ino, item.kind).wrapping_mul(u64::from(self.refs));
            balance.kinds = balance.kinds.wrapping_sub(kinds);
        }
        // An orphan item guards a file on which fs-verity is being enabled.
        if item.nlink == 0 || self.verity.is_some() && !item.is_sealed {
            balance.orphans = balance.orphans.wrapping_add(orphan(self.ino));
        }
        if self.is_incomplete {
            return;
        }
        if item.nlink != self.refs {
            let want = format_args!("{}, as its references", self.refs);
            sink.add(Kind::InodeLinks, place, "nlink", item.nlink, want);
        }
        self.check_names(item, place, sink);
        if item.nlink > 0 {
            self.check_extents(item, rules, place, sink);
            if item.is_sealed {
                let none = VerityItems::default();
                let items = self.verity.as_deref().unwrap_or(&none);
                if items.check(item.size, place, sink) {
                    sink.add_sealed(SealedFile { tree: rules.tree, ino: self.ino });
                }
            }
        }
        self.check_checksums(item, rules, place, sink);
    }

    /// Checks law 2.
    fn check_names(&self, item: &InodeFields, place: std::fmt::Arguments<'_>, sink: &Sink<'_>) {
        if item.kind != FileKind::Directory {
            let count = self.by_hash.saturating_add(self.by_index);
            if count != 0 {
                sink.add(
                    Kind::DirectoryItems,
                    place,
                    "names in an inode that is no directory",
                    count,
                    0,
                );
            }
            return;
        }
        if self.by_hash != self.by_index {
            let have = format_args!("{} by hash", self.by_hash);
            let want = format_args!("{}, as by index", self.by_index);
            sink.add(Kind::DirectoryItems, place, "names", have, want);
        } else if self.names != 0 {
            let want = "the same names and targets as by index";
            sink.add(Kind::DirectoryItems, place, "names by hash", "different", want);
        }
        if item.size != self.name_bytes {
            let want = format_args!("{}, the length of its names, twice", self.name_bytes);
            sink.add(Kind::DirectorySize, place, "size", item.size, want);
        }
    }

    /// Checks laws 3 and 4.
    fn check_extents(
        &self,
        item: &InodeFields,
        rules: &Rules,
        place: std::fmt::Arguments<'_>,
        sink: &Sink<'_>,
    ) {
        let extents = &self.extents;
        let holds_data = matches!(item.kind, FileKind::File | FileKind::Symlink);
        if !holds_data {
            if extents.count != 0 {
                sink.add(Kind::FileExtentForm, place, "file extents", extents.count, 0);
            }
            return;
        }
        if item.nbytes != extents.bytes {
            let want = format_args!("{}, as its extents hold", extents.bytes);
            sink.add(Kind::InodeBytes, place, "nbytes", item.nbytes, want);
        }
        if item.kind == FileKind::Symlink {
            // mkfs.btrfs --rootdir stores the terminating zero of the target.
            let with_zero = item.size.checked_add(1);
            let fits = extents.inline == Some(item.size) || extents.inline == with_zero;
            let is_whole = extents.count == 1 && fits;
            if !is_whole {
                let have = match extents.inline {
                    Some(bytes) => format!("{} extents, inline {bytes} bytes", extents.count),
                    None => format!("{} extents, none inline", extents.count),
                };
                let want = format_args!("one, inline, of {} bytes", item.size);
                sink.add(Kind::FileExtentForm, place, "symlink", have, want);
            }
        } else {
            self.check_end(item, rules, place, sink);
        }
    }

    /// Checks the end of the file (law 3).
    fn check_end(
        &self,
        item: &InodeFields,
        rules: &Rules,
        place: std::fmt::Arguments<'_>,
        sink: &Sink<'_>,
    ) {
        let extents = &self.extents;
        if let Some(bytes) = extents.inline_plain.filter(|bytes| *bytes > item.size) {
            let want = format_args!("at most {}, the file's size", item.size);
            sink.add(Kind::FileExtentForm, place, "bytes inline", bytes, want);
        }
        let end = item.size.checked_next_multiple_of(SECTOR_BYTES).unwrap_or(u64::MAX);
        if extents.written_end > end {
            let want = format_args!("at most {end}, the end of the file");
            sink.add(Kind::FileExtentBehind, place, "written up to", extents.written_end, want);
        }
        if rules.has_no_holes || item.size == 0 {
            return;
        }
        let first = if extents.count == 0 || extents.start > 0 { Some(0) } else { extents.gap };
        let gap = first.unwrap_or(extents.end);
        if gap < item.size {
            let want = format_args!("extents up to {}, the file's size", item.size);
            sink.add(Kind::FileExtentGap, place, "gap", format_args!("at {gap}"), want);
        }
    }

    /// Checks law 5.
    fn check_checksums(
        &self,
        item: &InodeFields,
        rules: &Rules,
        place: std::fmt::Arguments<'_>,
        sink: &Sink<'_>,
    ) {
        if !rules.wants_checksums {
            return;
        }
        let (without_checksum, with_checksum) =
            (self.extents.without_checksum, self.extents.with_checksum);
        if let (false, Some(offset)) = (item.is_nodatasum, without_checksum) {
            let field = format_args!("checksums of the extent at {offset}");
            sink.add(Kind::ChecksumsMissing, place, field, "not all", "one per sector");
        }
        if let (true, Some(offset)) = (item.is_nodatasum, with_checksum) {
            let field = format_args!("checksums of the extent at {offset}");
            sink.add(
                Kind::ChecksumsUnexpected,
                place,
                field,
                "some",
                "none, for the inode is nodatasum",
            );
        }
    }
}

impl Part for Box<InodePart> {
    fn object(&self) -> u64 {
        self.ino
    }

    fn merge(&mut self, next: Self) {
        self.item = self.item.or(next.item);
        self.refs = self.refs.saturating_add(next.refs);
        self.parent = self.parent.or(next.parent);
        self.by_hash = self.by_hash.saturating_add(next.by_hash);
        self.by_index = self.by_index.saturating_add(next.by_index);
        self.name_bytes = self.name_bytes.saturating_add(next.name_bytes);
        self.names = self.names.wrapping_add(next.names);
        self.is_incomplete |= next.is_incomplete;
        if let Some(verity) = next.verity {
            self.verity.get_or_insert_default().merge(&verity);
        }
        // `InodePart::overlap` has found an overlap across leaves before.
        self.extents.add(&next.extents).unwrap_or_default();
    }

    fn mark_incomplete(&mut self) {
        self.is_incomplete = true;
    }
}

impl InodePart {
    /// Returns the start of the next part's extents and the end of this part's, if they overlap.
    pub(crate) fn overlap(&self, next: &Self) -> Option<(u64, u64)> {
        let both = self.ino == next.ino && self.extents.count > 0 && next.extents.count > 0;
        (both && next.extents.start < self.extents.end)
            .then_some((next.extents.start, self.extents.end))
    }
}

impl ExtentTotals {
    fn add(&mut self, next: &Self) -> Result<(), u64> {
        if next.count == 0 {
            return Ok(());
        }
        if self.count == 0 {
            *self = *next;
            return Ok(());
        }
        let end = self.end;
        self.count = self.count.saturating_add(next.count);
        self.bytes = self.bytes.saturating_add(next.bytes);
        let between = (next.start > end).then_some(end);
        self.gap = self.gap.or(between).or(next.gap);
        self.end = end.max(next.end);
        self.inline = self.inline.or(next.inline);
        self.inline_plain = self.inline_plain.or(next.inline_plain);
        self.written_end = self.written_end.max(next.written_end);
        self.without_checksum = self.without_checksum.or(next.without_checksum);
        self.with_checksum = self.with_checksum.or(next.with_checksum);
        if next.start < end { Err(end) } else { Ok(()) }
    }
}

/// Returns the hash that an entry by index and the inode's reference have in common.
pub(crate) fn link(dir: u64, index: u64, name: u64, ino: u64) -> u64 {
    hash::words([1, dir, index, name, ino])
}

/// Returns the hash that an entry and its inode have in common.
pub(crate) fn entry_kind(ino: u64, kind: FileKind) -> u64 {
    hash::words([2, ino, kind_word(kind)])
}

/// Returns the hash that an inode without links and its orphan item have in common.
pub(crate) fn orphan(ino: u64) -> u64 {
    hash::words([3, ino])
}

pub(crate) fn kind_word(kind: FileKind) -> u64 {
    u64::from(kind.mode_bits())
}
