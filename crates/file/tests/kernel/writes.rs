//! Files that the kernel created, written by our code: into every kind of extent, on volumes of
//! every kind that matters to files. `btrfs check` finds nothing, and the kernel reads the same
//! bytes.

use crate::content::{fill, noise, text};
use crate::image::{Image, Mounted, is_skipped, run};
use crate::script::{Dice, Script, compare};
use butternut_device::{Device, FileDevice, OpenDevice};
use butternut_file::{FileState, MergeFile, Source, SourceOptions};
use butternut_format::inode::Inode;
use butternut_format::key::{ItemType, Key};
use butternut_format::units::{Ino, TreeId};
use butternut_tree::{Forest, ForestOptions};
use butternut_volume::{OpenOptions, Volume};
use rustix::fs::{FallocateFlags, fallocate};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

/// What the kernel shows: inode number and bytes, by name.
type Contents = BTreeMap<String, (u64, Vec<u8>)>;

#[test]
fn a_default_volume_is_consistent_after_our_writes() {
    judge("a_default_volume_is_consistent_after_our_writes", "", 1);
}

#[test]
fn a_volume_with_hole_items_is_consistent_after_our_writes() {
    judge("a_volume_with_hole_items_is_consistent_after_our_writes", "-O ^no-holes -n 4096", 2);
}

#[test]
fn a_volume_with_wide_checksums_is_consistent_after_our_writes() {
    judge("a_volume_with_wide_checksums_is_consistent_after_our_writes", "--csum sha256", 3);
}

#[test]
fn a_mixed_volume_is_consistent_after_our_writes() {
    judge(
        "a_mixed_volume_is_consistent_after_our_writes",
        "--mixed --csum xxhash64 -O ^no-holes",
        4,
    );
}

#[test]
fn thousands_of_extents_and_files_are_merged_together() {
    if is_skipped("thousands_of_extents_and_files_are_merged_together") {
        return;
    }
    for mkfs in ["", "-O ^no-holes -n 4096"] {
        let image = Image::make(1024, mkfs);
        let mounted = image.mount("compress=no");
        for number in 0..600 {
            fs::write(mounted.file(&format!("small-{number}")), "").unwrap();
        }
        fs::write(mounted.file("large"), noise(70, 64 << 20)).unwrap();
        fs::write(mounted.file("cut"), noise(71, 16 << 20)).unwrap();
        mounted.sync();
        let mut contents = contents_of(&mounted.file(""));
        drop(mounted);
        many(&image, &mut contents);
        clean(&image, mkfs);
        let mounted = image.mount("compress=no");
        agree(&contents_of(&mounted.file("")), &contents);
        run("btrfs scrub start -Bq", &[&mounted.file("")]);
        mounted.assert_quiet();
    }
}

#[test]
fn threads_write_their_files_while_others_commit() {
    if is_skipped("threads_write_their_files_while_others_commit") {
        return;
    }
    let image = Image::make(1024, "");
    let mounted = image.mount("compress=no");
    for number in 0..8 {
        fs::write(mounted.file(&format!("file-{number}")), noise(number, 300_000)).unwrap();
        let copy = mounted.file(&format!("twin-{number}"));
        run("cp --reflink=always", &[&mounted.file(&format!("file-{number}")), &copy]);
    }
    mounted.sync();
    let mut contents = contents_of(&mounted.file(""));
    drop(mounted);
    {
        let source = open(&image);
        let mut files = states(&source, &mut contents);
        std::thread::scope(|scope| {
            for (number, (_, file, bytes)) in (0..).zip(&mut files) {
                let source = &source;
                scope.spawn(move || {
                    let mut script = Script::new(9000 + number, 1 << 20);
                    for _ in 0..60 {
                        script.run(source, file, bytes);
                        script.look(source, file, bytes);
                    }
                });
            }
        });
        merge_all(&mut files);
        source.forest().commit().unwrap();
    }
    clean(&image, "threads");
    agree(&contents_of(&image.mount("ro").file("")), &contents);
}

/// Fragments two large files, truncates one of them, and fills many small ones.
fn many(image: &Image, contents: &mut Contents) {
    let source = open(image);
    let mut files = states(&source, contents);
    let mut dice = Dice::new(72);
    for (number, (name, file, bytes)) in (0..).zip(&mut files) {
        if name.starts_with("small") {
            let data = noise(number, [10, 2048, 2049, 4096, 12_345][number as usize % 5]);
            assert_eq!(file.write_at(0, &data).unwrap(), data.len());
            **bytes = data;
            continue;
        }
        for turn in 0..bytes.len() as u64 / 8192 {
            let at = dice.below(bytes.len() as u64 / 4096) * 4096;
            let data = noise(turn, 4096);
            assert_eq!(file.write_at(at, &data).unwrap(), 4096);
            bytes[at as usize..at as usize + 4096].copy_from_slice(&data);
        }
    }
    merge_all(&mut files);
    source.forest().commit().unwrap();
    for (name, file, bytes) in &mut files {
        if name == "cut" {
            file.punch_hole(5_000_000..9_000_000, &mut |_| {}).unwrap();
            bytes[5_000_000..9_000_000].fill(0);
            file.truncate(1_234_567, &mut |_| {}).unwrap();
            bytes.truncate(1_234_567);
        }
    }
    merge_all(&mut files);
    source.forest().commit().unwrap();
    for (_, file, bytes) in &files {
        compare(&source, file, bytes);
    }
}

fn judge(test: &str, mkfs: &str, seed: u64) {
    if is_skipped(test) {
        return;
    }
    let seed = seed + std::env::var("BUTTERNUT_SEED").map_or(0, |more| more.parse().unwrap());
    let image = Image::make(768, mkfs);
    fill(&image);
    let mounted = image.mount("compress=no");
    in_place(&mounted);
    mounted.sync();
    run("btrfs subvolume snapshot", &[&mounted.file(""), &mounted.file("snap")]);
    after_the_snapshot(&mounted);
    mounted.sync();
    let mut contents = contents_of(&mounted.file(""));
    let snapshot = contents_of(&mounted.file("snap"));
    drop(mounted);
    for round in 0..2 {
        write_all(&image, &mut contents, seed * 10 + round);
        clean(&image, &format!("{mkfs}: after round {round}"));
        let mounted = image.mount("ro");
        agree(&contents_of(&mounted.file("")), &contents);
        agree(&contents_of(&mounted.file("snap")), &snapshot);
        drop(mounted);
        // The kernel continues with the files that we wrote.
        let mounted = image.mount("compress=no");
        for (number, (name, (_, bytes))) in (0..).zip(&mut contents) {
            let file = fs::OpenOptions::new().write(true).open(mounted.file(name)).unwrap();
            let at = number * 3000 % (bytes.len() as u64 + 1);
            let mut data = noise(number, 5000);
            if mkfs.contains("^no-holes") {
                // Linux 6.18 does not write the new size when it writes into preallocated space
                // past the end of a file that was closed meanwhile, on volumes with hole items.
                data.truncate(bytes.len() - at as usize);
            }
            file.write_all_at(&data, at).unwrap();
            bytes.resize(bytes.len().max(at as usize + data.len()), 0);
            bytes[at as usize..at as usize + data.len()].copy_from_slice(&data);
        }
        run("btrfs scrub start -Bq", &[&mounted.file("")]);
        mounted.sync();
        mounted.assert_quiet();
        drop(mounted);
        clean(&image, &format!("{mkfs}: after the kernel's round {round}"));
    }
}

/// Files that are written in place, and preallocated space in every state.
fn in_place(mounted: &Mounted) {
    for name in ["nocow", "nocow-shared", "nocow-prealloc"] {
        fs::write(mounted.file(name), "").unwrap();
        run("chattr +C", &[&mounted.file(name)]);
    }
    fs::write(mounted.file("nocow"), noise(60, 700_000)).unwrap();
    fs::write(mounted.file("nocow-shared"), noise(61, 700_000)).unwrap();
    let preallocate = |name: &str, bytes: u64| {
        let mut options = fs::OpenOptions::new();
        options.create(true).truncate(false).write(true);
        let file = options.open(mounted.file(name)).unwrap();
        fallocate(&file, FallocateFlags::empty(), 0, bytes).unwrap();
        file
    };
    preallocate("nocow-prealloc", 900_000).write_all_at(&noise(62, 100_000), 40_000).unwrap();
    preallocate("prealloc-shared", 500_000).write_all_at(&noise(63, 9000), 8192).unwrap();
    fs::write(mounted.file("shared-text"), text(64, 300_000)).unwrap();
}

fn after_the_snapshot(mounted: &Mounted) {
    let file = |name: &str| fs::OpenOptions::new().write(true).open(mounted.file(name)).unwrap();
    file("nocow").write_all_at(&noise(65, 200_000), 100_000).unwrap();
    fallocate(file("nocow-prealloc"), FallocateFlags::KEEP_SIZE, 0, 2_000_000).unwrap();
    fs::write(mounted.file("prealloc-own"), noise(66, 3000)).unwrap();
    fallocate(file("prealloc-own"), FallocateFlags::KEEP_SIZE, 0, 1_000_000).unwrap();
}

fn contents_of(folder: &Path) -> Contents {
    let files = fs::read_dir(folder).unwrap().map(Result::unwrap);
    let files = files.filter(|entry| entry.file_type().unwrap().is_file());
    files
        .map(|entry| {
            let name = entry.file_name().into_string().unwrap();
            (name, (entry.metadata().unwrap().ino(), fs::read(entry.path()).unwrap()))
        })
        .collect()
}

fn agree(have: &Contents, want: &Contents) {
    assert_eq!(have.len(), want.len());
    for (name, (_, bytes)) in want {
        let (_, read) = &have[name];
        assert_eq!(read.len(), bytes.len(), "{name}");
        if read != bytes {
            let first = read.iter().zip(bytes).position(|(have, want)| have != want);
            panic!("{name} differs at byte {}", first.unwrap_or(0));
        }
    }
}

/// Changes every file at random, and commits the changes.
fn write_all(image: &Image, contents: &mut Contents, seed: u64) {
    let source = open(image);
    let mut files = states(&source, contents);
    for turn in 0..6 {
        for (number, (_, file, bytes)) in (0..).zip(&mut files) {
            let reach = (bytes.len() as u64 + 200_000).min(4 << 20);
            let mut script = Script::new(seed * 100_000 + turn * 1000 + number, reach);
            for _ in 0..4 {
                script.run(&source, file, bytes);
                script.look(&source, file, bytes);
            }
        }
    }
    merge_all(&mut files);
    source.forest().commit().unwrap();
    for (_, file, bytes) in &files {
        compare(&source, file, bytes);
    }
}

fn open(image: &Image) -> Source {
    let device =
        FileDevice::open(&image.path(), &OpenDevice { writable: true, ..OpenDevice::default() });
    let device: Arc<dyn Device> = Arc::new(device.unwrap());
    let volume = Volume::open(vec![device], OpenOptions::default()).unwrap();
    let forest = Forest::open_writable(Arc::new(volume), ForestOptions::default()).unwrap();
    let workers = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
    Source::open(forest, Arc::new(workers), SourceOptions::default()).unwrap()
}

/// A file that is being written, and its expected contents.
type Writing<'a> = (String, FileState, &'a mut Vec<u8>);

/// In the order of inodes.
fn states<'a>(source: &Source, contents: &'a mut Contents) -> Vec<Writing<'a>> {
    let tree = source.forest().tree(TreeId::FS).unwrap().unwrap();
    let mut files: Vec<Writing<'a>> = Vec::new();
    for (name, (ino, bytes)) in contents.iter_mut() {
        let item = tree.find(&Key::new(*ino, ItemType::INODE_ITEM, 0)).unwrap().unwrap();
        let inode = Inode::check(item.data()).unwrap();
        let file = FileState::new(source, &tree, Ino(*ino), &inode);
        assert_eq!(file.size(), bytes.len() as u64, "{name}");
        files.push((name.clone(), file, bytes));
    }
    files.sort_by_key(|(_, file, _)| file.view().ino());
    files
}

fn merge_all(files: &mut [Writing<'_>]) {
    let mut updates: Vec<_> =
        files.iter().map(|_| |inode: &mut Inode| inode.sequence += 1).collect();
    let mut merging: Vec<MergeFile<'_>> = files
        .iter_mut()
        .zip(&mut updates)
        .map(|((_, file, _), update)| MergeFile { file, update })
        .collect();
    FileState::merge_many(&mut merging).unwrap();
    assert!(files.iter().all(|(_, file, _)| file.is_clean()));
}

/// Asserts that `btrfs check` finds nothing.
fn clean(image: &Image, what: &str) {
    let mut command = Command::new("btrfs");
    let out = command.args(["check", "--check-data-csum"]).arg(image.path()).output().unwrap();
    let said =
        format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    let is_clean = out.status.success() && !said.to_lowercase().contains("error:");
    assert!(is_clean, "{what}:\n{said}");
}
