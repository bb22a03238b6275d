//! The log of fsyncs: the kernel replays it, and finds exactly what was durable.
//!
//! A seeded workload creates, writes, truncates, punches, renames, links and deletes files through
//! the library, and syncs some of them. A model keeps, for each file, its state at the moment that
//! made it durable: its own sync, or a commit. Then the filesystem is abandoned, as by a crash, and
//! copies of the image are checked, opened by the library, which replays the log in memory and for
//! good, and mounted by the kernel, which replays it, too. Each is compared with the model: every
//! name, byte, mode and extended attribute.

use anyhow::{Context, Result, ensure};
use butternut::{
    Allocate, Compress, DevicePath, File, FileId, Filesystem, MountOptions, NewInode, RenameFlags,
    SetAttributes, SetXattr, Tunables,
};
use butternut_judges::kernel_log::Mark;
use butternut_judges::kernel_mount::{KernelMount, MountHow};
use butternut_judges::{kept, tool, trial};
use butternut_sim::random::Random;
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const VOLUME_BYTES: u64 = 1 << 30;
const BLOCK: u64 = 4096;
const SIZE_MAX: u64 = 300_000;
const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
const STEPS: usize = 240;

/// Options of mkfs.btrfs, and of the mount.
const KINDS: [(&str, &str, Option<&str>); 5] = [
    ("default", "", None),
    ("small-nodes", "-n 4096 --csum xxhash", None),
    ("mixed", "-M -n 4096", None),
    ("holes", "-O ^no-holes", None),
    ("zstd", "", Some("zstd")),
];

fn main() -> ExitCode {
    let seeds = if std::env::var_os("BUTTERNUT_LONG").is_some() { 60 } else { 3 };
    let mut trials = Vec::new();
    for (name, mkfs, compress) in KINDS {
        trials.push(trial::trial(&format!("log/{name}"), move || {
            (0..seeds).try_for_each(|seed| {
                let seed = seed + 1000 * name.len() as u64;
                judge(seed, mkfs, compress).with_context(|| format!("seed {seed}"))
            })
        }));
    }
    trial::run(trials)
}

/// What a file holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Content {
    bytes: Vec<u8>,
    mode: u32,
    xattrs: BTreeMap<String, Vec<u8>>,
}

struct Modelled {
    id: FileId,
    now: Content,
    durable: Option<Content>,
    is_committed: bool,
}

/// Directory and name.
type Name = (usize, &'static str);

struct Run {
    random: Random,
    filesystem: Filesystem,
    directories: Vec<FileId>,
    files: Vec<Modelled>,
    names: BTreeMap<Name, usize>,
    durable_names: BTreeMap<Name, usize>,
    commits: u64,
    fast: u64,
}

fn judge(seed: u64, mkfs: &str, compress: Option<&str>) -> Result<()> {
    let dir =
        tempfile::Builder::new().prefix("butternut-judge-fsync-").tempdir_in(kept::scratch())?;
    let image = dir.path().join("fsync.img");
    std::fs::File::create(&image)?.set_len(VOLUME_BYTES)?;
    tool::run("mkfs.btrfs", &tool::words_and_path(&format!("-q -K {mkfs}"), &image))?;
    let compressor = compress.map(str::parse).transpose()?;
    let compress = compressor.map(|compressor| Compress { compressor, is_forced: false });
    let options = MountOptions::default()
        .read_only(false)
        .commit_seconds(0)
        .compress(compress)
        .tunables(Tunables::default().log_tree(true));
    let filesystem = Filesystem::open(&[DevicePath::from(&image)], &options)?;
    let mut run = Run::new(seed, filesystem)?;
    for step in 0..STEPS {
        run.step().with_context(|| format!("step {step}"))?;
    }
    let copy = dir.path().join("crashed.img");
    tool::copy_sparse(&image, &copy)?;
    let Run { filesystem, files, durable_names, fast, .. } = run;
    filesystem.abandon();
    drop(filesystem);
    ensure!(fast > 10, "the log made {fast} syncs durable");
    check(&copy).context("before the replay")?;
    ours(&dir.path().join("ours.img"), &copy, &files, &durable_names).context("our replay")?;
    let mark = Mark::now()?;
    let mount = KernelMount::new(std::slice::from_ref(&copy), &MountHow::default())?;
    compare(mount.root(), &files, &durable_names)?;
    let device = mount.loops()[0].path().display().to_string();
    let complaints = mark.complaints(&[device.trim_start_matches("/dev/")])?;
    ensure!(complaints.is_empty(), "the kernel complains: {complaints:?}");
    mount.unmount()?;
    check(&copy).context("after the replay")
}

/// Replays the log of a copy ourselves: in memory, and for good.
fn ours(
    image: &Path,
    crashed: &Path,
    files: &[Modelled],
    names: &BTreeMap<Name, usize>,
) -> Result<()> {
    tool::copy_sparse(crashed, image)?;
    for read_only in [true, false] {
        let options = MountOptions::default().read_only(read_only);
        let filesystem = Filesystem::open(&[DevicePath::from(image)], &options)?;
        let notices = filesystem.notices();
        ensure!(notices.is_empty(), "{notices:?}");
        compare_ours(&filesystem, files, names)
            .with_context(|| format!("read_only: {read_only}"))?;
        filesystem.close()?;
    }
    check(image)?;
    let mount = KernelMount::new(&[image.to_owned()], &MountHow::default())?;
    compare(mount.root(), files, names).context("read by the kernel")?;
    mount.unmount()
}

/// Compares what the library shows with what was durable.
fn compare_ours(
    filesystem: &Filesystem,
    files: &[Modelled],
    names: &BTreeMap<Name, usize>,
) -> Result<()> {
    let root = filesystem.root();
    for (number, dir) in ["", "x", "y"].into_iter().enumerate() {
        let id = if dir.is_empty() { root } else { filesystem.lookup(root, dir.as_bytes())? };
        let entries = filesystem.read_dir(id, 0)?.collect::<butternut::Result<Vec<_>>>()?;
        let names_of = entries.iter().map(|entry| String::from_utf8_lossy(&entry.name));
        let have: BTreeSet<String> =
            names_of.filter(|name| name != "." && name != "..").map(Into::into).collect();
        let own = names.keys().filter(|name| name.0 == number).map(|name| name.1.to_owned());
        let mut want: BTreeSet<String> = own.collect();
        if number == 0 {
            want.extend(["x".to_owned(), "y".to_owned()]);
        }
        ensure!(have == want, "directory {dir:?}: have {have:?}, want {want:?}");
    }
    for (name, file) in names {
        let want = files[*file].durable.as_ref().context("a durable file")?;
        let path = Path::new("/").join(["", "x", "y"][name.0]).join(name.1);
        let open = filesystem.open_path(path.as_os_str().as_encoded_bytes())?;
        let stat = open.metadata()?;
        ensure!(open.id() == files[*file].id, "{name:?}: {:?}", open.id());
        let links = names.values().filter(|other| *other == file).count();
        ensure!(u64::from(stat.nlink) == links as u64, "{name:?}: {} links", stat.nlink);
        ensure!(stat.mode & 0o7777 == want.mode, "{name:?}: mode {:o}", stat.mode);
        ensure!(open.len() == want.bytes.len() as u64, "{name:?}: {} bytes", open.len());
        let mut bytes = vec![0; want.bytes.len()];
        open.read_exact_at(0, &mut bytes)?;
        let differs = bytes.iter().zip(&want.bytes).position(|(have, want)| have != want);
        ensure!(differs.is_none(), "{name:?}: byte {differs:?} differs");
        let keys = filesystem.xattr_names(open.id())?;
        let mut have = BTreeMap::new();
        for key in keys {
            let value = filesystem.xattr(open.id(), &key)?;
            have.insert(String::from_utf8_lossy(&key).into_owned(), value);
        }
        ensure!(have == want.xattrs, "{name:?}: xattrs differ");
    }
    Ok(())
}

fn check(image: &Path) -> Result<()> {
    tool::run("btrfs", &tool::words_and_path("check --check-data-csum", image)).map(drop)
}

impl Run {
    fn new(seed: u64, filesystem: Filesystem) -> Result<Self> {
        let root = filesystem.root();
        let mut directories = vec![root];
        for name in ["x", "y"] {
            directories.push(filesystem.mkdir(root, name.as_bytes(), &NewInode::new(0o755))?);
        }
        filesystem.sync()?;
        let commits = filesystem.stats().commits;
        Ok(Self {
            random: Random::new(seed),
            filesystem,
            directories,
            files: Vec::new(),
            names: BTreeMap::new(),
            durable_names: BTreeMap::new(),
            commits,
            fast: 0,
        })
    }

    fn name(&mut self) -> Name {
        (self.random.index(self.directories.len()), *self.random.pick(&NAMES))
    }

    fn at(&self, name: Name) -> (FileId, &'static [u8]) {
        (self.directories[name.0], name.1.as_bytes())
    }

    /// Chooses a name that a file has.
    fn existing(&mut self) -> Option<(Name, usize)> {
        let at = self.random.index(self.names.len().max(1));
        self.names.iter().nth(at).map(|(name, file)| (*name, *file))
    }

    fn step(&mut self) -> Result<()> {
        match self.random.below(24) {
            0..=3 => self.create()?,
            4 => self.link()?,
            5 => self.rename()?,
            6 => self.unlink()?,
            7 if self.random.one_in(6) => {
                self.filesystem.sync()?;
            }
            7..=17 => self.change()?,
            _ => self.fsync()?,
        }
        self.note_commits();
        Ok(())
    }

    /// A commit makes everything durable.
    fn note_commits(&mut self) {
        let commits = self.filesystem.stats().commits;
        if commits > self.commits {
            self.commits = commits;
            self.durable_names.clone_from(&self.names);
            for file in &mut self.files {
                file.durable = Some(file.now.clone());
                file.is_committed = true;
            }
        }
    }

    fn create(&mut self) -> Result<()> {
        let name = self.name();
        if self.names.contains_key(&name) {
            return Ok(());
        }
        let (dir, text) = self.at(name);
        let id = self.filesystem.create(dir, text, &NewInode::new(0o644))?;
        let now = Content { mode: 0o644, ..Content::default() };
        self.names.insert(name, self.files.len());
        self.files.push(Modelled { id, now, durable: None, is_committed: false });
        if self.random.one_in(2) { self.change_file(self.files.len() - 1) } else { Ok(()) }
    }

    fn link(&mut self) -> Result<()> {
        let new = self.name();
        let Some((_, file)) = self.existing().filter(|_| !self.names.contains_key(&new)) else {
            return Ok(());
        };
        let (dir, text) = self.at(new);
        self.filesystem.link(self.files[file].id, dir, text)?;
        self.names.insert(new, file);
        Ok(())
    }

    fn rename(&mut self) -> Result<()> {
        let new = self.name();
        let Some((old, file)) = self.existing() else { return Ok(()) };
        if self.names.get(&new) == Some(&file) {
            return Ok(());
        }
        self.filesystem.rename(self.at(old), self.at(new), RenameFlags::default())?;
        self.names.remove(&old);
        self.names.insert(new, file);
        Ok(())
    }

    fn unlink(&mut self) -> Result<()> {
        let Some((name, _)) = self.existing() else { return Ok(()) };
        let (dir, text) = self.at(name);
        self.filesystem.unlink(dir, text)?;
        self.names.remove(&name);
        Ok(())
    }

    fn change(&mut self) -> Result<()> {
        let Some((_, file)) = self.existing() else { return Ok(()) };
        self.change_file(file)
    }

    fn range(&mut self) -> (u64, u64) {
        let (start, bytes) = (self.random.below(SIZE_MAX), 1 + self.random.below(90_000));
        if self.random.one_in(2) {
            (start / BLOCK * BLOCK, bytes.next_multiple_of(BLOCK))
        } else {
            (start, bytes)
        }
    }

    fn change_file(&mut self, file: usize) -> Result<()> {
        let id = self.files[file].id;
        let open = self.filesystem.open_file(id)?;
        let (start, bytes) = self.range();
        let kind = self.random.below(12);
        let byte = u8::try_from(self.random.below(256))?;
        let small = self.random.below(1500);
        let content = &mut self.files[file].now;
        match kind {
            0..=3 => write(&open, content, start, bytes, byte, false)?,
            4 => write(&open, content, 0, small, byte, false)?,
            5 => write(
                &open,
                content,
                start / BLOCK * BLOCK,
                bytes.next_multiple_of(BLOCK),
                byte,
                true,
            )?,
            6 => {
                open.truncate(start)?;
                content.bytes.resize(usize::try_from(start)?, 0);
            }
            7 | 8 => {
                let how = if kind == 7 { Allocate::PunchHole } else { Allocate::ZeroKeepSize };
                open.allocate(start..start + bytes, how)?;
                let end = content.bytes.len().min(usize::try_from(start + bytes)?);
                let start = end.min(usize::try_from(start)?);
                content.bytes[start..end].fill(0);
            }
            9 => open.allocate(start..start + bytes, Allocate::KeepSize)?,
            10 => {
                let mode = 0o600 | u32::from(byte & 0o77);
                self.filesystem.set_attributes(
                    id,
                    &SetAttributes { mode: Some(mode), ..SetAttributes::default() },
                )?;
                content.mode = mode;
            }
            _ => {
                let key = format!("user.{}", ["one", "two", "three"][usize::from(byte) % 3]);
                if byte.is_multiple_of(4) && content.xattrs.remove(&key).is_some() {
                    self.filesystem.remove_xattr(id, key.as_bytes())?;
                } else {
                    let value = vec![byte; usize::from(byte)];
                    self.filesystem.set_xattr(id, key.as_bytes(), &value, SetXattr::Either)?;
                    content.xattrs.insert(key, value);
                }
            }
        }
        Ok(())
    }

    fn fsync(&mut self) -> Result<()> {
        let Some((_, file)) = self.existing() else { return Ok(()) };
        let before = self.filesystem.sync_counts().fast;
        self.filesystem.open_file(self.files[file].id)?.sync_all()?;
        let is_fast = self.filesystem.sync_counts().fast > before;
        if !is_fast {
            // The commit has only the data of this file: bring the others to a known state, too.
            self.filesystem.sync()?;
        }
        self.note_commits();
        if is_fast {
            self.fast += 1;
            self.files[file].durable = Some(self.files[file].now.clone());
            if !self.files[file].is_committed {
                self.durable_names.retain(|_, known| *known != file);
                let own = self.names.iter().filter(|(_, known)| **known == file);
                self.durable_names.extend(own.map(|(name, file)| (*name, *file)));
            }
        }
        Ok(())
    }
}

fn write(
    file: &File,
    content: &mut Content,
    start: u64,
    bytes: u64,
    first: u8,
    is_direct: bool,
) -> Result<()> {
    let data: Vec<u8> =
        (0..bytes).map(|at| first.wrapping_add((at / 97 % 256).to_le_bytes()[0])).collect();
    if is_direct {
        let written = file.write_direct(start, &data, butternut::Privileges::Keep)?;
        ensure!(written == data.len(), "a short direct write");
    } else {
        file.write_all_at(start, &data)?;
    }
    let (start, end) = (usize::try_from(start)?, usize::try_from(start + bytes)?);
    if content.bytes.len() < end {
        content.bytes.resize(end, 0);
    }
    content.bytes[start..end].copy_from_slice(&data);
    Ok(())
}

/// Compares what the kernel shows with what was durable.
fn compare(root: &Path, files: &[Modelled], names: &BTreeMap<Name, usize>) -> Result<()> {
    let path = |name: &Name| -> PathBuf { root.join(["", "x", "y"][name.0]).join(name.1) };
    for (number, dir) in ["", "x", "y"].into_iter().enumerate() {
        let mut have = BTreeSet::new();
        for entry in std::fs::read_dir(root.join(dir))? {
            have.insert(entry?.file_name().into_string().unwrap_or_default());
        }
        let own = names.keys().filter(|name| name.0 == number).map(|name| name.1.to_owned());
        let mut want: BTreeSet<String> = own.collect();
        if number == 0 {
            want.extend(["x".to_owned(), "y".to_owned()]);
        }
        ensure!(have == want, "directory {dir:?}: have {have:?}, want {want:?}");
    }
    for (name, file) in names {
        let want = files[*file].durable.as_ref().context("a durable file")?;
        let path = path(name);
        let meta = std::fs::metadata(&path)?;
        ensure!(meta.ino() == files[*file].id.ino, "{name:?}: inode {}", meta.ino());
        let links = names.values().filter(|other| *other == file).count();
        ensure!(meta.nlink() == links as u64, "{name:?}: {} links, want {links}", meta.nlink());
        let mode = meta.permissions().mode() & 0o7777;
        ensure!(mode == want.mode, "{name:?}: mode {mode:o}, want {:o}", want.mode);
        let bytes = std::fs::read(&path)?;
        ensure!(
            bytes.len() == want.bytes.len(),
            "{name:?}: {} bytes, want {}",
            bytes.len(),
            want.bytes.len()
        );
        if let Some(at) = bytes.iter().zip(&want.bytes).position(|(have, want)| have != want) {
            anyhow::bail!("{name:?}: byte {at} is {}, want {}", bytes[at], want.bytes[at]);
        }
        let mut list = vec![0; 4096];
        let length = rustix::fs::listxattr(&path, &mut list[..])?;
        let keys = list[..length].split(|byte| *byte == 0).filter(|key| !key.is_empty());
        let mut have = BTreeMap::new();
        for key in keys {
            let key = String::from_utf8_lossy(key).into_owned();
            let mut value = vec![0; 4096];
            let length = rustix::fs::getxattr(&path, &*key, &mut value[..])?;
            value.truncate(length);
            have.insert(key, value);
        }
        ensure!(have == want.xattrs, "{name:?}: xattrs differ");
    }
    Ok(())
}
