//! Changes of items in a leaf: insert, replace, remove, one by one and many in one descent.
//!
//! Laws:
//!
//! 1. A change that misses a block, or that lacks the space to copy one, stops during the descent,
//!    before an item is touched. The copies and splits made until then are part of the tree. Later,
//!    only the split of a full leaf allocates, and a merge, which is left out if it cannot.
//! 2. An edit that can still fail after it has touched an item is torn from that item until its end
//!    (`Writer::is_torn`): an error in between makes the volume read-only, and the edit is not
//!    repeated.

use super::Stop;
use super::copy::Writer;
use super::shape::Path;
use crate::block_edit::LeafEdit;
use crate::error::TreeError;
use butternut_format::key::Key;
use butternut_format::refused::Refused;
use butternut_format::units::Logical;

/// A change of one item.
#[derive(Clone, Debug)]
pub struct Change {
    pub key: Key,
    /// The new data of the item; `None` removes it.
    pub to: Option<Vec<u8>>,
}

/// What to do with an item, decided after reading it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Alter {
    Keep,
    /// Inserts the item or replaces its data.
    Put(Vec<u8>),
    Remove,
}

impl Writer<'_> {
    /// Records that an item of a subvolume is about to change.
    fn note(&mut self, key: &Key) {
        if self.id.is_subvolume() {
            self.state.changes.note(key);
        }
    }

    /// Passes the data of an item, or `None`, to `decide`, and does what it returns. `decide` is
    /// called again if the descent has to start again.
    pub(crate) fn alter(
        &mut self,
        key: &Key,
        decide: &mut dyn FnMut(Option<&[u8]>) -> Alter,
    ) -> Result<(), Stop> {
        let (mut path, found) = self.descend(key, true)?;
        let (at, slot) = path.leaf();
        let item = found.ok().and(self.dirty(at)?.item(slot));
        match (decide(item.map(|(_, data)| data)), found) {
            (Alter::Keep, _) | (Alter::Remove, Err(_)) => Ok(()),
            (Alter::Put(data), _) => self.put_at(&mut path, found, key, &data),
            (Alter::Remove, Ok(slot)) => {
                self.note(key);
                self.torn_leaf(at)?.remove(slot..slot.saturating_add(1));
                self.rebalance_leaf(&path)
            }
        }
    }

    /// Inserts a new item.
    pub(crate) fn insert(&mut self, key: &Key, data: &[u8]) -> Result<(), Stop> {
        let (mut path, found) = self.descend(key, true)?;
        if found.is_ok() {
            return Err(TreeError::Exists { tree: self.id, key: *key }.into());
        }
        self.note(key);
        self.insert_at(&mut path, key, data)
    }

    /// Inserts an item or replaces its data.
    pub(crate) fn put(&mut self, key: &Key, data: &[u8]) -> Result<(), Stop> {
        let (mut path, found) = self.descend(key, true)?;
        self.put_at(&mut path, found, key, data)
    }

    fn put_at(
        &mut self,
        path: &mut Path,
        found: Result<usize, usize>,
        key: &Key,
        data: &[u8],
    ) -> Result<(), Stop> {
        self.note(key);
        let Ok(slot) = found else { return self.insert_at(path, key, data) };
        let (at, _) = path.leaf();
        let mut leaf = self.leaf_mut(at)?;
        if leaf.size(slot) == data.len() || leaf.resize(slot, data.len()) {
            if let Some(place) = leaf.data_mut(slot) {
                place.copy_from_slice(data);
            }
            return Ok(());
        }
        // What can be refused is refused before the old data is removed.
        self.check_item_size(key, data)?;
        self.torn_leaf(at)?.remove(slot..slot.saturating_add(1));
        self.insert_at(path, key, data)
    }

    /// Inserts an item at the end of the path. Splits the leaf if it is full.
    fn insert_at(&mut self, path: &mut Path, key: &Key, data: &[u8]) -> Result<(), Stop> {
        if !self.insert_into_leaf(path, key, data)? {
            self.check_item_size(key, data)?;
            self.split_leaf(path, key, data.len())?;
            if !self.insert_into_leaf(path, key, data)? {
                let want = format_args!("space for {} bytes after a split", data.len()).to_string();
                let source = Refused::new("leaf", "full", want).at(format_args!("item {key}"));
                return Err(TreeError::Corrupt { tree: self.id, source }.into());
            }
        }
        if path.leaf().1 == 0 {
            self.fix_first_key(path, 0, key)?;
        }
        Ok(())
    }

    /// Inserts an item at the end of the path. Returns `false` if the leaf is full.
    fn insert_into_leaf(&mut self, path: &Path, key: &Key, data: &[u8]) -> Result<bool, Stop> {
        let (at, slot) = path.leaf();
        let mut leaf = self.leaf_mut(at)?;
        let Some(place) = leaf.insert(slot, key, data.len()) else { return Ok(false) };
        place.copy_from_slice(data);
        self.is_torn = true;
        Ok(true)
    }

    /// Returns a leaf, to remove items from it (law 2).
    fn torn_leaf(&mut self, at: Logical) -> Result<LeafEdit<'_>, Stop> {
        self.dirty(at)?;
        self.is_torn = true;
        self.leaf_mut(at)
    }

    fn check_item_size(&self, key: &Key, data: &[u8]) -> Result<(), Stop> {
        let bytes_max = self.running.params.item_bytes_max();
        if data.len() <= bytes_max {
            return Ok(());
        }
        Err(TreeError::TooLarge { tree: self.id, key: *key, bytes: data.len(), bytes_max }.into())
    }

    /// Removes an item. Returns whether there was one.
    pub(crate) fn remove(&mut self, key: &Key) -> Result<bool, Stop> {
        let (path, found) = self.descend(key, false)?;
        let Ok(slot) = found else { return Ok(false) };
        self.note(key);
        self.torn_leaf(path.leaf().0)?.remove(slot..slot.saturating_add(1));
        self.rebalance_leaf(&path)?;
        Ok(true)
    }

    /// Passes the data of an item to `edit`, which changes it in place. Returns whether there is
    /// such an item.
    pub(crate) fn update(
        &mut self,
        key: &Key,
        edit: &mut dyn FnMut(&mut [u8]),
    ) -> Result<bool, Stop> {
        let (path, found) = self.descend(key, false)?;
        let Ok(slot) = found else { return Ok(false) };
        self.note(key);
        if let Some(data) = self.leaf_mut(path.leaf().0)?.data_mut(slot) {
            edit(data);
        }
        Ok(true)
    }

    /// Removes the items of one leaf that lie in `from..to`, and passes each to `visit` first.
    /// Returns their number, and the key to continue at, or `None` at the end of the range.
    pub(crate) fn remove_run(
        &mut self,
        from: &Key,
        to: &Key,
        visit: &mut dyn FnMut(Key, &[u8]),
    ) -> Result<(u64, Option<Key>), Stop> {
        let (path, _) = self.descend(from, false)?;
        let (at, first) = path.leaf();
        let leaf = self.dirty(at)?;
        let end = leaf.find(to).unwrap_or_else(|slot| slot);
        for slot in first..end {
            if let Some((key, data)) = leaf.item(slot) {
                visit(key, data);
            }
        }
        for slot in first..end {
            if let Some(key) = self.dirty(at)?.key(slot) {
                self.note(&key);
            }
        }
        let leaf = self.dirty(at)?;
        let is_last = end < leaf.len();
        let next = path.bound.filter(|bound| !is_last && bound < to);
        let count = butternut_format::units::length(end.saturating_sub(first));
        if count > 0 {
            self.torn_leaf(at)?.remove(first..end);
            self.rebalance_leaf(&path)?;
        }
        Ok((count, next))
    }

    /// Makes those of the changes, sorted by rising key, that belong to the first leaf. Returns how
    /// many it made.
    pub(crate) fn merge_run(&mut self, changes: &[Change]) -> Result<usize, Stop> {
        let Some(first) = changes.first() else { return Ok(0) };
        let is_growing = first.to.is_some();
        let (mut path, found) = self.descend(&first.key, is_growing)?;
        let (at, _) = path.leaf();
        let mut done: usize = 0;
        let mut removed = false;
        let mut first_changed = usize::MAX;
        for change in changes {
            let is_in_leaf = path.bound.is_none_or(|bound| change.key < bound);
            if !is_in_leaf || (done > 0 && change.to.is_some() && !is_growing) {
                break;
            }
            let found = if done == 0 { found } else { self.dirty(at)?.find(&change.key) };
            path.set_leaf(at, found.unwrap_or_else(|slot| slot));
            match &change.to {
                None => {
                    if let Ok(slot) = found {
                        self.note(&change.key);
                        self.torn_leaf(at)?.remove(slot..slot.saturating_add(1));
                        removed = true;
                        first_changed = first_changed.min(slot);
                    }
                }
                Some(data) => {
                    let slot = found.unwrap_or_else(|slot| slot);
                    if removed && self.dirty(at)?.is_empty()
                        || !self.fits_without_split(at, found, data)?
                    {
                        if done > 0 {
                            break;
                        }
                        self.put_at(&mut path, found, &change.key, data)?;
                        return Ok(1);
                    }
                    first_changed = first_changed.min(slot);
                    self.is_torn = true;
                    self.put_at(&mut path, found, &change.key, data)?;
                }
            }
            done = done.saturating_add(1);
        }
        if removed {
            path.set_leaf(at, first_changed);
            self.rebalance_leaf(&path)?;
        }
        Ok(done)
    }

    /// Whether an item can be put into this leaf without a split.
    fn fits_without_split(
        &mut self,
        at: Logical,
        found: Result<usize, usize>,
        data: &[u8],
    ) -> Result<bool, Stop> {
        let leaf = self.leaf_mut(at)?;
        Ok(match found {
            Ok(slot) => data.len().saturating_sub(leaf.size(slot)) <= leaf.free(),
            Err(_) => data.len().saturating_add(crate::block_edit::ITEM_BYTES) <= leaf.free(),
        })
    }
}
