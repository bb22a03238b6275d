//! Memory use after many operations on many files, by the filesystem's own counters: each is
//! bounded by an option or a constant, and does not grow when the same work is repeated.

use crate::volume::{TestVolume, new};
use butternut::stats::MemoryUse;
use butternut::{FileId, Filesystem, MountOptions, RenameFlags, SetAttributes};

const INODES: usize = 1024;
const FILES: u64 = 5000;
const ROUNDS: u64 = 4;
const NODE_CACHE_BYTES: u64 = 4 << 20;
const PAGE_CACHE_BYTES: u64 = 4 << 20;
/// Operations between two syncs, and so the maximum number of inodes with changes that are in no
/// tree.
const OPERATIONS_PER_SYNC: u64 = 500;
/// Maximum number of files without a handle that keep the state of their data.
const IDLE_FILES_MAX: u64 = 4096;

fn name(file: u64) -> Vec<u8> {
    format!("a file with a name of some length, {file}").into_bytes()
}

/// Creates, writes, reads, lists, changes, links, renames and removes. Returns the memory use
/// before the removal, when it is highest.
fn round(fs: &Filesystem, dir: FileId, nth: u64) -> MemoryUse {
    let mut memory = vec![0; 8192];
    for file in 0..FILES {
        let id = fs.create(dir, &name(file), &new(0o600)).unwrap();
        let opened = fs.open_file(id).unwrap();
        let bytes = 100 + usize::try_from(file % 7 * 1000).unwrap();
        opened.write_at(0, &vec![u8::try_from(nth).unwrap(); bytes]).unwrap();
        opened.read_at(0, &mut memory).unwrap();
        if file % OPERATIONS_PER_SYNC == 0 {
            fs.sync().unwrap();
        }
    }
    let names = fs.read_dir(dir, butternut::FIRST_ENTRY).unwrap();
    assert_eq!(names.count() as u64, FILES);
    for file in 0..FILES {
        let id = fs.lookup(dir, &name(file)).unwrap();
        fs.stat(id).unwrap();
        if file % OPERATIONS_PER_SYNC == 0 {
            fs.sync().unwrap();
        }
        match file % 4 {
            0 => fs.open_file(id).unwrap().truncate(50).unwrap(),
            1 => {
                let set = SetAttributes { mode: Some(0o640), ..SetAttributes::default() };
                fs.set_attributes(id, &set).unwrap();
            }
            2 => {
                fs.link(id, dir, b"link").unwrap();
                fs.unlink(dir, b"link").unwrap();
            }
            _ => {
                let (old, moved) = (name(file), b"moved");
                fs.rename((dir, &old), (dir, moved), RenameFlags::default()).unwrap();
                fs.rename((dir, moved), (dir, &old), RenameFlags::default()).unwrap();
            }
        }
    }
    let most = bounded(fs);
    for file in 0..FILES {
        fs.unlink(dir, &name(file)).unwrap();
    }
    bounded(fs);
    most
}

/// Returns the memory use after a sync, and checks its bounds.
fn bounded(fs: &Filesystem) -> MemoryUse {
    fs.sync().unwrap();
    let stats = fs.stats();
    let MemoryUse { dirty_bytes, dirty_files, pending_writes, dirty_tree_bytes, .. } = stats.memory;
    assert_eq!((dirty_bytes, dirty_files, pending_writes, dirty_tree_bytes), (0, 0, 0, 0));
    let MemoryUse { inodes, idle_files, buffer_bytes, .. } = stats.memory;
    assert!(inodes <= INODES as u64 + OPERATIONS_PER_SYNC, "{inodes} inodes");
    assert!(idle_files <= IDLE_FILES_MAX, "{idle_files} idle files");
    let cached = stats.pages.cached_pages as u64 * 4096;
    assert!(cached <= PAGE_CACHE_BYTES + PAGE_CACHE_BYTES / 8, "{cached} bytes of pages");
    // The node cache, the spare buffers of each of five sizes, and the buffers in flight.
    let bound = NODE_CACHE_BYTES + ((5 * 4) << 20) + (4 << 20);
    assert!(buffer_bytes <= bound, "{buffer_bytes} bytes of buffers");
    stats.memory
}

#[test]
fn memory_use_is_bounded_after_any_operations_on_many_files() {
    let volume = TestVolume::new();
    let options = MountOptions::default()
        .read_only(false)
        .inode_cache_entries(INODES)
        .node_cache_bytes(NODE_CACHE_BYTES)
        .page_cache_bytes(PAGE_CACHE_BYTES);
    let fs = Filesystem::open_devices(volume.devices(), &options).unwrap();
    let dir = fs.mkdir(fs.root(), b"dir", &new(0o700)).unwrap();
    let rounds: Vec<MemoryUse> = (0..ROUNDS).map(|nth| round(&fs, dir, nth)).collect();
    let (early, late) = (rounds[1], rounds[rounds.len() - 1]);
    assert!(late.inodes <= early.inodes + OPERATIONS_PER_SYNC, "{rounds:?}");
    assert!(late.idle_files <= early.idle_files + 64, "{rounds:?}");
    assert!(late.buffer_bytes <= early.buffer_bytes + (1 << 20), "{rounds:?}");
    volume.reopen(fs);
}
