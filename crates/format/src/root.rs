//! Root items: the address of the root block of each tree, and the attributes of a subvolume.
//!
//! ```text
//! RawRootItem
//! 0       160          168          176      184          192          200             208
//! | inode | generation | root_dirid | bytenr | byte_limit | bytes_used | last_snapshot | flags |
//! 216    220             237          238     239
//! | refs | drop_progress | drop_level | level |   end of an item from before Linux 3.6
//! 239             247    263           279             295
//! | generation_v2 | uuid | parent_uuid | received_uuid |
//! 295        303        311        319        327     339     351     363     375        439
//! | ctransid | otransid | stransid | rtransid | ctime | otime | stime | rtime | reserved |
//! ```
//!
//! The key is (tree, `ROOT_ITEM`, offset); the offset is 0, or the transaction that created a
//! snapshot.
//!
//! 1. `bytenr` is sector aligned and not 0; `level` and `drop_level` are below 8.
//! 2. `flags` has known bits only.
//! 3. The fields behind `level` are ignored in an item of the old size, and in one whose
//!    `generation_v2` differs from `generation`, because an old kernel has overwritten it.

use crate::inode::{RawInodeItem, RawTimespec, Time};
use crate::key::{ItemType, Key, RawKey};
use crate::node::Expected;
use crate::refused::{Refused, require};
use crate::units::{Generation, LEVELS_MAX, Logical, SECTOR_BYTES, TreeId};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Size in bytes of a root item without UUIDs.
pub const LEGACY_BYTES: usize = 239;

/// A root item in its on-disk form (`struct btrfs_root_item`).
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RawRootItem {
    pub inode: RawInodeItem,
    pub generation: U64,
    pub root_dirid: U64,
    pub bytenr: U64,
    pub byte_limit: U64,
    pub bytes_used: U64,
    pub last_snapshot: U64,
    pub flags: U64,
    pub refs: U32,
    pub drop_progress: RawKey,
    pub drop_level: u8,
    pub level: u8,
    pub generation_v2: U64,
    pub uuid: [u8; 16],
    pub parent_uuid: [u8; 16],
    pub received_uuid: [u8; 16],
    pub ctransid: U64,
    pub otransid: U64,
    pub stransid: U64,
    pub rtransid: U64,
    pub ctime: RawTimespec,
    pub otime: RawTimespec,
    pub stime: RawTimespec,
    pub rtime: RawTimespec,
    pub reserved: [U64; 8],
}
const _: () = assert!(size_of::<RawRootItem>() == 439);

impl RawRootItem {
    /// Clears what says that the subvolume was received from another one.
    pub fn forget_received(&mut self) {
        self.received_uuid = [0; 16];
        (self.stransid, self.rtransid) = (U64::ZERO, U64::ZERO);
        (self.stime, self.rtime) = (RawTimespec::new_zeroed(), RawTimespec::new_zeroed());
    }
}

/// The flags of a root.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RootFlags(pub u64);

impl RootFlags {
    /// The subvolume is read-only.
    pub const READ_ONLY: Self = Self(1);
    /// The subvolume is deleted, and its blocks are not freed yet.
    pub const DEAD: Self = Self(1 << 48);

    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// The fields that only items of the new size have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RootHistory {
    pub uuid: [u8; 16],
    /// The UUID of the subvolume that this one is a snapshot of, or zeroes.
    pub parent_uuid: [u8; 16],
    /// The UUID of the subvolume that this one was received from, or zeroes.
    pub received_uuid: [u8; 16],
    /// Transaction and time of the last change of an inode (`ctransid`, `ctime`). The following
    /// fields are those of the creation, the sending and the receiving.
    pub change: (Generation, Time),
    pub origin: (Generation, Time),
    pub send: (Generation, Time),
    pub receive: (Generation, Time),
}

/// A root item that passed [`RootItem::check`].
#[derive(Clone, Copy)]
pub struct RootItem {
    raw: RawRootItem,
    has_history: bool,
}

impl std::fmt::Debug for RootItem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RootItem")
            .field("logical", &self.logical())
            .field("generation", &self.generation())
            .field("level", &self.level())
            .field("flags", &self.flags())
            .finish_non_exhaustive()
    }
}

impl RootItem {
    pub fn check(key: Key, data: &[u8]) -> Result<Self, Refused> {
        require(key.item_type == ItemType::ROOT_ITEM, "key type", key.item_type.0, 132)?;
        let whole = size_of::<RawRootItem>();
        let fits = data.len() == whole || data.len() == LEGACY_BYTES;
        require(fits, "item size", data.len(), format_args!("{whole} or {LEGACY_BYTES}"))?;
        let mut raw = RawRootItem::new_zeroed();
        for (to, from) in raw.as_mut_bytes().iter_mut().zip(data) {
            *to = *from;
        }
        let bytenr = raw.bytenr.get();
        let placed = bytenr != 0 && bytenr.is_multiple_of(SECTOR_BYTES);
        require(placed, "bytenr", bytenr, "sector aligned, not 0")?;
        require(usize::from(raw.level) < LEVELS_MAX, "level", raw.level, "below 8")?;
        require(usize::from(raw.drop_level) < LEVELS_MAX, "drop_level", raw.drop_level, "below 8")?;
        let known = RootFlags::READ_ONLY.0 | RootFlags::DEAD.0;
        require(raw.flags.get() & !known == 0, "flags", raw.flags, "known bits only")?;
        let has_history = data.len() == whole && raw.generation == raw.generation_v2;
        Ok(Self { raw, has_history })
    }

    pub fn raw(&self) -> &RawRootItem {
        &self.raw
    }

    pub fn logical(&self) -> Logical {
        Logical(self.raw.bytenr.get())
    }

    pub fn generation(&self) -> Generation {
        Generation(self.raw.generation.get())
    }

    pub fn level(&self) -> u8 {
        self.raw.level
    }

    pub fn flags(&self) -> RootFlags {
        RootFlags(self.raw.flags.get())
    }

    /// Returns the inode number of the root directory, 0 in trees without inodes.
    pub fn root_dirid(&self) -> u64 {
        self.raw.root_dirid.get()
    }

    /// Returns the number of references to this root; 0 when the subvolume is deleted.
    pub fn refs(&self) -> u32 {
        self.raw.refs.get()
    }

    /// Returns UUIDs, transactions and times, if the item has them (law 3).
    pub fn history(&self) -> Option<RootHistory> {
        let raw = &self.raw;
        let moment = |id: U64, time: &RawTimespec| (Generation(id.get()), Time::from(time));
        self.has_history.then(|| RootHistory {
            uuid: raw.uuid,
            parent_uuid: raw.parent_uuid,
            received_uuid: raw.received_uuid,
            change: moment(raw.ctransid, &raw.ctime),
            origin: moment(raw.otransid, &raw.otime),
            send: moment(raw.stransid, &raw.stime),
            receive: moment(raw.rtransid, &raw.rtime),
        })
    }

    /// Returns what the root block of the tree must match.
    pub fn block(&self, tree: TreeId) -> Expected {
        Expected {
            logical: self.logical(),
            generation: self.generation(),
            level: self.level(),
            tree,
            first_key: None,
            end_key: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item() -> RawRootItem {
        let mut raw = RawRootItem::new_zeroed();
        raw.bytenr = U64::new(65536);
        raw.generation = U64::new(9);
        raw.generation_v2 = U64::new(9);
        raw.uuid = [3; 16];
        raw
    }

    const KEY: Key = Key::new(256, ItemType::ROOT_ITEM, 0);

    #[test]
    fn an_old_item_has_no_history() {
        let raw = item();
        let new = RootItem::check(KEY, raw.as_bytes()).unwrap();
        assert_eq!(new.history().unwrap().uuid, [3; 16]);
        let old = RootItem::check(KEY, &raw.as_bytes()[..LEGACY_BYTES]).unwrap();
        assert_eq!(old.history(), None);
        let mut overwritten = raw;
        overwritten.generation = U64::new(10);
        let overwritten = RootItem::check(KEY, overwritten.as_bytes()).unwrap();
        assert_eq!(overwritten.history(), None);
    }

    #[test]
    fn an_unaligned_root_block_is_refused() {
        let mut raw = item();
        raw.bytenr = U64::new(65537);
        let refused = RootItem::check(KEY, raw.as_bytes()).unwrap_err();
        assert_eq!(refused.to_string(), "bytenr: have 65537, want sector aligned, not 0");
    }
}
