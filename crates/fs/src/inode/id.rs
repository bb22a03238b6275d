//! [`FileId`]: which inode of which subvolume.
//!
//! 1. An id is stable: an inode has the same id after every reopen, in every process.
//! 2. No two inodes of a volume share an id. An id is two numbers of 64 bits (a placeholder's is
//!    three), so one number cannot hold every id. [`FileId::folded`] is injective and holds the ids
//!    with a subvolume id below 2^23 and an inode number below 2^40. [`FileId::as_u64`] hashes the
//!    others, and an image can be made in which hashes collide. So files are compared by their ids,
//!    not by these numbers.
//! 3. `as_u64` is never 0. Below 2^40 it is the inode number in the top-level subvolume.

use std::hash::{Hash, Hasher};

/// The id of the top-level subvolume.
pub const TOP_LEVEL: u64 = 5;

/// The inode number of every subvolume's root directory.
pub(crate) const ROOT_DIRECTORY: u64 = 256;

const INO_BITS: u32 = 40;
const SUBVOLUME_BITS: u32 = 23;

/// Set in the subvolume field of a placeholder's id. Subvolume ids are below 2^48, and an inode
/// number may be anything, so no inode has such an id.
const PLACEHOLDER_BIT: u64 = 1 << 63;

/// One inode of one subvolume, or one placeholder. A plain value: the inode may not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileId {
    /// The subvolume's id: 5 for the top level, 256 and up for others. A placeholder
    /// ([`FileId::is_placeholder`]) has a value here that is no subvolume's id; use
    /// [`FileId::subvolume_id`] to get one in any case.
    pub subvolume: u64,
    /// The inode number in that subvolume; 256 is its root directory. For a placeholder, the inode
    /// number of the directory that contains it.
    pub ino: u64,
    /// For a placeholder, the id of the subvolume that its directory entry names; 0 for inodes. A
    /// directory has one entry for each.
    named: u64,
}

impl FileId {
    /// Returns the id of an inode, which need not exist.
    pub const fn new(subvolume: u64, ino: u64) -> Self {
        Self { subvolume, ino, named: 0 }
    }

    /// Returns the id of the root directory of a subvolume.
    pub const fn root_of(subvolume: u64) -> Self {
        Self::new(subvolume, ROOT_DIRECTORY)
    }

    /// Returns whether this is the root directory of a subvolume.
    pub const fn is_subvolume_root(self) -> bool {
        self.ino == ROOT_DIRECTORY && !self.is_placeholder()
    }

    /// The inode number that the kernel shows for every placeholder.
    pub const PLACEHOLDER_INO: u64 = 2;

    /// Returns the id of the placeholder that a snapshot shows in `dir` for the subvolume `named`,
    /// which the snapshot does not contain. The id carries the directory, whose owner the
    /// placeholder has.
    pub(crate) const fn placeholder(dir: Self, named: u64) -> Self {
        Self { subvolume: dir.subvolume | PLACEHOLDER_BIT, ino: dir.ino, named }
    }

    /// Returns the directory that contains a placeholder; `None` for inodes.
    pub(crate) const fn placeholder_dir(self) -> Option<Self> {
        if !self.is_placeholder() {
            return None;
        }
        Some(Self::new(self.subvolume_id(), self.ino))
    }

    /// Returns the id of the subvolume; for a placeholder, that of the directory that contains it.
    pub const fn subvolume_id(self) -> u64 {
        self.subvolume & !PLACEHOLDER_BIT
    }

    /// Returns whether this is a placeholder: the empty directory that a snapshot shows in place of
    /// a nested subvolume. Each such entry of a directory has its own id.
    pub const fn is_placeholder(self) -> bool {
        self.subvolume & PLACEHOLDER_BIT != 0
    }

    /// Returns 24 bytes that [`FileId::from_bytes`] turns back into this id, on any machine.
    pub fn to_bytes(self) -> [u8; 24] {
        let mut bytes = [0; 24];
        bytes[..8].copy_from_slice(&self.subvolume.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.ino.to_le_bytes());
        bytes[16..].copy_from_slice(&self.named.to_le_bytes());
        bytes
    }

    /// Returns the id that [`FileId::to_bytes`] turned into `bytes`.
    pub fn from_bytes(bytes: [u8; 24]) -> Self {
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(word)
        };
        Self { subvolume: word(0), ino: word(8), named: word(16) }
    }

    /// Returns the id that [`FileId::folded`] turned into `number`; `None` if there is none.
    pub fn from_u64(number: u64) -> Option<Self> {
        let (subvolume, ino) = match number >> INO_BITS {
            0 => (TOP_LEVEL, number),
            subvolume => (subvolume, number & ((1 << INO_BITS) - 1)),
        };
        let id = Self::new(subvolume, ino);
        (id.folded() == Some(number)).then_some(id)
    }

    /// Returns the id as one number below 2^63, which [`FileId::from_u64`] turns back into the id;
    /// `None` for an id that does not fit (law 2).
    pub const fn folded(self) -> Option<u64> {
        let Self { subvolume, ino, named } = self;
        if ino >> INO_BITS != 0 || subvolume >> SUBVOLUME_BITS != 0 || named != 0 {
            return None;
        }
        match (subvolume, ino) {
            (0, _) | (TOP_LEVEL, 0) => None,
            (TOP_LEVEL, ino) => Some(ino),
            (subvolume, ino) => Some(subvolume << INO_BITS | ino),
        }
    }

    /// Returns a number for interfaces that have only an inode number. Two ids that do not fit into
    /// [`folded`](FileId::folded) may share one.
    pub fn as_u64(self) -> u64 {
        let hash = mix(self.subvolume.rotate_left(32) ^ mix(self.ino ^ mix(self.named)));
        self.folded().unwrap_or(1 << 63 | hash)
    }
}

/// The inode number is hashed last, and alone for inodes of one subvolume, so that a hasher that
/// keeps neighbouring numbers together keeps neighbouring inodes together.
impl Hash for FileId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Self { subvolume, ino, named } = *self;
        (named ^ subvolume, ino).hash(state);
    }
}

/// Permutes the 64-bit numbers.
fn mix(word: u64) -> u64 {
    let word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn top_level_inodes_keep_their_number() {
        assert_eq!(FileId::new(5, 257).as_u64(), 257);
        assert_eq!(FileId::new(5, (1 << 40) - 1).as_u64(), (1 << 40) - 1);
    }

    #[test]
    fn large_inode_numbers_of_the_top_level_do_not_alias_other_subvolumes() {
        let small = FileId::new(256, 257);
        let large = FileId::new(5, (256 << 40) + 257);
        assert_ne!(large.as_u64(), small.as_u64());
        assert_eq!(FileId::from_u64(small.as_u64()), Some(small));
        assert_eq!(FileId::from_u64(large.as_u64()), None);
        assert_eq!(large.folded(), None);
    }

    #[test]
    fn folding_is_injective_at_its_limits() {
        let edges = |bits: u32| {
            let edge = 1_u64 << bits;
            [0, 1, 2, 5, 6, 255, 256, 257, edge - 1, edge, edge + 1, u64::MAX]
        };
        let mut seen = std::collections::HashMap::new();
        for subvolume in edges(SUBVOLUME_BITS).into_iter().chain(edges(INO_BITS)) {
            for ino in edges(INO_BITS).into_iter().chain([(5 << 40) + 257, (256 << 40) + 257]) {
                let id = FileId::new(subvolume, ino);
                let Some(number) = id.folded() else { continue };
                assert!(number != 0 && number >> 63 == 0, "{id:?}");
                assert_eq!(FileId::from_u64(number), Some(id));
                assert_eq!(*seen.entry(number).or_insert(id), id);
            }
        }
    }

    #[test]
    fn the_same_inode_number_in_two_subvolumes_gives_two_numbers() {
        let mut seen = std::collections::HashSet::new();
        for subvolume in [5, 256, 257, 1 << 22, 1 << 23, 1 << 40, u64::MAX - 300] {
            for ino in [2, 256, 257, (1 << 40) - 1, 1 << 40, u64::MAX - 256] {
                assert!(seen.insert(FileId::new(subvolume, ino).as_u64()), "{subvolume} {ino}");
            }
        }
    }

    #[test]
    fn a_placeholder_leads_back_to_its_directory() {
        let dir = FileId::new(300, 257);
        assert_eq!(FileId::placeholder(dir, 301).placeholder_dir(), Some(dir));
        assert_eq!(dir.placeholder_dir(), None);
        assert_eq!(FileId::placeholder(dir, 301).subvolume_id(), 300);
        assert_eq!(dir.subvolume_id(), 300);
    }

    #[test]
    fn two_placeholders_of_one_directory_are_two_ids() {
        let dir = FileId::new(300, 257);
        let [one, other] = [301, 302].map(|named| FileId::placeholder(dir, named));
        assert_ne!(one, other);
        assert_ne!(one.as_u64(), other.as_u64());
        assert_eq!((one.folded(), other.folded()), (None, None));
        assert_eq!(FileId::from_bytes(one.to_bytes()), one);
    }

    #[test]
    fn folded_numbers_give_the_id_back_and_hashed_ones_do_not() {
        for id in [FileId::new(5, 256), FileId::new(256, 257), FileId::new(300, (1 << 40) - 1)] {
            assert_eq!(FileId::from_u64(id.as_u64()), Some(id));
        }
        assert_eq!(FileId::from_u64(FileId::new(1 << 23, 256).as_u64()), None);
        assert_eq!(FileId::from_u64(0), None);
    }

    #[test]
    fn no_id_folds_to_zero() {
        for id in [FileId::new(0, 0), FileId::new(5, 0), FileId::new(256, 0)] {
            assert_ne!(id.as_u64(), 0, "{id:?}");
        }
    }

    #[test]
    fn bytes_give_the_id_back() {
        let id = FileId::new(0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210);
        assert_eq!(FileId::from_bytes(id.to_bytes()), id);
    }
}
