//! Pages of the kernel's cache, and concurrent direct writes to the same bytes.

use super::{MIB, NAME, PAGE, aligned, open, ours};
use anyhow::{Context, Result, ensure};
use butternut_judges::subjects::Mounted;
use butternut_sys::buffer::Buffer;
use butternut_sys::buffers::Load;
use butternut_sys::file::{DiskFile, OpenDisk};
use butternut_sys::mapped::Mapped;
use butternut_sys::ring::{Operation, Ring, RingOptions, Submission};
use rustix::fs::{FallocateFlags, OFlags};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

const PAGES: usize = 64;
const WORD: usize = size_of::<u64>();
const ROUNDS: u64 = 60;

/// How a thread changes its word of each page.
#[derive(Clone, Copy, Debug)]
enum Writer {
    /// By a store to a shared mapping.
    Store,
    /// By write(2).
    Write,
    /// By write(2) with `O_DIRECT`.
    Direct,
}

/// Each thread owns a word in every page. No word is lost, whatever other threads do to the rest of
/// the page.
pub(super) fn words_of_a_page_have_their_own_writers(options: &str) -> Result<()> {
    const WRITERS: [Writer; 6] =
        [Writer::Store, Writer::Write, Writer::Store, Writer::Direct, Writer::Store, Writer::Write];
    let mut volume = ours(options)?;
    let path = volume.root()?.join(NAME);
    std::fs::write(&path, vec![0; PAGES * PAGE])?;
    let mut want = vec![0; PAGES * PAGE];
    for round in 1..=ROUNDS {
        thread::scope(|scope| {
            let spawn = |(number, writer): (usize, &Writer)| {
                let (path, writer) = (&path, *writer);
                scope.spawn(move || write_words(path, writer, number, round))
            };
            let threads: Vec<_> = WRITERS.iter().enumerate().map(spawn).collect();
            threads.into_iter().try_for_each(|it| it.join().expect("no thread panics"))
        })?;
        for page in 0..PAGES {
            for number in 0..WRITERS.len() {
                let at = page * PAGE + number * WORD;
                want[at..at + WORD].copy_from_slice(&word(number, round));
            }
        }
        let lost = |have: &[u8]| {
            let at = have.iter().zip(&want).position(|(have, want)| have != want)?;
            Some((at / PAGE, WRITERS.get(at % PAGE / WORD).copied()))
        };
        for flags in [OFlags::empty(), OFlags::DIRECT] {
            let mut have = vec![0; PAGES * PAGE];
            open(&path, flags)?.read_exact_at(&mut have, 0)?;
            let found = lost(&have);
            ensure!(found.is_none(), "round {round}, {flags:?}: lost in {found:?}");
        }
    }
    volume.remount()?;
    ensure!(std::fs::read(volume.root()?.join(NAME))? == want, "mounted again");
    volume.unmount()
}

fn word(number: usize, round: u64) -> [u8; WORD] {
    (round * 256 + number as u64 + 1).to_le_bytes()
}

fn write_words(path: &Path, writer: Writer, number: usize, round: u64) -> Result<()> {
    let direct = if matches!(writer, Writer::Direct) { OFlags::DIRECT } else { OFlags::empty() };
    let file = open(path, direct)?;
    let mapped = Mapped::shared(&file, PAGES * PAGE)?;
    for page in 0..PAGES {
        let at = page * PAGE + number * WORD;
        match writer {
            Writer::Store => mapped.put(at, &word(number, round)),
            Writer::Write | Writer::Direct => {
                file.write_all_at(&word(number, round), at as u64)?;
            }
        }
    }
    Ok(())
}

/// A write through the kernel's cache is read back, while other handles are opened with `O_DIRECT`
/// and mapped, and others fill the pages again.
pub(super) fn words_survive_mappings_of_direct_handles(options: &str) -> Result<()> {
    const WRITES: u64 = 20_000;
    let mut volume = ours(options)?;
    let path = volume.root()?.join(NAME);
    std::fs::write(&path, vec![0; PAGES * PAGE])?;
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        let mapper = scope.spawn(|| {
            while !is_done.load(Ordering::SeqCst) {
                let file = open(&path, OFlags::DIRECT)?;
                drop(Mapped::shared(&file, PAGES * PAGE)?);
            }
            anyhow::Ok(())
        });
        let reader = scope.spawn(|| {
            let (file, mut read) = (File::open(&path)?, vec![0; PAGES * PAGE]);
            while !is_done.load(Ordering::SeqCst) {
                file.read_exact_at(&mut read, 0)?;
            }
            anyhow::Ok(())
        });
        let written = write_and_read_words(&path, WRITES);
        is_done.store(true, Ordering::SeqCst);
        mapper.join().expect("no thread panics")?;
        reader.join().expect("no thread panics")?;
        written
    })?;
    volume.unmount()
}

fn write_and_read_words(path: &Path, writes: u64) -> Result<()> {
    let file = open(path, OFlags::empty())?;
    for number in 1..=writes {
        let at = (number * 40 % (PAGES * PAGE) as u64) & !7;
        file.write_all_at(&number.to_le_bytes(), at)?;
        let mut read = [0; WORD];
        file.read_exact_at(&mut read, at)?;
        let have = u64::from_le_bytes(read);
        ensure!(have == number, "write {number}: read {have} at {at}");
    }
    Ok(())
}

/// Cached readers see an asynchronous direct write as soon as it completes, even if they read the
/// same pages while it was in flight.
pub(super) fn readers_of_the_cache_see_asynchronous_writes(options: &str) -> Result<()> {
    const BYTES: usize = MIB / 2;
    let mut volume = ours(options)?;
    let path = volume.root()?.join(NAME);
    std::fs::write(&path, vec![0; BYTES])?;
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        let readers: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    let mut read = vec![0; BYTES];
                    while !is_done.load(Ordering::SeqCst) {
                        File::open(&path)?.read_exact_at(&mut read, 0)?;
                    }
                    anyhow::Ok(())
                })
            })
            .collect();
        let written = write_and_compare(&path, BYTES);
        is_done.store(true, Ordering::SeqCst);
        readers.into_iter().try_for_each(|reader| reader.join().expect("no thread panics"))?;
        written
    })?;
    volume.unmount()
}

fn write_and_compare(path: &Path, bytes: usize) -> Result<()> {
    const DEPTH: usize = 8;
    let how = OpenDisk { writable: true, ..OpenDisk::default() };
    let disk = DiskFile::open(path, how)?;
    ensure!(disk.is_direct(), "the mount refuses O_DIRECT");
    let mut ring: Ring<()> =
        Ring::new(&[&disk], &RingOptions { depth: DEPTH, ..RingOptions::default() })?;
    let piece = bytes / DEPTH;
    for round in 1..=200_u8 {
        for number in 0..DEPTH {
            let mut buffer = Buffer::zeroed(piece);
            buffer.fill(round);
            let submission = Submission {
                operation: Operation::Write,
                file: 0,
                offset: (number * piece) as u64,
                load: Load::from(buffer),
                need: piece,
                user_data: (),
            };
            ring.submit(submission).ok().context("the submission queue has a free entry")?;
        }
        ring.wait(DEPTH, None);
        while let Some(done) = ring.next_completion() {
            done.result.map_err(|errno| std::io::Error::from_raw_os_error(errno.0))?;
        }
        let mut read = vec![0; bytes];
        File::open(path)?.read_exact_at(&mut read, 0)?;
        let stale = read.iter().position(|byte| *byte != round);
        ensure!(stale.is_none(), "round {round}: old bytes at {stale:?}");
    }
    Ok(())
}

/// Large writes complete and are whole while other threads store to all of their pages.
pub(super) fn large_writes_end_beside_stores(options: &str) -> Result<()> {
    const BYTES: usize = MIB;
    let mut volume = ours(options)?;
    let path = volume.root()?.join(NAME);
    std::fs::write(&path, vec![0; BYTES])?;
    let is_done = AtomicBool::new(false);
    let store = |thread: usize| {
        let mapped = Mapped::shared(open(&path, OFlags::empty())?, BYTES)?;
        while !is_done.load(Ordering::SeqCst) {
            for page in 0..BYTES / PAGE {
                mapped.put(page * PAGE + thread * WORD, &[255; WORD]);
            }
        }
        anyhow::Ok(())
    };
    thread::scope(|scope| {
        let storing = [scope.spawn(|| store(0)), scope.spawn(|| store(1))];
        let written = (1..=20).try_for_each(|round| {
            let file = open(&path, OFlags::empty())?;
            file.write_all_at(&vec![round; BYTES], 0)?;
            let mut have = vec![0; BYTES];
            file.read_exact_at(&mut have, 0)?;
            for (number, page) in have.chunks(PAGE).enumerate() {
                let old = page[2 * WORD..].iter().find(|byte| **byte != round);
                ensure!(old.is_none(), "round {round}, page {number}: {old:?}");
            }
            Ok(())
        });
        is_done.store(true, Ordering::SeqCst);
        for thread in storing {
            thread.join().expect("no thread panics")?;
        }
        written
    })?;
    volume.unmount()
}

/// A file description that gets `O_DIRECT` by `fcntl(2)` becomes direct at that time.
pub(super) fn a_handle_may_become_direct(options: &str) -> Result<()> {
    let mut volume = ours(options)?;
    let path = volume.root()?.join(NAME);
    std::fs::write(&path, vec![1; 4 * PAGE])?;
    let file = open(&path, OFlags::empty())?;
    let mapped = Mapped::shared(&file, 4 * PAGE)?;
    mapped.put(PAGE, &[2; PAGE]);
    rustix::fs::fcntl_setfl(&file, OFlags::DIRECT)?;
    let memory = aligned(PAGE, 3)?;
    ensure!(memory.write_to(&file, 0, 0..PAGE)? == PAGE);
    let mut have = vec![0; 4 * PAGE];
    mapped.get(0, &mut have);
    let want = [[3; PAGE], [2; PAGE], [1; PAGE], [1; PAGE]].concat();
    ensure!(have == want, "the mapping");
    drop((mapped, file));
    volume.remount()?;
    ensure!(std::fs::read(volume.root()?.join(NAME))? == want, "mounted again");
    volume.unmount()
}

/// A handle with `O_DIRECT` that is opened beside a writer through the cache does not bypass the
/// cache, and its asynchronous writes hold no inode lock. What the kernel drops for them must not
/// be a page that the other handle's write(2) has changed and not sent.
pub(super) fn words_survive_asynchronous_writes_beside_them(options: &str) -> Result<()> {
    const BYTES: usize = MIB / 2;
    /// More than may wait for invalidations.
    const DEPTH: usize = 32;
    const WRITES: u64 = 5000;
    let mut volume = ours(options)?;
    let path = volume.root()?.join(NAME);
    std::fs::write(&path, vec![0; PAGES * PAGE + BYTES])?;
    // The first writer goes through the cache, so the direct handle does not bypass it.
    let first = open(&path, OFlags::empty())?;
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        let direct = scope.spawn(|| {
            let how = OpenDisk { writable: true, ..OpenDisk::default() };
            let disk = DiskFile::open(&path, how)?;
            ensure!(disk.is_direct(), "the mount refuses O_DIRECT");
            let mut ring: Ring<()> =
                Ring::new(&[&disk], &RingOptions { depth: DEPTH, ..RingOptions::default() })?;
            let piece = BYTES / DEPTH;
            while !is_done.load(Ordering::SeqCst) {
                for number in 0..DEPTH {
                    let mut buffer = Buffer::zeroed(piece);
                    buffer.fill(1);
                    let submission = Submission {
                        operation: Operation::Write,
                        file: 0,
                        offset: (PAGES * PAGE + number * piece) as u64,
                        load: Load::from(buffer),
                        need: piece,
                        user_data: (),
                    };
                    ring.submit(submission).ok().context("the queue has a free entry")?;
                }
                ring.wait(DEPTH, None);
                while let Some(done) = ring.next_completion() {
                    done.result.map_err(|errno| std::io::Error::from_raw_os_error(errno.0))?;
                }
            }
            anyhow::Ok(())
        });
        let reader = scope.spawn(|| {
            let (file, mut read) = (File::open(&path)?, vec![0; PAGES * PAGE + BYTES]);
            while !is_done.load(Ordering::SeqCst) {
                file.read_exact_at(&mut read, 0)?;
            }
            anyhow::Ok(())
        });
        let written = write_and_read_words(&path, WRITES);
        is_done.store(true, Ordering::SeqCst);
        direct.join().expect("no thread panics")?;
        reader.join().expect("no thread panics")?;
        written
    })?;
    drop(first);
    volume.unmount()
}

#[derive(Clone, Copy, Debug)]
enum Change {
    Punch,
    Zero,
    /// Of the whole page.
    Copy,
}

/// No word but the first is stored to; what a call has made of the others stays.
///
/// One thread stores to the first word of a page, and unmaps it: that makes the kernel send the
/// page without its inode lock, so also while a punch, a zeroing or a copy is served. Another
/// thread writes the rest of the page, and changes it that way.
pub(super) fn zeroes_and_copies_stay_beside_stores(options: &str) -> Result<()> {
    const COPIED: u8 = 254;
    let mut volume = ours(options)?;
    let (path, other) = (volume.root()?.join(NAME), volume.root()?.join("other"));
    std::fs::write(&path, vec![0; 2 * PAGE])?;
    std::fs::write(&other, vec![COPIED; PAGE])?;
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        let storing = scope.spawn(|| {
            let file = open(&path, OFlags::empty())?;
            while !is_done.load(Ordering::SeqCst) {
                let mapped = Mapped::shared(&file, PAGE)?;
                mapped.put(0, &[255; WORD]);
            }
            anyhow::Ok(())
        });
        let changed = (1..=300_u32).try_for_each(|round| {
            let change = [Change::Punch, Change::Zero, Change::Copy][(round % 3) as usize];
            change_and_compare(&path, &other, change, (round % 200) as u8 + 1, COPIED)
                .with_context(|| format!("round {round}, {change:?}"))
        });
        is_done.store(true, Ordering::SeqCst);
        storing.join().expect("no thread panics")?;
        changed
    })?;
    volume.unmount()
}

fn change_and_compare(
    path: &Path,
    other: &Path,
    change: Change,
    old: u8,
    copied: u8,
) -> Result<()> {
    let file = open(path, OFlags::empty())?;
    file.write_all_at(&[old; PAGE - WORD], WORD as u64)?;
    let (at, bytes, keep) = (WORD as u64, (PAGE - WORD) as u64, FallocateFlags::KEEP_SIZE);
    match change {
        Change::Punch => {
            rustix::fs::fallocate(&file, FallocateFlags::PUNCH_HOLE | keep, at, bytes)?;
        }
        Change::Zero => {
            rustix::fs::fallocate(&file, FallocateFlags::ZERO_RANGE | keep, at, bytes)?;
        }
        Change::Copy => {
            let (from, mut from_at, mut to_at) = (File::open(other)?, 0, 0);
            let (source, target) = (Some(&mut from_at), Some(&mut to_at));
            let done = rustix::fs::copy_file_range(&from, source, &file, target, PAGE)?;
            ensure!(done == PAGE, "{done} bytes were copied");
        }
    }
    let want = if matches!(change, Change::Copy) { copied } else { 0 };
    // The kernel zeroes its own page; the volume is what the other flags show.
    for flags in [OFlags::empty(), OFlags::DIRECT] {
        let mut have = vec![0; PAGE];
        open(path, flags)?.read_exact_at(&mut have, 0)?;
        let wrong = have[WORD..].iter().position(|byte| *byte != want);
        ensure!(wrong.is_none(), "{flags:?}: old bytes at {wrong:?}: {}", have[WORD]);
    }
    Ok(())
}

/// The pages were cached before a handle with `O_DIRECT` was opened, from which on fills are
/// recorded. Each page is changed once only: after a change it is filled anew, and recorded.
pub(super) fn zeroes_stay_beside_stores_and_a_direct_handle(options: &str) -> Result<()> {
    const CHANGED: usize = 1000;
    let mut volume = ours(options)?;
    let path = volume.root()?.join(NAME);
    std::fs::write(&path, vec![7; CHANGED * PAGE])?;
    let mapped_file = open(&path, OFlags::empty())?;
    let mapped = Mapped::shared(&mapped_file, CHANGED * PAGE)?;
    let mut all = vec![0; CHANGED * PAGE];
    mapped.get(0, &mut all); // Fills every page, before anything is recorded.
    let direct = open(&path, OFlags::DIRECT)?; // start_recording()
    let (page, is_done) = (AtomicUsize::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        // As in zeroes_and_copies_stay_beside_stores: the end of a mapping makes the kernel send
        // its dirty pages, without its inode lock.
        let storing = scope.spawn(|| {
            let file = open(&path, OFlags::empty())?;
            while !is_done.load(Ordering::SeqCst) {
                let mapped = Mapped::shared(&file, CHANGED * PAGE)?;
                mapped.put(page.load(Ordering::SeqCst) * PAGE, &[255; WORD]);
            }
            anyhow::Ok(())
        });
        let changed = (0..CHANGED).try_for_each(|number| {
            page.store(number, Ordering::SeqCst);
            let file = open(&path, OFlags::empty())?;
            let (at, bytes) = ((number * PAGE + WORD) as u64, (PAGE - WORD) as u64);
            let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            rustix::fs::fallocate(&file, how, at, bytes)?;
            anyhow::Ok(())
        });
        is_done.store(true, Ordering::SeqCst);
        storing.join().expect("no thread panics")?;
        changed
    })?;
    drop((mapped, mapped_file, direct));
    volume.remount()?; // What is stored, not what the kernel has cached.
    let have = std::fs::read(volume.root()?.join(NAME))?;
    for (number, page) in have.chunks(PAGE).enumerate() {
        ensure!(page[WORD..].iter().all(|byte| *byte == 0), "old bytes in page {number}");
    }
    volume.unmount()
}
