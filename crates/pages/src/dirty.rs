//! [`DirtyFiles`]: files with dirty pages, in the order in which they became dirty.

use crate::cache::Inode;
use std::collections::BTreeMap;
use std::sync::Arc;

#[derive(Debug, Default)]
pub(crate) struct DirtyFiles {
    next: u64,
    by_age: BTreeMap<u64, Arc<Inode>>,
}

impl DirtyFiles {
    /// Adds a file at the end of the list, and returns its key in the list.
    pub(crate) fn add(&mut self, file: Arc<Inode>) -> u64 {
        let key = self.next;
        self.next += 1;
        self.by_age.insert(key, file);
        key
    }

    pub(crate) fn remove(&mut self, key: u64) -> Option<Arc<Inode>> {
        self.by_age.remove(&key)
    }

    pub(crate) fn oldest(&self) -> impl Iterator<Item = &Arc<Inode>> {
        self.by_age.values()
    }
}
