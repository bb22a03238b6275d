//! Freed space can be reused for anything: a volume that was filled with names and emptied holds as
//! much data as a new one, and vice versa, and as much as the kernel's driver reclaims on a volume
//! of the same size.

use crate::kernel_image::{KernelImage, kernel_is_here};
use crate::volume::{TestVolume, names, new};
use butternut::{FileId, Filesystem};
use butternut_mkfs::MkfsOptions;

/// Bytes of a volume, and of the kernel's image.
const VOLUME_BYTES: u64 = 1 << 30;
/// Number of small files, which need more than the first metadata block group.
const FILES: u32 = 28_000;
const SMALL_BYTES: usize = 1800;
const CHUNK_BYTES: usize = 4 << 20;

fn make_small_files(fs: &Filesystem, dir: FileId) {
    for number in 0..FILES {
        let id = fs.create(dir, format!("{number}").as_bytes(), &new(0o644)).unwrap();
        let file = fs.open_file(id).unwrap();
        assert_eq!(file.write_at(0, &[7; SMALL_BYTES]).unwrap(), SMALL_BYTES);
    }
    fs.sync().unwrap();
}

fn remove_all(fs: &Filesystem, dir: FileId) {
    for name in names(fs, dir) {
        fs.unlink(dir, name.as_bytes()).unwrap();
    }
    fs.sync().unwrap();
}

/// Fills the volume with one file, and returns its size in bytes.
fn fill(fs: &Filesystem, dir: FileId) -> u64 {
    let id = fs.create(dir, b"fill", &new(0o644)).unwrap();
    let file = fs.open_file(id).unwrap();
    let chunk: Vec<u8> = (0..=250).cycle().take(CHUNK_BYTES).collect();
    let mut bytes = 0;
    loop {
        match file.write_at(bytes, &chunk).and_then(|written| file.sync_data().map(|()| written)) {
            Ok(written) => bytes += written as u64,
            Err(error) => {
                assert_eq!(error.errno(), 28, "{error:?}");
                return bytes;
            }
        }
    }
}

fn open_dir(volume: &TestVolume) -> (Filesystem, FileId) {
    let fs = volume.open();
    let dir = fs.mkdir(fs.root(), b"dir", &new(0o755)).unwrap();
    (fs, dir)
}

/// Returns the bytes that the kernel can write to a volume that contained the small files.
fn kernel_fills() -> u64 {
    let said = tempfile::NamedTempFile::new().unwrap();
    let script = format!(
        "mkdir dir; cd dir
         head -c $(({FILES} * {SMALL_BYTES})) /dev/zero | split -a 4 -b {SMALL_BYTES} - f; sync -f .
         find . -type f -delete; sync -f .; btrfs -q filesystem sync .; sleep 1; sync -f .
         ! dd if=/dev/zero of=fill bs=4M status=none; sync -f . || true
         stat -c %s fill > {}; rm fill",
        said.path().display()
    );
    drop(KernelImage::make(1, &[], "", &script));
    std::fs::read_to_string(said.path()).unwrap().trim().parse().unwrap()
}

#[test]
fn space_of_removed_names_is_reused_for_data() {
    let fresh = TestVolume::of(VOLUME_BYTES, &MkfsOptions::default());
    let (fs, dir) = open_dir(&fresh);
    let expected = fill(&fs, dir);
    fs.close().unwrap();
    drop(fresh);
    let volume = TestVolume::of(VOLUME_BYTES, &MkfsOptions::default());
    let (fs, dir) = open_dir(&volume);
    let mut rounds = Vec::new();
    for _ in 0..2 {
        make_small_files(&fs, dir);
        remove_all(&fs, dir);
        rounds.push(fill(&fs, dir));
        remove_all(&fs, dir);
    }
    eprintln!("fresh: {expected}; after small files: {rounds:?}");
    volume.reopen(fs);
    for round in &rounds {
        assert!(*round >= expected - expected / 50, "{round} of {expected} bytes are free again");
    }
    if kernel_is_here() {
        let kernel_after = kernel_fills();
        eprintln!("kernel: after small files {kernel_after}");
        for round in &rounds {
            assert!(*round + (16 << 20) >= kernel_after, "the kernel reclaims {kernel_after}");
        }
    }
}

#[test]
fn space_of_removed_data_is_reused_for_names() {
    let volume = TestVolume::of(VOLUME_BYTES, &MkfsOptions::default());
    let (fs, dir) = open_dir(&volume);
    for _ in 0..2 {
        fill(&fs, dir);
        remove_all(&fs, dir);
        make_small_files(&fs, dir);
        remove_all(&fs, dir);
    }
    volume.reopen(fs);
}
