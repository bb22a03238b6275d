//! Each inode has one state, even while threads create, look up, open, rename and remove it
//! concurrently.

use crate::volume::{TestVolume, new};
use butternut::{Error, File, FileId, Filesystem, RenameFlags};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

const BLOCK: usize = 4096;

/// Every file that was opened, by inode.
#[derive(Default)]
struct Opened(Mutex<BTreeMap<FileId, Vec<File>>>);

impl Opened {
    fn add(&self, file: File) {
        self.0.lock().unwrap().entry(file.id()).or_default().push(file);
    }

    /// Checks that all handles of an inode show the same bytes, including those written through
    /// them.
    fn compare(&self) {
        for (id, files) in &*self.0.lock().unwrap() {
            let size = files[0].metadata().unwrap().size;
            let mut first = None;
            for file in files {
                assert_eq!(file.len(), size, "{id:?} has two sizes");
                let mut bytes = vec![0; usize::try_from(size).unwrap()];
                assert_eq!(file.read_at(0, &mut bytes).unwrap(), bytes.len());
                assert_eq!(*first.get_or_insert_with(|| bytes.clone()), bytes, "{id:?}");
            }
        }
    }
}

/// Writes the mark of a thread to its own block of a file, together with the existing marks.
fn mark(file: &File, thread: u8) {
    let block = [thread + 1; BLOCK];
    assert_eq!(file.write_at(u64::from(thread) * BLOCK as u64, &block).unwrap(), BLOCK);
}

fn has_mark(file: &File, thread: u8) -> bool {
    let mut block = [0; BLOCK];
    let read = file.read_at(u64::from(thread) * BLOCK as u64, &mut block).unwrap();
    read == BLOCK && block.iter().all(|byte| *byte == thread + 1)
}

#[test]
fn a_file_that_is_looked_up_during_its_creation_has_one_state() {
    let volume = TestVolume::new();
    let fs = volume.open();
    let rounds = 3000;
    let name = |round: u32| format!("file-{round}").into_bytes();
    let wait_for = |round| loop {
        match fs.lookup(fs.root(), &name(round)) {
            Ok(id) => return fs.open_file(id).unwrap(),
            Err(Error::NotFound) => {}
            Err(error) => panic!("{error}"),
        }
    };
    let second = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..rounds {
                let file = wait_for(round);
                mark(&file, 1);
                second.lock().unwrap().push(file);
            }
        });
        for round in 0..rounds {
            let id = fs.create(fs.root(), &name(round), &new(0o644)).unwrap();
            let file = fs.open_file(id).unwrap();
            mark(&file, 0);
            if round % 16 == 0 {
                std::thread::yield_now();
            }
        }
    });
    let second = second.into_inner().unwrap();
    for (round, file) in second.iter().enumerate() {
        let other = fs.open_file(file.id()).unwrap();
        for file in [file, &other] {
            assert!(has_mark(file, 0), "round {round}: the maker's block is lost");
            assert!(has_mark(file, 1), "round {round}: the finder's block is lost");
        }
    }
    drop(second);
    let fs = volume.reopen(fs);
    for round in 0..rounds {
        let id = fs.lookup(fs.root(), &name(round)).unwrap();
        let file = fs.open_file(id).unwrap();
        assert!(has_mark(&file, 0) && has_mark(&file, 1), "round {round}: not on the devices");
    }
}

#[test]
fn threads_that_share_names_share_inode_states() {
    const NAMES: [&[u8]; 3] = [b"a", b"b", b"c"];
    const THREADS: u8 = 4;
    let volume = TestVolume::new();
    let fs = volume.open();
    for round in 0..60_u64 {
        let opened = Opened::default();
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (fs, opened) = (&fs, &opened);
                scope.spawn(move || {
                    let mut at = round * 31 + u64::from(thread) * 7;
                    for _ in 0..40 {
                        at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                        step(fs, opened, thread, at >> 33, NAMES);
                    }
                });
            }
            // Entries are created and removed concurrently.
            let (fs, is_over) = (&fs, &is_over);
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    fs.sync().unwrap();
                    is_over.store(true, Ordering::Relaxed);
                }
            });
        });
        opened.compare();
    }
    drop(volume.reopen(fs));
}

/// One operation: it may be refused if another thread was first, but must not have a wrong result.
fn step(fs: &Filesystem, opened: &Opened, thread: u8, random: u64, names: [&[u8]; 3]) {
    let name = |number: u64| names[usize::try_from(number % 3).unwrap()];
    let (one, other, root) = (name(random >> 8), name(random >> 16), fs.root());
    let result = match random % 8 {
        0 | 1 => fs.create(root, one, &new(0o644)).and_then(|id| fs.open_file(id)).map(|file| {
            mark(&file, thread);
            opened.add(file);
        }),
        2 => fs.unlink(root, one),
        3 => fs.rename((root, one), (root, other), RenameFlags::default()),
        4 => fs.lookup(root, one).and_then(|id| fs.link(id, root, other)),
        5 => {
            let whiteout = RenameFlags { whiteout: Some((0, 0)), ..RenameFlags::default() };
            fs.rename((root, one), (root, other), whiteout)
        }
        _ => fs.lookup(root, one).and_then(|id| fs.open_file(id)).map(|file| {
            mark(&file, thread);
            assert!(has_mark(&file, thread), "a block that was just written");
            opened.add(file);
        }),
    };
    match result {
        Ok(())
        | Err(
            Error::Exists
            | Error::NotFound
            | Error::Stale { .. }
            | Error::WrongKind { .. }
            | Error::NotPermitted { .. },
        ) => {}
        Err(error) => panic!("{error}"),
    }
}
