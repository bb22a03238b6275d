//! One inode: what its items came to, and whether that is what the inode item says.
//!
//! All items of an inode lie together; [`InodePart`] adds them up, however they are cut into
//! leaves, and [`InodePart::judge`] looks at the whole.
//!
//! 1. The inode item is there, and its link count is that of its references. An inode without
//!    links has an orphan item; what is left of its extents is nobody's business any more.
//! 2. A directory has names by hash and by index, the same ones; its size is the length of all
//!    names in both. Nothing else has names.
//! 3. File extents do not overlap; without no-holes they leave no gap before the end of the file.
//!    `nbytes` is what they hold. What is inline is no longer than the file, and what is written
//!    does not lie behind its end.
//! 4. A symlink is one inline extent, as long as its size, or with a zero behind it.
//! 5. What is written and has no flag against it has checksums; what has the flag has none.

use crate::finding::Kind;
use crate::hash;
use crate::run::Part;
use crate::sink::Sink;
use butternut_format::inode::{FileKind, Inode, InodeFlags};
use butternut_format::units::SECTOR_BYTES;

/// The root directory of every subvolume.
pub(crate) const ROOT_DIR: u64 = 256;

/// What an inode item says, as much as is checked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InodeFacts {
    size: u64,
    nbytes: u64,
    nlink: u32,
    kind: FileKind,
    is_nodatasum: bool,
}

impl From<&Inode> for InodeFacts {
    fn from(inode: &Inode) -> Self {
        Self {
            size: inode.size,
            nbytes: inode.bytes_used,
            nlink: inode.nlink,
            kind: inode.kind,
            is_nodatasum: inode.flags.contains(InodeFlags::NODATASUM),
        }
    }
}

/// What the file extents seen so far came to.
#[derive(Clone, Copy, Debug, Default)]
struct ExtentSum {
    count: u32,
    start: u64,
    end: u64,
    bytes: u64,
    /// Where the first range begins that none covers.
    gap: Option<u64>,
    /// The length of an inline extent, and of one that is not compressed.
    inline: Option<u64>,
    inline_plain: Option<u64>,
    /// Where the last extent ends that was written, not only preallocated.
    written_end: u64,
    /// File offsets of the first written extent with a checksum missing, and of the first with one.
    unsummed: Option<u64>,
    summed: Option<u64>,
}

/// What an inode's items came to.
#[derive(Clone, Debug, Default)]
pub(crate) struct InodePart {
    pub(crate) ino: u64,
    item: Option<InodeFacts>,
    refs: u32,
    /// The directory of one of the references.
    parent: Option<u64>,
    /// Names by hash and by index: how many, how long, and whether they are the same.
    by_hash: u32,
    by_index: u32,
    name_bytes: u64,
    names: u64,
    extents: ExtentSum,
    is_spoiled: bool,
}

/// What the inodes of a tree came to together: sums that are zero where names and inodes agree.
#[derive(Clone, Debug, Default)]
pub(crate) struct Balance {
    /// Entries by index less references.
    pub(crate) names: u64,
    /// The kinds that entries say less the kinds of inodes.
    pub(crate) kinds: u64,
    /// Inodes without links less orphan items.
    pub(crate) orphans: u64,
    pub(crate) has_root: bool,
    /// Every directory but the root, and the directory that it is in.
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

/// A file extent, as much as an inode adds up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExtentFacts {
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// Bytes that count in `nbytes`.
    pub(crate) bytes: u64,
    pub(crate) is_inline: bool,
    pub(crate) is_compressed: bool,
    /// Neither a hole nor preallocated.
    pub(crate) is_written: bool,
    pub(crate) sums: SumFacts,
}

/// Whether a file extent's data has checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SumFacts {
    /// No data, or not known.
    None,
    All,
    Some,
    Missing,
    /// Preallocated, and yet with checksums.
    Odd,
}

/// How a tree's inodes are judged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    pub(crate) tree: u64,
    /// Whether ranges without extents are holes.
    pub(crate) has_no_holes: bool,
    /// Whether checksums are known and wanted.
    pub(crate) wants_sums: bool,
}

impl InodePart {
    pub(crate) fn new(ino: u64) -> Self {
        Self { ino, ..Self::default() }
    }

    pub(crate) fn set_item(&mut self, item: InodeFacts) {
        self.item = Some(item);
    }

    pub(crate) fn add_ref(&mut self, dir: u64) {
        self.parent = Some(dir);
        self.refs = self.refs.saturating_add(1);
    }

    /// A name of a directory; `what` is a hash of the name and where it leads.
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

    /// A file extent behind the others; the error is where they end, if that is behind its start.
    pub(crate) fn add_extent(&mut self, extent: &ExtentFacts) -> Result<(), u64> {
        let start = extent.start;
        let sums = extent.sums;
        self.extents.add(&ExtentSum {
            count: 1,
            start,
            end: extent.end,
            bytes: extent.bytes,
            gap: None,
            inline: extent.is_inline.then_some(extent.bytes),
            inline_plain: (extent.is_inline && !extent.is_compressed).then_some(extent.bytes),
            written_end: if extent.is_written { extent.end } else { 0 },
            unsummed: matches!(sums, SumFacts::Some | SumFacts::Missing).then_some(start),
            summed: matches!(sums, SumFacts::All | SumFacts::Some | SumFacts::Odd).then_some(start),
        })
    }

    /// Looks at the whole inode, and adds what it contributes to its tree's balance.
    pub(crate) fn judge(&self, rules: &Rules, sink: &Sink<'_>, balance: &mut Balance) {
        let place = format_args!("tree {} inode {}", rules.tree, self.ino);
        let Some(item) = &self.item else {
            if !self.is_spoiled {
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
        if item.nlink == 0 {
            balance.orphans = balance.orphans.wrapping_add(orphan(self.ino));
        }
        if self.is_spoiled {
            return;
        }
        if item.nlink != self.refs {
            let want = format_args!("{}, as its references", self.refs);
            sink.add(Kind::InodeLinks, place, "nlink", item.nlink, want);
        }
        self.judge_names(item, place, sink);
        if item.nlink > 0 {
            self.judge_extents(item, rules, place, sink);
        }
        self.judge_sums(item, rules, place, sink);
    }

    /// Law 2.
    fn judge_names(&self, item: &InodeFacts, place: std::fmt::Arguments<'_>, sink: &Sink<'_>) {
        if item.kind != FileKind::Directory {
            let count = self.by_hash.saturating_add(self.by_index);
            if count != 0 {
                sink.add(Kind::DirectoryItems, place, "names in what is no directory", count, 0);
            }
            return;
        }
        if self.by_hash != self.by_index {
            let have = format_args!("{} by hash", self.by_hash);
            let want = format_args!("{}, as by index", self.by_index);
            sink.add(Kind::DirectoryItems, place, "names", have, want);
        } else if self.names != 0 {
            let want = "the same names and targets as by index";
            sink.add(Kind::DirectoryItems, place, "names by hash", "others", want);
        }
        if item.size != self.name_bytes {
            let want = format_args!("{}, the length of its names, twice", self.name_bytes);
            sink.add(Kind::DirectorySize, place, "size", item.size, want);
        }
    }

    /// Laws 3 and 4.
    fn judge_extents(
        &self,
        item: &InodeFacts,
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
            // mkfs.btrfs --rootdir stores the zero behind the target.
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
            self.judge_end(item, rules, place, sink);
        }
    }

    /// Law 3, about the end of the file.
    fn judge_end(
        &self,
        item: &InodeFacts,
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

    /// Law 5.
    fn judge_sums(
        &self,
        item: &InodeFacts,
        rules: &Rules,
        place: std::fmt::Arguments<'_>,
        sink: &Sink<'_>,
    ) {
        if !rules.wants_sums {
            return;
        }
        let (unsummed, summed) = (self.extents.unsummed, self.extents.summed);
        if let (false, Some(offset)) = (item.is_nodatasum, unsummed) {
            let field = format_args!("checksums of the extent at {offset}");
            sink.add(Kind::SumsMissing, place, field, "not all", "one per sector");
        }
        if let (true, Some(offset)) = (item.is_nodatasum, summed) {
            let field = format_args!("checksums of the extent at {offset}");
            sink.add(Kind::SumsOdd, place, field, "some", "none, for the inode is nodatasum");
        }
    }
}

impl Part for Box<InodePart> {
    fn object(&self) -> u64 {
        self.ino
    }

    fn glue(&mut self, next: Self) {
        self.item = self.item.or(next.item);
        self.refs = self.refs.saturating_add(next.refs);
        self.parent = self.parent.or(next.parent);
        self.by_hash = self.by_hash.saturating_add(next.by_hash);
        self.by_index = self.by_index.saturating_add(next.by_index);
        self.name_bytes = self.name_bytes.saturating_add(next.name_bytes);
        self.names = self.names.wrapping_add(next.names);
        self.is_spoiled |= next.is_spoiled;
        // An overlap across leaves is found by `InodePart::overlap`, before.
        self.extents.add(&next.extents).unwrap_or_default();
    }

    fn spoil(&mut self) {
        self.is_spoiled = true;
    }
}

impl InodePart {
    /// Where this part's extents end, if that is behind the start of the next part's.
    pub(crate) fn overlap(&self, next: &Self) -> Option<(u64, u64)> {
        let both = self.ino == next.ino && self.extents.count > 0 && next.extents.count > 0;
        (both && next.extents.start < self.extents.end)
            .then_some((next.extents.start, self.extents.end))
    }
}

impl ExtentSum {
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
        self.unsummed = self.unsummed.or(next.unsummed);
        self.summed = self.summed.or(next.summed);
        if next.start < end { Err(end) } else { Ok(()) }
    }
}

/// What an entry by index and an inode's reference have in common.
pub(crate) fn link(dir: u64, index: u64, name: u64, ino: u64) -> u64 {
    hash::words([1, dir, index, name, ino])
}

/// What an entry and its inode have in common.
pub(crate) fn entry_kind(ino: u64, kind: FileKind) -> u64 {
    hash::words([2, ino, kind_word(kind)])
}

/// What an inode without links and its orphan item have in common.
pub(crate) fn orphan(ino: u64) -> u64 {
    hash::words([3, ino])
}

pub(crate) fn kind_word(kind: FileKind) -> u64 {
    u64::from(kind.mode_bits())
}
