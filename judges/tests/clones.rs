//! Files that share extents: made by Butternut and read by the kernel, made by the kernel and
//! changed by Butternut, and made by `copy_file_range` on a mount. Each volume is checked by
//! btrfs-progs with all its data, and scrubbed by the kernel.

use anyhow::{Context, Result, ensure};
use butternut::{
    Allocate, AttributeFlags, Compress, DevicePath, Extent, ExtentKind, File, Filesystem,
    MountOptions, NewInode,
};
use butternut_judges::kernel_mount::{KernelMount, MountHow};
use butternut_judges::our_volume::OurVolume;
use butternut_judges::subjects::Mounted;
use butternut_judges::{kept, tool, trial};
use butternut_sys::mapped::Mapped;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const BLOCK: u64 = 4096;
const NO_COW: u32 = 0x80_0000;

/// The expected contents of files.
type Contents = BTreeMap<String, Vec<u8>>;

fn main() -> ExitCode {
    let mut trials = vec![
        trial::trial("kernel-reads", the_kernel_reads_our_clones),
        trial::trial("kernel-made", clones_of_the_kernel_are_changed),
    ];
    for (name, options) in [("default", ""), ("writeback", "writeback"), ("uncached", "uncached")] {
        let name = format!("mount::{name}");
        trials.push(trial::trial(&name, move || a_copy_on_a_mount_shares(options)));
    }
    trial::run(trials)
}

/// An image with an empty volume of the kernel's.
struct Image {
    path: PathBuf,
    _dir: tempfile::TempDir,
}

impl Image {
    fn new() -> Result<Self> {
        let dir = tempfile::tempdir_in(kept::scratch())?;
        let path = dir.path().join("clones.img");
        std::fs::File::create(&path)?.set_len(1 << 30)?;
        tool::run("mkfs.btrfs", &tool::words_and_path("-q -K", &path))?;
        Ok(Self { path, _dir: dir })
    }

    fn open(&self, compress: Option<Compress>) -> Result<Filesystem> {
        let options = MountOptions::default().read_only(false).compress(compress);
        Ok(Filesystem::open(&[DevicePath::from(&self.path)], &options)?)
    }

    fn kernel(&self) -> Result<KernelMount> {
        KernelMount::new(std::slice::from_ref(&self.path), &MountHow::default())
    }

    /// Checks the volume, compares it with what it is to hold, and lets the kernel scrub it, change
    /// it and delete from it.
    fn judge(&self, want: &Contents) -> Result<()> {
        self.check()?;
        let mount = self.kernel()?;
        compare(mount.root(), want)?;
        tool::run("btrfs", &tool::words_and_path("scrub start -B", mount.root()))?;
        for (number, name) in want.keys().enumerate() {
            let path = mount.root().join(name);
            if number.is_multiple_of(2) {
                std::fs::remove_file(path)?;
            } else {
                OpenOptions::new().write(true).open(path)?.write_all_at(&[1; 5000], 3000)?;
            }
        }
        mount.unmount()?;
        self.check()
    }

    fn check(&self) -> Result<()> {
        tool::run("btrfs", &tool::words_and_path("check --check-data-csum", &self.path)).map(drop)
    }
}

fn compare(root: &Path, want: &Contents) -> Result<()> {
    for (name, want) in want {
        let have = std::fs::read(root.join(name)).with_context(|| name.clone())?;
        ensure!(have.len() == want.len(), "{name}: {} bytes, want {}", have.len(), want.len());
        let wrong = have.iter().zip(want).position(|(have, want)| have != want);
        ensure!(wrong.is_none(), "{name}: byte {wrong:?} is wrong");
    }
    Ok(())
}

/// Returns bytes that differ from block to block.
fn bytes(seed: u64, count: u64) -> Vec<u8> {
    let byte = |at: u64| (at / BLOCK * 31 + at % 251 + seed).to_le_bytes()[0];
    (0..count).map(byte).collect()
}

fn put(into: &mut Vec<u8>, at: u64, bytes: &[u8]) -> Result<()> {
    let at = usize::try_from(at)?;
    into.resize(into.len().max(at + bytes.len()), 0);
    into[at..at + bytes.len()].copy_from_slice(bytes);
    Ok(())
}

fn cut(of: &[u8], from: u64, count: u64) -> Result<Vec<u8>> {
    Ok(of[usize::try_from(from)?..usize::try_from(from + count)?].to_vec())
}

fn make(fs: &Filesystem, name: &str, flags: u32) -> Result<File> {
    let new = NewInode { permissions: 0o644, umask: 0, uid: 0, gid: 0 };
    let id = fs.create(fs.root(), name.as_bytes(), &new)?;
    fs.set_attribute_flags(id, AttributeFlags(flags))?;
    Ok(fs.open_file(id)?)
}

fn open(fs: &Filesystem, name: &str) -> Result<File> {
    Ok(fs.open_file(fs.lookup(fs.root(), name.as_bytes())?)?)
}

/// Returns the addresses of the blocks of a file that are in data extents.
fn places(file: &File) -> Result<BTreeSet<u64>> {
    let mut found = BTreeSet::new();
    for extent in file.extents(0..u64::MAX) {
        let Extent { bytes, kind, .. } = extent?;
        if let ExtentKind::Regular { logical, extent_offset, .. } = kind {
            found.extend((0..bytes).step_by(4096).map(|at| logical + extent_offset + at));
        }
    }
    Ok(found)
}

fn the_kernel_reads_our_clones() -> Result<()> {
    let image = Image::new()?;
    let compress = Compress { compressor: "zstd:3".parse()?, is_forced: false };
    let fs = image.open(Some(compress))?;
    let mut want = Contents::new();
    // `chattr +C` and plain files, of holes, preallocated space and data that compresses or not.
    for (kind, flags) in [("plain", 0), ("nocow", NO_COW)] {
        let name = |what: &str| format!("{kind}-{what}");
        let source = make(&fs, &name("source"), flags)?;
        let mut of_source = Vec::new();
        for (at, data) in [(0, bytes(1, 70 * BLOCK)), (100 * BLOCK, vec![7; 300_000])] {
            source.write_at(at, &data)?;
            put(&mut of_source, at, &data)?;
        }
        source.allocate(200 * BLOCK..260 * BLOCK, Allocate::Extend)?;
        source.write_at(230 * BLOCK, &bytes(2, BLOCK))?;
        put(&mut of_source, 230 * BLOCK, &bytes(2, BLOCK))?;
        of_source.resize(260 * 4096, 0);
        let whole = make(&fs, &name("whole"), flags)?;
        whole.clone_range(0, &source, 0, 0)?;
        let parts = make(&fs, &name("parts"), flags)?;
        parts.write_at(0, &bytes(3, 300 * BLOCK))?;
        let mut of_parts = bytes(3, 300 * BLOCK);
        for (from, to, count) in [(10, 0, 30), (60, 50, 60), (110, 200, 20), (190, 240, 60)] {
            parts.clone_range(to * BLOCK, &source, from * BLOCK, count * BLOCK)?;
            put(&mut of_parts, to * BLOCK, &cut(&of_source, from * BLOCK, count * BLOCK)?)?;
        }
        let mut of_whole = of_source.clone();
        source.write_at(5 * BLOCK, &[8; 9000])?;
        put(&mut of_source, 5 * BLOCK, &[8; 9000])?;
        whole.write_at(210 * BLOCK, &[9; 4096])?;
        put(&mut of_whole, 210 * BLOCK, &[9; 4096])?;
        whole.sync_all()?;
        let again = make(&fs, &name("again"), flags)?;
        again.clone_range(0, &whole, 0, 0)?;
        want.insert(name("again"), of_whole.clone());
        want.insert(name("parts"), of_parts);
        want.insert(name("source"), of_source);
        want.insert(name("whole"), of_whole);
    }
    for (name, data) in [("inline", bytes(4, 1500)), ("compressed-inline", vec![5; 3000])] {
        let small = make(&fs, name, 0)?;
        small.write_at(0, &data)?;
        let copy = make(&fs, &format!("{name}-copy"), 0)?;
        copy.clone_range(0, &small, 0, 0)?;
        let behind = make(&fs, &format!("{name}-behind"), 0)?;
        behind.write_at(0, &[6; 100])?;
        behind.clone_range(BLOCK, &small, 0, 0)?;
        let mut of_behind = vec![6; 100];
        put(&mut of_behind, BLOCK, &data)?;
        want.insert(format!("{name}-behind"), of_behind);
        want.insert(format!("{name}-copy"), data.clone());
        want.insert(name.to_owned(), data);
    }
    fs.close()?;
    image.judge(&want)
}

fn clones_of_the_kernel_are_changed() -> Result<()> {
    let image = Image::new()?;
    let data = bytes(1, 400 * BLOCK + 99);
    let kernel = image.kernel()?;
    let open_at = |name: &str| -> Result<std::fs::File> {
        let path = kernel.root().join(name);
        Ok(OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?)
    };
    let source = open_at("source")?;
    source.write_all_at(&data, 0)?;
    source.sync_all()?;
    for name in ["changed", "deleted", "cut", "cloned-over"] {
        rustix::fs::ioctl_ficlone(open_at(name)?, &source).context("FICLONE")?;
    }
    drop(source);
    kernel.unmount()?;
    let fs = image.open(None)?;
    let mut want = Contents::new();
    // One side is changed, one deleted, one cut; what is left is cloned again.
    let change = vec![2; 100_000];
    open(&fs, "changed")?.write_at(100, &change)?;
    let mut of_changed = data.clone();
    put(&mut of_changed, 100, &change)?;
    fs.unlink(fs.root(), b"deleted")?;
    open(&fs, "cut")?.truncate(10 * BLOCK + 1)?;
    let again = make(&fs, "again", 0)?;
    again.clone_range(0, &open(&fs, "changed")?, 0, 0)?;
    let over = open(&fs, "cloned-over")?;
    over.clone_range(20 * BLOCK, &open(&fs, "source")?, 0, 20 * BLOCK)?;
    over.clone_range(400 * BLOCK, &over, 0, 3 * BLOCK)?;
    let mut of_over = data.clone();
    put(&mut of_over, 20 * BLOCK, &cut(&data, 0, 20 * BLOCK)?)?;
    put(&mut of_over, 400 * BLOCK, &cut(&data, 0, 3 * BLOCK)?)?;
    fs.sync()?;
    fs.unlink(fs.root(), b"source")?;
    want.insert("again".to_owned(), of_changed.clone());
    want.insert("changed".to_owned(), of_changed);
    want.insert("cloned-over".to_owned(), of_over);
    want.insert("cut".to_owned(), cut(&data, 0, 10 * BLOCK + 1)?);
    drop((again, over));
    fs.close()?;
    image.judge(&want)
}

/// Copies files of a mount, one with a page that is dirty in a mapping, over a file whose pages the
/// kernel has cached.
fn a_copy_on_a_mount_shares(options: &str) -> Result<()> {
    let mut volume = OurVolume::new(kept::scratch(), options)?;
    let mut data = bytes(1, 300 * BLOCK + 1000);
    let root = volume.root()?.to_owned();
    let open = |name: &str| -> Result<std::fs::File> {
        let path = root.join(name);
        Ok(OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?)
    };
    let (source, target) = (open("source")?, open("target")?);
    source.write_all_at(&data, 0)?;
    target.write_all_at(&bytes(2, 310 * BLOCK), 0)?;
    target.sync_all()?;
    let mut cached = vec![0; 4096];
    target.read_exact_at(&mut cached, 20 * BLOCK)?;
    let mapped = Mapped::shared(&source, data.len())?;
    mapped.put(10 * 4096 + 5, &[0xab; 50]);
    put(&mut data, 10 * BLOCK + 5, &[0xab; 50])?;
    let seen = Mapped::shared(&target, data.len())?;
    let (mut from, mut to, size) = (0, 0, u64::try_from(data.len())?);
    while from < size {
        let left = usize::try_from(size - from)?;
        let copied =
            rustix::fs::copy_file_range(&source, Some(&mut from), &target, Some(&mut to), left)?;
        ensure!(copied > 0, "copy_file_range stopped at {from}");
    }
    let mut of_target = bytes(2, 310 * BLOCK);
    put(&mut of_target, 0, &data)?;
    ensure!(std::fs::read(root.join("target"))? == of_target, "target differs");
    let mut in_mapping = vec![0; data.len()];
    seen.get(0, &mut in_mapping);
    ensure!(in_mapping == data, "the mapping of the target shows other bytes");
    let cp = [root.join("source"), root.join("copy")];
    let words = ["--reflink=auto".as_ref(), cp[0].as_os_str(), cp[1].as_os_str()];
    tool::run("cp", &words)?;
    // A change of either side leaves the other.
    let mut of_source = data.clone();
    source.write_all_at(&[0xcd; 10], 50 * BLOCK)?;
    put(&mut of_source, 50 * BLOCK, &[0xcd; 10])?;
    ensure!(std::fs::read(root.join("target"))? == of_target, "target differs after a change");
    ensure!(std::fs::read(root.join("copy"))? == data, "copy differs after a change");
    drop((source, target, mapped, seen));
    volume.unmount()?;
    let kernel = volume.kernel()?;
    let want = [("copy", data), ("source", of_source), ("target", of_target)];
    let want = want.into_iter().map(|(name, data)| (name.to_owned(), data)).collect();
    compare(kernel.root(), &want)?;
    tool::run("btrfs", &tool::words_and_path("scrub start -B", kernel.root()))?;
    kernel.unmount()?;
    let fs = Filesystem::open(&[DevicePath::from(volume.path())], &MountOptions::default())?;
    let shared = |name: &str| -> Result<usize> {
        let (one, other) = (self::open(&fs, "source")?, self::open(&fs, name)?);
        Ok(places(&one)?.intersection(&places(&other)?).count())
    };
    let (target, copy) = (shared("target")?, shared("copy")?);
    // The tail of a copy that ends inside the target is copied.
    ensure!(target >= 299 && copy >= 300, "{target} and {copy} blocks are shared");
    Ok(())
}
