//! The inode table under random thread schedules: its own source, compiled with locks and atomics
//! that a scheduler controls, over a directory and an inode tree that are maps. Threads create,
//! link, rename, unlink, open and write a few names. If an inode had two entries, the writes of one
//! would be lost.

#![allow(
    dead_code,
    unreachable_pub,
    unused_imports,
    clippy::unwrap_used,
    reason = "the source is that of the library, of which a test uses a part; it panics on \
              failure"
)]

#[path = "../../src/inode/dirty.rs"]
mod dirty;
#[path = "../../src/inode/id.rs"]
mod id;
#[path = "../../src/inode/table.rs"]
mod table;

#[path = "../../../sys/tests/scheduled/mod.rs"]
mod sync;

/// Replaces the library's `no_unpin`.
mod no_unpin {
    pub(crate) struct NoUnpin;

    impl NoUnpin {
        pub(crate) fn begin() -> Self {
            Self
        }
    }
}

/// Replaces the library's `idle`.
mod idle {
    #[derive(Debug, Default)]
    pub(crate) struct IsIdle(());
}

/// Replaces the library's `inheritance`.
mod inheritance {
    #[derive(Debug)]
    pub(crate) struct Inheritance;
}

pub use id::FileId;

#[derive(Debug)]
pub enum Error {
    Stale { id: FileId },
    WouldBlock,
}

pub type Result<T, E = Error> = std::result::Result<T, E>;

use butternut_format::inode::Inode;
use dirty::DirtyInodes;
use shuttle::sync::Mutex;
use shuttle::thread;
use std::collections::BTreeMap;
use std::sync::Arc;
use table::{InodeEntry, InodeState, InodeTable, LockedInodes};

/// The directory and the inode tree; each edit is one step.
#[derive(Default)]
struct Trees {
    names: BTreeMap<u8, FileId>,
    links: BTreeMap<FileId, u32>,
    next_ino: u64,
}

struct World {
    table: InodeTable,
    trees: Mutex<Trees>,
    /// The directory's inode lock.
    directory: Arc<InodeEntry>,
    /// Entries with data that is in no tree.
    dirty: Mutex<BTreeMap<FileId, Arc<InodeEntry>>>,
    /// Number of completed writes per inode.
    written: Mutex<BTreeMap<FileId, u64>>,
}

/// A regular file with `nlink` names.
fn inode(nlink: u32) -> Inode {
    const MODE_AT: usize = 52;
    let mut item = [0; 160];
    item[MODE_AT..MODE_AT + 4].copy_from_slice(&0o100_644_u32.to_le_bytes());
    Inode { nlink, ..Inode::check(&item).unwrap() }
}

impl World {
    fn new() -> Arc<Self> {
        // One entry per shard: entries are evicted as soon as nothing refers to them.
        let table = InodeTable::new(1);
        let directory = table.entry(FileId::new(5, 256));
        let trees = Trees { next_ino: 257, ..Trees::default() };
        let (trees, dirty, written) = (Mutex::new(trees), Mutex::default(), Mutex::default());
        Arc::new(Self { table, trees, directory, dirty, written })
    }

    fn read(&self, id: FileId) -> Result<Inode> {
        let trees = self.trees.lock().unwrap();
        trees.links.get(&id).map(|links| inode(*links)).ok_or(Error::Stale { id })
    }

    /// As in the library: the entry is created first, then the trees change.
    fn create(&self, name: u8) {
        let _directory = self.directory.lock();
        if self.trees.lock().unwrap().names.contains_key(&name) {
            return;
        }
        let ino = {
            let mut trees = self.trees.lock().unwrap();
            trees.next_ino += 1;
            trees.next_ino
        };
        let id = FileId::new(5, ino);
        let entry = self.table.entry(id);
        let own = entry.lock();
        entry.set(inode(1));
        let mut trees = self.trees.lock().unwrap();
        trees.links.insert(id, 1);
        trees.names.insert(name, id);
        drop((trees, own));
    }

    fn lookup(&self, name: u8) -> Option<FileId> {
        self.trees.lock().unwrap().names.get(&name).copied()
    }

    fn open(&self, name: u8) -> Option<Arc<InodeEntry>> {
        let id = self.lookup(name)?;
        let entry = self.table.entry(id);
        let state = entry.lock_shared();
        entry.inode(|| self.read(id)).ok()?;
        entry.pin();
        drop(state);
        Some(entry)
    }

    fn write(&self, entry: &Arc<InodeEntry>) {
        let mut state = entry.lock();
        entry.inode(|| self.read(entry.id)).unwrap();
        state.next_index = Some(state.next_index.unwrap_or(0) + 1);
        self.dirty.lock().unwrap().insert(entry.id, Arc::clone(entry));
        *self.written.lock().unwrap().entry(entry.id).or_default() += 1;
    }

    fn close(&self, entry: &Arc<InodeEntry>) {
        if entry.unpin() && entry.cached().is_some_and(|inode| inode.nlink == 0) {
            let _state = entry.lock();
            if entry.cached().is_some() && !entry.is_pinned() {
                self.delete(entry);
            }
        }
    }

    /// Deletes the inode. The caller holds its lock exclusively.
    fn delete(&self, entry: &InodeEntry) {
        self.trees.lock().unwrap().links.remove(&entry.id);
        entry.set_deleted();
        self.dirty.lock().unwrap().remove(&entry.id);
        self.written.lock().unwrap().remove(&entry.id);
        self.table.remove(entry);
    }

    /// Removes a name with the directory and the inode locked; `to` is its new name in a rename.
    fn remove_name(&self, name: u8, to: Option<u8>) {
        loop {
            let Some(id) = self.lookup(name) else { return };
            let victim = to.and_then(|to| self.lookup(to));
            if victim == Some(id) {
                return;
            }
            let entries = [Some(id), victim].map(|id| id.map(|id| self.table.entry(id)));
            let mut all: Vec<&InodeEntry> = vec![&self.directory];
            all.extend(entries.iter().flatten().map(|entry| &**entry));
            let _locked = LockedInodes::lock(&all);
            if self.lookup(name) != Some(id) || to.and_then(|to| self.lookup(to)) != victim {
                continue;
            }
            let mut trees = self.trees.lock().unwrap();
            trees.names.remove(&name);
            to.map(|to| trees.names.insert(to, id));
            drop(trees);
            let unlinked = if to.is_some() { &entries[1] } else { &entries[0] };
            if let Some(unlinked) = unlinked {
                self.drop_link(unlinked);
            }
            return;
        }
    }

    fn drop_link(&self, entry: &Arc<InodeEntry>) {
        let now = entry.inode(|| self.read(entry.id)).unwrap().nlink - 1;
        self.trees.lock().unwrap().links.insert(entry.id, now);
        entry.set(inode(now));
        if now == 0 && !entry.is_pinned() {
            self.delete(entry);
        }
    }

    fn link(&self, name: u8, to: u8) {
        let Some(id) = self.lookup(name) else { return };
        let entry = self.table.entry(id);
        let _locked = LockedInodes::lock(&[&self.directory, &entry]);
        let Ok(known) = entry.inode(|| self.read(id)) else { return };
        let mut trees = self.trees.lock().unwrap();
        if known.nlink == 0 || trees.names.contains_key(&to) {
            return;
        }
        trees.names.insert(to, id);
        trees.links.insert(id, known.nlink + 1);
        drop(trees);
        entry.set(inode(known.nlink + 1));
    }

    /// Checks that each inode has one state, with every completed write.
    fn check(&self) {
        for (id, count) in &*self.written.lock().unwrap() {
            let entry = self.table.entry(*id);
            assert_eq!(entry.lock_shared().next_index, Some(*count), "{id:?} has another state");
        }
        let trees = self.trees.lock().unwrap();
        for (id, links) in &trees.links {
            let names = trees.names.values().filter(|known| *known == id).count();
            assert!(*links > 0 && names == *links as usize, "{id:?}: {names} names, {links} links");
        }
    }
}

/// Opens, writes and closes the file of a name, twice.
fn use_name(world: &World, name: u8) {
    for _ in 0..2 {
        if let Some(entry) = world.open(name) {
            world.write(&entry);
            world.close(&entry);
        }
    }
}

/// Runs the test under `rounds` random schedules, and as many with few preemptions.
fn explore(rounds: usize, test: impl Fn() + Send + Sync + Clone + 'static) {
    shuttle::check_random(test.clone(), rounds);
    shuttle::check_pct(test, rounds, 3);
}

fn run(tasks: Vec<fn(&World)>) {
    let world = World::new();
    let threads: Vec<_> = tasks
        .into_iter()
        .map(|task| {
            let world = Arc::clone(&world);
            thread::spawn(move || task(&world))
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    world.check();
}

#[test]
fn a_file_that_is_looked_up_during_its_creation_has_one_entry() {
    explore(3000, || {
        run(vec![|world| world.create(1), |world| use_name(world, 1), |world| use_name(world, 1)]);
    });
}

#[test]
fn renames_and_unlinks_keep_one_entry_per_inode() {
    explore(3000, || {
        run(vec![
            |world| {
                world.create(1);
                world.link(1, 2);
                world.remove_name(1, None);
            },
            |world| {
                use_name(world, 2);
                world.remove_name(2, Some(1));
            },
            |world| {
                use_name(world, 1);
                world.create(1);
                world.remove_name(1, Some(2));
            },
        ]);
    });
}

#[test]
fn only_a_clean_entry_is_evicted_and_recreated() {
    explore(3000, || {
        run(vec![
            |world| {
                world.create(1);
                use_name(world, 1);
            },
            |world| {
                for ino in 1000..1004 {
                    drop(world.table.entry(FileId::new(5, ino)));
                }
            },
            |world| use_name(world, 1),
        ]);
    });
}

#[test]
fn an_inode_is_listed_as_dirty_once_any_thread_has_added_it() {
    explore(1000, || {
        let dirty = Arc::new(DirtyInodes::default());
        let entry = InodeEntry::new(FileId::new(5, 257), Some(inode(1)), InodeState::default());
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let (dirty, entry) = (Arc::clone(&dirty), Arc::clone(&entry));
                thread::spawn(move || {
                    let state = entry.lock_shared();
                    dirty.add(&entry);
                    drop(state);
                    let listed = dirty.range_from(FileId::new(0, 0), 1);
                    assert!(!listed.is_empty(), "a sync would not find it");
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        let state = entry.lock();
        dirty.remove(&entry);
        drop(state);
        assert_eq!(dirty.len(), 0);
    });
}
