//! Changes of items: in, out, longer, shorter, one by one and many at once.
//!
//! Law: a change either happens as a whole or not at all. What can stop it (a block that is not in
//! memory, no space for a copy) stops it on the way down, before the first item is touched; the
//! copies made until then are part of the tree and no loss.

use super::Stop;
use super::cow::Writer;
use super::shape::Path;
use crate::error::TreeError;
use butternut_format::key::Key;

/// A change of one item.
#[derive(Clone, Debug)]
pub struct Change {
    pub key: Key,
    /// What the item is to hold; `None` takes it out.
    pub to: Option<Vec<u8>>,
}

/// What is to become of an item that was shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Alter {
    Keep,
    /// The item holds this from now on, whether it was there or not.
    Put(Vec<u8>),
    Remove,
}

impl Writer<'_> {
    /// Shows an item, or that it is not there, to `decide`, and does what that says. It may be
    /// asked again where the first answer could not be carried out.
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
                self.leaf_mut(at)?.remove(slot..slot.saturating_add(1));
                self.settle(&path)
            }
        }
    }

    /// Puts a new item in.
    pub(crate) fn insert(&mut self, key: &Key, data: &[u8]) -> Result<(), Stop> {
        let (mut path, found) = self.descend(key, true)?;
        if found.is_ok() {
            return Err(TreeError::Exists { tree: self.id, key: *key }.into());
        }
        self.insert_at(&mut path, key, data)
    }

    /// Puts an item in, or changes what it holds.
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
        let Ok(slot) = found else { return self.insert_at(path, key, data) };
        let (at, _) = path.leaf();
        let mut leaf = self.leaf_mut(at)?;
        if leaf.size(slot) == data.len() || leaf.resize(slot, data.len()) {
            if let Some(place) = leaf.data_mut(slot) {
                place.copy_from_slice(data);
            }
            return Ok(());
        }
        leaf.remove(slot..slot.saturating_add(1));
        self.insert_at(path, key, data)
    }

    /// Puts an item in where the path came to.
    fn insert_at(&mut self, path: &mut Path, key: &Key, data: &[u8]) -> Result<(), Stop> {
        let (at, slot) = path.leaf();
        if let Some(place) = self.leaf_mut(at)?.insert(slot, key, data.len()) {
            place.copy_from_slice(data);
        } else {
            self.fits_a_leaf(key, data)?;
            self.split_leaf(path, key, data.len())?;
            let (at, slot) = path.leaf();
            if let Some(place) = self.leaf_mut(at)?.insert(slot, key, data.len()) {
                place.copy_from_slice(data);
            }
        }
        if path.leaf().1 == 0 {
            self.fix_first_key(path, 0, key)?;
        }
        Ok(())
    }

    fn fits_a_leaf(&self, key: &Key, data: &[u8]) -> Result<(), Stop> {
        let bytes_max = self.running.facts.item_bytes_max();
        if data.len() <= bytes_max {
            return Ok(());
        }
        Err(TreeError::TooLarge { tree: self.id, key: *key, bytes: data.len(), bytes_max }.into())
    }

    /// Takes an item out; `false` where it is not there.
    pub(crate) fn remove(&mut self, key: &Key) -> Result<bool, Stop> {
        let (path, found) = self.descend(key, false)?;
        let Ok(slot) = found else { return Ok(false) };
        self.leaf_mut(path.leaf().0)?.remove(slot..slot.saturating_add(1));
        self.settle(&path)?;
        Ok(true)
    }

    /// Shows the bytes of an item to `edit`, to be changed in place; `false` where it is not there.
    pub(crate) fn update(
        &mut self,
        key: &Key,
        edit: &mut dyn FnMut(&mut [u8]),
    ) -> Result<bool, Stop> {
        let (path, found) = self.descend(key, false)?;
        let Ok(slot) = found else { return Ok(false) };
        if let Some(data) = self.leaf_mut(path.leaf().0)?.data_mut(slot) {
            edit(data);
        }
        Ok(true)
    }

    /// Takes out the items of one leaf that lie in `from..to`, showing each, and gives where to go
    /// on from; `None` when there are no more.
    pub(crate) fn remove_run(
        &mut self,
        from: &Key,
        to: &Key,
        see: &mut dyn FnMut(Key, &[u8]),
    ) -> Result<(u64, Option<Key>), Stop> {
        let (path, _) = self.descend(from, false)?;
        let (at, first) = path.leaf();
        let leaf = self.dirty(at)?;
        let end = leaf.find(to).unwrap_or_else(|slot| slot);
        for slot in first..end {
            if let Some((key, data)) = leaf.item(slot) {
                see(key, data);
            }
        }
        let is_last = end < leaf.len();
        let next = path.bound.filter(|bound| !is_last && bound < to);
        let count = butternut_format::units::length(end.saturating_sub(first));
        if count > 0 {
            self.leaf_mut(at)?.remove(first..end);
            self.settle(&path)?;
        }
        Ok((count, next))
    }

    /// Makes as many of the changes, which rise by key, as belong to one leaf; gives how many.
    pub(crate) fn merge_run(&mut self, changes: &[Change]) -> Result<usize, Stop> {
        let Some(first) = changes.first() else { return Ok(0) };
        let is_growing = first.to.is_some();
        let (mut path, found) = self.descend(&first.key, is_growing)?;
        let (at, _) = path.leaf();
        let mut done: usize = 0;
        let mut removed = false;
        let mut low = usize::MAX;
        for change in changes {
            let is_here = path.bound.is_none_or(|bound| change.key < bound);
            if !is_here || (done > 0 && change.to.is_some() && !is_growing) {
                break;
            }
            let found = if done == 0 { found } else { self.dirty(at)?.find(&change.key) };
            path.set_leaf(at, found.unwrap_or_else(|slot| slot));
            match &change.to {
                None => {
                    if let Ok(slot) = found {
                        self.leaf_mut(at)?.remove(slot..slot.saturating_add(1));
                        removed = true;
                        low = low.min(slot);
                    }
                }
                Some(data) => {
                    let slot = found.unwrap_or_else(|slot| slot);
                    if removed && self.dirty(at)?.is_empty() || !self.has_room(at, found, data)? {
                        if done > 0 {
                            break;
                        }
                        self.put_at(&mut path, found, &change.key, data)?;
                        return Ok(1);
                    }
                    low = low.min(slot);
                    self.put_at(&mut path, found, &change.key, data)?;
                }
            }
            done = done.saturating_add(1);
        }
        if removed {
            path.set_leaf(at, low);
            self.settle(&path)?;
        }
        Ok(done)
    }

    /// Whether an item can be put into this leaf without a split.
    fn has_room(
        &mut self,
        at: butternut_format::units::Logical,
        found: Result<usize, usize>,
        data: &[u8],
    ) -> Result<bool, Stop> {
        let leaf = self.leaf_mut(at)?;
        Ok(match found {
            Ok(slot) => data.len().saturating_sub(leaf.size(slot)) <= leaf.free(),
            Err(_) => data.len().saturating_add(crate::edit::ITEM_BYTES) <= leaf.free(),
        })
    }
}
