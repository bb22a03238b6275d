//! Compressed files: the kernel reads ours, and we read the kernel's.
//!
//! For each algorithm, and for each way to enable it, the library writes text, noise and a mixture
//! of both, in sizes around sectors, inline extents and compressed extents, and then changes them
//! at random. The kernel reads the same bytes, shows the same extents as compressed, scrubs and
//! checks the volume. Then it clones some files and changes all of them, also with compression, and
//! the library reads the result.

use anyhow::{Context, Result, ensure};
use butternut::{
    Compress, Compression, DevicePath, ExtentKind, Filesystem, Follow, MountOptions, NewInode,
    SetXattr,
};
use butternut_judges::kernel_log::Mark;
use butternut_judges::kernel_mount::{KernelMount, MountHow};
use butternut_judges::{kept, tool, trial};
use butternut_sim::random::Random;
use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const VOLUME_BYTES: u64 = 1 << 30;
const BLOCK: u64 = 4096;
const SIZES: [usize; 20] = [
    1, 100, 1500, 2047, 2048, 2049, 3000, 4095, 4096, 4097, 8191, 8192, 8193, 65_536, 131_071,
    131_072, 131_073, 262_145, 400_000, 1_500_000,
];
const CHANGES: usize = 150;

type Files = BTreeMap<String, Vec<u8>>;

fn main() -> ExitCode {
    let algorithms = ["zlib", "zlib:9", "lzo", "zstd", "zstd:-5", "zstd:15"];
    let mut trials = Vec::new();
    for (seed, name) in (0..).zip(algorithms) {
        for how in [How::Option, How::Force, How::Property] {
            // Properties have no level.
            if how == How::Property && name.contains(':') {
                continue;
            }
            let label = format!("packing/{name}/{how:?}");
            trials.push(trial::trial(&label, move || judge(seed, name, how)));
        }
    }
    trial::run(trials)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    Option,
    Force,
    Property,
}

struct Volume {
    image: PathBuf,
    compress: Option<Compress>,
    _dir: tempfile::TempDir,
}

impl Volume {
    fn new(name: &str, how: How) -> Result<Self> {
        let dir = tempfile::Builder::new()
            .prefix("butternut-judge-packing-")
            .tempdir_in(kept::scratch())?;
        let image = dir.path().join("packing.img");
        std::fs::File::create(&image)?.set_len(VOLUME_BYTES)?;
        tool::run("mkfs.btrfs", &tool::words_and_path("-q -K", &image))?;
        let compress = Compress { compressor: name.parse()?, is_forced: how == How::Force };
        Ok(Self { image, compress: Some(compress).filter(|_| how != How::Property), _dir: dir })
    }

    fn ours(&self, read_only: bool) -> Result<Filesystem> {
        let options = MountOptions::default().read_only(read_only).compress(self.compress);
        Ok(Filesystem::open(&[DevicePath::from(&self.image)], &options)?)
    }

    fn kernel(&self, options: &str) -> Result<KernelMount> {
        let how = MountHow { options, ..MountHow::default() };
        KernelMount::new(std::slice::from_ref(&self.image), &how)
    }

    fn check(&self) -> Result<()> {
        tool::run("btrfs", &tool::words_and_path("check --check-data-csum", &self.image)).map(drop)
    }
}

fn judge(seed: u64, name: &str, how: How) -> Result<()> {
    let mut random = Random::new(seed);
    let volume = Volume::new(name, how)?;
    let property = name.split(':').next().filter(|_| how == How::Property);
    let mut files = write(&volume.ours(false)?, property, &mut random)?;
    let shown = compressed_blocks(&volume.ours(true)?, &files)?;
    ensure!(shown.values().any(|blocks| !blocks.is_empty()), "no file is compressed");
    volume.check()?;
    let mark = Mark::now()?;
    let mount = volume.kernel(&format!("compress={name}").replace(":-5", ":1"))?;
    let device = mount.loops()[0].path().to_path_buf();
    for (name, want) in &files {
        let have = std::fs::read(mount.root().join(name))?;
        ensure!(have == *want, "{name}: the kernel reads other bytes");
        let blocks = kernel_blocks(&mount.root().join(name))?;
        ensure!(blocks == shown[name], "{name}: the kernel shows other blocks as compressed");
    }
    let root = mount.root().as_os_str();
    tool::run("btrfs", &["scrub".as_ref(), "start".as_ref(), "-B".as_ref(), root])?;
    // Extents that two files share from here on.
    for name in ["text-400000", "both-1500000"] {
        let (from, to) = (mount.root().join(name), mount.root().join(format!("{name}-too")));
        tool::run("cp", &["--reflink=always".as_ref(), from.as_os_str(), to.as_os_str()])?;
        files.insert(format!("{name}-too"), files[name].clone());
    }
    for _ in 0..CHANGES {
        let (name, at, bytes) = change(&mut files, &mut random);
        let file = std::fs::File::options().write(true).open(mount.root().join(name))?;
        file.write_all_at(&bytes, at)?;
    }
    mount.unmount()?;
    let device = device.file_name().context("a loop device")?.to_string_lossy().into_owned();
    let complaints = mark.complaints(&[&device])?;
    ensure!(complaints.is_empty(), "{complaints:?}");
    let fs = volume.ours(false)?;
    compare(&fs, &files)?;
    change_ours(&fs, &mut files, &mut random)?;
    fs.close()?;
    compare(&volume.ours(true)?, &files)?;
    volume.check()
}

/// Fills a volume, and changes some of its files.
fn write(fs: &Filesystem, property: Option<&str>, random: &mut Random) -> Result<Files> {
    if let Some(value) = property {
        let compression = b"btrfs.compression";
        fs.set_xattr(fs.root(), compression, value.as_bytes(), SetXattr::Either)?;
    }
    let mut files = Files::new();
    for kind in 0..3 {
        for size in SIZES {
            let name = format!("{}-{size}", ["text", "noise", "both"][usize::from(kind)]);
            let bytes = content(kind, size, random);
            let id = fs.create(fs.root(), name.as_bytes(), &NewInode::new(0o644))?;
            fs.open_file(id)?.write_at(0, &bytes)?;
            files.insert(name, bytes);
        }
    }
    change_ours(fs, &mut files, random)?;
    fs.sync()?;
    Ok(files)
}

fn change_ours(fs: &Filesystem, files: &mut Files, random: &mut Random) -> Result<()> {
    for number in 0..CHANGES {
        let (name, at, bytes) = change(files, random);
        let file = fs.open_file(fs.resolve(name.as_bytes(), Follow::Last)?)?;
        file.write_at(at, &bytes)?;
        if number % 40 == 39 {
            file.sync_all()?;
        }
        if number % 10 == 9 {
            let bytes = files.get_mut(&name).context("a file")?;
            bytes.truncate(bytes.len() * 3 / 4);
            file.truncate(bytes.len() as u64)?;
        }
    }
    Ok(())
}

/// Returns a change that was already applied to `files`.
fn change(files: &mut Files, random: &mut Random) -> (String, u64, Vec<u8>) {
    let number = random.index(files.len());
    let (name, file) = files.iter_mut().nth(number).expect("a file with this number");
    let at = random.index(file.len() + 1);
    let bound = [50, 5000, 200_000][random.index(3)];
    let size = 1 + random.index(bound);
    let kind = u8::try_from(random.below(3)).expect("one of three");
    let bytes = content(kind, size, random);
    file.resize(file.len().max(at + size), 0);
    file[at..at + size].copy_from_slice(&bytes);
    (name.clone(), at as u64, bytes)
}

/// Returns text, noise, or a mixture of both.
fn content(kind: u8, size: usize, random: &mut Random) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(size + 9000);
    while bytes.len() < size {
        if kind == 0 || kind == 2 && random.one_in(2) {
            let words = [&b"a gourd "[..], b"is ", b"not ", b"a melon; ", b"nor "];
            (0..1000).for_each(|_| bytes.extend_from_slice(words[random.index(words.len())]));
        } else {
            (0..5000).for_each(|_| bytes.extend_from_slice(&random.below(u64::MAX).to_le_bytes()));
        }
    }
    bytes.truncate(size);
    bytes
}

fn compare(fs: &Filesystem, files: &Files) -> Result<()> {
    for (name, want) in files {
        let file = fs.open_file(fs.resolve(name.as_bytes(), Follow::Last)?)?;
        let mut have = vec![0; want.len() + 1];
        let bytes = file.read_at(0, &mut have)?;
        ensure!(have[..bytes] == want[..], "{name}: {bytes} bytes, or others");
    }
    Ok(())
}

/// Returns the blocks of each file that the library shows as compressed.
fn compressed_blocks(fs: &Filesystem, files: &Files) -> Result<BTreeMap<String, Vec<u64>>> {
    let mut shown = BTreeMap::new();
    for name in files.keys() {
        let file = fs.open_file(fs.resolve(name.as_bytes(), Follow::Last)?)?;
        let mut blocks = Vec::new();
        for extent in file.extents(0..u64::MAX) {
            let extent = extent?;
            let is_packed = match extent.kind {
                ExtentKind::Regular { compression, .. } | ExtentKind::Inline { compression } => {
                    compression != Compression::None
                }
                ExtentKind::Hole | ExtentKind::Prealloc { .. } | ExtentKind::Buffered => false,
            };
            if is_packed {
                let end = (extent.offset + extent.bytes).div_ceil(BLOCK);
                blocks.extend(extent.offset / BLOCK..end);
            }
        }
        shown.insert(name.clone(), blocks);
    }
    Ok(shown)
}

/// Returns the blocks of a file that the kernel shows as compressed, by FIEMAP through filefrag.
fn kernel_blocks(path: &Path) -> Result<Vec<u64>> {
    let listed = tool::text("filefrag", &["-v".as_ref(), "-b4096".as_ref(), path.as_os_str()])?;
    let mut blocks = Vec::new();
    for line in listed.lines().filter(|line| line.contains("encoded")) {
        if line.contains("inline") {
            // An inline extent, whose length is in bytes.
            blocks.push(0);
            continue;
        }
        let field = line.split(':').nth(1).context("a range of blocks")?;
        let (first, last) = field.split_once("..").context("a range of blocks")?;
        blocks.extend(first.trim().parse::<u64>()?..=last.trim().parse()?);
    }
    Ok(blocks)
}
