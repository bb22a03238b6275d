//! [`DirtyFiles`]: files with dirty pages, in the order in which they got them.

use crate::cache::Inode;
use std::collections::BTreeMap;
use std::sync::Arc;

#[derive(Debug, Default)]
pub(crate) struct DirtyFiles {
    next: u64,
    by_age: BTreeMap<u64, Arc<Inode>>,
}

impl DirtyFiles {
    /// Adds a file as the youngest; its place.
    pub(crate) fn add(&mut self, file: Arc<Inode>) -> u64 {
        let place = self.next;
        self.next += 1;
        self.by_age.insert(place, file);
        place
    }

    pub(crate) fn remove(&mut self, place: u64) -> Option<Arc<Inode>> {
        self.by_age.remove(&place)
    }

    pub(crate) fn oldest(&self) -> impl Iterator<Item = &Arc<Inode>> {
        self.by_age.values()
    }
}
