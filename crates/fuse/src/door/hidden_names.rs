//! [`HiddenNames`]: names of a writable mount that programs do not see yet.
//!
//! The process of a mount may itself make a subvolume and change what is in it: it receives one.
//! The kernel caches names, attributes and pages of what it has looked up, and would keep what has
//! changed since. So nothing of such a subvolume is looked up before it is complete.
//!
//! 1. A hidden name is not found by a LOOKUP, and is in no listing. The kernel caches neither.
//! 2. When a name is hidden or shown, the kernel forgets it and the attributes of its directory: it
//!    may have cached the file, or that there is no such name. A LOOKUP before the change is over
//!    by then, since the kernel holds its lock of the directory during both.
//! 3. Names are hidden by the process alone, and every value of [`HiddenName`] shows its own again
//!    when it is dropped. At the end of the mount nothing is left to be shown to.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use butternut::FileId;
use butternut_sys::lock::{Mutex, rank};

use crate::connection;
use crate::door::name_invalidations::NameInvalidations;
use crate::nodes::Nodes;

/// The hidden names of a mount, shared by all copies of the value.
#[derive(Clone)]
pub struct HiddenNames(Arc<Shared>);

struct Shared {
    nodes: Arc<Nodes>,
    /// The connection, for notifications. It is not kept open.
    device: Weak<OwnedFd>,
    invalidations: NameInvalidations,
    /// How often each name is hidden.
    names: Mutex<HashMap<(FileId, Vec<u8>), usize>, rank::HiddenNames>,
    /// The number of names, so that a LOOKUP takes no lock where there is none.
    count: AtomicUsize,
}

/// A name that is hidden until the value is dropped.
pub struct HiddenName {
    of: HiddenNames,
    at: (FileId, Vec<u8>),
}

impl HiddenNames {
    pub(super) fn new(
        nodes: Arc<Nodes>,
        device: &Arc<OwnedFd>,
        invalidations: NameInvalidations,
    ) -> Self {
        Self(Arc::new(Shared {
            nodes,
            device: Arc::downgrade(device),
            invalidations,
            names: Mutex::default(),
            count: AtomicUsize::new(0),
        }))
    }

    /// Returns the file that programs see with an inode number; `None` if the kernel knows none.
    pub fn file_of(&self, inode_number: u64) -> Option<FileId> {
        self.0.nodes.file_id(inode_number)
    }

    /// Hides a name of a directory, also before it exists. Programs that have files below it open
    /// keep them.
    pub fn hide(&self, dir: FileId, name: &[u8]) -> HiddenName {
        let at = (dir, name.to_vec());
        let mut names = self.0.names.lock();
        *names.entry(at.clone()).or_default() += 1;
        self.0.count.store(names.len(), Ordering::Release);
        drop(names);
        self.forget(&at);
        HiddenName { of: self.clone(), at }
    }

    /// Returns whether a name is hidden.
    pub(super) fn has(&self, dir: FileId, name: &[u8]) -> bool {
        if self.0.count.load(Ordering::Acquire) == 0 {
            return false;
        }
        let names = self.0.names.lock();
        names.keys().any(|(of, hidden)| *of == dir && hidden == name)
    }

    fn show(&self, at: &(FileId, Vec<u8>)) {
        let mut names = self.0.names.lock();
        let left = names.get(at).map_or(0, |count| count.saturating_sub(1));
        let removed = if left == 0 { names.remove_entry(at) } else { None };
        if let Some(count) = names.get_mut(at) {
            *count = left;
        }
        self.0.count.store(names.len(), Ordering::Release);
        drop(names);
        drop(removed);
        self.forget(at);
    }

    /// Makes the kernel forget a name (law 2).
    fn forget(&self, (dir, name): &(FileId, Vec<u8>)) {
        let Some(device) = self.0.device.upgrade() else { return };
        let parent = self.0.nodes.node_id(*dir);
        self.0.invalidations.forget_name(&device, parent, name);
        connection::invalidate_attributes(&device, parent);
    }
}

impl Drop for HiddenName {
    fn drop(&mut self) {
        self.of.show(&self.at);
    }
}

impl std::fmt::Debug for HiddenNames {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HiddenNames").finish_non_exhaustive()
    }
}

impl std::fmt::Debug for HiddenName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HiddenName").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_hidden_until_the_last_value_is_dropped() {
        let root = FileId::root_of(5);
        let device = Arc::new(std::fs::File::open("/dev/null").expect("a device").into());
        let nodes = Arc::new(Nodes::new(root));
        let names = HiddenNames::new(nodes, &device, NameInvalidations::default());
        assert!(!names.has(root, b"a"));
        let (one, other) = (names.hide(root, b"a"), names.hide(root, b"a"));
        assert!(names.has(root, b"a") && !names.has(root, b"b"));
        drop(device);
        drop(one);
        assert!(names.has(root, b"a") && !names.has(FileId::root_of(256), b"a"));
        drop(other);
        assert!(!names.has(root, b"a") && names.0.names.lock().is_empty());
        assert_eq!(names.file_of(1), Some(root));
    }
}
