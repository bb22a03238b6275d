//! Files of every kind that the kernel can write, and what it reads back from them.

use crate::image::{Image, Mounted, run};
use crate::script::Dice;
use rustix::fs::{FallocateFlags, SeekFrom, copy_file_range, fallocate, seek};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};

/// Bytes that do not compress.
pub(crate) fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut dice = Dice::new(seed);
    (0..bytes.div_ceil(8)).flat_map(|_| dice.next().to_le_bytes()).take(bytes).collect()
}

/// Bytes that compress to about a third.
pub(crate) fn text(seed: u64, bytes: usize) -> Vec<u8> {
    let mut dice = Dice::new(seed);
    let mut text = Vec::with_capacity(bytes + 16);
    while text.len() < bytes {
        let word = dice.below(500);
        text.extend(format!("{:x} ", word.wrapping_mul(0x1234_5679)).bytes());
    }
    text.truncate(bytes);
    text
}

/// A file as the kernel showed it.
pub(crate) struct Seen {
    pub(crate) name: String,
    pub(crate) ino: u64,
    pub(crate) bytes: Vec<u8>,
    /// Offset, next data from there, next hole from there.
    pub(crate) seeks: Vec<(u64, Option<u64>, Option<u64>)>,
}

/// Creates every kind of file; reads them after a fresh mount.
pub(crate) fn fill(image: &Image) -> Vec<Seen> {
    let mounted = image.mount("compress=no");
    plain(&mounted);
    sparse(&mounted);
    shared(&mounted);
    for algorithm in ["zlib", "lzo", "zstd"] {
        mounted.remount(&format!("compress-force={algorithm}"));
        compressed(&mounted, algorithm);
    }
    mounted.remount("compress=no,nodatasum");
    fs::write(mounted.file("nodatasum"), noise(50, 900_001)).unwrap();
    mounted.sync();
    drop(mounted);
    see(&image.mount("ro"))
}

fn plain(mounted: &Mounted) {
    fs::write(mounted.file("empty"), "").unwrap();
    fs::write(mounted.file("inline"), text(1, 1000)).unwrap();
    fs::write(mounted.file("inline-most"), noise(2, 2048)).unwrap();
    fs::write(mounted.file("just-too-long"), noise(3, 2049)).unwrap();
    fs::write(mounted.file("one-sector"), noise(4, 4096)).unwrap();
    fs::write(mounted.file("plain"), noise(5, (3 << 20) + 1234)).unwrap();
    fs::write(mounted.file("grown-inline"), noise(6, 100)).unwrap();
    mounted.sync();
    edit(mounted, "grown-inline").set_len(3000).unwrap();
    fs::write(mounted.file("fragmented"), noise(7, 1 << 20)).unwrap();
    let mut dice = Dice::new(8);
    let fragmented = edit(mounted, "fragmented");
    for turn in 0..40 {
        let at = dice.below(255) * 4096 + if turn % 5 == 0 { 77 } else { 0 };
        let bytes = 1 + dice.below(9000) as usize;
        fragmented.write_all_at(&noise(turn, bytes), at).unwrap();
        mounted.sync();
    }
}

fn sparse(mounted: &Mounted) {
    fs::write(mounted.file("all-hole"), "").unwrap();
    edit(mounted, "all-hole").set_len((7 << 20) + 5).unwrap();
    fs::write(mounted.file("sparse"), "").unwrap();
    let file = edit(mounted, "sparse");
    for (at, bytes) in [(0, 4096), (20_000, 500), (1 << 20, 70_000), (5_000_000, 4096)] {
        file.write_all_at(&noise(at, bytes), at).unwrap();
    }
    file.set_len(6_000_123).unwrap();
    fs::write(mounted.file("punched"), noise(11, 2 << 20)).unwrap();
    mounted.sync();
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let file = edit(mounted, "punched");
    fallocate(&file, punch, 100_000, 300_000).unwrap();
    fallocate(&file, punch, 1 << 20, 4096).unwrap();
    fs::write(mounted.file("prealloc"), "").unwrap();
    let file = edit(mounted, "prealloc");
    fallocate(&file, FallocateFlags::empty(), 0, 1_500_000).unwrap();
    mounted.sync();
    for at in [0, 40_960, 500_001, 1_499_000] {
        file.write_all_at(&noise(at, 9000), at).unwrap();
        mounted.sync();
    }
    fs::write(mounted.file("prealloc-beyond"), noise(12, 10_000)).unwrap();
    let file = edit(mounted, "prealloc-beyond");
    fallocate(&file, FallocateFlags::KEEP_SIZE, 0, 3 << 20).unwrap();
}

/// Reflinks, and files that show only parts of their extents.
fn shared(mounted: &Mounted) {
    mounted.sync();
    run("cp --reflink=always", &[&mounted.file("plain"), &mounted.file("clone")]);
    edit(mounted, "clone").write_all_at(&noise(20, 10_000), 1_000_000).unwrap();
    bookends(mounted, "plain", "bookend");
}

/// A file that shows parts of another file's extents, out of order.
fn bookends(mounted: &Mounted, from: &str, to: &str) {
    let source = File::open(mounted.file(from)).unwrap();
    fs::write(mounted.file(to), "").unwrap();
    let target = edit(mounted, to);
    for (at, goes_to, bytes) in
        [(8192, 0, 40_960), (1 << 20, 200_704, 4096), (16_384, 204_800, 196_608)]
    {
        let (mut at, mut goes_to) = (at, goes_to);
        let copied =
            copy_file_range(&source, Some(&mut at), &target, Some(&mut goes_to), bytes).unwrap();
        assert_eq!(copied, bytes);
    }
}

fn compressed(mounted: &Mounted, algorithm: &str) {
    let name = |kind: &str| format!("{algorithm}-{kind}");
    fs::write(mounted.file(&name("text")), text(30, (2 << 20) + 777)).unwrap();
    fs::write(mounted.file(&name("noise")), noise(31, 500_000)).unwrap();
    fs::write(mounted.file(&name("zeroes")), vec![0; 1_000_000]).unwrap();
    fs::write(mounted.file(&name("inline")), text(32, 1900)).unwrap();
    fs::write(mounted.file(&name("inline-full")), text(33, 4000)).unwrap();
    fs::write(mounted.file(&name("small")), text(34, 20_000)).unwrap();
    fs::write(mounted.file(&name("rewritten")), text(35, 1 << 20)).unwrap();
    mounted.sync();
    let mut dice = Dice::new(36);
    let file = edit(mounted, &name("rewritten"));
    for turn in 0..12 {
        let at = dice.below(1 << 20);
        let bytes = 1 + dice.below(30_000) as usize;
        let part = if turn % 2 == 0 { text(turn, bytes) } else { noise(turn, bytes) };
        file.write_all_at(&part, at).unwrap();
        mounted.sync();
    }
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(&file, punch, 300_000, 50_000).unwrap();
    bookends(mounted, &name("text"), &name("bookend"));
}

fn edit(mounted: &Mounted, name: &str) -> File {
    OpenOptions::new().read(true).write(true).open(mounted.file(name)).unwrap()
}

/// What the kernel shows of every file.
fn see(mounted: &Mounted) -> Vec<Seen> {
    let mut seen = Vec::new();
    for entry in fs::read_dir(mounted.file("")).unwrap() {
        let path = entry.unwrap().path();
        let bytes = fs::read(&path).unwrap();
        let file = File::open(&path).unwrap();
        let mut dice = Dice::new(40);
        let size = bytes.len() as u64;
        let edges = [0, 1, 4095, 4096, size.saturating_sub(1), size, size + 1, size + 5000];
        let any = (0..150).map(|_| dice.below(size + 1));
        let seeks = edges.into_iter().chain(any).map(|at| {
            (at, seek(&file, SeekFrom::Data(at)).ok(), seek(&file, SeekFrom::Hole(at)).ok())
        });
        seen.push(Seen {
            name: path.file_name().unwrap().to_string_lossy().into_owned(),
            ino: file.metadata().unwrap().ino(),
            seeks: seeks.collect(),
            bytes,
        });
    }
    assert!(seen.len() > 30, "the image is filled");
    seen
}
