//! The inode table under every order of threads that chance finds: its own source, compiled with
//! locks and atomics that a scheduler controls, over a directory and an inode tree that are maps.
//! Threads create, link, rename, unlink, open and write few names; an inode with two entries loses
//! the writes of one of them.

#![allow(
    dead_code,
    unreachable_pub,
    unused_imports,
    clippy::unwrap_used,
    reason = "the source is that of the library, of which a test uses a part; it stops at the \
              first surprise"
)]

#[path = "../../src/dirty_inodes.rs"]
mod dirty_inodes;
#[path = "../../src/id.rs"]
mod id;
#[path = "../../src/inode_table.rs"]
mod inode_table;

/// In the place of the library's `sync`.
mod sync {
    pub(crate) use shuttle::sync::atomic;
    pub(crate) use shuttle::sync::{Mutex, MutexGuard};
    pub(crate) use shuttle::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

    pub(crate) fn run(test: fn()) {
        shuttle::check_random(test, 1);
    }
}

/// In the place of the library's `held`.
mod held {
    pub(crate) struct NoRelease;

    impl NoRelease {
        pub(crate) fn begin() -> Self {
            Self
        }
    }
}

/// In the place of the library's `idle`.
mod idle {
    #[derive(Debug, Default)]
    pub(crate) struct IsIdle(());
}

/// In the place of the library's `new_inode`.
mod new_inode {
    #[derive(Debug)]
    pub(crate) struct HandedDown;
}

pub use id::FileId;

#[derive(Debug)]
pub enum Error {
    Stale { id: FileId },
}

pub type Result<T, E = Error> = std::result::Result<T, E>;

use butternut_format::inode::Inode;
use dirty_inodes::DirtyInodes;
use inode_table::{Bodies, Body, InodeEntry, InodeTable};
use shuttle::sync::Mutex;
use shuttle::thread;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The directory and the inode tree, each edit one step.
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
    /// Entries with data that no tree has.
    dirty: Mutex<BTreeMap<FileId, Arc<InodeEntry>>>,
    /// Writes that returned.
    written: Mutex<BTreeMap<FileId, u64>>,
}

/// A regular file with so many names.
fn inode(nlink: u32) -> Inode {
    const MODE_AT: usize = 52;
    let mut item = [0; 160];
    item[MODE_AT..MODE_AT + 4].copy_from_slice(&0o100_644_u32.to_le_bytes());
    Inode { nlink, ..Inode::check(&item).unwrap() }
}

impl World {
    fn new() -> Arc<Self> {
        // One place in each shard: entries leave as soon as nothing refers to them.
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

    /// As the library makes an inode: the entry first, then the change.
    fn create(&self, name: u8) {
        let _directory = self.directory.body_mut();
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
        let own = entry.body_mut();
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
        let body = entry.body();
        entry.inode(|| self.read(id)).ok()?;
        entry.hold();
        drop(body);
        Some(entry)
    }

    fn write(&self, entry: &Arc<InodeEntry>) {
        let mut body = entry.body_mut();
        entry.inode(|| self.read(entry.id)).unwrap();
        body.next_index = Some(body.next_index.unwrap_or(0) + 1);
        self.dirty.lock().unwrap().insert(entry.id, Arc::clone(entry));
        *self.written.lock().unwrap().entry(entry.id).or_default() += 1;
    }

    fn close(&self, entry: &Arc<InodeEntry>) {
        if entry.let_go() && entry.known().is_some_and(|inode| inode.nlink == 0) {
            let _body = entry.body_mut();
            if entry.known().is_some() && !entry.is_held() {
                self.forget(entry);
            }
        }
    }

    /// The inode is no more. The caller has its body.
    fn forget(&self, entry: &InodeEntry) {
        self.trees.lock().unwrap().links.remove(&entry.id);
        entry.set_gone();
        self.dirty.lock().unwrap().remove(&entry.id);
        self.written.lock().unwrap().remove(&entry.id);
        self.table.remove(entry);
    }

    /// Removes a name with the directory and the inode locked; `to` is the name that it moves to.
    fn take_name(&self, name: u8, to: Option<u8>) {
        loop {
            let Some(id) = self.lookup(name) else { return };
            let victim = to.and_then(|to| self.lookup(to));
            if victim == Some(id) {
                return;
            }
            let entries = [Some(id), victim].map(|id| id.map(|id| self.table.entry(id)));
            let mut all: Vec<&InodeEntry> = vec![&self.directory];
            all.extend(entries.iter().flatten().map(|entry| &**entry));
            let _bodies = Bodies::lock(&all);
            if self.lookup(name) != Some(id) || to.and_then(|to| self.lookup(to)) != victim {
                continue;
            }
            let mut trees = self.trees.lock().unwrap();
            trees.names.remove(&name);
            to.map(|to| trees.names.insert(to, id));
            drop(trees);
            let loser = if to.is_some() { &entries[1] } else { &entries[0] };
            if let Some(loser) = loser {
                self.lose_name(loser);
            }
            return;
        }
    }

    fn lose_name(&self, entry: &Arc<InodeEntry>) {
        let now = entry.inode(|| self.read(entry.id)).unwrap().nlink - 1;
        self.trees.lock().unwrap().links.insert(entry.id, now);
        entry.set(inode(now));
        if now == 0 && !entry.is_held() {
            self.forget(entry);
        }
    }

    fn link(&self, name: u8, to: u8) {
        let Some(id) = self.lookup(name) else { return };
        let entry = self.table.entry(id);
        let _bodies = Bodies::lock(&[&self.directory, &entry]);
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

    /// Every write that returned is in the one state of its inode.
    fn check(&self) {
        for (id, count) in &*self.written.lock().unwrap() {
            let entry = self.table.entry(*id);
            assert_eq!(entry.body().next_index, Some(*count), "{id:?} has another state");
        }
        let trees = self.trees.lock().unwrap();
        for (id, links) in &trees.links {
            let names = trees.names.values().filter(|known| *known == id).count();
            assert!(*links > 0 && names == *links as usize, "{id:?}: {names} names, {links} links");
        }
    }
}

/// Opens, writes and closes what a name leads to; twice.
fn use_name(world: &World, name: u8) {
    for _ in 0..2 {
        if let Some(entry) = world.open(name) {
            world.write(&entry);
            world.close(&entry);
        }
    }
}

/// Under so many orders, found at random and by few preemptions.
fn explore(rounds: usize, test: impl Fn() + Send + Sync + Clone + 'static) {
    shuttle::check_random(test.clone(), rounds);
    shuttle::check_pct(test, rounds, 3);
}

fn run(works: Vec<fn(&World)>) {
    let world = World::new();
    let threads: Vec<_> = works
        .into_iter()
        .map(|work| {
            let world = Arc::clone(&world);
            thread::spawn(move || work(&world))
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    world.check();
}

#[test]
fn a_file_that_is_made_and_found_at_once_has_one_entry() {
    explore(3000, || {
        run(vec![|world| world.create(1), |world| use_name(world, 1), |world| use_name(world, 1)]);
    });
}

#[test]
fn names_that_move_and_go_leave_one_entry_to_each_inode() {
    explore(3000, || {
        run(vec![
            |world| {
                world.create(1);
                world.link(1, 2);
                world.take_name(1, None);
            },
            |world| {
                use_name(world, 2);
                world.take_name(2, Some(1));
            },
            |world| {
                use_name(world, 1);
                world.create(1);
                world.take_name(1, Some(2));
            },
        ]);
    });
}

#[test]
fn an_entry_that_others_push_out_is_made_again_only_when_it_is_clean() {
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
fn each_thread_that_shares_an_inode_finds_it_listed_when_it_has_added_it() {
    explore(1000, || {
        let dirty = Arc::new(DirtyInodes::default());
        let entry = InodeEntry::new(FileId::new(5, 257), Some(inode(1)), Body::default());
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let (dirty, entry) = (Arc::clone(&dirty), Arc::clone(&entry));
                thread::spawn(move || {
                    let body = entry.body();
                    dirty.add(&entry);
                    drop(body);
                    let listed = dirty.range_from(FileId::new(0, 0), 1);
                    assert!(!listed.is_empty(), "a sync would not find it");
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        let body = entry.body_mut();
        dirty.remove(&entry);
        drop(body);
        assert_eq!(dirty.len(), 0);
    });
}
